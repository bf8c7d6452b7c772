//! Takes a program from a Debian package, without installing it.
//!
//! For runc, whose seccomp support needs a C library that the Go module proxy does not have. The
//! library itself is part of every Debian system, since apt depends on it. Package lists are read
//! into a temporary folder; nothing of the system changes.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use super::{Program, Progress};

/// Returns the package and the file in it.
pub(super) fn package(program: Program) -> Option<(&'static str, &'static str)> {
    match program {
        Program::Runc => Some(("runc", "usr/sbin/runc")),
        _ => None,
    }
}

/// Downloads the package of a program into `folder` and returns the unpacked file.
pub(super) fn get(program: Program, folder: &Path) -> Result<PathBuf, String> {
    let Some((package, member)) = package(program) else { return Err("not a Debian package".to_owned()) };
    let step = Progress::start(format!("downloading the Debian package {package}"));
    let result = unpack(package, member, &folder.join("debian"));
    match &result {
        Ok(_) => step.finish(),
        Err(error) => step.fail(error),
    }
    result
}

fn unpack(package: &str, member: &str, folder: &Path) -> Result<PathBuf, String> {
    for needed in ["lists/partial", "archives/partial", "files"] {
        fs::create_dir_all(folder.join(needed)).map_err(|error| error.to_string())?;
    }
    apt(folder, &["update"])?;
    apt(folder, &["download", package])?;
    let archive = fs::read_dir(folder)
        .map_err(|error| error.to_string())?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|extension| extension == "deb"))
        .ok_or("apt-get downloaded no package")?;
    let files = folder.join("files");
    run(Command::new("dpkg-deb").arg("--extract").arg(archive).arg(&files))?;
    let file = files.join(member);
    if file.is_file() { Ok(file) } else { Err(format!("the package contains no {member}")) }
}

fn apt(folder: &Path, args: &[&str]) -> Result<(), String> {
    let mut command = Command::new("apt-get");
    command
        .arg("--quiet")
        .args(["-o", &format!("Dir::State::Lists={}", folder.join("lists").display())])
        .args(["-o", &format!("Dir::Cache={}", folder.display())])
        .args(["-o", "APT::Sandbox::User=root"])
        .args(args)
        .current_dir(folder);
    run(&mut command)
}

/// Runs a command and returns the end of its errors.
fn run(command: &mut Command) -> Result<(), String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    let last = errors.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("no reason given");
    Err(format!("{program} failed ({}): {last}", output.status))
}
