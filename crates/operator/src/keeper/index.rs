//! What is known of every node and record, in a few hundred bytes each: enough to see without a request that nothing is
//! to be done. Label sets are read when they are needed.

mod rows;

pub use rows::Row;

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    num::NonZeroU64,
    sync::Arc,
};

use perennial_core::keeper::{
    hash::Digest,
    identity::Identified,
    keys::digest,
    selection::{self, Policy, ignored},
    stored_record::Stored,
};

use super::{Key, Priority, apply::Held};
use crate::runtime::map::{HashMap, HashSet};

/// What is known of one live node.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is one thing that was seen")]
pub struct NodeEntry {
    uid: u64,
    resource_version: u64,
    kept: u64,
    empty: bool,
    mark: u64,
    mark_from: u64,
    complete: bool,
    /// Its mark names keys that the record may not have heard of.
    own: bool,
    machine: u64,
    ignored: bool,
    /// It carries our taint.
    pub gated: bool,
    /// The name of its policy, hashed.
    policy: u64,
    /// All that a decision could look at, hashed: most events of a node are about something else.
    seen: u64,
    /// The record's name; `None` while the node does not say who it is.
    pub record: Option<Arc<str>>,
    /// The resourceVersion of the record with which this very state was found to need nothing.
    clean_with: Option<NonZeroU64>,
    /// The list that comes in, or the last one, has named it.
    listed: bool,
}

/// What is known of one record.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is one thing that was seen")]
pub struct RecordEntry {
    pub resource_version: u64,
    uid: u64,
    node_resource_version: u64,
    kept: u64,
    mark: u64,
    machine: u64,
    folded: bool,
    /// It holds protected keys for other machines.
    withheld: bool,
    pub bad: bool,
    pub tombstone: bool,
    /// The key that signs now has not signed it.
    unsigned: bool,
    /// An audit wrote down that its node is absent.
    noted: bool,
    /// The list that comes in, or the last one, has named it.
    listed: bool,
    pub node: Key,
}

/// Whether anything is to be done about a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Quiet,
    Look(Priority),
}

/// All nodes and records.
#[derive(Debug, Default)]
pub struct Index {
    nodes: HashMap<Key, NodeEntry>,
    records: HashMap<Arc<str>, RecordEntry>,
    /// Nodes by record, where identity is not the name: two at once are refused.
    claims: HashMap<Arc<str>, HashSet<Key>>,
    /// What was counted last, as long as nothing has changed since.
    surveyed: Option<Survey>,
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// A full map is made larger at once by as much as the other one suggests, since there are about as many nodes as records:
/// while a large map moves, there are two of it.
fn make_room<K: Eq + Hash, V>(map: &mut HashMap<K, V>, others: usize) {
    if map.len() == map.capacity() {
        map.reserve(others.saturating_sub(map.len()));
    }
}

fn fingerprint(node: &selection::Node) -> u64 {
    hash(&(&node.uid, &node.labels, &node.annotations, &node.taints, node.unschedulable, &node.machine))
}

fn word(digest: &Digest) -> u64 {
    hash(&digest.as_str())
}

impl NodeEntry {
    pub fn new(node: &selection::Node, policy: &Policy) -> Self {
        let seen = policy.select(node);
        let record = Identified::of(&policy.identity, node).map(|identity| Arc::from(identity.record_name().0));
        Self {
            uid: hash(&seen.uid),
            resource_version: seen.resource_version,
            kept: word(&digest(&seen.kept)),
            empty: seen.kept.is_empty(),
            mark: hash(&seen.mark_digest().as_str()),
            mark_from: seen.mark.as_ref().map_or(0, |mark| word(&mark.from)),
            complete: seen.mark.as_ref().is_some_and(|mark| mark.complete),
            own: seen.mark.as_ref().is_some_and(|mark| !mark.own.is_empty()),
            machine: hash(&seen.machine),
            ignored: ignored(node),
            gated: node.is_gated(),
            policy: hash(&policy.name.as_str()),
            seen: fingerprint(node),
            record,
            clean_with: None,
            listed: true,
        }
    }

    /// It is this incarnation.
    pub fn is_of(&self, uid: &str) -> bool {
        self.uid == hash(&uid)
    }

    /// Equal in everything that a decision looks at but the resourceVersion.
    pub fn says_the_same(&self, other: &Self) -> bool {
        (self.uid, self.kept, self.mark, self.machine, self.ignored, self.gated, &self.record)
            == (other.uid, other.kept, other.mark, other.machine, other.ignored, other.gated, &other.record)
    }

