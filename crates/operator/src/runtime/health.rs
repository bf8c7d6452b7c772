//! Readiness and liveness of the process.
//!
//! *Ready*: every expected condition is met (caches in sync, certificates loaded). *Alive*: every
//! watched loop has reported progress within its limit. One that has not is stuck, and a restart is
//! the remedy. *Degraded*: a resource cannot be read or written, and what depends on it is paused; the
//! process stays ready for the rest.

mod resource;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::error_category::Category;
use resource::{Resource, Writes};

/// Prefix of an impairment about writes.
pub const UNWRITABLE: &str = "write:";

/// The state of the process, shared by clones.
#[derive(Debug, Clone, Default)]
pub struct Health(Arc<Mutex<HealthState>>);

#[derive(Debug, Default)]
struct HealthState {
    conditions: BTreeMap<&'static str, bool>,
    pulses: BTreeMap<&'static str, Pulse>,
    resources: BTreeMap<&'static str, Resource>,
    writes: BTreeMap<&'static str, Writes>,
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

    /// Makes readiness depend on a condition. Conditions are added before the server starts, so
    /// that the process is never ready too early.
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

    /// Records that the collection at this path of the API server is watched.
    pub fn watches(&self, resource: &'static str, path: &str) {
        self.state().resources.entry(resource).or_insert_with(|| Resource::watched_at(path));
    }

    /// Records that a resource was listed completely, or that its watch delivered an event.
    pub fn read(&self, resource: &'static str) {
        self.state().resources.entry(resource).or_default().read();
    }

    /// Records that a list of a resource begins.
    pub fn lists(&self, resource: &'static str) {
        self.state().resources.entry(resource).or_default().lists();
    }

    /// Records that a part of a list has arrived.
    pub fn progress(&self, resource: &'static str) {
        self.state().resources.entry(resource).or_default().progress();
    }

    /// Records a failed request for a resource.
    pub fn unread(&self, resource: &'static str, category: Category) {
        self.state().resources.entry(resource).or_default().failed(category);
    }

    /// Records that a watch of the collection at this path is requested.
    pub fn watch_asked(&self, path: &str) {
        self.state().resources.values_mut().filter(|one| one.is_at(path)).for_each(Resource::asked);
    }

    /// Records that the API server has accepted a watch of the collection at this path.
    pub fn watch_opened(&self, path: &str) {
        self.state().resources.values_mut().filter(|one| one.is_at(path)).for_each(Resource::opened);
    }

    /// Records the result of a write.
    pub fn written(&self, resource: &'static str, succeeded: bool) {
        let mut state = self.state();
        let writes = state.writes.entry(resource).or_default();
        if succeeded { writes.succeeded() } else { writes.failed() }
    }

