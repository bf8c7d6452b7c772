//! Child processes that never outlive this process, not even after a panic or SIGKILL.
//!
//! # Guarantees
//! - However this process ends, its children are killed by the kernel, or by a guard that waits on
//!   a pipe held only by this process.
//! - A child that was forked while this process was dying does not start its program.
//!
//! There are two mechanisms, because `unsafe` and therefore `pre_exec` are forbidden:
//! `setpriv --pdeathsig` where util-linux provides it, and otherwise one shell per child that reads
//! from a pipe until it closes. The kernel sends the death signal when the *thread* that forked
//! ends, so one thread does all forking and lives as long as the process.

use std::{
    fs::File,
    io::{self, Write},
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    sync::{OnceLock, mpsc},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

/// Set to `guard` to use the guard even if the death signal works. For tests.
const TETHER_ENV: &str = "LOCALPLANE_TETHER";

/// Mechanism that ends a child with this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tether {
    DeathSignal,
    Guard,
}

/// A running child process. It is killed on drop, and when this process ends for any reason.
#[derive(Debug)]
pub struct Process {
    child: Child,
    guard: Option<Child>,
    /// The child only waits for a child of its own, which is meant by signals and by the process
    /// id.
    nested: bool,
}

impl Process {
    /// Starts a program and appends its stdout and stderr to `log`.
    pub fn start(program: &Path, args: &[String], log: &Path) -> io::Result<Self> {
        let log = File::options().create(true).append(true).open(log)?;
        match tether() {
            Tether::DeathSignal => Self::start_with_death_signal(program, args, &log),
            Tether::Guard => Self::start_with_guard(program, args, &log),
        }
    }

    /// Like [`Process::start`], for a program that forks once and waits for its child (`unshare
    /// --fork`, `nsenter --pid`).
    pub(crate) fn start_nested(program: &Path, args: &[String], log: &Path) -> io::Result<Self> {
        let mut process = Self::start(program, args, log)?;
        process.nested = true;
        Ok(process)
    }

    fn start_with_death_signal(program: &Path, args: &[String], log: &File) -> io::Result<Self> {
        // After the signal is armed, the shell checks that the parent still exists, then `exec`s
        // the program.
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL", "--", "sh", "-c", r#"test "$PPID" = "$0" || exit 1; exec "$@""#])
            .arg(std::process::id().to_string())
            .arg(program)
            .args(args)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log.try_clone()?)
            .process_group(0);
        Ok(Self { child: fork(command)?, guard: None, nested: false })
    }

    fn start_with_guard(program: &Path, args: &[String], log: &File) -> io::Result<Self> {
        // The child waits for a line that is sent once its guard is running. If this process dies
        // before, the child reads the end of the pipe and exits.
        let mut command = Command::new("sh");
        command
            .args(["-c", r#"read -r _ && exec "$0" "$@" </dev/null"#])
            .arg(program)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(log.try_clone()?)
            .stderr(log.try_clone()?)
            .process_group(0);
        let mut process = Self { child: fork(command)?, guard: None, nested: false };
        let mut guard = Command::new("sh");
        guard
            .args(["-c", r#"read -r _; kill -KILL "$0""#])
            .arg(process.child.id().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0);
        process.guard = Some(fork(guard)?);
        if let Some(mut pipe) = process.child.stdin.take() {
            pipe.write_all(b"go\n")?;
        }
        Ok(process)
    }

    /// Returns the id of the process, as seen from this process also if it is in another namespace.
    pub fn pid(&self) -> u32 {
        let child = self.child.id();
        if self.nested { child_of(child).unwrap_or(child) } else { child }
    }

    /// Returns the exit status; `None` while the process is running.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        let status = self.child.try_wait().ok().flatten();
        if status.is_some() {
            self.stop_guard();
        }
        status
    }

    /// Sends a signal. Fails if the process has ended, because its id may belong to another
    /// process.
    pub fn signal(&mut self, signal: Signal) -> io::Result<()> {
        if self.ended().is_some() {
            return Err(io::Error::new(io::ErrorKind::NotFound, "process has ended"));
        }
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidData)?;
        Ok(kill_process(pid, signal)?)
    }

    /// Sends SIGKILL and waits for the end of the process.
    pub fn kill(&mut self) {
        if self.nested {
            self.kill_nested();
        }
        // An error means that the process has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.stop_guard();
    }

    /// Kills the inner process and waits for the outer one, which ends after it. The end of process
    /// 1 of a pid namespace is the end of all processes in it.
    fn kill_nested(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while self.ended().is_none() && Instant::now() < deadline {
            let _ = self.signal(Signal::KILL);
            // The outer process stops together with an inner one that is stopped.
            if let Some(outer) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
                let _ = kill_process(outer, Signal::CONT);
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Sends SIGTERM, and SIGKILL if the process has not ended within `timeout`.
    pub fn terminate(&mut self, timeout: Duration) {
        let deadline = Instant::now() + timeout;
        if self.signal(Signal::TERM).is_ok() {
            while self.ended().is_none() && Instant::now() < deadline {
                thread::sleep(Duration::from_millis(5));
            }
        }
        self.kill();
    }

    /// Kills the guard. The guard holds only a process id, so it must end before the id can be
    /// reused.
    fn stop_guard(&mut self) {
        if let Some(mut guard) = self.guard.take() {
            let _ = guard.kill();
            let _ = guard.wait();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

fn tether() -> Tether {
    static TETHER: OnceLock<Tether> = OnceLock::new();
    *TETHER.get_or_init(|| {
        let works = || {
            Command::new("setpriv")
                .args(["--pdeathsig", "KILL", "--", "true"])
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status()
                .is_ok_and(|status| status.success())
        };
        if std::env::var(TETHER_ENV).is_ok_and(|value| value == "guard") || !works() {
            Tether::Guard
        } else {
            Tether::DeathSignal
        }
    })
}

type SpawnRequest = (Command, mpsc::Sender<io::Result<Child>>);

/// Spawns a command on the one thread that lives as long as the process.
fn fork(command: Command) -> io::Result<Child> {
    static REQUESTS: OnceLock<mpsc::Sender<SpawnRequest>> = OnceLock::new();
    let requests = REQUESTS.get_or_init(|| {
        let (requests, inbox) = mpsc::channel::<SpawnRequest>();
        thread::spawn(move || {
            for (mut command, answer) in inbox {
                let _ = answer.send(command.spawn());
            }
        });
        requests
    });
    let gone = || io::Error::other("the thread that spawns processes has ended");
    let (answer, result) = mpsc::channel();
    requests.send((command, answer)).map_err(|_| gone())?;
    result.recv().map_err(|_| gone())?
}

/// Returns the start time of a process in clock ticks, which together with the pid identifies it
/// uniquely. `None` if the process does not exist, or without `/proc`.
pub(crate) fn started(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The program name is in parentheses and may contain any character, so parse from the last
    // parenthesis.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    if state == "Z" || state == "X" {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// Returns the id of a child of this process.
fn child_of(parent: u32) -> Option<u32> {
    let parent_of = |pid: u32| -> Option<u32> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
    };
    let processes = std::fs::read_dir("/proc").ok()?.flatten();
    let mut ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    ids.find(|pid| parent_of(*pid) == Some(parent))
}

/// Reports whether this process, and not another one with the same pid, exists.
pub(crate) fn is_alive(pid: u32, since: Option<u64>) -> bool {
    match since {
        Some(_) => started(pid) == since,
        None => i32::try_from(pid)
            .ok()
            .and_then(Pid::from_raw)
            .is_some_and(|pid| rustix::process::test_kill_process(pid).is_ok()),
    }
}
