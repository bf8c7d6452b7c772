//! What the watches say, taken into memory: the index, and the few nodes whose content is needed next.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::runtime::watcher::Event;
use perennial_core::{
    config::Identity,
    keeper::{
        identity::Identified,
        keys::Kept,
        record::{Origin, Record},
        selection::{self, Policy},
    },
};
use tokio::time::Instant;

use super::{
    Key, Priority,
    activity::Board,
    apply::{Held, resource_version},
    index::{Index, NodeEntry, RecordEntry, Verdict},
    node::Node,
    policies::Policies,
    recall_cache::{Packed, Past},
    record_keys::Signatures,
};
use crate::runtime::map::HashMap;

/// So many nodes that wait for their restore are held in memory with their labels; the others are read again.
const HOT: usize = 2048;
/// A watch that has said something so recently is not far behind. One that is silent may be.
const LIVELY: Duration = Duration::from_secs(1);

/// Last states are held this long: longer than it takes another replica to take over.
const LAST_FOR: Duration = Duration::from_mins(10);

/// What is known, and what is about to be worked on.
#[derive(Debug, Default)]
pub struct View {
    pub index: Index,
    /// Nodes as the watch just showed them.
    hot: HashMap<Key, Packed>,
    /// Last states of nodes that are gone, in order, to be written before anything is done about a successor.
    last: HashMap<Key, VecDeque<Pending>>,
    past: Past,
    /// When the watch of nodes last said something.
    heard: Option<Instant>,
    /// How far the watches of nodes and of records have come.
    told: Told,
    told_records: Told,
    /// Since when a node waits for its restore.
    waiting: HashMap<Key, Instant>,
    /// Since when a node is seen with our taint.
    gated: HashMap<Key, Instant>,
    nodes_listed: bool,
    records_listed: bool,
    pub policies_known: bool,
    /// What happens is noted here, where somebody looks on.
    pub board: Option<Board>,
}

/// How far a watch has come in the API server's order.
#[derive(Debug, Default)]
struct Told {
    upto: u64,
    /// The newest that was named so far, while a list comes in: it is in no order.
    listing: Option<u64>,
}

impl Told {
    fn begin(&mut self) {
        self.listing = Some(0);
    }

    fn listed(&mut self, version: u64) {
        self.listing = self.listing.map(|newest| newest.max(version));
    }

    fn end(&mut self) {
        self.upto = self.listing.take().unwrap_or(self.upto);
    }

    fn heard(&mut self, version: u64) {
        self.upto = self.upto.max(version);
    }

    /// All that happened until then has been told, and no list is coming in that may name it yet.
    fn is_past(&self, version: u64) -> bool {
        self.listing.is_none() && version <= self.upto
    }
}

/// A last state that is to be written.
#[derive(Debug)]
struct Pending {
    uid: String,
    node: Packed,
    since: Instant,
    /// The record's name, where that is not made of the node's name.
    record: Option<String>,
}

impl Pending {
    fn new(node: &selection::Node, packed: Packed, policy: &Policy) -> Self {
        let identity = Identified::of(&policy.identity, node).filter(|_| policy.identity != Identity::Name);
        let record = identity.map(|identity| identity.record_name().0);
        Self { uid: node.uid.clone(), node: packed, since: Instant::now(), record }
    }
}

/// What to look at next.
pub type Asks = Vec<(Key, Priority)>;

impl View {
    /// Both lists have been read: what is not here is not there.
    pub fn is_synced(&self) -> bool {
        self.nodes_listed && self.records_listed && self.policies_known
    }

