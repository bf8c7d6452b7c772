//! Every node and record as a fingerprint of a few hundred bytes, with the records that nodes
//! share.
//!
//! Decides nothing: whether a node may need work is a question to
//! [`perennial_core::keeper::fingerprint`].

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    num::NonZeroU64,
    sync::Arc,
};

use perennial_core::keeper::{
    case::Rival,
    fingerprint::{Need, NodeFingerprint, RecordFingerprint},
    identity::Identified,
    selection::{Node, Policy},
};

use crate::{
    keeper::{Key, Priority, apply::Held},
    runtime::map::{HashMap, HashSet},
};

/// One live node.
#[derive(Clone, Debug)]
pub(super) struct NodeEntry {
    pub(super) fingerprint: NodeFingerprint,
    /// Hash of the name of its policy.
    policy: u64,
    /// Name of its record. `None` while the node lacks the field that identifies it.
    pub(super) record: Option<Arc<str>>,
    /// resourceVersion of the record with which this state was found to need nothing.
    clean_with: Option<NonZeroU64>,
    /// The current list, or the last one, contains the node.
    listed: bool,
}

/// One record.
#[derive(Clone, Debug)]
pub(super) struct RecordEntry {
    pub(super) fingerprint: RecordFingerprint,
    resource_version: u64,
    /// The newest signing key has not signed it.
    unsigned: bool,
    /// Its ConfigMap has the annotation `absent-since`.
    absence_noted: bool,
    /// The current list, or the last one, contains the record.
    listed: bool,
    pub(super) node: Key,
}

/// Number of nodes and records in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Survey {
    pub current: usize,
    pub to_capture: usize,
    pub to_restore: usize,
    pub ignored: usize,
    pub unidentified: usize,
    pub records: usize,
    pub tombstones: usize,
    pub bad_records: usize,
    pub unsigned: usize,
    pub absent: usize,
}

/// All nodes and records.
#[derive(Debug, Default)]
pub(super) struct Index {
    pub(super) nodes: HashMap<Key, NodeEntry>,
    pub(super) records: HashMap<Arc<str>, RecordEntry>,
    /// Nodes by record, for records that are not named after a node.
    claims: HashMap<Arc<str>, HashSet<Key>>,
    /// The last survey. Cleared by every change.
    surveyed: Option<Survey>,
}

impl NodeEntry {
    pub(super) fn new(node: &Node, policy: &Policy) -> Self {
        let record = Identified::of(&policy.identity, node).map(|identity| Arc::from(identity.record_name().0));
        Self {
            fingerprint: NodeFingerprint::new(node, policy),
            policy: hash(&policy.name.as_str()),
            record,
            clean_with: None,
            listed: true,
        }
    }

    /// Whether a decision reads the same of both, apart from the resourceVersion.
    pub(super) fn decides_like(&self, other: &Self) -> bool {
        self.fingerprint.decides_like(&other.fingerprint) && self.record == other.record
    }
}

impl RecordEntry {
    pub(super) fn new(held: &Held) -> Self {
        Self {
            fingerprint: RecordFingerprint::new(held.stored()),
            resource_version: held.resource_version(),
            unsigned: held.is_unsigned(),
            absence_noted: held.stored().good().is_some() && held.is_noted_absent(),
            listed: true,
            node: Arc::from(held.node_name()),
        }
    }
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
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
    pub(super) fn key(&self, name: &str) -> Key {
        self.nodes.get_key_value(name).map_or_else(|| Arc::from(name), |(key, _)| Arc::clone(key))
    }

    /// Returns the name of a record as the shared key.
    pub(super) fn record_key(&self, name: &str) -> Arc<str> {
        self.records.get_key_value(name).map_or_else(|| Arc::from(name), |(key, _)| Arc::clone(key))
    }

    fn record_of(&self, node: &NodeEntry) -> Option<&RecordEntry> {
        self.records.get(node.record.as_ref()?)
    }

    /// Returns the priority of the work that a live node may need.
    fn work(&self, node: &NodeEntry) -> Option<Priority> {
        let record = self.record_of(node);
        if self.is_clean(node) {
            return None;
        }
        match node.fingerprint.need(record.map(|record| &record.fingerprint)) {
            Need::Restore => Some(Priority::Restore),
            Need::Capture => Some(Priority::Capture),
            Need::Nothing if node.fingerprint.is_ignored() => None,
            // The node exists: `absent-since` has to be cleared.
            Need::Nothing => record.filter(|record| record.absence_noted).map(|_| Priority::Collect),
        }
    }

