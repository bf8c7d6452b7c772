//! Rate of removals: of evictions over all workloads of this process, because many workloads that
//! may move at the same time must not all evict in the same second; and of deletions for each
//! workload, because a replacement may be as unschedulable as the pod before it.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use perennial_core::placement::workload::Workload;
use tokio::time::Instant;

use super::super::WorkloadKey;
use crate::runtime::map::HashMap;

/// Minimum time between two evictions, once the burst is used up.
const INTERVAL: Duration = Duration::from_millis(200);
/// Number of evictions that may follow each other at once.
const BURST: u32 = 10;

/// Time at which the burst is completely available again.
#[derive(Debug, Default)]
pub(super) struct EvictionPace(Mutex<Option<Instant>>);

impl EvictionPace {
    /// Takes one eviction. Returns the time to wait if none is available now.
    pub(super) fn take(&self, now: Instant) -> Option<Duration> {
        let mut full = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let next = full.unwrap_or(now).max(now) + INTERVAL;
        let wait = next.saturating_duration_since(now + INTERVAL * BURST);
        if wait.is_zero() {
            *full = Some(next);
            return None;
        }
        Some(wait)
    }
}

/// First and longest pause between the deletions of two decisions about one workload.
const MIN_DELETE_PAUSE: SignedDuration = SignedDuration::from_secs(1);
const MAX_DELETE_PAUSE: SignedDuration = SignedDuration::from_secs(30);

/// Deletions of unschedulable pods by workload. The pause doubles while no pod of the workload is
/// bound.
#[derive(Debug, Default)]
pub(super) struct DeletePace(Mutex<HashMap<WorkloadKey, LastDelete>>);

#[derive(Clone, Copy, Debug)]
struct LastDelete {
    at: Timestamp,
    pause: SignedDuration,
}

impl DeletePace {
    /// Takes the deletions of one decision. Returns the time to wait if they are too early.
    pub(super) fn take(&self, key: &WorkloadKey, workload: &Workload) -> Option<Duration> {
        let now = workload.now;
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(last) = all.get(key).copied().filter(|last| now < last.at + MAX_DELETE_PAUSE * 4) else {
            all.retain(|_, last| now < last.at + MAX_DELETE_PAUSE * 4);
            all.insert(key.clone(), LastDelete { at: now, pause: MIN_DELETE_PAUSE });
            return None;
        };
        // Times of pods have a resolution of one second.
        let bound =
            workload.pods.iter().filter_map(|pod| pod.scheduled).any(|at| at.as_second() >= last.at.as_second());
        let over = last.at + last.pause;
        if !bound && now < over {
            return Duration::try_from(over.duration_since(now)).ok();
        }
        let pause = if bound { MIN_DELETE_PAUSE } else { (last.pause * 2).min(MAX_DELETE_PAUSE) };
        all.insert(key.clone(), LastDelete { at: now, pause });
        None
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use perennial_core::placement::{
        node_labels::Choice,
        workload::{ClusterNodes, Kind, PendingWrites, Place, PlacementSettings, PodView, WorkloadView},
    };

    use super::*;

    fn workload(now: Timestamp, pods: Vec<PodView>) -> Workload {
        let view = WorkloadView {
            kind: Kind::Deployment,
            namespace: "shop".to_owned(),
            name: "web".to_owned(),
            resource_version: "1".to_owned(),
            uid: "d".to_owned(),
            generation: 1,
            observed_generation: 1,
            replicas: 1,
            current: 1,
            updated: 1,
            available: 0,
            updated_target: 1,
            max_unavailable: 0,
            template: Choice::Any,
            state: None,
        };
        Workload {
            view,
            spec: Ok(None),
            replica_sets: Vec::new(),
            pods,
            pdbs: Vec::new(),
            pending: PendingWrites::default(),
            nodes: ClusterNodes::default(),
            settings: Arc::new(PlacementSettings::default()),
            now,
        }
    }

    /// Another writer keeps making the replacements unschedulable.
    #[test]
    fn deletions_slow_down_while_no_pod_is_bound() {
        let (pace, key, start) =
            (DeletePace::default(), WorkloadKey::from("deployment/shop/web"), Timestamp::UNIX_EPOCH);
        let second = |number: i64| start + SignedDuration::from_secs(number);
        let deleted = (0..600).filter(|now| pace.take(&key, &workload(second(*now), Vec::new())).is_none()).count();
        assert!((20..=26).contains(&deleted), "{deleted} deletions in ten minutes");
        assert!(pace.take(&WorkloadKey::from("deployment/shop/other"), &workload(second(600), Vec::new())).is_none());

        // A pod that is bound proves that replacements can run.
        let first = Place { class: perennial_core::placement::Class::Spot, slot: 0 };
        let pod = PodView { scheduled: Some(second(601)), ..PodView::expected("r1", first, start) };
        assert!(pace.take(&key, &workload(second(601), vec![pod])).is_none());
    }

    #[test]
    fn a_burst_is_followed_by_a_steady_rate() {
        let (pace, start) = (EvictionPace::default(), Instant::now());
        let taken = (0..2_000).filter(|_| pace.take(start).is_none()).count();
        assert_eq!(taken, 10);
        let wait = pace.take(start).unwrap();
        assert!(wait <= INTERVAL, "{wait:?}");
        assert_eq!(pace.take(start + wait), None);
        let later = start + Duration::from_mins(1);
        assert_eq!((0..2_000).filter(|_| pace.take(later).is_none()).count(), 10);
    }
}
