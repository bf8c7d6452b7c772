//! Gauges of placement, from the last decision about each workload.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use perennial_core::placement::decision::Counts;

use super::{
    Key,
    metrics::{PlacementMetrics, Totals},
};

/// Counts of the last decision about each managed workload.
#[derive(Debug)]
pub(super) struct Gauges {
    metrics: PlacementMetrics,
    last: Mutex<HashMap<Key, LastCounts>>,
}

#[derive(Clone, Copy, Debug)]
struct LastCounts {
    counts: Counts,
    /// The spot breaker is open.
    short: bool,
}

impl Gauges {
    pub(super) fn new(metrics: PlacementMetrics) -> Self {
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
        let mut totals = Totals::default();
        for (_, last) in self.last().iter().filter(|(key, _)| is_ours(key)) {
            totals.spot += i64::from(last.counts.spot);
            totals.on_demand += i64::from(last.counts.on_demand);
            totals.drift += i64::from(last.counts.drift);
            totals.fallback += i64::from(last.short);
        }
        self.metrics.set_totals(totals);
    }

    fn last(&self) -> MutexGuard<'_, HashMap<Key, LastCounts>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
