//! Every node and record as a fingerprint of a few hundred bytes, with the records that nodes
//! share.
//!
//! Decides nothing: whether a node may need work is a question to
//! [`perennial_core::keeper::fingerprint`].

use std::{collections::BTreeMap, hash::Hash, num::NonZeroU64, sync::Arc};

use perennial_core::{
    config::Identity,
    keeper::{fingerprint::Need, selection::Node},
};

use super::{
    absent_records::AbsentRecords,
    entries::{NodeEntry, RecordEntry},
    survey::Survey,
};
use crate::{
    keeper::{NodeKey, Priority},
    runtime::map::{HashMap, HashSet},
};

/// All nodes and records.
#[derive(Debug, Default)]
pub(super) struct Index {
    pub(super) nodes: HashMap<NodeKey, NodeEntry>,
    /// Records, except for those in `absent`.
    pub(super) records: HashMap<Arc<str>, RecordEntry>,
    /// Records of nodes that have been absent for long.
    pub(super) absent: AbsentRecords,
    /// Nodes have been listed: a record without a node is absent.
    pub(super) nodes_are_listed: bool,
    /// A list of records is being delivered.
    pub(super) records_are_listed_again: bool,
    /// Nodes by record, for records that are not named after a node.
    pub(super) claims: HashMap<Arc<str>, HashSet<NodeKey>>,
    /// Nodes by every name that their record may have, for nodes with several.
    pub(super) lookups: HashMap<Arc<str>, HashSet<NodeKey>>,
    /// Number of records by identity, for identities other than the name of the node.
    pub(super) identities: BTreeMap<Identity, usize>,
    /// Number of records that were added or changed since the entries of absent records were
    /// trimmed.
    pub(super) untrimmed: usize,
    /// The largest number of nodes since it was last taken.
    peak: usize,
    /// The last survey. Cleared by every change.
    pub(super) surveyed: Option<Survey>,
}

/// Grows a full map at once to the size of the other one, since there are about as many nodes as
/// records. While a large map is being moved, it takes twice its memory.
fn make_room<K: Eq + Hash, V>(map: &mut HashMap<K, V>, others: usize) {
    if map.len() == map.capacity() {
        map.reserve(others.saturating_sub(map.len()));
    }
}

impl Index {
    /// Returns the name of a node as the shared key.
    pub(super) fn key(&self, name: &str) -> NodeKey {
        self.nodes.get_key_value(name).map_or_else(|| Arc::from(name), |(key, _)| Arc::clone(key))
    }

    /// Returns the name of a record as the shared key.
    pub(super) fn record_key(&self, name: &str) -> Arc<str> {
        self.records.get_key_value(name).map_or_else(|| Arc::from(name), |(key, _)| Arc::clone(key))
    }

    pub(super) fn record_of(&self, node: &NodeEntry) -> Option<&RecordEntry> {
        self.records.get(node.record.as_ref()?)
    }

    /// Returns the priority of the work that a live node may need.
    fn work(&self, name: &str, node: &NodeEntry) -> Option<Priority> {
        let record = self.record_of(node);
        if self.is_undecided(name, node) && !node.fingerprint.is_ignored() {
            return Some(Priority::Restore);
        }
        if self.is_clean(node) {
            return None;
        }
        // The record must be read.
        if self.has_unread_record(node) {
            return (!node.fingerprint.is_ignored()).then_some(Priority::Restore);
        }
        match node.fingerprint.need(record.map(|record| &record.fingerprint)) {
            Need::Restore => Some(Priority::Restore),
            Need::Capture => Some(Priority::Capture),
            Need::Nothing if node.fingerprint.is_ignored() => None,
            // The node exists: `absent-since` has to be cleared.
            Need::Nothing => record.filter(|record| record.absence_noted).map(|_| Priority::Collect),
        }
    }

