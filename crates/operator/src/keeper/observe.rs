//! What the watches say, taken into memory: the index, and the few nodes whose content is needed next.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::runtime::watcher::Event;
use perennial_core::{
    keeper::selection,
    mutation::{Mutation, mutated},
};
use tokio::time::Instant;

use super::{
    apply::Held,
    index::{Index, NodeEntry, RecordEntry, Verdict},
    node::Node,
    policies::Policies,
};
use crate::runtime::{budget::Priority, map::HashMap, queue::Key};

/// So many nodes that wait for their restore are held in memory with their labels; the others are read again.
const HOT: usize = 2048;
/// So many last states that seemed to need nothing are held for a record that turns up late.
const RECENT: usize = 4096;

/// Last states are held this long: longer than it takes another replica to take over.
const LAST_FOR: Duration = Duration::from_mins(10);

/// What is known, and what is about to be worked on.
#[derive(Debug, Default)]
pub struct View {
    pub index: Index,
    /// Nodes as the watch just showed them.
    hot: HashMap<Key, selection::Node>,
    /// Last states of nodes that are gone, in order, to be written before anything is done about a successor.
    last: HashMap<Key, VecDeque<(selection::Node, Instant)>>,
    recent: Recent,
    /// Since when a node waits for its restore.
    waiting: HashMap<Key, Instant>,
    /// Since when a node is seen with our taint.
    gated: HashMap<Key, Instant>,
    nodes_listed: bool,
    records_listed: bool,
    pub policies_known: bool,
}

/// What to look at next.
pub type Asks = Vec<(Key, Priority)>;

impl View {
    /// Both lists have been read: what is not here is not there.
    pub fn is_synced(&self) -> bool {
        self.nodes_listed && self.records_listed && self.policies_known
    }

    pub fn on_node(&mut self, event: Event<Node>, policies: &Policies) -> Asks {
        match event {
            Event::Init => self.index.begin_nodes(),
            Event::InitApply(node) | Event::Apply(node) => return self.put_node(node.into_view(), policies),
            Event::InitDone => {
                self.index.end_nodes();
                self.nodes_listed = true;
                return self.everything();
            }
            Event::Delete(node) => return self.delete_node(node.into_view(), policies),
        }
        Asks::new()
    }

    pub fn on_record(&mut self, event: Event<ConfigMap>) -> Asks {
        match event {
            Event::Init => self.index.begin_records(),
            Event::InitApply(config_map) | Event::Apply(config_map) => return self.put_record(&Held::new(config_map)),
            Event::InitDone => {
                self.index.end_records();
                self.records_listed = true;
                return self.everything();
            }
            Event::Delete(config_map) => {
                let asks = self.index.delete_record(config_map.metadata.name.as_deref().unwrap_or_default());
                return self.when_synced(asks);
            }
        }
        Asks::new()
    }

    /// Takes in a node, from the watch or as the answer to a request.
    pub fn put_node(&mut self, node: selection::Node, policies: &Policies) -> Asks {
        let entry = NodeEntry::new(&node, &policies.of(&node));
        let name: Key = Arc::from(node.name.as_str());
        if entry.gated {
            self.gated.entry(Arc::clone(&name)).or_insert_with(Instant::now);
        } else {
            self.gated.remove(&name);
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
                        self.hot.insert(Arc::clone(&name), node);
                    }
                } else {
                    self.hot.remove(&name);
                }
                self.when_synced(vec![(name, priority)])
            }
        }
    }

    /// Takes in a node under policies that have changed.
    pub fn reconsider(&mut self, node: selection::Node, policies: &Policies) -> Asks {
        self.index.outdate(&node.name);
        self.put_node(node, policies)
    }

    pub fn put_record(&mut self, held: &Held) -> Asks {
        let entry = RecordEntry::new(held);
        let bad = entry.bad;
        let Some(mut asks) = self.index.put_record(&Arc::from(held.name()), entry) else { return Asks::new() };
        if bad {
            return self.when_synced(asks);
        }
        // A record that turned up late may be older than a last state that seemed to need nothing.
        for node in self.recent.take_of(held.node_name()) {
            let name: Key = Arc::from(node.name.as_str());
            self.last.entry(Arc::clone(&name)).or_default().push_back((node, Instant::now()));
            asks.push((name, Priority::LastState));
        }
        self.when_synced(asks)
    }

    fn delete_node(&mut self, node: selection::Node, policies: &Policies) -> Asks {
        let entry = NodeEntry::new(&node, &policies.of(&node));
        let name: Key = Arc::from(node.name.as_str());
        self.hot.remove(&name);
        self.waiting.remove(&name);
        self.gated.remove(&name);
        let verdict = self.index.delete_node(&name, &entry);
        // Whoever claims the same identity may be the only one now.
        let claimants = entry.record.iter().flat_map(|record| self.index.claimants(record)).cloned();
        let mut asks: Asks = claimants.map(|other| (other, Priority::Restore)).collect();
        if mutated(Mutation::ForgetLastStates) {
            return self.when_synced(asks);
        }
        if !self.is_synced() || matches!(verdict, Verdict::Look(_)) {
            self.last.entry(Arc::clone(&name)).or_default().push_back((node, Instant::now()));
            asks.push((name, Priority::LastState));
            return self.when_synced(asks);
        }
        self.recent.push(node);
        self.when_synced(asks)
    }

    /// A node to work on that the watch just showed.
    pub fn take_hot(&mut self, name: &Key) -> Option<selection::Node> {
        self.hot.remove(name)
    }

    /// The oldest last state that is still to be looked at.
    pub fn next_last(&self, name: &Key) -> Option<selection::Node> {
        self.last.get(name)?.front().map(|(node, _)| node.clone())
    }

    /// That last state has been dealt with.
    pub fn done_last(&mut self, name: &Key, uid: &str) {
        if let Some(states) = self.last.get_mut(name) {
            if states.front().is_some_and(|(node, _)| node.uid == uid) {
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
            states.retain(|(_, since)| since.elapsed() < LAST_FOR);
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

/// The newest last states that seemed to need nothing.
#[derive(Debug, Default)]
struct Recent(VecDeque<selection::Node>);

impl Recent {
    fn push(&mut self, node: selection::Node) {
        if self.0.len() == RECENT {
            self.0.pop_front();
        }
        self.0.push_back(node);
    }

    fn take_of(&mut self, name: &str) -> Vec<selection::Node> {
        if self.0.iter().all(|node| node.name != name) {
            return Vec::new();
        }
        let (taken, rest) =
            std::mem::take(&mut self.0).into_iter().partition::<VecDeque<_>, _>(|node| node.name == name);
        self.0 = rest;
        taken.into()
    }
}
