//! What `make up` leaves behind: it holds the plane and the operator, and both end with it, however it ends.

use std::{fs, path::PathBuf, thread, time::Duration};

use anyhow::Context as _;
use localplane::{Plane, Process, ProcessState};

use perennial_harness::install::Installed;

use crate::Place;

/// How `up` is called to be the supervisor.
pub(crate) const COMMAND: &str = "supervise";
const NODES: usize = 3;
const POLL: Duration = Duration::from_millis(500);

/// SIGTERM is not caught: ending this process in any way ends its children, and etcd bears it.
pub(crate) fn run(place: &Place) -> anyhow::Result<()> {
    let cluster = Plane::builder().dir(place.plane.path()).everything().nodes(NODES).start()?;
    let kubectl = PathBuf::from(cluster.kubectl().get_program());
    let installed = Installed::new(cluster.folder(), place.bin(), &kubectl)?;
    let mut operator = start(place, &installed)?;

    // Somebody who removes the folder by hand means us, too.
    while cluster.kubeconfig_path().exists() {
        for (component, status) in cluster.dead() {
            eprintln!("{component} ended ({status}), starting it again");
            if let Err(error) = cluster.restart(component) {
                eprintln!("{component} did not come back: {error}");
            }
        }
        if let Some(status) = operator.ended() {
            eprintln!("perennial ended ({status}), starting it again");
            match start(place, &installed) {
                Ok(process) => operator = process,
                Err(error) => eprintln!("perennial did not come back: {error:#}"),
            }
        }
        thread::sleep(POLL);
    }
    eprintln!("the folder is gone, and so are we");
    Ok(())
}

fn start(place: &Place, installed: &Installed) -> anyhow::Result<Process> {
    let operator = installed.start(true)?;
    let state = serde_json::to_string(&ProcessState::of(operator.pid()))?;
    // Whole or not at all: somebody waits for this file.
    let path = place.operator();
    let draft = path.with_extension("new");
    fs::write(&draft, state).and_then(|()| fs::rename(&draft, &path)).context("saying that perennial is ready")?;
    Ok(operator)
}