    /// Returns the resources whose writes all fail.
    pub fn unwritable(&self) -> Vec<&'static str> {
        let state = self.state();
        state.writes.iter().filter(|(_, one)| one.unwritable_for().is_some()).map(|(name, _)| *name).collect()
    }

    /// Returns every resource that was written, and whether it can be written.
    pub fn writes(&self) -> Vec<(&'static str, bool)> {
        self.state().writes.iter().map(|(name, one)| (*name, one.unwritable_for().is_none())).collect()
    }

    /// Returns why this process should not own shards: resources that it cannot read, and after
    /// [`UNWRITABLE`] those that it cannot write.
    pub fn impairments(&self) -> Vec<String> {
        let unwritable = self.unwritable().into_iter().map(|resource| format!("{UNWRITABLE}{resource}"));
        self.unreadable().into_iter().map(str::to_owned).chain(unwritable).collect()
    }

    /// Returns the resources that cannot be read.
    pub fn unreadable(&self) -> Vec<&'static str> {
        let state = self.state();
        state.resources.iter().filter(|(_, one)| one.unreadable_for().is_some()).map(|(name, _)| *name).collect()
    }

    /// Returns for how long a resource cannot be read, and the category of the last failure.
    pub fn failing(&self, resource: &str) -> Option<(Duration, &'static str)> {
        let state = self.state();
        let resource = state.resources.get(resource)?;
        Some((resource.unreadable_for()?, resource.category()))
    }

    /// Returns whether a resource cannot be read.
    pub fn is_unreadable(&self, resource: &str) -> bool {
        self.state().resources.get(resource).is_some_and(|resource| resource.unreadable_for().is_some())
    }

    /// Returns every resource that is watched, and whether it can be read.
    pub fn resources(&self) -> Vec<(&'static str, bool)> {
        self.state().resources.iter().map(|(name, one)| (*name, one.unreadable_for().is_none())).collect()
    }

    pub fn readiness(&self) -> Verdict {
        let state = self.state();
        let conditions = state.conditions.iter().map(|(name, met)| match met {
            true => (CheckMark::Good, format!("{name}: ok")),
            false => (CheckMark::Bad, format!("{name}: not yet")),
        });
        let degraded = state.resources.iter().filter_map(|(name, resource)| {
            let (seconds, category) = (resource.unreadable_for()?.as_secs(), resource.category());
            Some((CheckMark::Degraded, format!("{name}: cannot be read for {seconds}s ({category})")))
        });
        let unwritable = state.writes.iter().filter_map(|(name, writes)| {
            Some((
                CheckMark::Degraded,
                format!("{name}: cannot be written for {}s", writes.unwritable_for()?.as_secs()),
            ))
        });
        Verdict::of(conditions.chain(degraded).chain(unwritable))
    }

    pub fn liveness(&self) -> Verdict {
        Verdict::of(self.state().pulses.iter().map(|(name, pulse)| {
            let (age, limit) = (pulse.last.elapsed(), pulse.max_age);
            if age <= limit {
                return (CheckMark::Good, format!("{name}: ok"));
            }
            (CheckMark::Bad, format!("{name}: no progress for {}s, limit {}s", age.as_secs(), limit.as_secs()))
        }))
    }

    fn state(&self) -> MutexGuard<'_, HealthState> {
        // Nothing panics while it holds the lock, and each change is a single one.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CheckMark {
    Good,
    Degraded,
    Bad,
}

impl Verdict {
    fn of(lines: impl Iterator<Item = (CheckMark, String)>) -> Self {
        let mut verdict = Self { ok: true, body: String::new() };
        for (mark, line) in lines {
            verdict.ok &= mark != CheckMark::Bad;
            verdict.body.push_str(match mark {
                CheckMark::Good => "[+] ",
                CheckMark::Degraded => "[!] ",
                CheckMark::Bad => "[-] ",
            });
            verdict.body.push_str(&line);
            verdict.body.push('\n');
        }
        verdict.body.push_str(if verdict.ok { "ok\n" } else { "not ok\n" });
        verdict
    }
}

#[cfg(test)]
mod tests {
    use super::resource::{
        FIRST_QUARANTINE, SETTLED_AFTER, SILENT_AFTER, UNREADABLE_AFTER, UNWRITABLE_AFTER, UNWRITABLE_FAILURES,
    };
    use super::*;

