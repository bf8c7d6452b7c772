//! `localplane down`: stops the supervisor and with it all components.

use std::{
    fs, io,
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use clap::Args;
use rustix::process::{Pid, Signal, kill_process};

use super::PlaneArgs;
use crate::plane::{PlaneFolder, PlaneState, ProcessState};

/// Maximum time for all processes to end.
const TIMEOUT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(10);

#[derive(Debug, Args)]
pub(super) struct Down {
    #[command(flatten)]
    plane: PlaneArgs,
    /// Keep the folder, so that the next `up` continues with the same data
    #[arg(long)]
    keep_data: bool,
}

impl Down {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let folder = self.plane.folder();
        match folder.running()? {
            Some(state) => stop(&folder, &state)?,
            None => eprintln!("localplane: no plane is running in {}", folder.path().display()),
        }
        if !self.keep_data {
            remove(&folder)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Stops the supervisor. The lock shows that a supervisor is alive; its pid and start time show
/// that it is this process.
fn stop(folder: &PlaneFolder, state: &PlaneState) -> anyhow::Result<()> {
    if !state.supervisor.is_alive() {
        bail!("{} is locked, but not by process {} of its plane.json", folder.path().display(), state.supervisor.pid);
    }
    signal(state.supervisor, Signal::TERM)?;
    let mut processes: Vec<_> = state.components.values().filter_map(|component| component.process).collect();
    processes.push(state.supervisor);
    let deadline = Instant::now() + TIMEOUT;
    while folder.try_lock()?.is_none() || processes.iter().any(ProcessState::is_alive) {
        if Instant::now() > deadline {
            bail!("process {} did not end within {TIMEOUT:?}", state.supervisor.pid);
        }
        thread::sleep(POLL);
    }
    Ok(())
}

fn signal(process: ProcessState, signal: Signal) -> anyhow::Result<()> {
    let pid = i32::try_from(process.pid).ok().and_then(Pid::from_raw).context("invalid process id")?;
    kill_process(pid, signal).with_context(|| format!("cannot send a signal to process {pid:?}"))
}

/// Removes the folder of a plane. A folder without a `spec.json` is not a plane and is not removed.
fn remove(folder: &PlaneFolder) -> anyhow::Result<()> {
    if folder.spec()?.is_none() {
        return Ok(());
    }
    match fs::remove_dir_all(folder.path()) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", folder.path().display()))
        }
        _ => Ok(()),
    }
}