    pub fn on_node(&mut self, event: Event<Node>, policies: &Policies) -> Asks {
        self.heard = Some(Instant::now());
        match event {
            Event::Init => {
                self.past.interrupted();
                self.index.begin_nodes();
                self.told.begin();
            }
            Event::InitApply(node) => {
                let node = node.into_view();
                self.told.listed(node.resource_version);
                let asks = self.put_node(&node, policies);
                self.note_node(&node, false);
                return asks;
            }
            Event::Apply(node) => {
                let node = node.into_view();
                self.told.heard(node.resource_version);
                // Seen from its beginning on: what its predecessor had is what it may be given.
                if self.index.node(&node.name).is_none() {
                    self.past.changed(&node.name, true);
                }
                let asks = self.put_node(&node, policies);
                self.note_node(&node, true);
                return asks;
            }
            Event::InitDone => {
                self.index.end_nodes();
                self.nodes_listed = true;
                self.told.end();
                let is_there = |name: &Key| self.index.node(name).is_some();
                self.hot.retain(|name, _| is_there(name));
                self.waiting.retain(|name, _| is_there(name));
                self.gated.retain(|name, _| is_there(name));
                if let Some(board) = &mut self.board {
                    board.retain_nodes(|name| self.index.node(name).is_some());
                }
                return self.everything();
            }
            Event::Delete(node) => {
                let node = node.into_view();
                self.told.heard(node.resource_version);
                if let Some(board) = &mut self.board {
                    board.saw_delete(&self.index.key(&node.name));
                }
                return self.delete_node(&node, policies);
            }
        }
        Asks::new()
    }

    /// After it has been taken in: the index and the board then share its name.
    fn note_node(&mut self, node: &selection::Node, news: bool) {
        let Some(board) = &mut self.board else { return };
        let key = self.index.key(&node.name);
        let record = self.index.node(&key).and_then(|entry| self.index.record(entry.record.as_deref()?));
        board.saw_node(&key, node, record.is_some(), news);
    }

    fn note_record(&mut self, held: &Held, news: bool) {
        if let Some(board) = &mut self.board {
            board.saw_record(held, news);
        }
    }

    pub fn on_record(&mut self, event: Event<ConfigMap>, policies: &Policies, signatures: &Signatures) -> Asks {
        match event {
            Event::Init => {
                self.index.begin_records();
                self.told_records.begin();
            }
            Event::InitApply(config_map) => {
                let held = Held::new(config_map, signatures);
                self.told_records.listed(held.resource_version());
                let asks = self.put_record(&held, policies);
                self.note_record(&held, false);
                return asks;
            }
            Event::Apply(config_map) => {
                let held = Held::new(config_map, signatures);
                self.told_records.heard(held.resource_version());
                let asks = self.put_record(&held, policies);
                self.note_record(&held, true);
                return asks;
            }
            Event::InitDone => {
                self.index.end_records();
                self.records_listed = true;
                self.told_records.end();
                if let Some(board) = &mut self.board {
                    board.retain_records(|name| self.index.record(name).is_some());
                }
                return self.everything();
            }
            Event::Delete(config_map) => {
                let name = config_map.metadata.name.clone().unwrap_or_default();
                self.told_records.heard(resource_version(&config_map));
                if let Some(board) = &mut self.board {
                    let held = Held::new(config_map, signatures);
                    board.lost_record(held.name(), held.node_name());
                }
                signatures.forget(&name);
                let asks = self.index.delete_record(&name);
                return self.when_synced(asks);
            }
        }
        Asks::new()
    }

    /// Takes in a node as a request answered. Lists are read page by page, and answers take their time: what the watch has told
    /// the end of since is not there again.
    pub fn learn_node(&mut self, node: &selection::Node, policies: &Policies) -> Asks {
        let known = self.index.node(&node.name).is_some_and(|entry| entry.is_of(&node.uid));
        if !known && self.told.is_past(node.resource_version) { Asks::new() } else { self.put_node(node, policies) }
    }

    /// The same for a record.
    pub fn learn_record(&mut self, held: &Held, policies: &Policies) -> Asks {
        let known = self.index.record(held.name()).is_some();
        if !known && self.told_records.is_past(held.resource_version()) {
            return Asks::new();
        }
        self.put_record(held, policies)
    }

    /// Takes in a node as the watch tells of it.
    fn put_node(&mut self, node: &selection::Node, policies: &Policies) -> Asks {
        if self.index.is_as_before(node) {
            return Asks::new();
        }
        let policy = policies.of(node);
        let entry = NodeEntry::new(node, &policy);
        let name: Key = self.index.key(&node.name);
        if entry.gated {
            self.gated.entry(Arc::clone(&name)).or_insert_with(Instant::now);
        } else {
            self.gated.remove(&name);
        }
        if self.index.node(&name).is_some_and(|old| !old.says_the_same(&entry)) {
            self.past.changed(&name, false);
        }
        match self.index.put_node(&name, entry) {
            Verdict::Quiet => {
                self.hot.remove(&name);
                self.waiting.remove(&name);
                Asks::new()
            }
            Verdict::Look(priority) => {
                if priority == Priority::Restore && self.is_synced() {
                    self.waiting.entry(Arc::clone(&name)).or_insert_with(Instant::now);
                    if self.hot.len() < HOT || self.hot.contains_key(&name) {
                        self.hot.insert(Arc::clone(&name), policies.pack(node));
                    }
                } else {
                    self.hot.remove(&name);
                }
                self.when_synced(vec![(name, priority)])
            }
        }
    }

