//! Placement's metrics.

use perennial_core::placement::{decision::Counts, workload::ClusterNodes};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
};

use crate::runtime::{labels::label_values, metrics::Metrics};

label_values! {
    pub enum ReplicaClass { Spot = "spot", OnDemand = "on-demand" }

    pub enum NodeClass { Spot = "spot", OnDemand = "on-demand", Unknown = "unknown" }

    pub enum MoveResult {
        Evicted = "evicted",
        /// A disruption budget does not allow the eviction now.
        Blocked = "blocked",
        Failed = "failed",
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ClassLabels {
    class: ReplicaClass,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct NodeClassLabels {
    class: NodeClass,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct MoveLabels {
    result: MoveResult,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WorkloadLabels {
    namespace: String,
    kind: String,
    name: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WorkloadClassLabels {
    namespace: String,
    kind: String,
    name: String,
    class: ReplicaClass,
}

/// Handles to placement's metrics. Clones share them.
#[derive(Clone, Debug)]
pub struct PlacementMetrics {
    replicas: Family<ClassLabels, Gauge>,
    drift: Gauge,
    moves: Family<MoveLabels, Counter>,
    fallback_active: Gauge,
    unplaced: Family<ClassLabels, Gauge>,
    unknown: Gauge,
    nodes: Family<NodeClassLabels, Gauge>,
    workload_replicas: Family<WorkloadClassLabels, Gauge>,
    workload_drift: Family<WorkloadLabels, Gauge>,
}

/// Sums over all managed workloads of this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Totals {
    pub(super) spot: i64,
    pub(super) on_demand: i64,
    /// Replicas in the wrong class.
    pub(super) drift: i64,
    /// Workloads on fallback capacity.
    pub(super) fallback: i64,
    /// Pods of each class for which the scheduler found no node.
    pub(super) unplaced_spot: i64,
    pub(super) unplaced_on_demand: i64,
    /// Pods on nodes of neither class.
    pub(super) unknown: i64,
}

impl PlacementMetrics {
    pub fn register(all: &Metrics) -> Self {
        let own = Self {
            replicas: all.register("perennial_placement_replicas", "Managed replicas by class", Family::default()),
            drift: all.register("perennial_placement_drift", "Replicas in the wrong class", Gauge::default()),
            moves: all.register("perennial_placement_moves", "Moves between classes", Family::default()),
            fallback_active: all.register(
                "perennial_fallback_active",
                "Workloads on fallback capacity",
                Gauge::default(),
            ),
            unplaced: all.register(
                "perennial_placement_unplaced",
                "Managed pods for which the scheduler found no node, by class",
                Family::default(),
            ),
            unknown: all.register(
                "perennial_placement_unknown",
                "Managed pods on nodes of neither class",
                Gauge::default(),
            ),
            nodes: all.register("perennial_placement_nodes", "Nodes by class", Family::default()),
            workload_replicas: all.register(
                "perennial_placement_workload_replicas",
                "Replicas of a workload by class, see placement.workloadMetrics",
                Family::default(),
            ),
            workload_drift: all.register(
                "perennial_placement_workload_drift",
                "Replicas of a workload in the wrong class, see placement.workloadMetrics",
                Family::default(),
            ),
        };
        own.set_totals(Totals::default());
        own.set_nodes(ClusterNodes::default());
        // A counter that appears with its first event has no rate for it.
        for &result in MoveResult::ALL {
            own.moves.get_or_create(&MoveLabels { result }).inc_by(0);
        }
        own
    }

    pub(super) fn moved(&self, result: MoveResult) {
        self.moves.get_or_create(&MoveLabels { result }).inc();
    }

    pub(super) fn set_totals(&self, totals: Totals) {
        let replicas = |class, count| self.replicas.get_or_create(&ClassLabels { class }).set(count);
        replicas(ReplicaClass::Spot, totals.spot);
        replicas(ReplicaClass::OnDemand, totals.on_demand);
        self.drift.set(totals.drift);
        self.fallback_active.set(totals.fallback);
        let unplaced = |class, count| self.unplaced.get_or_create(&ClassLabels { class }).set(count);
        unplaced(ReplicaClass::Spot, totals.unplaced_spot);
        unplaced(ReplicaClass::OnDemand, totals.unplaced_on_demand);
        self.unknown.set(totals.unknown);
    }

    /// Sets the metrics of one workload.
    pub(super) fn set_workload(&self, key: &str, counts: Counts) {
        for class in ReplicaClass::ALL.iter().copied() {
            let count = if class == ReplicaClass::Spot { counts.spot } else { counts.on_demand };
            self.workload_replicas.get_or_create(&class_labels(key, class)).set(i64::from(count));
        }
        self.workload_drift.get_or_create(&workload_labels(key)).set(i64::from(counts.drift));
    }

    /// Removes the metrics of one workload.
    pub(super) fn remove_workload(&self, key: &str) {
        for class in ReplicaClass::ALL.iter().copied() {
            self.workload_replicas.remove(&class_labels(key, class));
        }
        self.workload_drift.remove(&workload_labels(key));
    }

    pub(super) fn set_nodes(&self, nodes: ClusterNodes) {
        let set = |class, count: u32| self.nodes.get_or_create(&NodeClassLabels { class }).set(i64::from(count));
        set(NodeClass::Spot, nodes.spot.total);
        set(NodeClass::OnDemand, nodes.on_demand.total);
        set(NodeClass::Unknown, nodes.other);
    }
}

/// Returns the labels of a workload from its key: kind, namespace and name.
fn workload_labels(key: &str) -> WorkloadLabels {
    let mut parts = key.splitn(3, '/').map(ToOwned::to_owned);
    let mut next = || parts.next().unwrap_or_default();
    let (kind, namespace, name) = (next(), next(), next());
    WorkloadLabels { namespace, kind, name }
}

fn class_labels(key: &str, class: ReplicaClass) -> WorkloadClassLabels {
    let WorkloadLabels { namespace, kind, name } = workload_labels(key);
    WorkloadClassLabels { namespace, kind, name, class }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_of_placement_is_in_the_text() {
        let all = Metrics::new();
        PlacementMetrics::register(&all).moved(MoveResult::Evicted);

        let text = all.encode().unwrap();

        for name in [
            "perennial_placement_replicas{class=\"on-demand\"} 0",
            "perennial_placement_drift 0",
            "perennial_placement_moves_total{result=\"evicted\"} 1",
            "perennial_fallback_active 0",
            "perennial_placement_unplaced{class=\"on-demand\"} 0",
            "perennial_placement_unknown 0",
            "perennial_placement_nodes{class=\"unknown\"} 0",
        ] {
            assert!(text.lines().any(|line| line.starts_with(name)), "{name} is missing in\n{text}");
        }
    }
}
