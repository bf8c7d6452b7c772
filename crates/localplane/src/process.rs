//! Child processes that never outlive this one: not after a panic, not after SIGKILL.
//!
//! # Guarantees
//! - However this process ends, the kernel (or a guard that waits on a pipe which only we hold) ends its children.
//! - A child that was started while we were dying does not begin its work.
//!
//! Two ways, because `unsafe` and with it `pre_exec` are out: `setpriv --pdeathsig` where util-linux has it, and elsewhere
//! a shell per child that reads from a pipe until it closes. The death signal is sent when the *thread* that forked dies,
//! so one thread does all the forking and lives as long as the process.

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

/// Set to `guard`: use the second way although the first would work. For tests.
const TETHER_ENV: &str = "LOCALPLANE_TETHER";

/// How a child is tied to our life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tether {
    DeathSignal,
    Guard,
}

/// A running child. It ends when this is dropped, and when this process ends in whatever way.
#[derive(Debug)]
pub struct Process {
    child: Child,
    guard: Option<Child>,
}

impl Process {
    /// Starts a program; both its outputs are appended to `log`.
    pub fn start(program: &Path, args: &[String], log: &Path) -> io::Result<Self> {
        let log = File::options().create(true).append(true).open(log)?;
        match tether() {
            Tether::DeathSignal => Self::start_with_death_signal(program, args, &log),
            Tether::Guard => Self::start_with_guard(program, args, &log),
        }
    }

    fn start_with_death_signal(program: &Path, args: &[String], log: &File) -> io::Result<Self> {
        // Once the signal is armed, the shell looks whether we are still there; then all of them are one process.
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
        Ok(Self { child: fork(command)?, guard: None })
    }

    fn start_with_guard(program: &Path, args: &[String], log: &File) -> io::Result<Self> {
        // The child waits for a word that comes only when its guard stands; if we die before, it reads the end of the pipe.
        let mut command = Command::new("sh");
        command
            .args(["-c", r#"read -r _ && exec "$0" "$@" </dev/null"#])
            .arg(program)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(log.try_clone()?)
            .stderr(log.try_clone()?)
            .process_group(0);
        let mut process = Self { child: fork(command)?, guard: None };
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

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// How it ended; `None` while it runs.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        let status = self.child.try_wait().ok().flatten();
        if status.is_some() {
            self.dismiss_guard();
        }
        status
    }

    /// Sends a signal, unless it has ended: then its number may already belong to someone else.
    pub fn signal(&mut self, signal: Signal) -> io::Result<()> {
        if self.ended().is_some() {
            return Err(io::Error::new(io::ErrorKind::NotFound, "the process has ended"));
        }
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidData)?;
        Ok(kill_process(pid, signal)?)
    }

    /// SIGKILL, and waits until it is gone.
    pub fn kill(&mut self) {
        // An error means that it is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.dismiss_guard();
    }

    /// SIGTERM, and SIGKILL for what has not ended within `patience`.
    pub fn terminate(&mut self, patience: Duration) {
        let deadline = Instant::now() + patience;
        if self.signal(Signal::TERM).is_ok() {
            while self.ended().is_none() && Instant::now() < deadline {
                thread::sleep(Duration::from_millis(5));
            }
        }
        self.kill();
    }

    /// The guard knows a number, not a process: it must go before the number can be given to someone else.
    fn dismiss_guard(&mut self) {
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

type Order = (Command, mpsc::Sender<io::Result<Child>>);

/// Starts a command from the one thread that lives as long as the process.
fn fork(command: Command) -> io::Result<Child> {
    static ORDERS: OnceLock<mpsc::Sender<Order>> = OnceLock::new();
    let orders = ORDERS.get_or_init(|| {
        let (orders, inbox) = mpsc::channel::<Order>();
        thread::spawn(move || {
            for (mut command, answer) in inbox {
                let _ = answer.send(command.spawn());
            }
        });
        orders
    });
    let gone = || io::Error::other("the thread that starts processes is gone");
    let (answer, result) = mpsc::channel();
    orders.send((command, answer)).map_err(|_| gone())?;
    result.recv().map_err(|_| gone())?
}

/// When this process started, in the kernel's ticks: with the pid it names a process for good.
/// `None` if there is no such process, or no `/proc`.
pub(crate) fn started(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name of the program is in parentheses and may hold anything; what follows is regular.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    if state == "Z" || state == "X" {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// Whether this process, and not another one with the same number, is there.
pub(crate) fn is_alive(pid: u32, since: Option<u64>) -> bool {
    match since {
        Some(_) => started(pid) == since,
        None => i32::try_from(pid)
            .ok()
            .and_then(Pid::from_raw)
            .is_some_and(|pid| rustix::process::test_kill_process(pid).is_ok()),
    }
}
