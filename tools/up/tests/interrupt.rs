//! `make up` that is interrupted with Ctrl-C leaves no process and no folder behind.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failure here fails the test")]

use std::{
    env, fs,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process_group};

const PATIENCE: Duration = Duration::from_mins(3);

/// A folder to start in, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let folder = env::temp_dir().join(format!("perennial-up-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Returns the processes that were started in a folder or with a file of it.
fn processes_of(folder: &Path) -> Vec<String> {
    let folder = folder.display().to_string();
    let lines =
        fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " ")).filter(|line| line.contains(&folder)).collect()
}

#[test]
fn an_interrupted_start_leaves_nothing_behind() {
    let folder = Folder::new();
    let up = folder.0.join(".up");
    // A shell ignores SIGINT for what it runs in the background, this test included.
    let mut start = Command::new("env");
    start.arg("--default-signal=INT").arg(env!("CARGO_BIN_EXE_up"));
    // A process group of its own, as a shell gives it, so that the signal is that of Ctrl-C.
    start.arg("start").current_dir(&folder.0).process_group(0).stdin(Stdio::null()).stdout(Stdio::null());
    let mut start = start.spawn().unwrap();
    wait_until("processes of the plane are running", || !processes_of(&up).is_empty());

    let group = Pid::from_raw(i32::try_from(start.id()).unwrap()).unwrap();
    kill_process_group(group, Signal::INT).unwrap();
    start.wait().unwrap();

    wait_until("the folder is removed", || !up.exists());
    wait_until("no process is left", || processes_of(&up).is_empty());
}
