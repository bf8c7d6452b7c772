//! Readiness and liveness of the process.
//!
//! *Ready*: every expected condition is met (caches in sync, certificates loaded). *Alive*: every watched loop has reported
//! progress within its limit. One that has not is stuck, and a restart is the remedy.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The state of the process, shared by clones.
#[derive(Debug, Clone, Default)]
pub struct Health(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    conditions: BTreeMap<&'static str, bool>,
    pulses: BTreeMap<&'static str, Pulse>,
}

#[derive(Debug)]
struct Pulse {
    last: Instant,
    max_age: Duration,
}

/// The result of a probe, with a line for each condition or loop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    pub ok: bool,
    pub body: String,
}

impl Health {
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes readiness depend on a condition. Conditions are added before the server starts, so that the process is never
    /// ready too early.
    pub fn expect(&self, condition: &'static str) {
        self.state().conditions.entry(condition).or_insert(false);
    }

    /// Sets whether a condition is met.
    pub fn set(&self, condition: &'static str, met: bool) {
        self.state().conditions.insert(condition, met);
    }

    /// Makes liveness depend on a loop, which must call [`Health::beat`] at least this often.
    pub fn watch(&self, name: &'static str, max_age: Duration) {
        self.state().pulses.insert(name, Pulse { last: Instant::now(), max_age });
    }

    /// Reports progress of a loop. Without effect for a loop that is not watched.
    pub fn beat(&self, name: &'static str) {
        if let Some(pulse) = self.state().pulses.get_mut(name) {
            pulse.last = Instant::now();
        }
    }

    pub fn readiness(&self) -> Verdict {
        Verdict::of(self.state().conditions.iter().map(|(name, met)| match met {
            true => (true, format!("{name}: ok")),
            false => (false, format!("{name}: not yet")),
        }))
    }

    pub fn liveness(&self) -> Verdict {
        Verdict::of(self.state().pulses.iter().map(|(name, pulse)| {
            let (age, limit) = (pulse.last.elapsed(), pulse.max_age);
            if age <= limit {
                return (true, format!("{name}: ok"));
            }
            (false, format!("{name}: no progress for {}s, limit {}s", age.as_secs(), limit.as_secs()))
        }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it holds the lock, and each change is a single one.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Verdict {
    fn of(lines: impl Iterator<Item = (bool, String)>) -> Self {
        let mut verdict = Self { ok: true, body: String::new() };
        for (ok, line) in lines {
            verdict.ok &= ok;
            verdict.body.push_str(if ok { "[+] " } else { "[-] " });
            verdict.body.push_str(&line);
            verdict.body.push('\n');
        }
        verdict.body.push_str(if verdict.ok { "ok\n" } else { "not ok\n" });
        verdict
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_ready_when_all_conditions_are_met() {
        let health = Health::new();
        health.expect("nodes");
        health.expect("records");
        health.set("nodes", true);
        let verdict = health.readiness();
        assert_eq!((verdict.ok, verdict.body.as_str()), (false, "[+] nodes: ok\n[-] records: not yet\nnot ok\n"));

        health.clone().set("records", true);
        assert!(health.readiness().ok);

        health.set("nodes", false);
        assert!(!health.readiness().ok);
    }

    #[test]
    fn expecting_again_forgets_nothing() {
        let health = Health::new();
        health.set("nodes", true);
        health.expect("nodes");
        assert!(health.readiness().ok);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stuck_loop_is_named() {
        let health = Health::new();
        health.watch("keeper", Duration::from_secs(30));
        health.watch("placement", Duration::from_mins(1));
        tokio::time::advance(Duration::from_secs(30)).await;
        assert!(health.liveness().ok);

        health.beat("placement");
        tokio::time::advance(Duration::from_secs(5)).await;
        let verdict = health.liveness();
        assert!(!verdict.ok);
        assert_eq!(verdict.body, "[-] keeper: no progress for 35s, limit 30s\n[+] placement: ok\nnot ok\n");

        health.beat("keeper");
        assert!(health.liveness().ok);
    }

    #[tokio::test(start_paused = true)]
    async fn a_loop_that_is_not_watched_does_not_count() {
        let health = Health::new();
        health.beat("keeper");
        tokio::time::advance(Duration::from_secs(5)).await;
        assert!(health.liveness().ok);
    }
}
