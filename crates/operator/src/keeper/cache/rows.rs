//! Nodes and records as rows of a list.

use std::sync::Arc;

use perennial_core::keeper::{fingerprint::RecordFingerprint, status::KeepState};

use super::index::Index;
use crate::keeper::NodeKey;

/// One node, or one record without a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    pub name: NodeKey,
    /// State, as computed from fingerprints.
    pub state: KeepState,
    pub record: Option<Arc<str>>,
    /// Its record is quarantined.
    pub bad: bool,
}

impl Index {
    /// Returns all rows, in no particular order. Of the absent records, those with an entry.
    pub(super) fn rows(&self) -> Vec<Row> {
        let mut rows = Vec::with_capacity(self.nodes.len());
        for (name, node) in &self.nodes {
            let known = node.record.as_ref().and_then(|record| self.records.get_key_value(record));
            let fingerprint = known.map(|(_, record)| &record.fingerprint);
            rows.push(Row {
                name: Arc::clone(name),
                state: self.state(node),
                record: known.map(|(name, _)| Arc::clone(name)),
                bad: fingerprint.is_some_and(RecordFingerprint::is_bad),
            });
        }
        let absent = self.records.iter().filter(|(name, record)| !self.has_live_node(name, record));
        rows.extend(absent.map(|(name, record)| Row {
            name: Arc::clone(&record.node),
            state: KeepState::Away,
            record: Some(Arc::clone(name)),
            bad: record.fingerprint.is_bad(),
        }));
        rows
    }

    /// Returns the name of the record of a node, which may be absent.
    pub(super) fn record_name_of(&self, node: &str) -> Option<Arc<str>> {
        if let Some(entry) = self.nodes.get(node) {
            return entry.record.clone();
        }
        let plain = format!("node-{node}");
        if self.absent.contains(&plain) {
            return Some(Arc::from(plain));
        }
        if let Some((name, _)) = self.records.get_key_value(plain.as_str()) {
            return Some(Arc::clone(name));
        }
        self.records.iter().find(|(_, record)| &*record.node == node).map(|(name, _)| Arc::clone(name))
    }
}
