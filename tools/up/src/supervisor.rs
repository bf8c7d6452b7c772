//! The process that `make up` leaves running. It owns the plane and the operator, and both end with
//! it, however it ends.

use std::{
    fs, io,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use anyhow::Context as _;
use localplane::{Plane, Process, ProcessState};

use perennial_harness::install::Installed;

use crate::Paths;

/// Argument that makes `up` the supervisor.
pub(crate) const COMMAND: &str = "supervise";
/// Environment variable with the process that waits for the start.
pub(crate) const PARENT: &str = "UP_PARENT";
const NODES: usize = 3;
const POLL: Duration = Duration::from_millis(500);
/// Number of times that the removal of the folder is tried again.
const REMOVALS: usize = 20;

/// SIGTERM is not handled: whatever ends this process ends its children, and etcd recovers from
/// that.
pub(crate) fn run(paths: &Paths) -> anyhow::Result<()> {
    let ended = supervise(paths);
    // Also if the start failed: its log has no reader any more.
    if is_abandoned(paths) {
        return remove(&paths.folder);
    }
    ended
}

/// Runs the plane and the operator until their folder is removed or the start is abandoned.
fn supervise(paths: &Paths) -> anyhow::Result<()> {
    let cluster = Plane::builder().dir(paths.plane.path()).everything().nodes(NODES).start()?;
    let kubectl = PathBuf::from(cluster.kubectl().get_program());
    let installed = Installed::new(cluster.folder(), paths.bin(), &kubectl)?;
    let mut operator = start(paths, &installed)?;

    // Removing the folder by hand stops the supervisor.
    while cluster.kubeconfig_path().exists() {
        if is_abandoned(paths) {
            return Ok(());
        }
        for (component, status) in cluster.dead() {
            eprintln!("{component} exited ({status}), restarting it");
            if let Err(error) = cluster.restart(component) {
                eprintln!("restarting {component} failed: {error}");
            }
        }
        if let Some(status) = operator.ended() {
            eprintln!("perennial exited ({status}), restarting it");
            match start(paths, &installed) {
                Ok(process) => operator = process,
                Err(error) => eprintln!("restarting perennial failed: {error:#}"),
            }
        }
        thread::sleep(POLL);
    }
    eprintln!("folder removed, stopping");
    Ok(())
}

/// Returns whether `make up` was interrupted before it has succeeded.
fn is_abandoned(paths: &Paths) -> bool {
    let parent = std::env::var(PARENT).ok();
    !paths.started().exists() && parent.is_some_and(|parent| !Path::new("/proc").join(parent).exists())
}

/// Removes a folder. A process that was just killed may still add a file to it.
fn remove(folder: &Path) -> anyhow::Result<()> {
    for _ in 0..REMOVALS {
        match fs::remove_dir_all(folder) {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => thread::sleep(POLL),
            other => return other.context("removing the folder"),
        }
    }
    fs::remove_dir_all(folder).context("removing the folder")
}

fn start(paths: &Paths, installed: &Installed) -> anyhow::Result<Process> {
    let operator = installed.start(true)?;
    let state = serde_json::to_string(&ProcessState::of(operator.pid()))?;
    // Atomic: `make up` waits for this file.
    let path = paths.operator();
    let draft = path.with_extension("new");
    fs::write(&draft, state).and_then(|()| fs::rename(&draft, &path)).context("writing the readiness file")?;
    Ok(operator)
}
