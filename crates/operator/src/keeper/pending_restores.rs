//! Restores in create requests that were answered and whose nodes were not seen yet.
//!
//! A create may still be rejected: a restarting kubelet creates its node although it exists, and is
//! answered AlreadyExists. So a restore is counted and reported by an Event once the watch delivers
//! the new node with it. A node that was created later than that was restored in another answer, which
//! another replica may have sent.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use perennial_core::{CLOCK_TOLERANCE, keeper::mark::Mark};
use tokio::time::Instant;
use tracing::info;

use super::{
    metrics::{KeeperMetrics, Via},
    reports::Reports,
};
use crate::runtime::clock::Clock;

/// Maximum number of nodes. Anyone who reaches the port can send reviews with any names.
const MOST: usize = 20_000;
/// A create that was not seen by then was rejected.
const FORGET_AFTER: Duration = Duration::from_mins(2);
/// Longest time from an answer to the creation of its node. The API server sends the remaining
/// reviews in between, times have whole seconds, and clocks differ by as much as is tolerated.
const CREATED_WITHIN: SignedDuration = SignedDuration::from_secs(CLOCK_TOLERANCE.as_secs() + 3);
/// Longest time by which the watch may lag behind: a node whose deletion arrives later still existed
/// when the create was answered.
const WATCH_LAG: Duration = Duration::from_secs(1);

/// The keys of one restore.
#[derive(Clone, Copy, Debug)]
pub(super) struct AnsweredCreate {
    pub(super) set: usize,
    pub(super) withheld: usize,
    pub(super) complete: bool,
    /// A node of this name is cached: the create will be refused, unless the cache lags behind.
    pub(super) exists: bool,
}

/// Restores that are counted and reported when their nodes are seen.
#[derive(Debug)]
pub(super) struct PendingRestores {
    metrics: KeeperMetrics,
    reports: Reports,
    clock: Clock,
    answered: Mutex<HashMap<String, Answer>>,
}

/// An answer, and its time.
#[derive(Clone, Copy, Debug)]
struct Answer {
    restore: AnsweredCreate,
    at: Instant,
    /// The same by the clock of the API server.
    time: Timestamp,
}

impl PendingRestores {
    pub(super) fn new(metrics: KeeperMetrics, reports: Reports, clock: Clock) -> Self {
        Self { metrics, reports, clock, answered: Mutex::default() }
    }

    /// Records a create that was answered with a restore.
    pub(super) fn expect(&self, node: &str, restore: AnsweredCreate) {
        let mut answered = self.answered.lock().unwrap_or_else(PoisonError::into_inner);
        if answered.len() >= MOST {
            answered.retain(|_, answer| answer.at.elapsed() < FORGET_AFTER);
        }
        if answered.len() < MOST {
            let answer = Answer { restore, at: Instant::now(), time: self.clock.now() };
            answered.insert(node.to_owned(), answer);
        }
    }

    /// Drops the answer to a create that was refused: the node that is deleted now existed.
    pub(super) fn deleted(&self, node: &ObjectMeta) {
        let mut answered = self.answered.lock().unwrap_or_else(PoisonError::into_inner);
        let refused = |answer: &Answer| answer.restore.exists && answer.at.elapsed() > WATCH_LAG;
        if let Some(name) = &node.name
            && answered.get(name).is_some_and(refused)
        {
            answered.remove(name);
        }
    }

