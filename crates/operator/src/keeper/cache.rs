//! The cached state of every node and record: fingerprints, pending last states and the predecessors
//! of recent nodes.
//!
//! Fed by the watches and by responses. Decides nothing and sends no requests; returns the names of
//! the nodes that may need work. The lock is private and never held across an await.

mod index;
mod last_states;
mod rows;
mod state;
#[cfg(test)]
mod tests;
mod watch_progress;

pub use index::Survey;
pub use rows::Row;

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::runtime::watcher::Event;
use perennial_core::keeper::{case::Rival, identity::RecordName, record::Record, selection};
use tokio::time::Instant;

use self::{index::NodeEntry, state::CacheState};
use super::{Key, Priority, activity::Board, apply::Held, node::Node, policies::Policies, record_keys::Signatures};

/// Nodes that may need work.
pub type Requests = Vec<(Key, Priority)>;

/// All nodes and records that the watches have delivered.
#[derive(Debug)]
pub struct Cache {
    policies: Policies,
    signatures: Signatures,
    state: Mutex<CacheState>,
}

impl Cache {
    pub fn new(policies: Policies, signatures: Signatures) -> Self {
        Self { policies, signatures, state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, CacheState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records activity from now on, for the dashboard and `top`.
    pub fn enable_activity(&self, activity: Board) {
        self.lock().activity = Some(activity);
    }

    /// Calls `read` with the recorded activity. `None` if none is recorded.
    pub fn activity<T>(&self, read: impl FnOnce(&mut Board) -> T) -> Option<T> {
        self.lock().activity.as_mut().map(read)
    }

    pub fn is_synced(&self) -> bool {
        self.lock().is_synced()
    }

    pub fn policies_are_known(&self) -> bool {
        self.lock().policies_known
    }

    /// The policies in force are known from now on.
    pub fn set_policies_known(&self) {
        self.lock().policies_known = true;
    }

    pub fn on_node(&self, event: Event<Node>) -> Requests {
        self.lock().on_node(event, &self.policies)
    }

    pub fn on_record(&self, event: Event<ConfigMap>) -> Requests {
        self.lock().on_record(event, &self.policies, &self.signatures)
    }

    /// Caches a node from a response.
    pub fn learn_node(&self, node: &selection::Node) -> Requests {
        self.lock().learn_node(node, &self.policies)
    }

    /// Caches a record from a response.
    pub fn learn_record(&self, held: &Held) -> Requests {
        self.lock().learn_record(held, &self.policies)
    }

    /// Caches a node again after the policies have changed.
    pub fn reconsider(&self, node: &selection::Node) -> Requests {
        self.lock().reconsider(node, &self.policies)
    }

    /// Returns every node that may need work.
    pub fn everything(&self) -> Requests {
        self.lock().everything()
    }

    pub fn contains_node(&self, name: &str) -> bool {
        self.lock().index.node(name).is_some()
    }

    /// Returns the name of the record of a live node, if that record exists.
    pub fn known_record(&self, node: &str) -> Option<RecordName> {
        let state = self.lock();
        let name = state.index.node(node)?.record.clone()?;
        state.index.record(&name)?;
        Some(RecordName(name.to_string()))
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

    /// Takes note that a node needs nothing with this record.
    pub fn note_clean(&self, key: &Key, node: &selection::Node, held: Option<&Held>) {
        let entry = NodeEntry::new(node, &self.policies.of(node));
        let mut state = self.lock();
        state.index.note_clean(key, &entry, held.map(Held::resource_version));
        state.waiting.remove(key);
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

    /// Returns the oldest last state of a name that is still to be written.
    pub fn next_last(&self, name: &str) -> Option<selection::Node> {
        self.lock().last.next(name)
    }

    /// Removes a last state that was written, or needs no write.
    pub fn finish_last(&self, name: &str, uid: &str) {
        self.lock().last.finish(name, uid);
    }

    /// Returns another name with a pending last state for the record of this node.
    pub fn left_as(&self, name: &str) -> Option<Key> {
        let state = self.lock();
        let record = state.index.node(name)?.record.as_deref()?;
        state.last.other_name(record, name)
    }

    /// Drops last states that have waited too long to be written.
    pub fn expire(&self) {
        self.lock().last.expire();
    }

    /// Returns the time since which a node waits for its restore.
    pub fn waits_since(&self, name: &str) -> Option<Instant> {
        self.lock().waiting.get(name).copied()
    }

    /// Returns the nodes that have had the gate taint for longer than `limit`.
    pub fn overdue(&self, limit: Duration) -> Vec<Key> {
        self.lock().overdue(limit)
    }

    /// Returns the name of a node as the key that is shared with the cache.
    pub fn node_key(&self, name: &str) -> Key {
        self.lock().index.key(name)
    }

    /// Returns the name of a record as the key that is shared with the cache.
    pub fn record_key(&self, name: &str) -> Arc<str> {
        self.lock().index.record_key(name)
    }

    /// Whether there are records of nodes that were identified by something else than their name.
    pub fn has_other_identities(&self) -> bool {
        self.lock().index.has_other_identities()
    }

    /// Returns the records that the newest signing key has not signed, each with its node.
    pub fn unsigned(&self) -> Vec<(Arc<str>, Key)> {
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
