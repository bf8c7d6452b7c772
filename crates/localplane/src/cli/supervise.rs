//! The process that `up` leaves behind: it holds the plane, and the plane ends with it.

use std::{process::ExitCode, thread, time::Duration};

use anyhow::Context;
use clap::Args;

use super::Place;
use crate::plane::Plane;

const POLL: Duration = Duration::from_millis(500);
/// The longest pause between attempts to bring back a component that crashes again and again.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

#[derive(Debug, Args)]
pub(super) struct Supervise {
    #[command(flatten)]
    place: Place,
}

impl Supervise {
    /// SIGTERM is not caught: ending this process in any way ends its children, and etcd bears it.
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let folder = self.place.folder();
        let spec = folder.spec()?.with_context(|| format!("no plane is described in {}", folder.path().display()))?;
        let plane = Plane::from_spec(spec, folder.path())?;
        // Somebody who removes the folder by hand means the plane, too.
        let mut pause = POLL;
        loop {
            thread::sleep(pause);
            if !plane.is_in_place() {
                break;
            }
            let mut failed = false;
            for (component, status) in plane.dead() {
                eprintln!("{component} ended ({status}), starting it again");
                if let Err(error) = plane.restart(component) {
                    eprintln!("{component} did not come back: {error}");
                    failed = true;
                }
            }
            pause = if failed { (pause * 2).min(LONGEST_PAUSE) } else { POLL };
        }
        eprintln!("the folder is gone, and so are we");
        Ok(ExitCode::SUCCESS)
    }
}