    const NODES: &str = "/api/v1/nodes";

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
    async fn a_resource_that_cannot_be_read_degrades_and_keeps_the_process_ready() {
        let health = Health::new();
        for resource in ["nodes", "pods"] {
            health.watches(resource, resource);
        }
        health.read("nodes");
        health.unread("pods", Category::Server);
        assert_eq!(health.unreadable(), Vec::<&str>::new(), "it may be a moment");

        tokio::time::advance(UNREADABLE_AFTER).await;
        health.unread("pods", Category::Server);
        assert_eq!(health.unreadable(), ["pods"]);
        let verdict = health.readiness();
        assert_eq!((verdict.ok, verdict.body.as_str()), (true, "[!] pods: cannot be read for 10s (server)\nok\n"));

        health.read("pods");
        assert!(health.unreadable().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_that_was_resumed_and_delivers_nothing_is_readable() {
        let health = Health::new();
        health.watches("nodes", NODES);
        health.read("nodes");
        health.unread("nodes", Category::Unreachable);
        health.watch_asked(NODES);
        health.watch_opened(NODES);
        tokio::time::advance(UNREADABLE_AFTER).await;
        assert!(!health.is_unreadable("nodes"), "one failure is no outage");

        health.unread("nodes", Category::Unreachable);
        tokio::time::advance(UNREADABLE_AFTER).await;
        assert!(health.is_unreadable("nodes"));
        health.watch_asked(NODES);
        health.watch_opened(NODES);
        assert!(health.is_unreadable("nodes"), "it may break at once");
        tokio::time::advance(SETTLED_AFTER).await;
        assert!(!health.is_unreadable("nodes"));
        health.watch_asked(NODES);
        assert!(!health.is_unreadable("nodes"), "watches end every minute");
    }

    /// A request that hangs fails once the connection counts as dead, long after the last failure.
    #[tokio::test(start_paused = true)]
    async fn a_resource_whose_watches_hang_stays_unreadable() {
        let health = Health::new();
        health.watches("nodes", NODES);
        health.read("nodes");
        health.watch_asked(NODES);
        tokio::time::advance(SILENT_AFTER).await;
        assert!(health.is_unreadable("nodes"), "before the first failure");

        for _ in 0..5 {
            tokio::time::advance(Duration::from_secs(75)).await;
            health.unread("nodes", Category::Unreachable);
            for _ in 0..30 {
                tokio::time::advance(Duration::from_secs(1)).await;
                assert!(health.is_unreadable("nodes"));
            }
            health.watch_asked(NODES);
        }
        tokio::time::advance(Duration::from_hours(1)).await;
        assert_eq!(health.impairments(), ["nodes"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_without_progress_is_unreadable() {
        let health = Health::new();
        health.watches("nodes", NODES);
        for _ in 0..4 {
            tokio::time::advance(SILENT_AFTER / 2).await;
            assert!(!health.is_unreadable("nodes"));
            health.progress("nodes");
        }
        tokio::time::advance(SILENT_AFTER).await;
        assert_eq!(health.impairments(), ["nodes"]);
        assert!(health.readiness().body.contains("[!] nodes: cannot be read for 30s"));

        health.read("nodes");
        assert!(health.impairments().is_empty());
        health.lists("nodes");
        tokio::time::advance(SILENT_AFTER).await;
        assert_eq!(health.impairments(), ["nodes"], "a second list counts as the first one");
    }

    #[tokio::test(start_paused = true)]
    async fn writes_that_all_fail_impair_until_the_quarantine_is_over() {
        let health = Health::new();
        let fails = async || {
            for _ in 0..=UNWRITABLE_FAILURES {
                health.written("nodes", false);
                tokio::time::advance(UNWRITABLE_AFTER / UNWRITABLE_FAILURES).await;
            }
        };
        health.written("nodes", false);
        tokio::time::advance(UNWRITABLE_AFTER).await;
        health.written("nodes", true);
        assert!(health.impairments().is_empty(), "one of them succeeded");

        let mut lasts = FIRST_QUARANTINE;
        for _ in 0..3 {
            fails().await;
            assert_eq!(health.impairments(), ["write:nodes"]);
            assert!(health.readiness().body.contains("[!] nodes: cannot be written for"));
            tokio::time::advance(lasts.saturating_sub(Duration::from_secs(20))).await;
            assert_eq!(health.impairments(), ["write:nodes"], "after {lasts:?}");
            tokio::time::advance(Duration::from_secs(20)).await;
            assert!(health.impairments().is_empty(), "after {lasts:?}");
            lasts *= 2;
        }
        health.written("nodes", true);
        fails().await;
        tokio::time::advance(FIRST_QUARANTINE).await;
        assert!(health.impairments().is_empty(), "a success ends the backoff");
    }

    #[test]
    fn a_missing_permission_counts_at_once() {
        let health = Health::new();
        health.unread("keeppolicies", Category::Forbidden);
        assert!(health.is_unreadable("keeppolicies"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_loop_that_is_not_watched_does_not_count() {
        let health = Health::new();
        health.beat("keeper");
        tokio::time::advance(Duration::from_secs(5)).await;
        assert!(health.liveness().ok);
    }
}
