//! Builds programs from Go modules at the pinned version, with the installed `go`.

use std::{
    collections::VecDeque,
    env, fs, io,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use super::{Bundle, Program, Progress};

/// Number of lines of compiler output in an error.
const TAIL: usize = 12;

/// Path of the `go` to use instead of the one in PATH.
const GO_ENV: &str = "LOCALPLANE_GO";

#[derive(Debug, thiserror::Error)]
pub(super) enum BuildError {
    #[error("go not found (searched {0})")]
    NoGo(String),
    #[error("cannot write the module to {path}: {source}", path = path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("cannot start {go}: {source}", go = go.display())]
    Start { go: PathBuf, source: io::Error },
    #[error("go build failed ({status}):\n{tail}")]
    Failed { status: std::process::ExitStatus, tail: String },
    #[error("go build succeeded but created no {0}")]
    Nothing(Program),
}

/// Builds these programs of a bundle into `folder` and returns their paths.
pub(super) fn build(
    bundle: Bundle,
    programs: &[Program],
    folder: &Path,
) -> Result<Vec<(Program, PathBuf)>, BuildError> {
    let go = find_go()?;
    let source = folder.join("source");
    for file in bundle.module().files {
        let path = source.join(file.path);
        path.parent()
            .map_or(Ok(()), fs::create_dir_all)
            .and_then(|()| fs::write(&path, file.text))
            .map_err(|source| BuildError::Write { path, source })?;
    }
    let names = programs.iter().map(|p| p.file_name()).collect::<Vec<_>>().join(", ");
    let step = Progress::start(format!("building {names} ({bundle}) with Go; this takes minutes, but only once"));
    match compile(&go, command(&go, bundle, programs, &source, folder), &step) {
        Ok(()) => step.finish(),
        Err(error) => {
            step.fail(&error.to_string());
            return Err(error);
        }
    }
    programs
        .iter()
        .map(|program| {
            let path = folder.join(program.file_name());
            if path.is_file() { Ok((*program, path)) } else { Err(BuildError::Nothing(*program)) }
        })
        .collect()
}

/// Returns the command that builds these programs from `source` into the folder `out`.
fn command(go: &Path, bundle: Bundle, programs: &[Program], source: &Path, out: &Path) -> Command {
    // With the trailing slash, go writes one file per package into the folder.
    let out = format!("{}/", out.display());
    let mut command = Command::new(go);
    command
        .args([
            "build",
            "-v",
            "-mod=readonly",
            "-trimpath",
            "-buildvcs=false",
            "-tags",
            bundle.tags(),
            "-ldflags",
            &bundle.ldflags(),
            "-o",
            &out,
        ])
        .args(programs.iter().map(|program| program.package()))
        .current_dir(source)
        .env("CGO_ENABLED", if bundle.needs_cgo() { "1" } else { "0" })
        .env("GOWORK", "off")
        .env("GO111MODULE", "on")
        .env_remove("GOOS")
        .env_remove("GOARCH")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    command
}

fn compile(go: &Path, mut command: Command, step: &Progress) -> Result<(), BuildError> {
    let start_error = |source| BuildError::Start { go: go.to_owned(), source };
    let mut child = command.spawn().map_err(start_error)?;
    let mut tail = VecDeque::new();
    let mut packages = 0_u32;
    if let Some(stderr) = child.stderr.take() {
        for line in BufReader::new(stderr).split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line).into_owned();
            // `-v` prints the import path of each compiled package.
            if is_import_path(&line) {
                packages += 1;
                step.detail(&format!("{packages} packages"));
            } else if !line.starts_with("go: downloading ") && !line.is_empty() {
                tail.push_back(line);
                if tail.len() > TAIL {
                    tail.pop_front();
                }
            }
        }
    }
    let status = child.wait().map_err(start_error)?;
    if status.success() { Ok(()) } else { Err(BuildError::Failed { status, tail: Vec::from(tail).join("\n") }) }
}

fn is_import_path(line: &str) -> bool {
    !line.is_empty() && line.bytes().all(|b| b.is_ascii_alphanumeric() || b"/._-~+".contains(&b))
}

fn find_go() -> Result<PathBuf, BuildError> {
    if let Some(named) = env::var_os(GO_ENV).filter(|value| !value.is_empty()) {
        let named = PathBuf::from(named);
        return if named.is_file() { Ok(named) } else { Err(BuildError::NoGo(named.display().to_string())) };
    }
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain([PathBuf::from("/usr/local/go/bin")])
        .map(|folder| folder.join("go"))
        .find(|candidate| candidate.is_file())
        .ok_or_else(|| BuildError::NoGo("PATH and /usr/local/go/bin".to_owned()))
}
