//! `localplane down`: ends the supervisor, and with it everything that it started.

use std::{
    fs, io,
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use clap::Args;
use rustix::process::{Pid, Signal, kill_process};

use super::Place;
use crate::plane::{PlaneFolder, ProcessState, State};

const PATIENCE: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(10);

#[derive(Debug, Args)]
pub(super) struct Down {
    #[command(flatten)]
    place: Place,
    /// Keep the folder: the next `up` goes on with the same data
    #[arg(long)]
    keep_data: bool,
}

impl Down {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let folder = self.place.folder();
        match folder.running()? {
            Some(state) => end(&folder, &state)?,
            None => eprintln!("localplane: no plane runs in {}", folder.path().display()),
        }
        if !self.keep_data {
            remove(&folder)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The lock said that a supervisor lives; the number and the time of its start say that it is this process.
fn end(folder: &PlaneFolder, state: &State) -> anyhow::Result<()> {
    if !state.supervisor.is_alive() {
        bail!("{} is locked, but not by the process {} that it names", folder.path().display(), state.supervisor.pid);
    }
    signal(state.supervisor, Signal::TERM)?;
    let mut everyone: Vec<_> = state.components.values().filter_map(|component| component.process).collect();
    everyone.push(state.supervisor);
    let deadline = Instant::now() + PATIENCE;
    while folder.try_lock()?.is_none() || everyone.iter().any(ProcessState::is_alive) {
        if Instant::now() > deadline {
            bail!("process {} did not end within {PATIENCE:?}", state.supervisor.pid);
        }
        thread::sleep(POLL);
    }
    Ok(())
}

fn signal(process: ProcessState, signal: Signal) -> anyhow::Result<()> {
    let pid = i32::try_from(process.pid).ok().and_then(Pid::from_raw).context("not a process number")?;
    kill_process(pid, signal).with_context(|| format!("sending a signal to process {pid:?}"))
}

/// Removes a plane's folder, and nothing that only looks like one.
fn remove(folder: &PlaneFolder) -> anyhow::Result<()> {
    if folder.spec()?.is_none() {
        return Ok(());
    }
    match fs::remove_dir_all(folder.path()) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("removing {}", folder.path().display()))
        }
        _ => Ok(()),
    }
}