    /// What the hashes say about a live node. `Look` where they cannot tell.
    pub fn verdict(&self, record: Option<&RecordEntry>) -> Verdict {
        if self.ignored || self.record.is_none() {
            return Verdict::Quiet;
        }
        let Some(record) = record else {
            return match (self.gated, self.empty) {
                (true, _) => Verdict::Look(Priority::Restore),
                (false, true) => Verdict::Quiet,
                (false, false) => Verdict::Look(Priority::Capture),
            };
        };
        if self.clean_with.is_some_and(|version| version.get() == record.resource_version) {
            return Verdict::Quiet;
        }
        let owner = self.is_owner(record);
        if record.bad || self.gated || !(owner || self.is_settled_by_mark(record)) {
            return Verdict::Look(Priority::Restore);
        }
        let same = self.kept == record.kept && if owner { self.machine == record.machine } else { !self.own };
        let older = self.resource_version < record.node_resource_version;
        match (same || (owner && older), record.noted) {
            (true, false) => Verdict::Quiet,
            // Whoever is seen is not absent.
            (true, true) => Verdict::Look(Priority::Collect),
            (false, _) => Verdict::Look(Priority::Capture),
        }
    }

    /// What the hashes say about the last state of a node that is gone.
    pub fn last_verdict(&self, record: Option<&RecordEntry>) -> Verdict {
        if self.ignored || self.record.is_none() {
            return Verdict::Quiet;
        }
        let Some(record) = record else {
            return if self.empty { Verdict::Quiet } else { Verdict::Look(Priority::LastState) };
        };
        if self.resource_version <= record.node_resource_version {
            return Verdict::Quiet;
        }
        let owner = self.is_owner(record);
        let settled = owner || self.is_settled_by_mark(record);
        let news = !owner && self.own;
        if settled && !record.bad && self.kept == record.kept && !news {
            Verdict::Quiet
        } else {
            Verdict::Look(Priority::LastState)
        }
    }

    fn is_owner(&self, record: &RecordEntry) -> bool {
        self.uid == record.uid && !record.folded && self.mark == record.mark
    }

    fn is_settled_by_mark(&self, record: &RecordEntry) -> bool {
        self.complete && !(record.folded && record.uid == self.uid) && self.mark_from == record.kept
    }
}

impl RecordEntry {
    pub fn new(held: &Held) -> Self {
        let resource_version = held.resource_version();
        match &held.stored {
            Stored::Good(record) => Self {
                resource_version,
                uid: hash(&record.node.uid),
                node_resource_version: record.node.resource_version,
                kept: word(&digest(&record.kept)),
                mark: hash(&record.node.mark.as_str()),
                machine: hash(&record.node.machine),
                folded: record.folded,
                withheld: !record.withheld.is_empty(),
                bad: false,
                tombstone: record.is_tombstone(),
                unsigned: held.is_unsigned(),
                noted: held.is_noted_absent(),
                listed: true,
                node: Arc::from(record.node.name.as_str()),
            },
            Stored::Bad { .. } => Self {
                resource_version,
                uid: 0,
                node_resource_version: 0,
                kept: 0,
                mark: 0,
                machine: 0,
                folded: false,
                withheld: false,
                bad: true,
                tombstone: false,
                unsigned: held.is_unsigned(),
                noted: false,
                listed: true,
                node: Arc::from(held.node_name()),
            },
        }
    }
}

/// How many nodes and records are in which state.
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

impl Index {
    /// The key of a node, shared by everything that is known of it.
    pub fn key(&self, name: &str) -> Key {
        self.nodes.get_key_value(name).map_or_else(|| Arc::from(name), |(key, _)| Arc::clone(key))
    }

    /// The name of a record, shared in the same way.
    pub fn record_key(&self, name: &str) -> Arc<str> {
        self.records.get_key_value(name).map_or_else(|| Arc::from(name), |(key, _)| Arc::clone(key))
    }

    /// Nothing about a node has changed that a decision could look at, and nothing is to be done about it: only its version
    /// is noted.
    pub fn is_as_before(&mut self, node: &selection::Node) -> bool {
        let Some(known) = self.nodes.get_mut(node.name.as_str()) else { return false };
        let record = known.record.as_ref().and_then(|record| self.records.get(record));
        if known.verdict(record) != Verdict::Quiet || known.seen != fingerprint(node) {
            return false;
        }
        known.resource_version = known.resource_version.max(node.resource_version);
        known.listed = true;
        true
    }

