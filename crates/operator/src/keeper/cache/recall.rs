//! The last state of a node's predecessor as a record, without a request.

use std::time::Duration;

use jiff::Timestamp;
use perennial_core::keeper::{
    identity::Identified,
    keys::Kept,
    mark::Mark,
    provenance::Provenance,
    record::{Origin, Record},
    selection,
};

use super::state::CacheState;
use crate::keeper::policies::Policies;

/// Time after its last event for which a watch counts as up to date. A silent watch may lag behind.
const FRESH_FOR: Duration = Duration::from_secs(1);

impl CacheState {
    /// Returns the last state of the predecessor of a node that has not changed since its creation,
    /// as a record, if the cached record holds the same.
    pub(super) fn recall(&self, node: &selection::Node, policies: &Policies) -> Option<Record> {
        self.recalled(&self.past.before_unchanged(&node.name)?, policies)
    }

    /// Returns the same for a node that is being created. A silent watch may have missed a whole
    /// incarnation, and protected keys are never given without reading the record.
    pub(super) fn recall_for_create(&self, name: &str, policies: &Policies) -> Option<Record> {
        if !self.is_fresh_without(name) {
            return None;
        }
        let last = self.past.before_next(name)?;
        let record = self.recalled(&last, policies)?;
        let policy = policies.of(&last);
        (!record.kept.keys().any(|key| policy.protects(key))).then_some(record)
    }

    /// Whether the watch is up to date and has delivered no live node of this name: no later
    /// incarnation is missing.
    pub(super) fn is_fresh_without(&self, name: &str) -> bool {
        let fresh = self.last_event.is_some_and(|at| at.elapsed() < FRESH_FOR);
        fresh && self.index.node(name).is_none()
    }

    /// Returns the highest resourceVersion of the cached last states of a name, or 0.
    pub(super) fn newest_last_state(&self, name: &str) -> u64 {
        let states = self.past.of(name).into_iter().chain(self.last.of(name));
        states.map(|state| state.resource_version).max().unwrap_or_default()
    }

    /// Drops the last states that cannot precede a node as the API server has it, among those up to
    /// the version `known`.
    pub(super) fn drop_lost_history(&mut self, node: &selection::Node, known: u64) {
        let precedes =
            |state: &selection::Node| state.resource_version < node.resource_version || state.resource_version > known;
        self.past.retain(&node.name, precedes);
        self.last.retain_nodes(&node.name, precedes);
    }

    fn recalled(&self, last: &selection::Node, policies: &Policies) -> Option<Record> {
        if self.last.has(&last.name) || !self.is_synced() {
            return None;
        }
        let policy = policies.of(last);
        let entry = self.entry(last, policies);
        let named = Identified::of(&policy.identity, last).is_some_and(|identity| identity.is_name());
        if !named || !self.index.is_recorded(&entry) {
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
            provenance: Provenance::of(last, &policy, policies.current().selectors()),
            kept: policy.select(last),
            folded: false,
            before: Kept::new(),
            withheld: Vec::new(),
            captured_at: Timestamp::UNIX_EPOCH,
            captured_by: String::new(),
            history: Vec::new(),
        })
    }
}