    /// Whether a node has nothing to keep, and its record, if it has one, is not cached.
    pub(super) fn may_have_lost_record(&self, name: &str) -> bool {
        let Some(node) = self.nodes.get(name) else { return false };
        let is_bare = node.fingerprint.is_empty() && !node.fingerprint.is_ignored();
        is_bare && node.record.as_ref().is_some_and(|record| !self.has_record(record))
    }

    /// Whether the record of a node is cached without an entry.
    pub(super) fn has_unread_record(&self, node: &NodeEntry) -> bool {
        node.record.as_ref().is_some_and(|record| self.absent.contains(record))
    }

    /// Whether this state of the node was found to need nothing with the current version of its
    /// record.
    pub(super) fn is_clean(&self, node: &NodeEntry) -> bool {
        let version = self.record_of(node).map(|record| record.resource_version);
        version.is_some() && node.clean_with.map(NonZeroU64::get) == version
    }

    /// Records the resourceVersion of a node that needs nothing and has not changed. Returns
    /// false for any other node.
    pub(super) fn is_unchanged(&mut self, node: &Node) -> bool {
        let Some(known) = self.nodes.get(node.name.as_str()) else { return false };
        if self.work(&node.name, known).is_some() || !known.fingerprint.has_content_of(node) {
            return false;
        }
        if let Some(known) = self.nodes.get_mut(node.name.as_str()) {
            known.fingerprint.advance(node.resource_version);
        }
        true
    }

    /// Whether the record holds exactly this last state.
    pub(super) fn is_recorded(&self, last: &NodeEntry) -> bool {
        self.record_of(last).is_some_and(|record| last.fingerprint.is_recorded_in(&record.fingerprint))
    }

    /// Whether the last state of a deleted node may have to be written.
    pub(super) fn last_state_may_need_write(&self, last: &NodeEntry) -> bool {
        if self.has_unread_record(last) {
            return !last.fingerprint.is_ignored();
        }
        last.fingerprint.last_state_may_need_write(self.record_of(last).map(|record| &record.fingerprint))
    }

    /// Adds or updates a node. Returns the priority of its work; `None` if nothing relevant has
    /// changed.
    pub(super) fn put_node(&mut self, name: &NodeKey, mut entry: NodeEntry) -> Option<Priority> {
        self.surveyed = None;
        self.set_record_name(name, &mut entry, self.nodes.get(name));
        if let Some(old) = self.nodes.get(name) {
            entry.listed = old.listed;
            let (was, is) = (&old.fingerprint, &entry.fingerprint);
            if was.is_same_incarnation(is) && !is.is_newer_than(was) {
                return None;
            }
            if old.decides_like(&entry) {
                entry.clean_with = old.clean_with;
            }
            let (before, names) = (old.record.clone(), old.all_names());
            if before != entry.record {
                self.unclaim(before.as_ref(), name);
            }
            self.look_up_under(name, &names, false);
        }
        // Every name is stored once.
        if let Some(record) = &mut entry.record
            && let Some((shared, _)) = self.records.get_key_value(record)
        {
            *record = Arc::clone(shared);
        }
        self.claim(name, &entry);
        self.look_up_under(name, &entry.all_names(), true);
        let work = self.work(name, &entry);
        make_room(&mut self.nodes, self.records.len());
        self.nodes.insert(Arc::clone(name), entry);
        self.peak = self.peak.max(self.nodes.len());
        work
    }

    /// Returns the largest number of nodes since the last call.
    pub(super) fn take_peak(&mut self) -> usize {
        let peak = self.peak.max(self.nodes.len());
        self.peak = self.nodes.len();
        peak
    }

    /// Makes the next state of a node count as new, even if nothing about it has changed.
    pub(super) fn outdate(&mut self, name: &str) {
        self.surveyed = None;
        if let Some(node) = self.nodes.get_mut(name) {
            node.fingerprint.outdate();
            node.clean_with = None;
        }
    }