    /// The record says what this last state says, and nothing else.
    pub fn has_exactly(&self, last: &NodeEntry) -> bool {
        let record = last.record.as_ref().and_then(|record| self.records.get(record));
        record.is_some_and(|record| {
            let plain = !record.folded && !record.bad && !record.withheld;
            plain && !last.ignored && record.kept == last.kept && record.machine == last.machine
        })
    }

    /// What the hashes say about the last state of a node that is gone.
    pub fn last_verdict(&self, last: &NodeEntry) -> Verdict {
        last.last_verdict(last.record.as_ref().and_then(|record| self.records.get(record)))
    }

    /// Takes in a node. The verdict is `Quiet` as well where nothing changed that matters.
    pub fn put_node(&mut self, name: &Key, mut entry: NodeEntry) -> Verdict {
        self.surveyed = None;
        if let Some(old) = self.nodes.get_mut(name) {
            old.listed = true;
            if old.uid == entry.uid && old.resource_version >= entry.resource_version {
                return Verdict::Quiet;
            }
            if old.says_the_same(&entry) {
                entry.clean_with = old.clean_with;
            }
            let before = old.record.clone();
            if before != entry.record {
                self.unclaim(before.as_ref(), name);
            }
        }
        // One copy of each name, however many know it.
        if let Some(record) = &mut entry.record
            && let Some((shared, _)) = self.records.get_key_value(record)
        {
            *record = Arc::clone(shared);
        }
        self.claim(name, &entry);
        let verdict = entry.verdict(entry.record.as_ref().and_then(|record| self.records.get(record)));
        make_room(&mut self.nodes, self.records.len());
        self.nodes.insert(Arc::clone(name), entry);
        verdict
    }

    /// The next look at a node counts, even if nothing about it has changed.
    pub fn outdate(&mut self, name: &str) {
        self.surveyed = None;
        if let Some(node) = self.nodes.get_mut(name) {
            node.resource_version = 0;
            node.seen = 0;
            node.clean_with = None;
        }
    }

    /// A node is gone: its last state, seen.
    pub fn delete_node(&mut self, name: &Key, last: &NodeEntry) -> Verdict {
        if self.nodes.get(name).is_some_and(|entry| entry.uid == last.uid) {
            self.forget_node(name);
        }
        self.last_verdict(last)
    }

    fn forget_node(&mut self, name: &Key) {
        self.surveyed = None;
        if let Some(old) = self.nodes.remove(name) {
            self.unclaim(old.record.as_ref(), name);
        }
    }

    /// Takes in a record; the nodes to look at, or `None` where it was known already.
    pub fn put_record(&mut self, name: &str, mut entry: RecordEntry) -> Option<Vec<(Key, Priority)>> {
        let node = self.nodes.get_key_value(&entry.node);
        if let Some((shared, _)) = node {
            entry.node = Arc::clone(shared);
        }
        let known = self.records.get_key_value(name).map(|(key, _)| Arc::clone(key));
        let named = node.and_then(|(_, node)| node.record.clone()).filter(|record| **record == *name);
        let name = known.or(named).unwrap_or_else(|| Arc::from(name));
        // The same version may be judged otherwise once the keys have changed.
        let is_known = |old: &RecordEntry| {
            let judged = (old.bad, old.unsigned) == (entry.bad, entry.unsigned);
            old.resource_version > entry.resource_version || old.resource_version == entry.resource_version && judged
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
            self.unclean(&name, &owner);
        }
        make_room(&mut self.records, self.nodes.len());
        self.records.insert(Arc::clone(&name), entry);
        Some(self.look_at(&name, &owner))
    }

    /// Whatever was found about the nodes of a record with this version of it counts no more.
    fn unclean(&mut self, record: &Arc<str>, owner: &Key) {
        for name in self.claims.get(record).into_iter().flatten().chain(std::iter::once(owner)) {
            if let Some(node) = self.nodes.get_mut(name) {
                node.clean_with = None;
            }
        }
    }

    pub fn delete_record(&mut self, name: &str) -> Vec<(Key, Priority)> {
        self.surveyed = None;
        match self.records.remove_entry(name) {
            Some((name, old)) => self.look_at(&name, &old.node),
            None => Vec::new(),
        }
    }

    fn look_at(&self, record: &Arc<str>, owner: &Key) -> Vec<(Key, Priority)> {
        let claimants = self.claims.get(record).into_iter().flatten();
        let nodes = claimants.chain(std::iter::once(owner));
        let entry = self.records.get(record);
        nodes
            .filter_map(|name| {
                let node = self.nodes.get(name).filter(|node| node.record.as_ref() == Some(record))?;
                match node.verdict(entry) {
                    Verdict::Look(priority) => Some((Arc::clone(name), priority)),
                    Verdict::Quiet => None,
                }
            })
            .collect()
    }

