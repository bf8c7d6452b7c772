//! The watchdog of systemd: a service that stops sending messages is killed and started again.

use std::{os::unix::net::UnixDatagram, path::PathBuf, time::Duration};

use tokio_util::sync::CancellationToken;

use super::{health::Health, tasks::Task};

/// Message of `sd_notify(3)` that restarts the watchdog's timer.
const ALIVE: &[u8] = b"WATCHDOG=1";

/// The socket of the service manager, and the time after which it kills a silent service.
#[derive(Debug, PartialEq, Eq)]
struct Watchdog {
    socket: PathBuf,
    limit: Duration,
}

impl Watchdog {
    /// Reads the variables that systemd sets with `WatchdogSec`. `None` without a watchdog, or where
    /// it is for another process.
    fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Option<Self> {
        let own = std::process::id().to_string();
        if variable("WATCHDOG_PID").is_some_and(|process| process != own) {
            return None;
        }
        let limit = Duration::from_micros(variable("WATCHDOG_USEC")?.parse().ok().filter(|limit| *limit > 0)?);
        let socket = PathBuf::from(variable("NOTIFY_SOCKET").filter(|path| path.starts_with('/'))?);
        Some(Self { socket, limit })
    }

    /// Sends a message. A failure is not reported: the watchdog notices the silence.
    fn send(&self) {
        if let Ok(socket) = UnixDatagram::unbound() {
            let _ = socket.send_to(ALIVE, &self.socket);
        }
    }
}

/// Returns the task that sends messages while the process is alive as `/livez` defines it. `None`
/// without a watchdog.
pub(crate) fn task(health: &Health, stop: &CancellationToken) -> Option<Task> {
    let watchdog = Watchdog::from_variables(|name| std::env::var(name).ok())?;
    let (health, period) = (health.clone(), watchdog.limit / 3);
    watchdog.send();
    Some(Task::every(stop, "watchdog", period, move || {
        if health.liveness().ok {
            watchdog.send();
        }
        std::future::ready(())
    }))
}

#[cfg(test)]
mod tests;
