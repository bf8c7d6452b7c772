//! The content of the cache: what the watches have delivered, and the few nodes whose labels are
//! needed next.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::runtime::watcher::Event;
use perennial_core::{
    config::Identity,
    keeper::{
        keys::Kept,
        mark::Mark,
        record::{Origin, Record},
        selection,
    },
};
use tokio::time::Instant;

use super::{
    Requests,
    index::{Index, NodeEntry, RecordEntry},
    last_states::LastStates,
    watch_progress::WatchProgress,
};
use crate::{
    keeper::{
        Key, Priority,
        activity::Board,
        apply::{Held, resource_version},
        node::Node,
        policies::Policies,
        recall_cache::{Packed, Past},
        record_keys::Signatures,
    },
    runtime::map::HashMap,
};

/// Maximum number of nodes cached with their labels while they wait to be restored. Others are read
/// again.
const HOT: usize = 2048;
/// Time after its last event for which a watch counts as up to date. A silent watch may lag behind.
const FRESH_FOR: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct CacheState {
    pub(super) index: Index,
    /// Nodes with their labels, as the watch delivered them.
    hot: HashMap<Key, Packed>,
    pub(super) last: LastStates,
    past: Past,
    /// Time of the last event of the watch of nodes.
    last_event: Option<Instant>,
    nodes_progress: WatchProgress,
    records_progress: WatchProgress,
    /// Time since which a node waits for its restore.
    pub(super) waiting: HashMap<Key, Instant>,
    /// Time since which a node is seen with the gate taint.
    gated: HashMap<Key, Instant>,
    nodes_listed: bool,
    records_listed: bool,
    pub(super) policies_known: bool,
    /// Activity for the dashboard and `top`.
    pub(super) activity: Option<Board>,
}

impl CacheState {
    /// Whether both lists and the policies are complete: a node or record that is not cached does
    /// not exist.
    pub(super) fn is_synced(&self) -> bool {
        self.nodes_listed && self.records_listed && self.policies_known
    }

    pub(super) fn on_node(&mut self, event: Event<Node>, policies: &Policies) -> Requests {
        self.last_event = Some(Instant::now());
        match event {
            Event::Init => {
                self.past.interrupted();
                self.index.begin_nodes();
                self.nodes_progress.begin_list();
            }
            Event::InitApply(node) => {
                let node = node.into_view();
                self.nodes_progress.listed(node.resource_version);
                let requests = self.put_node(&node, policies);
                self.report_node(&node, false);
                return requests;
            }
            Event::Apply(node) => {
                let node = node.into_view();
                self.nodes_progress.delivered(node.resource_version);
                // Seen from its creation on: it may be given the last state of its predecessor.
                if self.index.node(&node.name).is_none() {
                    self.past.changed(&node.name, true);
                }
                let requests = self.put_node(&node, policies);
                self.report_node(&node, true);
                return requests;
            }
            Event::InitDone => {
                self.index.end_nodes();
                self.nodes_listed = true;
                self.nodes_progress.end_list();
                let exists = |name: &Key| self.index.node(name).is_some();
                self.hot.retain(|name, _| exists(name));
                self.waiting.retain(|name, _| exists(name));
                self.gated.retain(|name, _| exists(name));
                if let Some(activity) = &mut self.activity {
                    activity.retain_nodes(|name| self.index.node(name).is_some());
                }
                return self.everything();
            }
            Event::Delete(node) => {
                let node = node.into_view();
                self.nodes_progress.delivered(node.resource_version);
                if let Some(activity) = &mut self.activity {
                    activity.saw_delete(&self.index.key(&node.name));
                }
                return self.delete_node(&node, policies);
            }
        }
        Requests::new()
    }

    /// Reports a node to the activity. Called after the node is cached, so that both share its
    /// name.
    fn report_node(&mut self, node: &selection::Node, news: bool) {
        let Some(activity) = &mut self.activity else { return };
        let key = self.index.key(&node.name);
        let record = self.index.node(&key).and_then(|entry| self.index.record(entry.record.as_deref()?));
        activity.saw_node(&key, node, record.is_some(), news);
    }