    /// This state of a node was looked at together with this state of its record and needs nothing.
    pub fn note_clean(&mut self, name: &Key, seen: &NodeEntry, record: Option<u64>) {
        self.surveyed = None;
        if let Some(node) = self.nodes.get_mut(name)
            && node.says_the_same(seen)
        {
            node.clean_with = record.and_then(NonZeroU64::new);
        }
    }

    pub fn begin_nodes(&mut self) {
        self.nodes.values_mut().for_each(|node| node.listed = false);
    }

    /// What the list did not name is gone. Nothing is captured of it: its last state was not seen.
    pub fn end_nodes(&mut self) {
        self.surveyed = None;
        let gone: Vec<Key> =
            self.nodes.iter().filter(|(_, node)| !node.listed).map(|(name, _)| Arc::clone(name)).collect();
        for name in &gone {
            self.forget_node(name);
        }
        self.nodes.shrink_to_fit();
    }

    pub fn begin_records(&mut self) {
        self.records.values_mut().for_each(|record| record.listed = false);
    }

    pub fn end_records(&mut self) {
        self.surveyed = None;
        self.records.retain(|_, record| record.listed);
        self.records.shrink_to_fit();
    }

    /// There are records of nodes that were known by something else than their name.
    pub fn has_other_identities(&self) -> bool {
        self.records.keys().any(|name| !name.starts_with("node-"))
    }

    /// Records that the key which signs now has not signed, each with its node.
    pub fn unsigned(&self) -> Vec<(Arc<str>, Key)> {
        let unsigned = self.records.iter().filter(|(_, record)| record.unsigned);
        unsigned.map(|(name, record)| (Arc::clone(name), Arc::clone(&record.node))).collect()
    }

    pub fn node(&self, name: &str) -> Option<&NodeEntry> {
        self.nodes.get(name)
    }

    pub fn record(&self, name: &str) -> Option<&RecordEntry> {
        self.records.get(name)
    }

    /// All nodes that hold an identity which is not their name.
    pub fn claimants(&self, record: &str) -> impl Iterator<Item = &Key> {
        self.claims.get(record).into_iter().flatten()
    }

    /// The one of these, other than this node, that the record is of: it was taken from it (`uid`), or gave it all that it has.
    pub fn holder(&self, record: &str, uid: &str, but: &str) -> Option<&Key> {
        let entry = self.records.get(record);
        let holds = |node: &NodeEntry| node.is_of(uid) || entry.is_some_and(|entry| node.is_settled_by_mark(entry));
        self.claimants(record).find(|name| ***name != *but && self.nodes.get(*name).is_some_and(holds))
    }

    /// Every node that is to be looked at, from what is in memory.
    pub fn pending(&self) -> impl Iterator<Item = (&Key, Priority)> {
        self.nodes.iter().filter_map(|(name, node)| {
            match node.verdict(node.record.as_ref().and_then(|record| self.records.get(record))) {
                Verdict::Look(priority) => Some((name, priority)),
                Verdict::Quiet => None,
            }
        })
    }

    /// How many nodes a policy has, and how many of them have a record.
    pub fn matched(&self, policy: &str) -> (usize, usize) {
        let policy = hash(&policy);
        let nodes = self.nodes.values().filter(|node| node.policy == policy);
        nodes.fold((0, 0), |(nodes, records), node| {
            let has = node.record.as_ref().is_some_and(|record| self.records.contains_key(record));
            (nodes + 1, records + usize::from(has))
        })
    }

    pub fn survey(&mut self) -> Survey {
        if let Some(known) = self.surveyed {
            return known;
        }
        let mut survey = Survey { records: self.records.len(), ..Survey::default() };
        for node in self.nodes.values() {
            let record = node.record.as_ref().and_then(|record| self.records.get(record));
            match node.verdict(record) {
                _ if node.ignored => survey.ignored += 1,
                _ if node.record.is_none() => survey.unidentified += 1,
                Verdict::Quiet => survey.current += 1,
                Verdict::Look(Priority::Restore) => survey.to_restore += 1,
                Verdict::Look(_) => survey.to_capture += 1,
            }
        }
        for (name, record) in &self.records {
            survey.bad_records += usize::from(record.bad);
            survey.unsigned += usize::from(record.unsigned);
            survey.tombstones += usize::from(record.tombstone);
            survey.absent += usize::from(!self.is_live(name, record));
        }
        self.surveyed = Some(survey);
        survey
    }

    /// Some live node is the one that a record is for.
    fn is_live(&self, name: &Arc<str>, record: &RecordEntry) -> bool {
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
