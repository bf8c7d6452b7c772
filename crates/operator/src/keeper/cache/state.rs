//! The content of the cache: what the watches have delivered, and the few nodes whose labels are
//! needed next.

mod watch_events;

use std::{sync::Arc, time::Duration};

use perennial_core::keeper::selection;
use tokio::time::Instant;

use super::{
    ReconcileRequests,
    entries::{NodeEntry, RecordEntry},
    index::Index,
    last_states::LastStates,
    recent_captures::RecentCaptures,
    watch_progress::WatchProgress,
};
use crate::{
    keeper::{
        NodeKey, Priority,
        activity::Activity,
        apply::LoadedRecord,
        policies::Policies,
        recall_cache::{PackedNode, RecallCache},
    },
    runtime::map::{HashMap, HashSet},
};

/// Maximum number of nodes cached with their labels while they wait to be restored. Others are read
/// again.
const HOT: usize = 2048;

/// The record of an absent node that was deleted while the watch was interrupted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostRecord {
    pub record: Arc<str>,
    pub node: NodeKey,
}

/// The records of absent nodes that were deleted while the watch was interrupted.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct LostRecords {
    pub records: Vec<LostRecord>,
    /// Number of others, whose names are not cached.
    pub others: usize,
}

#[derive(Debug, Default)]
pub(super) struct CacheState {
    pub(super) index: Index,
    /// Nodes with their labels, as the watch delivered them.
    hot: HashMap<NodeKey, PackedNode>,
    pub(super) last: LastStates,
    pub(super) past: RecallCache,
    /// Time of the last event of the watch of nodes.
    pub(super) last_event: Option<Instant>,
    nodes_progress: WatchProgress,
    records_progress: WatchProgress,
    /// Time since which a node waits for its restore.
    pub(super) waiting: HashMap<NodeKey, Instant>,
    /// Time since which a node is seen with the gate taint.
    gated: HashMap<NodeKey, Instant>,
    pub(super) captures: RecentCaptures,
    /// New nodes without labels and without a cached record. A record that lost its label is not
    /// delivered by the watch, so it is looked up once.
    unproven: HashSet<NodeKey>,
    nodes_listed: bool,
    records_listed: bool,
    pub(super) policies_known: bool,
    /// Records that were deleted while the watch was interrupted, and are still to be reported.
    pub(super) lost: LostRecords,
    /// Activity for the dashboard and `top`.
    pub(super) activity: Option<Activity>,
}

impl CacheState {
    /// Whether both lists and the policies are complete: a node or record that is not cached does
    /// not exist.
    pub(super) fn is_synced(&self) -> bool {
        self.is_listed() && self.policies_known
    }

    /// Whether both lists are complete.
    pub(super) fn is_listed(&self) -> bool {
        self.nodes_listed && self.records_listed
    }

    /// Returns the entry of a node under the policies in force.
    pub(super) fn entry(&self, node: &selection::Node, policies: &Policies) -> NodeEntry {
        NodeEntry::new(node, &policies.current(), &self.index.identities_in_use())
    }

    /// Removes a record that this process has deleted, unless it was created again and the list
    /// that is being delivered contains it.
    pub(super) fn on_own_deletion(&mut self, record: &str) {
        let is_listed = |entry: &RecordEntry| entry.listed;
        if !self.index.record(record).is_some_and(is_listed) && !self.index.absent.lists(record) {
            self.index.delete_record(record, None);
        }
    }

    /// Caches a node from a response. A response may be late: a node whose deletion the watch has
    /// delivered since does not reappear.
    pub(super) fn learn_node(&mut self, node: &selection::Node, policies: &Policies) -> ReconcileRequests {
        let is_late = match self.index.node(&node.name).map(|entry| &entry.fingerprint) {
            Some(known) if known.is_of(&node.uid) => false,
            Some(other) if other.is_after(node.resource_version) => true,
            _ => self.nodes_progress.is_past(node.resource_version),
        };
        if is_late { ReconcileRequests::new() } else { self.put_node(node, policies) }
    }

    /// Caches a record from a response, unless the watch has delivered its deletion since.
    pub(super) fn learn_record(&mut self, held: &LoadedRecord, policies: &Policies) -> ReconcileRequests {
        let known = self.index.has_record(held.name());
        let is_late = !known && self.records_progress.is_past(held.resource_version());
        let requests = if is_late { ReconcileRequests::new() } else { self.put_record(held, policies) };
        self.index.trim_now_and_then();
        requests
    }

    fn put_node(&mut self, node: &selection::Node, policies: &Policies) -> ReconcileRequests {
        if self.index.is_unchanged(node) {
            return ReconcileRequests::new();
        }
        let entry = self.entry(node, policies);
        let name: NodeKey = self.index.key(&node.name);
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
            return ReconcileRequests::new();
        };
        if priority == Priority::Capture && self.is_synced() {
            self.captures.push(&name, node.resource_version);
        }
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
    pub(super) fn reconsider(&mut self, node: &selection::Node, policies: &Policies) -> ReconcileRequests {
        self.index.outdate(&node.name);
        self.learn_node(node, policies)
    }

    /// Files the pending last states under the policies in force now.
    pub(super) fn refile_last_states(&mut self, policies: &Policies) {
        let mut last = std::mem::take(&mut self.last);
        last.refile(|name, node| {
            let mut entry = self.entry(node, policies);
            self.index.set_record_name(name, &mut entry, None);
            entry.record
        });
        self.last = last;
    }

