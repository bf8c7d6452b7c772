//! Gauges of placement, from the last decision about each workload.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use perennial_core::placement::{decision::Counts, workload::ClusterNodes};

use super::{
    WorkloadKey,
    metrics::{PlacementMetrics, Totals},
};

/// Counts of the last decision about each managed workload.
#[derive(Debug)]
pub(super) struct Gauges {
    metrics: PlacementMetrics,
    /// Maximum number of workloads with separate metrics.
    max_workloads: usize,
    last: Mutex<LastDecisions>,
}

#[derive(Debug, Default)]
struct LastDecisions {
    counts: HashMap<WorkloadKey, LastCounts>,
    /// Workloads with separate metrics.
    published: BTreeSet<WorkloadKey>,
}

#[derive(Clone, Copy, Debug)]
struct LastCounts {
    counts: Counts,
    /// The spot breaker is open.
    short: bool,
}

impl Gauges {
    pub(super) fn new(metrics: PlacementMetrics, max_workloads: usize) -> Self {
        Self { metrics, max_workloads, last: Mutex::default() }
    }

    pub(super) fn record(&self, key: &WorkloadKey, counts: Counts, short: bool) {
        self.last().counts.insert(Arc::clone(key), LastCounts { counts, short });
    }

    pub(super) fn forget(&self, key: &WorkloadKey) {
        self.last().counts.remove(key);
    }

    /// Sets the gauges to the sums over the workloads that exist and that this replica owns.
    pub(super) fn publish(&self, nodes: ClusterNodes, existing: &[WorkloadKey], is_ours: impl Fn(&str) -> bool) {
        self.metrics.set_nodes(nodes);
        let existing: HashSet<&WorkloadKey> = existing.iter().collect();
        let mut state = self.last();
        // A list after an interrupted watch removes workloads without an event.
        state.counts.retain(|key, _| existing.contains(key));
        let mut totals = Totals::default();
        let mut published = BTreeSet::new();
        for (key, last) in state.counts.iter().filter(|(key, _)| is_ours(key)) {
            if self.max_workloads > 0 {
                published.insert(Arc::clone(key));
            }
            totals.spot += i64::from(last.counts.spot);
            totals.on_demand += i64::from(last.counts.on_demand);
            totals.drift += i64::from(last.counts.drift);
            totals.fallback += i64::from(last.short);
            totals.unplaced_spot += i64::from(last.counts.unplaced_spot);
            totals.unplaced_on_demand += i64::from(last.counts.unplaced_on_demand);
            totals.unknown += i64::from(last.counts.unknown);
        }
        self.metrics.set_totals(totals);
        let published: BTreeSet<WorkloadKey> = published.into_iter().take(self.max_workloads).collect();
        for gone in state.published.difference(&published) {
            self.metrics.remove_workload(gone);
        }
        for key in &published {
            if let Some(last) = state.counts.get(key) {
                self.metrics.set_workload(key, last.counts);
            }
        }
        state.published = published;
    }

    fn last(&self) -> MutexGuard<'_, LastDecisions> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::metrics::Metrics;

    fn key(name: &str) -> WorkloadKey {
        Arc::from(format!("deployment/shop/{name}"))
    }

    fn value(metrics: &Metrics, series: &str) -> Option<String> {
        let text = metrics.encode().unwrap();
        text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ').map(ToOwned::to_owned))
    }

    #[test]
    fn a_workload_that_is_gone_leaves_the_gauges() {
        let metrics = Metrics::new();
        let gauges = Gauges::new(PlacementMetrics::register(&metrics), 0);
        for name in ["a", "b"] {
            gauges.record(&key(name), Counts { spot: 3, ..Counts::default() }, false);
        }
        gauges.publish(ClusterNodes::default(), &[key("a"), key("b")], |_| true);
        assert_eq!(value(&metrics, "perennial_placement_replicas{class=\"spot\"}").as_deref(), Some("6"));

        gauges.publish(ClusterNodes::default(), &[key("b")], |_| true);

        assert_eq!(value(&metrics, "perennial_placement_replicas{class=\"spot\"}").as_deref(), Some("3"));
        assert!(!metrics.encode().unwrap().contains("perennial_placement_workload_drift{"), "not requested");
    }

    #[test]
    fn so_many_workloads_as_configured_have_metrics_of_their_own() {
        let metrics = Metrics::new();
        let gauges = Gauges::new(PlacementMetrics::register(&metrics), 2);
        for name in ["a", "b", "c"] {
            gauges.record(&key(name), Counts { drift: 1, ..Counts::default() }, false);
        }
        let drift = |name: &str| {
            let labels = format!("{{namespace=\"shop\",kind=\"deployment\",name=\"{name}\"}}");
            value(&metrics, &format!("perennial_placement_workload_drift{labels}"))
        };
        let all = [key("a"), key("b"), key("c")];

        gauges.publish(ClusterNodes::default(), &all, |_| true);
        assert_eq!([drift("a"), drift("b"), drift("c")], [Some("1".to_owned()), Some("1".to_owned()), None]);

        gauges.publish(ClusterNodes::default(), &all[1..], |_| true);
        assert_eq!([drift("a"), drift("b"), drift("c")], [None, Some("1".to_owned()), Some("1".to_owned())]);
    }
}
