//! Every node and record as a line of a list, from what is in memory.

use std::sync::Arc;

use super::{Index, NodeEntry, RecordEntry, Verdict};
use crate::keeper::{Key, Priority};

/// One node, or one record without a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    pub name: Key,
    /// One of [`perennial_core::keeper::status::WORDS`], as far as hashes can tell.
    pub state: &'static str,
    pub record: Option<Arc<str>>,
    /// Its record cannot be trusted.
    pub bad: bool,
}

impl Index {
    /// All of them, in no order.
    pub fn rows(&self) -> Vec<Row> {
        let mut rows = Vec::with_capacity(self.nodes.len());
        for (name, node) in &self.nodes {
            let known = node.record.as_ref().and_then(|record| self.records.get_key_value(record));
            rows.push(Row {
                name: Arc::clone(name),
                state: self.word(node, known.map(|(_, record)| record)),
                record: known.map(|(name, _)| Arc::clone(name)),
                bad: known.is_some_and(|(_, record)| record.bad),
            });
        }
        let absent = self.records.iter().filter(|(name, record)| !self.is_live(name, record));
        rows.extend(absent.map(|(name, record)| Row {
            name: Arc::clone(&record.node),
            state: "Away",
            record: Some(Arc::clone(name)),
            bad: record.bad,
        }));
        rows
    }

    /// The record of a node, also of one that is away.
    pub fn record_name_of(&self, node: &str) -> Option<Arc<str>> {
        if let Some(entry) = self.nodes.get(node) {
            return entry.record.clone();
        }
        let plain = format!("node-{node}");
        if let Some((name, _)) = self.records.get_key_value(plain.as_str()) {
            return Some(Arc::clone(name));
        }
        self.records.iter().find(|(_, record)| &*record.node == node).map(|(name, _)| Arc::clone(name))
    }

    fn word(&self, node: &NodeEntry, record: Option<&RecordEntry>) -> &'static str {
        if node.ignored {
            return "Ignored";
        }
        let Some(name) = &node.record else { return "Unidentified" };
        let Some(record) = record else { return if node.empty { "NoRecord" } else { "Pending" } };
        let owner = node.is_owner(record);
        if !owner && self.claims.get(name).is_some_and(|nodes| nodes.len() > 1) {
            return "Contested";
        }
        match node.verdict(Some(record)) {
            Verdict::Look(Priority::Restore) => "Unsettled",
            Verdict::Look(_) => "Pending",
            // Looked at, and nothing can be done for now.
            Verdict::Quiet if !record.bad && !owner && !node.is_settled_by_mark(record) => "Waiting",
            Verdict::Quiet => "Current",
        }
    }
}