    /// Whether this state of the node was found to need nothing with the current version of its
    /// record.
    pub(super) fn is_clean(&self, node: &NodeEntry) -> bool {
        let version = self.record_of(node).map(|record| record.resource_version);
        version.is_some() && node.clean_with.map(NonZeroU64::get) == version
    }

    /// Takes note of the resourceVersion of a node that needs nothing and has not changed. Returns
    /// false for any other node.
    pub(super) fn is_unchanged(&mut self, node: &Node) -> bool {
        let Some(known) = self.nodes.get(node.name.as_str()) else { return false };
        if self.work(known).is_some() || !known.fingerprint.has_content_of(node) {
            return false;
        }
        if let Some(known) = self.nodes.get_mut(node.name.as_str()) {
            known.fingerprint.advance(node.resource_version);
            known.listed = true;
        }
        true
    }

    /// Whether the record holds exactly this last state.
    pub(super) fn is_recorded(&self, last: &NodeEntry) -> bool {
        self.record_of(last).is_some_and(|record| last.fingerprint.is_recorded_in(&record.fingerprint))
    }

    /// Whether the last state of a deleted node may have to be written.
    pub(super) fn last_state_may_need_write(&self, last: &NodeEntry) -> bool {
        last.fingerprint.last_state_may_need_write(self.record_of(last).map(|record| &record.fingerprint))
    }

