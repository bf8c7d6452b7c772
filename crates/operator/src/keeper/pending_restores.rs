//! Restores in create requests that were answered and whose nodes were not seen yet.
//!
//! A create may still be rejected: a restarting kubelet creates its node although it exists, and is
//! answered AlreadyExists. So a restore is counted and reported by an Event once the watch delivers
//! the new node with it.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use perennial_core::keeper::mark::Mark;
use tokio::time::Instant;
use tracing::info;

use super::{
    metrics::{KeeperMetrics, Via},
    reports::Reports,
};

/// Maximum number of nodes. Anyone who reaches the port can send reviews with any names.
const MOST: usize = 20_000;
/// A create that was not seen by then was rejected.
const FORGET_AFTER: Duration = Duration::from_mins(2);

/// The keys of one restore.
#[derive(Clone, Copy, Debug)]
pub(super) struct AnsweredCreate {
    pub(super) set: usize,
    pub(super) withheld: usize,
    pub(super) complete: bool,
}

/// Restores that are counted and reported when their nodes are seen.
#[derive(Debug)]
pub(super) struct PendingRestores {
    metrics: KeeperMetrics,
    reports: Reports,
    answered: Mutex<HashMap<String, (AnsweredCreate, Instant)>>,
}

impl PendingRestores {
    pub(super) fn new(metrics: KeeperMetrics, reports: Reports) -> Self {
        Self { metrics, reports, answered: Mutex::default() }
    }

    /// Records a create that was answered with a restore.
    pub(super) fn expect(&self, node: &str, restore: AnsweredCreate) {
        let mut answered = self.answered.lock().unwrap_or_else(PoisonError::into_inner);
        if answered.len() >= MOST {
            answered.retain(|_, (_, at)| at.elapsed() < FORGET_AFTER);
        }
        if answered.len() < MOST {
            answered.insert(node.to_owned(), (restore, Instant::now()));
        }
    }

    /// Counts and reports the restore of a node that the watch delivers. `is_known`: this
    /// incarnation was there before.
    pub(super) fn seen(&self, node: &ObjectMeta, is_known: impl Fn(&str, &str) -> bool) {
        let (Some(name), Some(uid)) = (&node.name, &node.uid) else { return };
        let (mark, restore) = {
            let mut answered = self.answered.lock().unwrap_or_else(PoisonError::into_inner);
            if !answered.contains_key(name) || is_known(name, uid) {
                return;
            }
            let Some(mark) = node.annotations.as_ref().and_then(Mark::read) else { return };
            (mark, answered.remove(name))
        };
        let Some((restore, at)) = restore else { return };
        if at.elapsed() < FORGET_AFTER {
            let AnsweredCreate { set, withheld, complete } = restore;
            info!(node = name, set, withheld, complete, "restored in the create");
            self.metrics.restored(Via::Admission, set);
            self.reports.restored_in_create(name, uid, set, &mark);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use perennial_core::keeper::mark::MARK;

    use super::*;
    use crate::runtime::{
        client::{Listeners, over},
        clock::Clock,
        events::Events,
        metrics::Metrics,
    };

    fn pending(all: &Metrics) -> PendingRestores {
        let listeners = Listeners { metrics: all.clone(), budget: None, clock: None, health: None };
        let client = over(axum::Router::new(), "default", listeners);
        let metrics = KeeperMetrics::register(all);
        let reports = Reports::new(Events::new(client, Clock::system(), true).0, metrics.clone());
        PendingRestores::new(metrics, reports)
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
        pending.expect("n1", AnsweredCreate { set: 2, withheld: 0, complete: true });
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
}