    /// Removes a node, unless another incarnation has replaced it.
    pub(super) fn delete_node(&mut self, name: &NodeKey, last: &NodeEntry) {
        let is_same = |entry: &NodeEntry| entry.fingerprint.is_same_incarnation(&last.fingerprint);
        if self.nodes.get(name).is_some_and(is_same) {
            self.remove_node(name);
        }
    }

    fn remove_node(&mut self, name: &NodeKey) {
        self.surveyed = None;
        if let Some(old) = self.nodes.remove(name) {
            self.unclaim(old.record.as_ref(), name);
            self.look_up_under(name, &old.all_names(), false);
            if let Some(record) = old.record.as_ref().and_then(|record| self.records.get_mut(record)) {
                record.left_at = old.fingerprint.resource_version();
            }
        }
    }

    /// Adds or updates a record. Returns the nodes that may need work; `None` if this version is
    /// known.
    pub(super) fn put_record(&mut self, name: &str, mut entry: RecordEntry) -> Option<Vec<(NodeKey, Priority)>> {
        let node = self.nodes.get_key_value(&entry.node);
        if let Some((shared, _)) = node {
            entry.node = Arc::clone(shared);
        }
        let known = self.records.get_key_value(name).map(|(key, _)| Arc::clone(key));
        let named = node.and_then(|(_, node)| node.record.clone()).filter(|record| **record == *name);
        let name = known.or(named).unwrap_or_else(|| Arc::from(name));
        // The verification of the same version may have another result after the keys have changed.
        let is_known = |old: &RecordEntry| {
            let verified = (old.fingerprint.is_bad(), old.unsigned) == (entry.fingerprint.is_bad(), entry.unsigned);
            old.resource_version > entry.resource_version || old.resource_version == entry.resource_version && verified
        };
        if self.records.get(&name).is_some_and(is_known) {
            return None;
        }
        self.surveyed = None;
        let owner = Arc::clone(&entry.node);
        self.absent.remove(&name, entry.identity.as_deref());
        if self.records.get(&name).is_some_and(|old| old.resource_version == entry.resource_version) {
            self.forget_clean(&name, &owner);
        }
        entry.listed = self.records.get(&name).is_some_and(|old| old.listed);
        entry.left_at = self.records.get(&name).map_or(0, |old| old.left_at);
        make_room(&mut self.records, self.nodes.len());
        let identity = entry.identity.clone();
        let old = self.records.insert(Arc::clone(&name), entry);
        let is_new = old.is_none();
        self.count_identity(old.as_ref().and_then(|old| old.identity.as_deref()), identity.as_deref());
        let reopened = if is_new { self.reopen(&name) } else { Vec::new() };
        Some(self.work_of_record(&name, &owner, &reopened))
    }

    /// Forgets that the nodes of a record were found to need nothing with its current version.
    fn forget_clean(&mut self, record: &Arc<str>, owner: &NodeKey) {
        for name in self.claims.get(record).into_iter().flatten().chain(std::iter::once(owner)) {
            if let Some(node) = self.nodes.get_mut(name) {
                node.clean_with = None;
            }
        }
    }

    /// Removes a record. `last` is its last state, if that is known.
    pub(super) fn delete_record(&mut self, name: &str, last: Option<&RecordEntry>) -> Vec<(NodeKey, Priority)> {
        self.surveyed = None;
        if self.absent.remove(name, last.and_then(|last| last.identity.as_deref())) {
            self.reopen(name);
        }
        let Some((name, old)) = self.records.remove_entry(name) else { return Vec::new() };
        self.count_identity(old.identity.as_deref(), None);
        let reopened = self.reopen(&name);
        self.work_of_record(&name, &old.node, &reopened)
    }

    /// Returns the nodes of a record, and those that it may belong to, which may need work.
    fn work_of_record(&self, record: &Arc<str>, owner: &NodeKey, others: &[NodeKey]) -> Vec<(NodeKey, Priority)> {
        let claimants = self.claims.get(record).into_iter().flatten().chain(std::iter::once(owner));
        let claimants = claimants
            .filter(|name| !others.contains(name))
            .filter(|name| self.nodes.get(*name).is_some_and(|node| node.record.as_ref() == Some(record)));
        let nodes = claimants.chain(others);
        nodes
            .filter_map(|name| {
                let priority = self.work(name, self.nodes.get(name)?)?;
                Some((Arc::clone(name), priority))
            })
            .collect()
    }