    /// Adds or updates a node. Returns the priority of its work; `None` if nothing relevant has
    /// changed.
    pub(super) fn put_node(&mut self, name: &Key, mut entry: NodeEntry) -> Option<Priority> {
        self.surveyed = None;
        if let Some(old) = self.nodes.get_mut(name) {
            old.listed = true;
            let (was, is) = (&old.fingerprint, &entry.fingerprint);
            if was.is_same_incarnation(is) && !is.is_newer_than(was) {
                return None;
            }
            if old.decides_like(&entry) {
                entry.clean_with = old.clean_with;
            }
            let before = old.record.clone();
            if before != entry.record {
                self.unclaim(before.as_ref(), name);
            }
        }
        // Every name is stored once.
        if let Some(record) = &mut entry.record
            && let Some((shared, _)) = self.records.get_key_value(record)
        {
            *record = Arc::clone(shared);
        }
        self.claim(name, &entry);
        let work = self.work(&entry);
        make_room(&mut self.nodes, self.records.len());
        self.nodes.insert(Arc::clone(name), entry);
        work
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
    pub(super) fn delete_node(&mut self, name: &Key, last: &NodeEntry) {
        let is_same = |entry: &NodeEntry| entry.fingerprint.is_same_incarnation(&last.fingerprint);
        if self.nodes.get(name).is_some_and(is_same) {
            self.remove_node(name);
        }
    }

    fn remove_node(&mut self, name: &Key) {
        self.surveyed = None;
        if let Some(old) = self.nodes.remove(name) {
            self.unclaim(old.record.as_ref(), name);
        }
    }

    /// Adds or updates a record. Returns the nodes that may need work; `None` if this version is
    /// known.
    pub(super) fn put_record(&mut self, name: &str, mut entry: RecordEntry) -> Option<Vec<(Key, Priority)>> {
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
        if let Some(old) = self.records.get_mut(&name)
            && is_known(old)
        {
            old.listed = true;
            return None;
        }
        self.surveyed = None;
        let owner = Arc::clone(&entry.node);
        if self.records.get(&name).is_some_and(|old| old.resource_version == entry.resource_version) {
            self.forget_clean(&name, &owner);
        }
        make_room(&mut self.records, self.nodes.len());
        self.records.insert(Arc::clone(&name), entry);
        Some(self.work_of_record(&name, &owner))
    }

    /// Forgets that the nodes of a record were found to need nothing with its current version.
    fn forget_clean(&mut self, record: &Arc<str>, owner: &Key) {
        for name in self.claims.get(record).into_iter().flatten().chain(std::iter::once(owner)) {
            if let Some(node) = self.nodes.get_mut(name) {
                node.clean_with = None;
            }
        }
    }

    pub(super) fn delete_record(&mut self, name: &str) -> Vec<(Key, Priority)> {
        self.surveyed = None;
        match self.records.remove_entry(name) {
            Some((name, old)) => self.work_of_record(&name, &old.node),
            None => Vec::new(),
        }
    }

    fn work_of_record(&self, record: &Arc<str>, owner: &Key) -> Vec<(Key, Priority)> {
        let claimants = self.claims.get(record).into_iter().flatten();
        let nodes = claimants.chain(std::iter::once(owner));
        nodes
            .filter_map(|name| {
                let node = self.nodes.get(name).filter(|node| node.record.as_ref() == Some(record))?;
                self.work(node).map(|priority| (Arc::clone(name), priority))
            })
            .collect()
    }

    /// Takes note that this state of a node needs nothing with this version of its record.
    pub(super) fn note_clean(&mut self, name: &Key, seen: &NodeEntry, record: Option<u64>) {
        self.surveyed = None;
        if let Some(node) = self.nodes.get_mut(name)
            && node.decides_like(seen)
        {
            node.clean_with = record.and_then(NonZeroU64::new);
        }
    }

    pub(super) fn begin_nodes(&mut self) {
        self.nodes.values_mut().for_each(|node| node.listed = false);
    }

    /// Removes the nodes that a list did not contain. Nothing is captured of them, since their last
    /// state is not known.
    pub(super) fn end_nodes(&mut self) {
        self.surveyed = None;
        let gone: Vec<Key> =
            self.nodes.iter().filter(|(_, node)| !node.listed).map(|(name, _)| Arc::clone(name)).collect();
        for name in &gone {
            self.remove_node(name);
        }
        self.nodes.shrink_to_fit();
    }

    pub(super) fn begin_records(&mut self) {
        self.records.values_mut().for_each(|record| record.listed = false);
    }

    pub(super) fn end_records(&mut self) {
        self.surveyed = None;
        self.records.retain(|_, record| record.listed);
        self.records.shrink_to_fit();
    }

    /// Whether there are records of nodes that were identified by something else than their name.
    pub(super) fn has_other_identities(&self) -> bool {
        self.records.keys().any(|name| !name.starts_with("node-"))
    }

    /// Returns the records that the newest signing key has not signed, each with its node.
    pub(super) fn unsigned(&self) -> Vec<(Arc<str>, Key)> {
        let unsigned = self.records.iter().filter(|(_, record)| record.unsigned);
        unsigned.map(|(name, record)| (Arc::clone(name), Arc::clone(&record.node))).collect()
    }

    pub(super) fn node(&self, name: &str) -> Option<&NodeEntry> {
        self.nodes.get(name)
    }

    pub(super) fn record(&self, name: &str) -> Option<&RecordEntry> {
        self.records.get(name)
    }

    /// Returns the live nodes with the identity of a record that is not named after a node.
    pub(super) fn claimants(&self, record: &str) -> impl Iterator<Item = &Key> {
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

    /// Returns every node that may need work.
    pub(super) fn pending(&self) -> impl Iterator<Item = (&Key, Priority)> {
        self.nodes.iter().filter_map(|(name, node)| self.work(node).map(|priority| (name, priority)))
    }

    /// Returns the number of nodes that a policy applies to, and how many of them have a record.
    pub(super) fn matched(&self, policy: &str) -> (usize, usize) {
        let policy = hash(&policy);
        let nodes = self.nodes.values().filter(|node| node.policy == policy);
        nodes.fold((0, 0), |(nodes, records), node| (nodes + 1, records + usize::from(self.record_of(node).is_some())))
    }

    pub(super) fn survey(&mut self) -> Survey {
        if let Some(known) = self.surveyed {
            return known;
        }
        let mut survey = Survey { records: self.records.len(), ..Survey::default() };
        for node in self.nodes.values() {
            match self.work(node) {
                _ if node.fingerprint.is_ignored() => survey.ignored += 1,
                _ if node.record.is_none() => survey.unidentified += 1,
                None => survey.current += 1,
                Some(Priority::Restore) => survey.to_restore += 1,
                Some(_) => survey.to_capture += 1,
            }
        }
        for (name, record) in &self.records {
            survey.bad_records += usize::from(record.fingerprint.is_bad());
            survey.unsigned += usize::from(record.unsigned);
            survey.tombstones += usize::from(record.fingerprint.is_tombstone());
            survey.absent += usize::from(!self.has_live_node(name, record));
        }
        self.surveyed = Some(survey);
        survey
    }

    /// Whether a live node has the identity of a record.
    pub(super) fn has_live_node(&self, name: &Arc<str>, record: &RecordEntry) -> bool {
        self.nodes.get(&record.node).is_some_and(|node| node.record.as_ref() == Some(name))
            || self.claims.get(name).is_some_and(|nodes| !nodes.is_empty())
    }

    fn claim(&mut self, name: &Key, entry: &NodeEntry) {
        if let Some(record) = &entry.record
            && !record.starts_with("node-")
        {
            self.claims.entry(Arc::clone(record)).or_default().insert(Arc::clone(name));
        }
    }

    fn unclaim(&mut self, record: Option<&Arc<str>>, name: &Key) {
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