    /// Takes in a node under policies that have changed.
    pub fn reconsider(&mut self, node: &selection::Node, policies: &Policies) -> Asks {
        self.index.outdate(&node.name);
        self.learn_node(node, policies)
    }

    fn put_record(&mut self, held: &Held, policies: &Policies) -> Asks {
        let entry = RecordEntry::new(held);
        let bad = entry.bad;
        let Some(mut asks) = self.index.put_record(held.name(), entry) else { return Asks::new() };
        if bad {
            return self.when_synced(asks);
        }
        // A record that turned up late may be older than a last state that seemed to need nothing.
        for node in self.past.of(held.node_name()) {
            let policy = policies.of(&node);
            let last = NodeEntry::new(&node, &policy);
            let name = self.index.key(&node.name);
            let pending = self.last.get(&name).is_some_and(|states| states.iter().any(|state| state.uid == node.uid));
            if !pending && self.index.last_verdict(&last) != Verdict::Quiet {
                self.last.entry(Arc::clone(&name)).or_default().push_back(Pending::new(
                    &node,
                    policies.pack(&node),
                    &policy,
                ));
                asks.push((name, Priority::LastState));
            }
        }
        self.when_synced(asks)
    }

    fn delete_node(&mut self, node: &selection::Node, policies: &Policies) -> Asks {
        let policy = policies.of(node);
        let entry = NodeEntry::new(node, &policy);
        let name: Key = self.index.key(&node.name);
        self.hot.remove(&name);
        self.waiting.remove(&name);
        self.gated.remove(&name);
        let verdict = self.index.delete_node(&name, &entry);
        // Whoever claims the same identity may be the only one now.
        let claimants = entry.record.iter().flat_map(|record| self.index.claimants(record)).cloned();
        let mut asks: Asks = claimants.map(|other| (other, Priority::Restore)).collect();
        let packed = policies.pack(node);
        self.past.push(&name, packed.clone());
        if !self.is_synced() || matches!(verdict, Verdict::Look(_)) {
            self.last.entry(Arc::clone(&name)).or_default().push_back(Pending::new(node, packed, &policy));
            asks.push((name, Priority::LastState));
        }
        self.when_synced(asks)
    }

    /// What a node that is as it was when it began may be given without reading its record: what its predecessor had, if
    /// the record is known to say the same.
    pub fn recall(&self, node: &selection::Node, policies: &Policies) -> Option<Record> {
        self.recalled(&self.past.before_unchanged(&node.name)?, policies)
    }

    /// The same for a node that is about to be created. A watch that is silent may have missed a whole life of the name, and
    /// protected keys are never given on such grounds.
    pub fn recall_for_create(&self, name: &str, policies: &Policies) -> Option<Record> {
        let lively = self.heard.is_some_and(|at| at.elapsed() < LIVELY);
        if !lively || self.index.node(name).is_some() {
            return None;
        }
        let last = self.past.before_next(name)?;
        let record = self.recalled(&last, policies)?;
        let policy = policies.of(&last);
        (!record.kept.keys().any(|key| policy.protects(key))).then_some(record)
    }

    fn recalled(&self, last: &selection::Node, policies: &Policies) -> Option<Record> {
        if self.last.contains_key(last.name.as_str()) || !self.is_synced() {
            return None;
        }
        let policy = policies.of(last);
        if policy.identity != Identity::Name || !self.index.has_exactly(&NodeEntry::new(last, &policy)) {
            return None;
        }
        let seen = policy.select(last);
        let mark = seen.mark_digest();
        Some(Record {
            sequence: 0,
            node: Origin {
                name: seen.name,
                uid: seen.uid,
                resource_version: seen.resource_version,
                mark,
                machine: seen.machine,
            },
            identity: None,
            kept: seen.kept,
            folded: false,
            before: Kept::new(),
            withheld: Vec::new(),
            captured_at: Timestamp::UNIX_EPOCH,
            captured_by: String::new(),
            history: Vec::new(),
        })
    }

