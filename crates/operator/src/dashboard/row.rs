//! Figures of a node in the list, and the order of the list.

use std::{cmp::Ordering, collections::BTreeMap};

use jiff::Timestamp;
use perennial_core::keeper::{
    collect::Candidate,
    policy_set::{CapturedUnder, PolicySet},
};
use serde_json::{Value, json};

use crate::{
    inspect::collection::RecordLifetime,
    keeper::{
        activity::{Activity, RecordNote},
        cache::Row,
    },
};

/// Figures of a node or of a record without a node, from the recorded activity.
#[derive(Clone, Debug, Default)]
pub(super) struct RowFigures {
    /// Condition Ready. `None` without a node, or if it is unknown.
    ready: Option<bool>,
    /// Labels of the node and, where it has none, of its record.
    pub(super) labels: BTreeMap<String, String>,
    /// Labels in the record.
    kept: Vec<String>,
    pub(super) policy: String,
    pub(super) hold: bool,
    keys: Option<usize>,
    sequence: Option<u64>,
    captured_at: Option<Timestamp>,
    absent_since: Option<Timestamp>,
    lifetime: Option<RecordLifetime>,
}

impl RowFigures {
    pub(super) fn new(row: &Row, activity: &Activity, policies: &PolicySet) -> Self {
        let node = activity.node(&row.name);
        let record = row.record.as_ref().and_then(|name| activity.record(name));
        let mut labels = record.map(|record| record.labels.unpack()).unwrap_or_default();
        if let Some(node) = node {
            labels.extend(node.labels.unpack());
        }
        let good = record.filter(|record| !record.bad);
        let captured = good.map(|record| CapturedUnder { policy: &record.policy, retention: record.retention });
        let (policy, retention) = policies.summary(&labels, captured, node.is_some());
        let lifetime = record.map(|record| {
            let captured_at = record.captured_at.unwrap_or(Timestamp::UNIX_EPOCH);
            RecordLifetime::of_candidate(&Candidate {
                present: node.is_some(),
                tombstone: record.tombstone,
                bad: record.bad,
                captured_at,
                absent_since: record.absent_since.filter(|since| *since >= captured_at),
                held: record.held,
                confirmed: false,
                // The row shows the time without a mass absence.
                mass_absence: None,
                had_node: true,
                retention,
            })
        });
        Self {
            ready: node.and_then(|node| node.ready),
            kept: record.into_iter().flat_map(kept_labels).collect(),
            policy,
            labels,
            hold: record.is_some_and(|record| record.held),
            keys: good.map(|record| record.keys),
            sequence: good.map(|record| record.sequence),
            captured_at: record.and_then(|record| record.captured_at),
            absent_since: record.and_then(|record| record.absent_since).filter(|_| node.is_none()),
            lifetime,
        }
    }

    pub(super) fn to_json(&self, row: &Row, now: Timestamp) -> Value {
        json!({
            "name": &*row.name,
            "state": row.state.as_str(),
            "ready": self.ready,
            "bad": row.bad,
            "hold": self.hold,
            "policy": self.policy,
            "labels": self.kept,
            "absentSince": self.absent_since,
            "keys": self.keys,
            "sequence": self.sequence,
            "capturedAt": self.captured_at,
            "collection": self.lifetime.map(RecordLifetime::to_json),
            "collected": RecordLifetime::cell(self.lifetime.as_ref(), now),
        })
    }
}

fn kept_labels(record: &RecordNote) -> impl Iterator<Item = String> {
    record.labels.pairs().map(|(key, value)| format!("{key}={value}"))
}

/// Column of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Column {
    Name,
    State,
    Ready,
    Policy,
    Captured,
    Absent,
}

/// Order of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sort {
    pub(super) by: Column,
    reversed: bool,
}

impl Sort {
    /// Parses `captured`, or `-captured` for the reverse order. Anything else sorts by name.
    pub(super) fn parse(text: &str) -> Self {
        let (column, reversed) = text.strip_prefix('-').map_or((text, false), |column| (column, true));
        let by = match column {
            "state" => Column::State,
            "ready" => Column::Ready,
            "policy" => Column::Policy,
            "captured" => Column::Captured,
            "absent" => Column::Absent,
            _ => Column::Name,
        };
        Self { by, reversed }
    }

    /// Sorts rows that are in the order of their names. Rows without a value come last.
    pub(super) fn apply(self, rows: &mut [(&Row, Option<RowFigures>)]) {
        if self.by == Column::Name {
            if self.reversed {
                rows.reverse();
            }
            return;
        }
        rows.sort_by(|(a, a_figures), (b, b_figures)| {
            let (Some(a_figures), Some(b_figures)) = (a_figures, b_figures) else { return Ordering::Equal };
            match self.by {
                Column::Name => Ordering::Equal,
                Column::State => self.ordered(Some(a.state), Some(b.state)),
                Column::Ready => self.ordered(a_figures.ready, b_figures.ready),
                Column::Policy => self.ordered(Some(&a_figures.policy), Some(&b_figures.policy)),
                Column::Captured => self.ordered(a_figures.captured_at, b_figures.captured_at),
                Column::Absent => self.ordered(a_figures.absent_since, b_figures.absent_since),
            }
        });
    }

    fn ordered<T: Ord>(self, a: Option<T>, b: Option<T>) -> Ordering {
        match (a, b) {
            (Some(a), Some(b)) if self.reversed => b.cmp(&a),
            (Some(a), Some(b)) => a.cmp(&b),
            (a, b) => a.is_none().cmp(&b.is_none()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use perennial_core::keeper::status::KeepState;

    use super::*;

    #[test]
    fn rows_without_a_value_come_last_in_both_orders() {
        let row = |name: &str| Row { name: Arc::from(name), state: KeepState::Away, record: None, bad: false };
        let rows = ["a", "b", "c"].map(row);
        let since = [None, Some(2), Some(1)].map(|at| at.map(|at| Timestamp::from_second(at).unwrap()));
        let order = |sort: &str| -> Vec<String> {
            let mut listed: Vec<(&Row, Option<RowFigures>)> = rows
                .iter()
                .zip(since)
                .map(|(row, absent_since)| (row, Some(RowFigures { absent_since, ..RowFigures::default() })))
                .collect();
            Sort::parse(sort).apply(&mut listed);
            listed.iter().map(|(row, _)| row.name.to_string()).collect()
        };
        assert_eq!(order("absent"), ["c", "b", "a"]);
        assert_eq!(order("-absent"), ["b", "c", "a"]);
        assert_eq!(order(""), ["a", "b", "c"]);
        assert_eq!(order("-name"), ["c", "b", "a"]);
        assert_eq!(order("nonsense"), ["a", "b", "c"]);
    }
}
