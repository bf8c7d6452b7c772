//! The keeper's metrics.

use std::{sync::atomic::AtomicU64, time::Duration};

use perennial_core::keeper::status::KeepState;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
};

use super::cache::{Pending, Survey};
use crate::runtime::{
    labels::label_values,
    metrics::{Metrics, histogram},
};

label_values! {
    /// Trigger of a capture or a restore.
    pub enum Via { Admission = "admission", Watch = "watch" }

    pub enum NodeState { Settled = "settled", Unsettled = "unsettled", Ignored = "ignored" }

    pub enum RecordPresence {
        /// Its node exists.
        Present = "present",
        /// Its node does not exist.
        Absent = "absent",
        Tombstone = "tombstone",
        Invalid = "invalid",
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ViaLabels {
    via: Via,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct NodeStateLabels {
    state: NodeState,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RecordLabels {
    state: RecordPresence,
}

/// Handles to the keeper's metrics. Clones share them.
#[derive(Clone, Debug)]
pub struct KeeperMetrics {
    nodes: Family<NodeStateLabels, Gauge>,
    nodes_current_ratio: Gauge<f64, AtomicU64>,
    records: Family<RecordLabels, Gauge>,
    records_invalid: Gauge,
    records_unsigned: Gauge,
    records_created: Counter,
    records_collected: Counter,
    records_over_limit: Counter,
    captures: Family<ViaLabels, Counter>,
    restores: Family<ViaLabels, Counter>,
    labels_restored: Counter,
    restore_latency: Histogram,
    label_flaps: Counter,
    protected_refusals: Counter,
    mass_absence: Gauge,
    last_states_pending: Gauge,
    last_states_pending_bytes: Gauge,
    last_states_dropped: Counter,
    records_lost: Counter,
}

impl KeeperMetrics {
    pub fn register(all: &Metrics) -> Self {
        let own = Self {
            nodes: all.register("perennial_nodes", "Nodes by state", Family::default()),
            nodes_current_ratio: all.register(
                "perennial_nodes_current_ratio",
                "Fraction of nodes whose record is up to date",
                Gauge::default(),
            ),
            records: all.register("perennial_records", "Records by state", Family::default()),
            records_invalid: all.register("perennial_records_invalid", "Records in quarantine", Gauge::default()),
            records_unsigned: all.register(
                "perennial_records_unsigned",
                "Records that the newest key has not signed, where records are signed",
                Gauge::default(),
            ),
            records_created: all.register("perennial_records_created", "Records created", Counter::default()),
            records_collected: all.register(
                "perennial_records_collected",
                "Records collected after retention",
                Counter::default(),
            ),
            records_over_limit: all.register(
                "perennial_records_over_limit",
                "Records of absent nodes deleted before their retention since there were more than keeper.maxAbsent",
                Counter::default(),
            ),
            captures: all.register("perennial_captures", "Captures: node to record", Family::default()),
            restores: all.register("perennial_restores", "Restores: record to node", Family::default()),
            labels_restored: all.register("perennial_labels_restored", "Labels restored", Counter::default()),
            restore_latency: all.register(
                "perennial_restore_latency_seconds",
                "Time from the creation of a node to its restore",
                histogram(),
            ),
            label_flaps: all.register(
                "perennial_label_flaps",
                "Captures that returned a node to the state before the last one",
                Counter::default(),
            ),
            protected_refusals: all.register(
                "perennial_protected_refusals",
                "Protected keys that were withheld from another machine",
                Counter::default(),
            ),
            mass_absence: all.register(
                "perennial_mass_absence",
                "1 while too many nodes are absent for records to be collected",
                Gauge::default(),
            ),
            last_states_pending: all.register(
                "perennial_last_states_pending",
                "Last states of deleted nodes that wait for their record to be written",
                Gauge::default(),
            ),
            last_states_pending_bytes: all.register(
                "perennial_last_states_pending_bytes",
                "Memory that pending last states take",
                Gauge::default(),
            ),
            last_states_dropped: all.register(
                "perennial_last_states_dropped",
                "Last states that were dropped because the size limit was reached before they were written",
                Counter::default(),
            ),
            records_lost: all.register(
                "perennial_records_lost",
                "Records of absent nodes that another client deleted",
                Counter::default(),
            ),
        };
        own.export_at_zero();
        own
    }

    /// A counter that appears with its first event has no rate for it.
    fn export_at_zero(&self) {
        for &state in NodeState::ALL {
            self.nodes.get_or_create(&NodeStateLabels { state }).set(0);
        }
        for &state in RecordPresence::ALL {
            self.records.get_or_create(&RecordLabels { state }).set(0);
        }
        for &via in Via::ALL {
            self.captures.get_or_create(&ViaLabels { via }).inc_by(0);
            self.restores.get_or_create(&ViaLabels { via }).inc_by(0);
        }
    }

    pub(super) fn captured(&self, via: Via) {
        self.captures.get_or_create(&ViaLabels { via }).inc();
    }

    pub(super) fn restored(&self, via: Via, labels: usize) {
        self.restores.get_or_create(&ViaLabels { via }).inc();
        self.labels_restored.inc_by(labels as u64);
    }

    pub(super) fn restore_took(&self, latency: Duration) {
        self.restore_latency.observe(latency.as_secs_f64());
    }

    pub(super) fn labels_flapped(&self) {
        self.label_flaps.inc();
    }

    pub(super) fn protected_keys_withheld(&self, keys: usize) {
        self.protected_refusals.inc_by(keys as u64);
    }

    pub(super) fn record_created(&self) {
        self.records_created.inc();
    }

    pub(super) fn record_collected(&self) {
        self.records_collected.inc();
    }

    pub(super) fn record_over_limit(&self) {
        self.records_over_limit.inc();
    }

    pub(super) fn set_pending(&self, pending: Pending) {
        let count = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        self.last_states_pending.set(count(pending.states));
        self.last_states_pending_bytes.set(count(pending.bytes));
    }

    pub(super) fn last_state_dropped(&self) {
        self.last_states_dropped.inc();
    }

    pub(super) fn records_lost(&self, records: usize) {
        self.records_lost.inc_by(records as u64);
    }

    pub(super) fn set_mass_absence(&self, absent: bool) {
        self.mass_absence.set(i64::from(absent));
    }

    /// Sets the gauges of nodes and records.
    pub(super) fn set_gauges(&self, survey: &Survey) {
        let count = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        let node = |state, n| self.nodes.get_or_create(&NodeStateLabels { state }).set(count(n));
        let is_unsettled = |state| matches!(state, KeepState::Unsettled | KeepState::Unidentified);
        node(NodeState::Settled, survey.nodes.sum(|state| state.is_managed() && !is_unsettled(state)));
        node(NodeState::Unsettled, survey.nodes.sum(is_unsettled));
        node(NodeState::Ignored, survey.nodes.of(KeepState::Ignored));
        let record = |state, n| self.records.get_or_create(&RecordLabels { state }).set(count(n));
        record(RecordPresence::Present, survey.records.saturating_sub(survey.absent));
        record(RecordPresence::Absent, survey.absent);
        record(RecordPresence::Tombstone, survey.tombstones);
        record(RecordPresence::Invalid, survey.bad_records);
        self.records_invalid.set(count(survey.bad_records));
        self.records_unsigned.set(count(survey.unsigned));
        self.nodes_current_ratio.set(survey.nodes.current_ratio());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: &[&str] = &[
        "perennial_nodes{state=\"settled\"} 0",
        "perennial_records{state=\"tombstone\"} 0",
        "perennial_captures_total{via=\"admission\"} 0",
        "perennial_restores_total{via=\"watch\"} 1",
        "perennial_labels_restored_total 3",
        "perennial_restore_latency_seconds_count 0",
        "perennial_nodes_current_ratio 1",
        "perennial_label_flaps_total 0",
        "perennial_records_invalid 0",
        "perennial_records_unsigned 0",
        "perennial_records_created_total 0",
        "perennial_records_collected_total 0",
        "perennial_records_over_limit_total 0",
        "perennial_protected_refusals_total 0",
        "perennial_mass_absence 0",
        "perennial_last_states_pending 0",
        "perennial_last_states_pending_bytes 0",
        "perennial_last_states_dropped_total 0",
        "perennial_records_lost_total 0",
    ];

    #[test]
    fn every_metric_of_the_keeper_is_in_the_text() {
        let all = Metrics::new();
        let metrics = KeeperMetrics::register(&all);
        metrics.restored(Via::Watch, 3);
        metrics.set_gauges(&Survey::default());

        let text = all.encode().unwrap();

        for name in NAMES {
            assert!(text.lines().any(|line| line.starts_with(name)), "{name} is missing in\n{text}");
        }
    }
}
