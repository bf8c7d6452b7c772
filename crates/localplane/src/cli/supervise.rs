//! `localplane supervise`: the background process of `up`. It owns the plane and restarts crashed
//! components.

use std::{process::ExitCode, thread, time::Duration};

use anyhow::Context;
use clap::Args;

use super::PlaneArgs;
use crate::plane::Plane;

const POLL: Duration = Duration::from_millis(500);
/// Maximum backoff between attempts to restart a component that keeps crashing.
const MAX_BACKOFF: Duration = Duration::from_secs(10);

#[derive(Debug, Args)]
pub(super) struct Supervise {
    #[command(flatten)]
    plane: PlaneArgs,
}

impl Supervise {
    /// SIGTERM is not handled: the children end with this process, and etcd tolerates SIGKILL.
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let folder = self.plane.folder();
        let spec =
            folder.spec()?.with_context(|| format!("no plane in {}: spec.json is missing", folder.path().display()))?;
        let plane = Plane::from_spec(spec, folder.path())?;
        let mut pause = POLL;
        loop {
            thread::sleep(pause);
            // Removing the folder stops the plane.
            if !plane.is_in_place() {
                break;
            }
            let mut failed = false;
            for (component, status) in plane.dead() {
                eprintln!("{component} exited ({status}), restarting");
                if let Err(error) = plane.restart(component) {
                    eprintln!("{component} could not be restarted: {error}");
                    failed = true;
                }
            }
            pause = if failed { (pause * 2).min(MAX_BACKOFF) } else { POLL };
        }
        eprintln!("the folder of the plane was removed, exiting");
        Ok(ExitCode::SUCCESS)
    }
}