    fn report_record(&mut self, held: &Held, news: bool) {
        if let Some(activity) = &mut self.activity {
            activity.saw_record(held, news);
        }
    }

    pub(super) fn on_record(
        &mut self,
        event: Event<ConfigMap>,
        policies: &Policies,
        signatures: &Signatures,
    ) -> Requests {
        match event {
            Event::Init => {
                self.index.begin_records();
                self.records_progress.begin_list();
            }
            Event::InitApply(config_map) => {
                let held = Held::new(config_map, signatures);
                self.records_progress.listed(held.resource_version());
                let requests = self.put_record(&held, policies);
                self.report_record(&held, false);
                return requests;
            }
            Event::Apply(config_map) => {
                let held = Held::new(config_map, signatures);
                self.records_progress.delivered(held.resource_version());
                let requests = self.put_record(&held, policies);
                self.report_record(&held, true);
                return requests;
            }
            Event::InitDone => {
                self.index.end_records();
                self.records_listed = true;
                self.records_progress.end_list();
                if let Some(activity) = &mut self.activity {
                    activity.retain_records(|name| self.index.record(name).is_some());
                }
                return self.everything();
            }
            Event::Delete(config_map) => {
                let name = config_map.metadata.name.clone().unwrap_or_default();
                self.records_progress.delivered(resource_version(&config_map));
                if let Some(activity) = &mut self.activity {
                    let held = Held::new(config_map, signatures);
                    activity.lost_record(held.name(), held.node_name());
                }
                signatures.forget(&name);
                let requests = self.index.delete_record(&name);
                return self.when_synced(requests);
            }
        }
        Requests::new()
    }

    /// Caches a node from a response. A response may be late: a node whose deletion the watch has
    /// delivered since does not reappear.
    pub(super) fn learn_node(&mut self, node: &selection::Node, policies: &Policies) -> Requests {
        let known = self.index.node(&node.name).is_some_and(|entry| entry.fingerprint.is_of(&node.uid));
        let is_late = !known && self.nodes_progress.is_past(node.resource_version);
        if is_late { Requests::new() } else { self.put_node(node, policies) }
    }

    /// Caches a record from a response, unless the watch has delivered its deletion since.
    pub(super) fn learn_record(&mut self, held: &Held, policies: &Policies) -> Requests {
        let known = self.index.record(held.name()).is_some();
        let is_late = !known && self.records_progress.is_past(held.resource_version());
        if is_late { Requests::new() } else { self.put_record(held, policies) }
    }

