//! Gauges of placement, from the last decision about each workload.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use perennial_core::placement::decision::Counts;

use super::Key;
use crate::runtime::{
    labels::{Class as ClassLabel, ClassLabels},
    metrics::Metrics,
};

/// Counts of the last decision about each managed workload.
#[derive(Debug)]
pub(super) struct Gauges {
    metrics: Metrics,
    last: Mutex<HashMap<Key, LastCounts>>,
}

#[derive(Clone, Copy, Debug)]
struct LastCounts {
    counts: Counts,
    /// The spot breaker is open.
    short: bool,
}

impl Gauges {
    pub(super) fn new(metrics: Metrics) -> Self {
        Self { metrics, last: Mutex::default() }
    }

    pub(super) fn record(&self, key: &Key, counts: Counts, short: bool) {
        self.last().insert(Arc::clone(key), LastCounts { counts, short });
    }

    pub(super) fn forget(&self, key: &Key) {
        self.last().remove(key);
    }

    /// Sets the gauges to the sums over the workloads that this replica owns.
    pub(super) fn publish(&self, is_ours: impl Fn(&str) -> bool) {
        let (mut spot, mut on_demand, mut drift, mut short) = (0, 0, 0, 0);
        for (_, last) in self.last().iter().filter(|(key, _)| is_ours(key)) {
            spot += i64::from(last.counts.spot);
            on_demand += i64::from(last.counts.on_demand);
            drift += i64::from(last.counts.drift);
            short += i64::from(last.short);
        }
        let replicas = |class| self.metrics.placement_replicas.get_or_create_owned(&ClassLabels { class });
        replicas(ClassLabel::Spot).set(spot);
        replicas(ClassLabel::OnDemand).set(on_demand);
        self.metrics.placement_drift.set(drift);
        self.metrics.fallback_active.set(short);
    }

    fn last(&self) -> MutexGuard<'_, HashMap<Key, LastCounts>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