    fn put_record(&mut self, held: &LoadedRecord, policies: &Policies) -> ReconcileRequests {
        let entry = RecordEntry::new(held);
        let bad = entry.fingerprint.is_bad();
        let Some(mut requests) = self.index.put_record(held.name(), entry) else { return ReconcileRequests::new() };
        if bad {
            return self.when_synced(requests);
        }
        let mut last = std::mem::take(&mut self.last);
        last.caught_up(held.name(), held.node_name(), |node| {
            let (name, mut entry) = (self.index.key(&node.name), self.entry(node, policies));
            self.index.set_record_name(&name, &mut entry, None);
            self.index.is_undecided(&name, &entry) || self.index.last_state_may_need_write(&entry)
        });
        self.last = last;
        // A record that arrives late may be older than a last state that seemed to need no write.
        for node in self.past.of(held.node_name()) {
            let name = self.index.key(&node.name);
            let mut last = self.entry(&node, policies);
            self.index.set_record_name(&name, &mut last, None);
            let pending = self.last.has_incarnation(&name, &node.uid);
            if !pending && self.index.last_state_may_need_write(&last) {
                self.last.push(&name, &node, policies.pack(&node), last.record.as_deref());
                requests.push((name, Priority::LastState));
            }
        }
        self.when_synced(requests)
    }

    fn delete_node(&mut self, node: &selection::Node, policies: &Policies) -> ReconcileRequests {
        let name: NodeKey = self.index.key(&node.name);
        let mut entry = self.entry(node, policies);
        self.index.set_record_name(&name, &mut entry, self.index.node(&name));
        let undecided = self.index.is_undecided(&name, &entry);
        self.index.delete_node(&name, &entry);
        // The next incarnation may be cached already, from a response.
        if self.index.node(&name).is_none() {
            self.hot.remove(&name);
            self.waiting.remove(&name);
            self.gated.remove(&name);
            self.unproven.remove(&name);
        }
        // Another node with the same identity may be the only one now.
        let claimants = entry.record.iter().flat_map(|record| self.index.claimants(record)).cloned();
        let mut requests: ReconcileRequests = claimants.map(|other| (other, Priority::Restore)).collect();
        let packed = policies.pack(node);
        self.past.push(&name, packed.clone());
        // A last state that the record holds already may have to follow one that is still to be
        // written.
        let follows = self.last.has_for(&name, entry.record.as_deref());
        if !self.is_synced() || undecided || follows || self.index.last_state_may_need_write(&entry) {
            self.last.push(&name, node, packed, entry.record.as_deref());
            requests.push((name, Priority::LastState));
        }
        self.when_synced(requests)
    }

    /// Returns the name of the record of a live node, if that record exists or must be looked up.
    pub(super) fn record_to_read(&self, node: &str) -> Option<&Arc<str>> {
        let name = self.index.node(node)?.record.as_ref()?;
        (self.index.has_record(name) || self.unproven.contains(node)).then_some(name)
    }

    /// Records that a node needs nothing with this record.
    pub(super) fn note_clean(
        &mut self,
        key: &NodeKey,
        node: &selection::Node,
        held: Option<&LoadedRecord>,
        policies: &Policies,
    ) {
        let entry = self.entry(node, policies);
        self.index.note_clean(key, &entry, held.map(|held| (held.name(), held.resource_version())));
        self.waiting.remove(key);
        self.unproven.remove(key);
    }

    /// Removes and returns a node that is cached with its labels.
    pub(super) fn take_hot(&mut self, name: &str) -> Option<selection::Node> {
        self.hot.remove(name).map(|packed| packed.unpack())
    }

    /// Returns the nodes that have had the gate taint for longer than `limit`.
    pub(super) fn overdue(&self, limit: Duration) -> Vec<NodeKey> {
        self.gated.iter().filter(|(_, since)| since.elapsed() > limit).map(|(name, _)| Arc::clone(name)).collect()
    }

    pub(super) fn has_delivered(&self, resource_version: u64) -> bool {
        self.nodes_progress.is_past(resource_version)
    }

    /// Returns the time since the last event of the watch of nodes.
    pub(super) fn silent_for(&self) -> Duration {
        self.last_event.map_or(Duration::MAX, |at| at.elapsed())
    }

    /// Whether a record has content that no live node, pending last state or other record holds.
    pub(super) fn is_only_copy(&self, held: &LoadedRecord) -> bool {
        self.has_only_copy(&self.index.record_key(held.name()), &RecordEntry::new(held))
    }

    fn has_only_copy(&self, name: &Arc<str>, entry: &RecordEntry) -> bool {
        !entry.fingerprint.is_bad()
            && !entry.fingerprint.is_tombstone()
            && !self.index.has_live_node(name, entry)
            && self.last.of_record(name, &entry.node).is_empty()
            && !self.index.has_copy(name, entry)
    }

    /// Returns every node and last state that may need work.
    pub(super) fn everything(&self) -> ReconcileRequests {
        let last = self.last.names().map(|name| (Arc::clone(name), Priority::LastState));
        let nodes = self.index.pending().map(|(name, priority)| (Arc::clone(name), priority));
        self.when_synced(last.chain(nodes).collect())
    }

    /// Returns no requests before both lists are complete: a record that is not listed yet is not
    /// missing.
    fn when_synced(&self, requests: ReconcileRequests) -> ReconcileRequests {
        if self.is_synced() { requests } else { ReconcileRequests::new() }
    }
}