    fn put_node(&mut self, node: &selection::Node, policies: &Policies) -> Requests {
        if self.index.is_unchanged(node) {
            return Requests::new();
        }
        let policy = policies.of(node);
        let entry = NodeEntry::new(node, &policy);
        let name: Key = self.index.key(&node.name);
        if entry.fingerprint.is_gated() {
            self.gated.entry(Arc::clone(&name)).or_insert_with(Instant::now);
        } else {
            self.gated.remove(&name);
        }
        if self.index.node(&name).is_some_and(|old| !old.decides_like(&entry)) {
            self.past.changed(&name, false);
        }
        let Some(priority) = self.index.put_node(&name, entry) else {
            self.hot.remove(&name);
            self.waiting.remove(&name);
            return Requests::new();
        };
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

    /// Caches a node again after the policies have changed.
    pub(super) fn reconsider(&mut self, node: &selection::Node, policies: &Policies) -> Requests {
        self.index.outdate(&node.name);
        self.learn_node(node, policies)
    }

    fn put_record(&mut self, held: &Held, policies: &Policies) -> Requests {
        let entry = RecordEntry::new(held);
        let bad = entry.fingerprint.is_bad();
        let Some(mut requests) = self.index.put_record(held.name(), entry) else { return Requests::new() };
        if bad {
            return self.when_synced(requests);
        }
        // A record that arrives late may be older than a last state that seemed to need no write.
        for node in self.past.of(held.node_name()) {
            let policy = policies.of(&node);
            let last = NodeEntry::new(&node, &policy);
            let name = self.index.key(&node.name);
            let pending = self.last.has_incarnation(&name, &node.uid);
            if !pending && self.index.last_state_may_need_write(&last) {
                self.last.push(&name, &node, policies.pack(&node), &policy);
                requests.push((name, Priority::LastState));
            }
        }
        self.when_synced(requests)
    }

    fn delete_node(&mut self, node: &selection::Node, policies: &Policies) -> Requests {
        let policy = policies.of(node);
        let entry = NodeEntry::new(node, &policy);
        let name: Key = self.index.key(&node.name);
        self.hot.remove(&name);
        self.waiting.remove(&name);
        self.gated.remove(&name);
        self.index.delete_node(&name, &entry);
        // Another node with the same identity may be the only one now.
        let claimants = entry.record.iter().flat_map(|record| self.index.claimants(record)).cloned();
        let mut requests: Requests = claimants.map(|other| (other, Priority::Restore)).collect();
        let packed = policies.pack(node);
        self.past.push(&name, packed.clone());
        if !self.is_synced() || self.index.last_state_may_need_write(&entry) {
            self.last.push(&name, node, packed, &policy);
            requests.push((name, Priority::LastState));
        }
        self.when_synced(requests)
    }

    /// Returns the last state of the predecessor of a node that has not changed since its creation,
    /// as a record, if the cached record holds the same.
    pub(super) fn recall(&self, node: &selection::Node, policies: &Policies) -> Option<Record> {
        self.recalled(&self.past.before_unchanged(&node.name)?, policies)
    }

    /// Returns the same for a node that is being created. A silent watch may have missed a whole
    /// incarnation, and protected keys are never given without reading the record.
    pub(super) fn recall_for_create(&self, name: &str, policies: &Policies) -> Option<Record> {
        let fresh = self.last_event.is_some_and(|at| at.elapsed() < FRESH_FOR);
        if !fresh || self.index.node(name).is_some() {
            return None;
        }
        let last = self.past.before_next(name)?;
        let record = self.recalled(&last, policies)?;
        let policy = policies.of(&last);
        (!record.kept.keys().any(|key| policy.protects(key))).then_some(record)
    }

    fn recalled(&self, last: &selection::Node, policies: &Policies) -> Option<Record> {
        if self.last.has(&last.name) || !self.is_synced() {
            return None;
        }
        let policy = policies.of(last);
        if policy.identity != Identity::Name || !self.index.is_recorded(&NodeEntry::new(last, &policy)) {
            return None;
        }
        Some(Record {
            sequence: 0,
            node: Origin {
                name: last.name.clone(),
                uid: last.uid.clone(),
                resource_version: last.resource_version,
                mark: Mark::digest_of(&last.annotations),
                machine: last.machine.clone(),
            },
            identity: None,
            kept: policy.select(last),
            folded: false,
            before: Kept::new(),
            withheld: Vec::new(),
            captured_at: Timestamp::UNIX_EPOCH,
            captured_by: String::new(),
            history: Vec::new(),
        })
    }

    /// Removes and returns a node that is cached with its labels.
    pub(super) fn take_hot(&mut self, name: &str) -> Option<selection::Node> {
        self.hot.remove(name).map(|packed| packed.unpack())
    }

    /// Returns the nodes that have had the gate taint for longer than `limit`.
    pub(super) fn overdue(&self, limit: Duration) -> Vec<Key> {
        self.gated.iter().filter(|(_, since)| since.elapsed() > limit).map(|(name, _)| Arc::clone(name)).collect()
    }

    /// Returns every node and last state that may need work.
    pub(super) fn everything(&self) -> Requests {
        let last = self.last.names().map(|name| (Arc::clone(name), Priority::LastState));
        let nodes = self.index.pending().map(|(name, priority)| (Arc::clone(name), priority));
        self.when_synced(last.chain(nodes).collect())
    }

    /// Returns no requests before both lists are complete: a record that is not listed yet is not
    /// missing.
    fn when_synced(&self, requests: Requests) -> Requests {
        if self.is_synced() { requests } else { Requests::new() }
    }
}
