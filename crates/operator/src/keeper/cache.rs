//! The cached state of every node and record: fingerprints, pending last states and the
//! predecessors of recent nodes.
//!
//! Fed by the watches and by responses. Decides nothing and sends no requests; returns the names of
//! the nodes that may need work. The lock is private and never held across an await.

mod absent_records;
mod claims;
mod entries;
mod index;
mod last_states;
mod recall;
mod recent_captures;
mod record_names;
mod rows;
mod state;
mod survey;
#[cfg(test)]
mod tests;
mod watch_progress;

pub use last_states::{Dropped, Pending, ROOM};
pub use rows::Row;
pub use state::{LostRecord, LostRecords};
pub use survey::Survey;

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::runtime::watcher::Event;
use perennial_core::{
    config::Identity,
    keeper::{case::Rival, identity::RecordName, record::Record, selection},
};
use tokio::time::Instant;

use self::state::CacheState;
use super::{
    NodeKey, Priority, activity::Activity, apply::LoadedRecord, node::Node, policies::Policies, record_keys::Signatures,
};

/// Nodes that may need work.
pub type ReconcileRequests = Vec<(NodeKey, Priority)>;

/// All nodes and records that the watches have delivered.
#[derive(Debug)]
pub struct KeeperCache {
    policies: Policies,
    signatures: Signatures,
    state: Mutex<CacheState>,
}

