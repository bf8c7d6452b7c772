//! The live nodes that have the identity of a record.

use std::sync::Arc;

use perennial_core::keeper::case::Rival;

use super::{
    entries::{NodeEntry, RecordEntry},
    index::Index,
};
use crate::keeper::NodeKey;

impl Index {
    /// Returns the live nodes with the identity of a record that is not named after a node.
    pub(super) fn claimants(&self, record: &str) -> impl Iterator<Item = &NodeKey> {
        self.claims.get(record).into_iter().flatten()
    }

    /// Returns the other live nodes with the identity of a record. `uid` is that of the node that
    /// the record was written from.
    pub(super) fn rivals(&self, record: &str, uid: Option<&str>, but: &str) -> Vec<Rival> {
        let entry = self.records.get(record);
        let holds = |node: &NodeEntry| {
            uid.is_some_and(|uid| node.fingerprint.is_of(uid))
                || entry.is_some_and(|entry| node.fingerprint.is_settled_by_mark(&entry.fingerprint))
        };
        let others = self.claimants(record).filter(|name| ***name != *but);
        others
            .map(|name| Rival { name: name.to_string(), holds_record: self.nodes.get(name).is_some_and(holds) })
            .collect()
    }

    /// Whether a record with another name was written from the same machine under the same node
    /// name, as after a move. Of a record without an entry only the name is known.
    pub(super) fn has_copy(&self, name: &str, record: &RecordEntry) -> bool {
        let plain = format!("node-{}", record.node);
        let is_copy = |other: &RecordEntry| {
            other.node == record.node && other.fingerprint.is_of_same_machine(&record.fingerprint)
        };
        plain != name && self.absent.contains(&plain)
            || self.records.iter().any(|(other, entry)| **other != *name && is_copy(entry))
    }

    /// Whether a live node has the identity of a record.
    pub(super) fn has_live_node(&self, name: &Arc<str>, record: &RecordEntry) -> bool {
        self.is_claimed(name, &record.node)
    }

    /// Whether a live node has the identity of a record that was last written from `node`.
    pub(super) fn is_claimed(&self, record: &str, node: &str) -> bool {
        self.nodes.get(node).is_some_and(|node| node.record.as_deref() == Some(record))
            || self.claims.get(record).is_some_and(|nodes| !nodes.is_empty())
    }

    pub(super) fn claim(&mut self, name: &NodeKey, entry: &NodeEntry) {
        if let Some(record) = &entry.record
            && !record.starts_with("node-")
        {
            self.claims.entry(Arc::clone(record)).or_default().insert(Arc::clone(name));
        }
    }

    pub(super) fn unclaim(&mut self, record: Option<&Arc<str>>, name: &NodeKey) {
        if let Some(record) = record
            && let Some(nodes) = self.claims.get_mut(record)
        {
            nodes.remove(name);
            if nodes.is_empty() {
                self.claims.remove(record);
            }
        }
    }
}
