//! The process that `make up` leaves running. It owns the plane and the operator, and both end with
//! it, however it ends.

use std::{fs, path::PathBuf, thread, time::Duration};

use anyhow::Context as _;
use localplane::{Plane, Process, ProcessState};

use perennial_harness::install::Installed;

use crate::Paths;

/// Argument that makes `up` the supervisor.
pub(crate) const COMMAND: &str = "supervise";
const NODES: usize = 3;
const POLL: Duration = Duration::from_millis(500);

/// SIGTERM is not handled: whatever ends this process ends its children, and etcd recovers from
/// that.
pub(crate) fn run(paths: &Paths) -> anyhow::Result<()> {
    let cluster = Plane::builder().dir(paths.plane.path()).everything().nodes(NODES).start()?;
    let kubectl = PathBuf::from(cluster.kubectl().get_program());
    let installed = Installed::new(cluster.folder(), paths.bin(), &kubectl)?;
    let mut operator = start(paths, &installed)?;

    // Removing the folder by hand stops the supervisor.
    while cluster.kubeconfig_path().exists() {
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

fn start(paths: &Paths, installed: &Installed) -> anyhow::Result<Process> {
    let operator = installed.start(true)?;
    let state = serde_json::to_string(&ProcessState::of(operator.pid()))?;
    // Atomic: `make up` waits for this file.
    let path = paths.operator();
    let draft = path.with_extension("new");
    fs::write(&draft, state).and_then(|()| fs::rename(&draft, &path)).context("writing the readiness file")?;
    Ok(operator)
}