    /// A node to work on that the watch just showed.
    pub fn take_hot(&mut self, name: &Key) -> Option<selection::Node> {
        self.hot.remove(name).map(|packed| packed.unpack())
    }

    /// The oldest last state that is still to be looked at.
    pub fn next_last(&self, name: &Key) -> Option<selection::Node> {
        self.last.get(name)?.front().map(|state| state.node.unpack())
    }

    /// Another name under which whoever this node is has left, with a last state that is still to be looked at.
    pub fn left_as(&self, name: &Key) -> Option<Key> {
        let record = self.index.node(name)?.record.as_deref()?;
        let is_its = |state: &Pending| state.record.as_deref() == Some(record);
        let mut others = self.last.iter().filter(|(other, _)| *other != name);
        others.find(|(_, states)| states.iter().any(is_its)).map(|(other, _)| Arc::clone(other))
    }

    /// That last state has been dealt with.
    pub fn done_last(&mut self, name: &Key, uid: &str) {
        if let Some(states) = self.last.get_mut(name) {
            if states.front().is_some_and(|state| state.uid == uid) {
                states.pop_front();
            }
            if states.is_empty() {
                self.last.remove(name);
            }
        }
    }

    /// Since when a node has waited for its restore.
    pub fn waits_since(&self, name: &Key) -> Option<Instant> {
        self.waiting.get(name).copied()
    }

    /// A node waits no longer.
    pub fn stop_waiting(&mut self, name: &Key) {
        self.waiting.remove(name);
    }

    /// Nodes that have carried our taint for too long.
    pub fn overdue(&self, limit: Duration) -> Vec<Key> {
        self.gated.iter().filter(|(_, since)| since.elapsed() > limit).map(|(name, _)| Arc::clone(name)).collect()
    }

    /// Lets go of last states that nobody came for: they were another replica's, and it has dealt with them.
    pub fn expire(&mut self) {
        self.last.retain(|_, states| {
            states.retain(|state| state.since.elapsed() < LAST_FOR);
            !states.is_empty()
        });
    }

    /// Everything that is to be looked at, from memory.
    pub fn everything(&self) -> Asks {
        let last = self.last.keys().map(|name| (Arc::clone(name), Priority::LastState));
        let nodes = self.index.pending().map(|(name, priority)| (Arc::clone(name), priority));
        self.when_synced(last.chain(nodes).collect())
    }

    /// Nothing is decided before both lists are complete: a record that is not read yet is not one that is missing.
    fn when_synced(&self, asks: Asks) -> Asks {
        if self.is_synced() { asks } else { Asks::new() }
    }
}

#[cfg(test)]
mod tests {
    use perennial_core::config::Settings;
    use serde_json::json;

    use super::*;

    fn node(name: &str, uid: &str, version: u64) -> Node {
        let metadata = json!({"name": name, "uid": uid, "resourceVersion": version.to_string()});
        serde_json::from_value(json!({"metadata": metadata})).unwrap()
    }

    #[test]
    fn a_node_of_an_old_list_is_not_there_again() {
        let policies = Policies::new(&Settings::default().keeper);
        let mut view = View::default();
        let old = node("old", "1", 7).into_view();
        let _ = view.on_node(Event::Init, &policies);
        let _ = view.learn_node(&node("early", "1", 2).into_view(), &policies);
        assert!(view.index.node("early").is_some(), "the list that comes in may still name it");
        let _ = view.on_node(Event::InitApply(node("old", "1", 7)), &policies);
        let _ = view.on_node(Event::InitDone, &policies);
        let _ = view.on_node(Event::Delete(node("old", "1", 9)), &policies);

        let _ = view.learn_node(&old, &policies);
        assert!(view.index.node("old").is_none());

        // Its successor is not replaced by it either.
        let _ = view.on_node(Event::Apply(node("old", "2", 10)), &policies);
        let _ = view.reconsider(&old, &policies);
        assert!(view.index.node("old").is_some_and(|entry| entry.is_of("2")));

        let _ = view.learn_node(&node("new", "3", 11).into_view(), &policies);
        assert!(view.index.node("new").is_some(), "the watch has yet to tell of it");
    }
}