    /// Records that this state of a node needs nothing with this version of its record.
    pub(super) fn note_clean(&mut self, name: &NodeKey, seen: &NodeEntry, record: Option<(&str, u64)>) {
        self.surveyed = None;
        if !self.nodes.get(name).is_some_and(|node| node.decides_like(seen)) {
            return;
        }
        self.decide_record_name(name, record.map(|(name, _)| name));
        if let Some(node) = self.nodes.get_mut(name) {
            node.clean_with = record.and_then(|(_, version)| NonZeroU64::new(version));
        }
    }

    pub(super) fn begin_nodes(&mut self) {
        self.nodes.values_mut().for_each(|node| node.listed = false);
    }

    /// Records that the list that is being delivered contains a node.
    pub(super) fn note_listed_node(&mut self, name: &str) {
        if let Some(node) = self.nodes.get_mut(name) {
            node.listed = true;
        }
    }

    /// Records that the list that is being delivered contains a record.
    pub(super) fn note_listed_record(&mut self, name: &str) {
        if let Some(record) = self.records.get_mut(name) {
            record.listed = true;
        }
        self.trim_now_and_then();
    }

    /// Removes the nodes that a list did not contain. Nothing is captured of them, since their last
    /// state is not known.
    pub(super) fn end_nodes(&mut self) {
        self.surveyed = None;
        let gone: Vec<NodeKey> =
            self.nodes.iter().filter(|(_, node)| !node.listed).map(|(name, _)| Arc::clone(name)).collect();
        for name in &gone {
            self.remove_node(name);
        }
        self.nodes.shrink_to_fit();
        self.nodes_are_listed = true;
        self.trim();
    }

    pub(super) fn begin_records(&mut self) {
        self.records_are_listed_again = true;
        self.absent.begin_list();
        self.records.values_mut().for_each(|record| record.listed = false);
    }

    /// Returns the names of the records that the list did not contain, so far.
    pub(super) fn unlisted_records(&self) -> Vec<Arc<str>> {
        self.records.iter().filter(|(_, record)| !record.listed).map(|(name, _)| Arc::clone(name)).collect()
    }

    /// Removes the records that a list did not contain. Returns the number of those that had no
    /// entry.
    pub(super) fn end_records(&mut self) -> usize {
        self.surveyed = None;
        for name in &self.unlisted_records() {
            self.delete_record(name, None);
        }
        let others = self.absent.end_list();
        self.records_are_listed_again = false;
        self.trim();
        self.records.shrink_to_fit();
        others
    }

    /// Whether there are records of nodes that were identified by something else than their name.
    pub(super) fn has_other_identities(&self) -> bool {
        self.absent.identified() > 0 || self.records.keys().any(|name| !name.starts_with("node-"))
    }

    /// Returns the records that the newest signing key has not signed, each with its node.
    pub(super) fn unsigned(&self) -> Vec<(Arc<str>, NodeKey)> {
        let unsigned = self.records.iter().filter(|(_, record)| record.unsigned);
        unsigned.map(|(name, record)| (Arc::clone(name), Arc::clone(&record.node))).collect()
    }

    pub(super) fn node(&self, name: &str) -> Option<&NodeEntry> {
        self.nodes.get(name)
    }

    pub(super) fn record(&self, name: &str) -> Option<&RecordEntry> {
        self.records.get(name)
    }

    /// Returns every node that may need work.
    pub(super) fn pending(&self) -> impl Iterator<Item = (&NodeKey, Priority)> {
        self.nodes.iter().filter_map(|(name, node)| self.work(name, node).map(|priority| (name, priority)))
    }
}