impl KeeperCache {
    pub fn new(policies: Policies, signatures: Signatures) -> Self {
        Self { policies, signatures, state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, CacheState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records activity from now on, for the dashboard and `top`.
    pub fn enable_activity(&self, activity: Activity) {
        self.lock().activity = Some(activity);
    }

    /// Calls `read` with the recorded activity. `None` if none is recorded.
    pub fn activity<T>(&self, read: impl FnOnce(&mut Activity) -> T) -> Option<T> {
        self.lock().activity.as_mut().map(read)
    }

    pub fn is_synced(&self) -> bool {
        self.lock().is_synced()
    }

    pub fn policies_are_known(&self) -> bool {
        self.lock().policies_known
    }

    /// The policies in force are known from now on, or have changed.
    pub fn set_policies_known(&self) {
        let mut state = self.lock();
        state.policies_known = true;
        state.refile_last_states(&self.policies);
    }

    pub fn on_node(&self, event: Event<Node>) -> ReconcileRequests {
        self.lock().on_node(event, &self.policies)
    }

    pub fn on_record(&self, event: Event<ConfigMap>) -> ReconcileRequests {
        self.lock().on_record(event, &self.policies, &self.signatures)
    }

    /// Caches a node from a response.
    pub fn learn_node(&self, node: &selection::Node) -> ReconcileRequests {
        self.lock().learn_node(node, &self.policies)
    }

    /// Caches a record from a response.
    pub fn learn_record(&self, held: &LoadedRecord) -> ReconcileRequests {
        self.lock().learn_record(held, &self.policies)
    }

    /// Caches a node again after the policies have changed.
    pub fn reconsider(&self, node: &selection::Node) -> ReconcileRequests {
        self.lock().reconsider(node, &self.policies)
    }

    /// Returns every node that may need work.
    pub fn everything(&self) -> ReconcileRequests {
        self.lock().everything()
    }

    /// Returns the largest number of nodes since the last call.
    pub fn take_peak(&self) -> usize {
        self.lock().index.take_peak()
    }

    /// Whether a live node has the identity of a record.
    pub fn has_live_node(&self, record: &LoadedRecord) -> bool {
        self.lock().index.is_claimed(record.name(), record.node_name())
    }

    pub fn contains_node(&self, name: &str) -> bool {
        self.lock().index.node(name).is_some()
    }

    /// Returns the name of the record of a live node, if that record exists or must be looked up.
    pub fn known_record(&self, node: &str) -> Option<RecordName> {
        self.lock().record_to_read(node).map(|name| RecordName(name.to_string()))
    }

    /// Returns the name of the record of a node, which may be absent.
    pub fn record_name_of(&self, node: &str) -> Option<RecordName> {
        self.lock().index.record_name_of(node).map(|name| RecordName(name.to_string()))
    }

    /// Returns the other live nodes with the identity of a record. `uid` is that of the node that
    /// the record was written from.
    pub fn rivals(&self, record: &RecordName, uid: Option<&str>, but: &str) -> Vec<Rival> {
        self.lock().index.rivals(&record.0, uid, but)
    }

    /// Caches a record that was read for a live node, if only its name is cached.
    pub fn remember(&self, held: &LoadedRecord) {
        let mut state = self.lock();
        if state.index.absent.contains(held.name()) {
            state.learn_record(held, &self.policies);
        }
    }

    /// Records that a node needs nothing with this record.
    pub fn note_clean(&self, key: &NodeKey, node: &selection::Node, held: Option<&LoadedRecord>) {
        self.lock().note_clean(key, node, held, &self.policies);
    }

    /// Removes and returns a node that is cached with its labels.
    pub fn take_hot(&self, name: &str) -> Option<selection::Node> {
        self.lock().take_hot(name)
    }

    /// Returns the last state of the predecessor of a node that has not changed since its creation,
    /// as a record.
    pub fn recall(&self, node: &selection::Node) -> Option<Record> {
        self.lock().recall(node, &self.policies)
    }

    /// Returns the last state of the predecessor of a node that is being created, as a record.
    pub fn recall_for_create(&self, name: &str) -> Option<Record> {
        self.lock().recall_for_create(name, &self.policies)
    }

    /// Whether the cache has every last state of a node that is being created.
    pub fn is_fresh_without(&self, name: &str) -> bool {
        self.lock().is_fresh_without(name)
    }

    /// Returns the oldest last state of a name that is still to be written.
    pub fn next_last(&self, name: &str) -> Option<selection::Node> {
        self.lock().last.next(name)
    }

    /// Removes a last state that was written, or needs no write.
    pub fn finish_last(&self, name: &str, uid: &str) {
        self.lock().last.finish(name, uid);
    }

    /// Whether the node that is cached under the name of a last state cannot follow it: it is the
    /// same incarnation, or an older one. The cache may lag behind, so this is only a hint.
    pub fn contradicts_last(&self, last: &selection::Node) -> bool {
        let state = self.lock();
        let cached = state.index.node(&last.name).map(|entry| &entry.fingerprint);
        cached.is_some_and(|node| node.is_of(&last.uid) || !node.is_after(last.resource_version))
    }

    /// Returns the highest resourceVersion of the cached last states of a name, or 0.
    pub fn newest_last_state(&self, name: &str) -> u64 {
        self.lock().newest_last_state(name)
    }

    /// Drops the last states that cannot precede a node as the API server has it: it is older than
    /// they are. `known` is the highest version that was cached before the node was read.
    pub fn drop_lost_history(&self, node: &selection::Node, known: u64) {
        self.lock().drop_lost_history(node, known);
    }

    /// Returns another name with a pending last state for the record of this node.
    pub fn left_as(&self, name: &str) -> Option<NodeKey> {
        let state = self.lock();
        let record = state.index.node(name)?.record.as_deref()?;
        state.last.other_name(record, name)
    }

    /// Returns the last states that are still to be written to a record, oldest first. `name` is a
    /// node with the identity of the record.
    pub fn pending_for(&self, record: &RecordName, name: &str) -> Vec<selection::Node> {
        self.lock().last.of_record(&record.0, name)
    }

    /// Returns the names with last states that are still to be written.
    pub fn pending_names(&self) -> Vec<NodeKey> {
        self.lock().last.names().cloned().collect()
    }

    /// Returns the names with a last state that has waited for at least this long.
    pub fn pending_since(&self, age: Duration) -> Vec<NodeKey> {
        self.lock().last.waiting_for(age).cloned().collect()
    }

    /// Returns the number and the size of the last states that are still to be written.
    pub fn pending(&self) -> Pending {
        self.lock().last.pending()
    }

    /// Returns the last states that were dropped because the size limit was reached since the last
    /// call.
    pub fn take_dropped(&self) -> Vec<Dropped> {
        self.lock().last.take_dropped()
    }

    /// Removes records that this process has deleted from the cache.
    pub fn on_own_deletions(&self, records: &[String]) {
        let mut state = self.lock();
        for record in records {
            state.on_own_deletion(record);
        }
    }

    /// Returns the records that were found to be lost since the last call.
    pub fn take_lost(&self) -> LostRecords {
        std::mem::take(&mut self.lock().lost)
    }

    /// Whether this incarnation of a node is cached.
    pub fn contains_incarnation(&self, name: &str, uid: &str) -> bool {
        self.lock().index.node(name).is_some_and(|entry| entry.fingerprint.is_of(uid))
    }

    /// Whether the watch of nodes has delivered this incarnation, and so the last states of its
    /// predecessors.
    pub fn is_current(&self, node: &selection::Node) -> bool {
        let state = self.lock();
        let is_cached = state.index.node(&node.name).is_some_and(|entry| entry.fingerprint.is_of(&node.uid));
        is_cached || state.has_delivered(node.resource_version)
    }

    /// Whether the capture of an earlier state of a node may be in flight, which was decided on
    /// with its current record. `recorded` is the version of the node in that record; `None` if
    /// there is no record.
    pub fn may_be_overtaken(&self, node: &selection::Node, recorded: Option<u64>) -> bool {
        let state = self.lock();
        let is_unknown = recorded.is_some() && !state.has_delivered(node.resource_version);
        is_unknown || state.captures.has_later(&node.name, recorded)
    }

    /// Drops what is too old to matter.
    pub fn expire(&self) {
        self.lock().captures.expire();
    }

    /// Returns the time since the last event of the watch of nodes.
    pub fn silent_for(&self) -> Duration {
        self.lock().silent_for()
    }

    /// Whether a record that was deleted had content that nothing else holds.
    pub fn is_only_copy(&self, held: &LoadedRecord) -> bool {
        self.lock().is_only_copy(held)
    }

    /// Returns the time since which a node waits for its restore.
    pub fn waits_since(&self, name: &str) -> Option<Instant> {
        self.lock().waiting.get(name).copied()
    }

    /// Returns the nodes that have had the gate taint for longer than `limit`.
    pub fn overdue(&self, limit: Duration) -> Vec<NodeKey> {
        self.lock().overdue(limit)
    }

    /// Returns the name of a node as the key that is shared with the cache.
    pub fn node_key(&self, name: &str) -> NodeKey {
        self.lock().index.key(name)
    }

    /// Returns the name of a record as the key that is shared with the cache.
    pub fn record_key(&self, name: &str) -> Arc<str> {
        self.lock().index.record_key(name)
    }

    /// Returns the identities that existing records are filed under.
    pub fn identities_in_use(&self) -> BTreeSet<Identity> {
        self.lock().index.identities_in_use()
    }

    /// Whether the watch has delivered a record, and not its deletion.
    pub fn lists_record(&self, record: &RecordName) -> bool {
        self.lock().index.has_record(&record.0)
    }

    /// Whether a record exists, or may exist, and no live node but this one claims it.
    pub fn may_have_record(&self, node: &str, record: &RecordName) -> bool {
        let state = self.lock();
        !state.is_synced() || state.index.is_unclaimed(node, &record.0)
    }

    /// Whether nodes and records have been listed.
    pub fn is_listed(&self) -> bool {
        self.lock().is_listed()
    }

    /// Whether there are nodes that are identified by something else than their name.
    pub fn has_nodes_without_name(&self) -> bool {
        self.lock().index.has_nodes_without_name()
    }

    /// Whether there are records of nodes that were identified by something else than their name.
    pub fn has_other_identities(&self) -> bool {
        self.lock().index.has_other_identities()
    }

    /// Returns the records that the newest signing key has not signed, each with its node.
    pub fn unsigned(&self) -> Vec<(Arc<str>, NodeKey)> {
        self.lock().index.unsigned()
    }

    /// Returns the number of nodes that a policy applies to, and how many of them have a record.
    pub fn matched(&self, policy: &str) -> (usize, usize) {
        self.lock().index.matched(policy)
    }

    pub fn survey(&self) -> Survey {
        self.lock().index.survey()
    }

    /// Returns all nodes, and all records without a node, in no particular order.
    pub fn rows(&self) -> Vec<Row> {
        self.lock().index.rows()
    }
}