    /// Counts and reports the restore of a node that the watch delivers. `is_known`: this
    /// incarnation was there before.
    pub(super) fn seen(&self, node: &ObjectMeta, is_known: impl Fn(&str, &str) -> bool) {
        let (Some(name), Some(uid)) = (&node.name, &node.uid) else { return };
        let (mark, answer) = {
            let mut answered = self.answered.lock().unwrap_or_else(PoisonError::into_inner);
            if !answered.contains_key(name) || is_known(name, uid) {
                return;
            }
            let Some(mark) = node.annotations.as_ref().and_then(Mark::read) else { return };
            (mark, answered.remove(name))
        };
        let Some(Answer { restore, at, time }) = answer else { return };
        let created = node.creation_timestamp.as_ref().map(|time| time.0);
        let is_later = created.is_some_and(|created| created.duration_since(time) > CREATED_WITHIN);
        if at.elapsed() < FORGET_AFTER && !is_later {
            let AnsweredCreate { set, withheld, complete, .. } = restore;
            info!(node = name, set, withheld, complete, "restored in the create");
            self.metrics.restored(Via::Admission, set);
            self.reports.restored_in_create(name, uid, set, &mark);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use perennial_core::keeper::mark::MARK;

    use super::*;
    use crate::runtime::{
        client::{Listeners, over},
        clock::Clock,
        events::Events,
        metrics::Metrics,
    };

    const ANSWER: AnsweredCreate = AnsweredCreate { set: 2, withheld: 0, complete: true, exists: false };

    fn pending(all: &Metrics) -> PendingRestores {
        pending_at(all, Clock::system())
    }

    fn pending_at(all: &Metrics, clock: Clock) -> PendingRestores {
        let listeners = Listeners { metrics: all.clone(), budget: None, clock: None, health: None };
        let client = over(axum::Router::new(), "default", listeners);
        let metrics = KeeperMetrics::register(all);
        let reports = Reports::new(Events::new(client, Clock::system(), true).0, metrics.clone());
        PendingRestores::new(metrics, reports, clock)
    }

    fn node(uid: &str, marked: bool) -> ObjectMeta {
        let mark = marked.then(|| BTreeMap::from([(MARK.to_owned(), "{}".to_owned())]));
        ObjectMeta {
            name: Some("n1".to_owned()),
            uid: Some(uid.to_owned()),
            annotations: mark,
            ..ObjectMeta::default()
        }
    }

    fn count(all: &Metrics) -> bool {
        all.encode().unwrap().contains("perennial_restores_total{via=\"admission\"} 1\n")
    }

    #[tokio::test]
    async fn a_restore_is_counted_once_its_node_exists() {
        let all = Metrics::new();
        let pending = pending(&all);
        pending.expect("n1", ANSWER);
        assert!(!count(&all), "the create may be rejected");

        // The node that was there all along, and its status updates.
        pending.seen(&node("u1", true), |_, uid| uid == "u1");
        assert!(!count(&all));
        pending.seen(&node("u2", false), |_, _| false);
        assert!(!count(&all), "it has no mark");

        pending.seen(&node("u2", true), |_, uid| uid == "u1");
        assert!(count(&all));
        pending.seen(&node("u3", true), |_, _| false);
        assert!(count(&all), "each answer is counted once");
    }

    /// The create of a restarting kubelet was answered here and refused, since its node existed.
    /// Another replica answers the create that succeeds after the node was deleted.
    #[rstest::rstest]
    #[case::by_another_answer(14, false)]
    #[case::by_this_answer(1, true)]
    #[tokio::test]
    async fn a_node_that_was_created_later_was_restored_by_another_answer(#[case] seconds: i64, #[case] counts: bool) {
        let (all, start) = (Metrics::new(), Timestamp::from_second(1_800_000_000).unwrap());
        let pending = pending_at(&all, Clock::from_fn(move || start));
        pending.expect("n1", ANSWER);
        let created = Time(start + SignedDuration::from_secs(seconds));

        pending.seen(&ObjectMeta { creation_timestamp: Some(created), ..node("u2", true) }, |_, _| false);

        assert_eq!(count(&all), counts);
    }

    #[rstest::rstest]
    #[case::existed(true, 2000, false)]
    #[case::the_watch_lags_behind(true, 500, true)]
    #[case::unknown(false, 2000, true)]
    #[tokio::test(start_paused = true)]
    async fn the_create_of_a_node_that_existed_was_refused(
        #[case] exists: bool,
        #[case] milliseconds: u64,
        #[case] counts: bool,
    ) {
        let all = Metrics::new();
        let pending = pending(&all);
        pending.expect("n1", AnsweredCreate { exists, ..ANSWER });
        tokio::time::advance(Duration::from_millis(milliseconds)).await;

        pending.deleted(&node("u1", true));
        pending.seen(&node("u2", true), |_, _| false);

        assert_eq!(count(&all), counts);
    }
}
