//! Placement's metrics.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
};

use crate::runtime::{labels::label_values, metrics::Metrics};

label_values! {
    pub enum ReplicaClass { Spot = "spot", OnDemand = "on-demand" }

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
struct MoveLabels {
    result: MoveResult,
}

/// Handles to placement's metrics. Clones share them.
#[derive(Clone, Debug)]
pub struct PlacementMetrics {
    replicas: Family<ClassLabels, Gauge>,
    drift: Gauge,
    moves: Family<MoveLabels, Counter>,
    fallback_active: Gauge,
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
}

impl PlacementMetrics {
    pub fn register(all: &Metrics) -> Self {
        let own = Self {
            replicas: Family::default(),
            drift: Gauge::default(),
            moves: Family::default(),
            fallback_active: Gauge::default(),
        };
        all.register("perennial_placement_replicas", "Managed replicas by class", &own.replicas);
        all.register("perennial_placement_drift", "Replicas in the wrong class", &own.drift);
        all.register("perennial_placement_moves", "Moves between classes", &own.moves);
        all.register("perennial_fallback_active", "Workloads on fallback capacity", &own.fallback_active);
        own.set_totals(Totals::default());
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
    }
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
        ] {
            assert!(text.lines().any(|line| line.starts_with(name)), "{name} is missing in\n{text}");
        }
    }
}
