//! Typical kopf operator in its own virtual environment.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use localplane::Process;

use crate::report::progress;

const PROGRAM: &str = include_str!("kopf_keeper.py");
/// Versions that work together, with the SHA-256 of each file.
const REQUIREMENTS: &str = include_str!("kopf_requirements.txt");

/// Starts it. Returns `None`, with a message, if Python or its packages are not available.
pub(crate) fn start(kubeconfig: &Path, namespace: &str, log: &Path) -> Option<Process> {
    let environment = match environment() {
        Ok(environment) => environment,
        Err(why) => {
            progress(&format!("skipping the kopf operator: {why}"));
            return None;
        }
    };
    let program = environment.join("keeper.py");
    fs::write(&program, PROGRAM).expect("writing the kopf operator");
    let words = [
        format!("KUBECONFIG={}", kubeconfig.display()),
        format!("KEEPER_NAMESPACE={namespace}"),
        environment.join("bin/kopf").display().to_string(),
        "run".to_owned(),
        "--all-namespaces".to_owned(),
        "--quiet".to_owned(),
        program.display().to_string(),
    ];
    Some(Process::start("env".as_ref(), &words, log).expect("the kopf operator starts"))
}

fn environment() -> Result<PathBuf, String> {
    let folder = std::path::absolute(".bench/kopf").map_err(|error| error.to_string())?;
    if folder.join("bin/kopf").exists() {
        return Ok(folder);
    }
    progress("installing kopf");
    let run = |command: &mut Command| {
        let output = command.stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
        if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()) }
    };
    run(Command::new("python3").args(["-m", "venv"]).arg(&folder))?;
    let requirements = folder.join("requirements.txt");
    fs::write(&requirements, REQUIREMENTS).map_err(|error| error.to_string())?;
    let install = ["install", "--quiet", "--require-hashes", "--requirement"];
    run(Command::new(folder.join("bin/pip")).args(install).arg(&requirements))?;
    Ok(folder)
}
