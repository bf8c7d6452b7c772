//! Rate of removals: of evictions over all workloads of the cluster, because many workloads that
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

/// Number of evictions that may follow each other at once.
const BURST: u32 = 5;
/// Time for which an appointment is kept for a workload that does not return.
const KEPT_FOR: Duration = Duration::from_secs(30);

/// Rate of the evictions of this process: its share of the rate of the cluster. A workload that
/// must wait gets an appointment of its own, so that waiting workloads take turns and each of them
/// decides again once.
#[derive(Debug)]
pub(super) struct EvictionPace {
    /// Evictions of the whole cluster in one minute.
    per_minute: u32,
    appointments: Mutex<Appointments>,
}

#[derive(Debug, Default)]
struct Appointments {
    /// Time at which the burst is completely available again.
    full: Option<Instant>,
    by_workload: HashMap<WorkloadKey, Instant>,
}

impl EvictionPace {
    pub(super) fn new(per_minute: u32) -> Self {
        Self { per_minute: per_minute.max(1), appointments: Mutex::default() }
    }

    /// Takes one eviction for a workload. Returns the time to wait if it is not its turn. `share` is
    /// the part of the cluster's workloads that this process owns, `jitter` a random number from 0
    /// to 1.
    pub(super) fn take(&self, key: &WorkloadKey, share: f64, jitter: f64, now: Instant) -> Option<Duration> {
        let interval = Duration::from_mins(1).div_f64(f64::from(self.per_minute) * share.clamp(0.001, 1.0));
        let mut all = self.appointments.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = all.by_workload.get(key).copied() {
            if now < at {
                return Some(at - now);
            }
            all.by_workload.remove(key);
            if now < at + KEPT_FOR {
                return None;
            }
        }
        let full = all.full.unwrap_or(now).max(now);
        all.full = Some(full + interval);
        let wait = (full + interval).saturating_duration_since(now + interval * BURST);
        if wait.is_zero() {
            return None;
        }
        let at = now + wait + interval.mul_f64(jitter);
        all.by_workload.retain(|_, at| now < *at + KEPT_FOR);
        all.by_workload.insert(key.clone(), at);
        Some(at - now)
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

    /// Two thousand workloads that may move at the same time. Each asks again after its pause.
    #[test]
    fn two_thousand_workloads_take_turns() {
        let (pace, start) = (EvictionPace::new(300), Instant::now());
        let key = |number: u32| WorkloadKey::from(format!("deployment/shop/web-{number}"));
        let mut waiting: Vec<(Instant, u32)> = (0..2_000).map(|number| (start, number)).collect();
        let (mut evicted, mut asked) = (Vec::new(), 0);
        while let Some(next) = waiting.iter().min().copied() {
            waiting.retain(|other| *other != next);
            let (now, number) = next;
            asked += 1;
            match pace.take(&key(number), 1.0, f64::from(number % 10) / 10.0, now) {
                Some(wait) => waiting.push((now + wait, number)),
                None => evicted.push(now.duration_since(start).as_millis()),
            }
        }
        assert_eq!(evicted.len(), 2_000);
        assert!(asked < 4_000, "{asked} decisions");
        for second in 0..=400 {
            let count = evicted.iter().filter(|at| (second * 1000..second * 1000 + 1000).contains(*at)).count();
            assert!(count <= 11, "{count} evictions in second {second}");
        }
        let last = evicted.iter().max().copied().unwrap();
        assert!((390_000..405_000).contains(&last), "{last} ms");
    }

    #[test]
    fn a_process_takes_its_share_of_the_rate() {
        let (pace, start) = (EvictionPace::new(60), Instant::now());
        let key = |number: u32| WorkloadKey::from(format!("deployment/shop/web-{number}"));
        let taken = (0..=BURST).filter(|number| pace.take(&key(*number), 0.25, 0.0, start).is_none()).count();
        assert_eq!(taken, 5);
        assert_eq!(pace.take(&key(BURST), 0.25, 0.0, start), Some(Duration::from_secs(4)), "it has an appointment");
        assert_eq!(pace.take(&key(99), 0.25, 0.0, start), Some(Duration::from_secs(8)));
        assert_eq!(pace.take(&key(BURST), 0.25, 0.0, start + Duration::from_secs(4)), None);
        // An appointment that was not kept in time is lost.
        let late = start + Duration::from_secs(8) + KEPT_FOR;
        assert_eq!(pace.take(&key(99), 0.25, 0.0, late), None, "the burst is available again");
    }
}
