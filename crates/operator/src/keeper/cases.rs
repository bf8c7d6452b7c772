//! Builds cases from nodes, records and the cache.

use std::sync::Arc;

use perennial_core::keeper::{
    case::{Case, CaseContext, Phase, Rival},
    commands::migrate,
    identity::RecordName,
    pending::after_last_states,
    policy_set::PolicySet,
    record::Record,
    selection::Node,
    stored_record::Stored,
};

use super::{apply::LoadedRecord, cache::KeeperCache, policies::Policies};
use crate::runtime::clock::Clock;

/// Builds the cases of this replica.
#[derive(Clone, Debug)]
pub(super) struct Cases {
    pub(super) policies: Policies,
    pub(super) cache: Arc<KeeperCache>,
    clock: Clock,
    /// Name of the writer in records.
    by: String,
}

impl Cases {
    pub(super) fn new(policies: Policies, cache: Arc<KeeperCache>, clock: Clock, by: String) -> Self {
        Self { policies, cache, clock, by }
    }

    fn context<'a>(&'a self, policies: &'a PolicySet) -> CaseContext<'a> {
        CaseContext { policies, now: self.clock.now(), by: &self.by }
    }

    /// Waits until the policies are known. Returns false at once while they cannot be read.
    pub(super) async fn policies_are_known(&self) -> bool {
        self.policies.wait_until_known().await
    }

    /// Returns the other live nodes with the identity of a record, or of the node if there is none,
    /// from the cache.
    pub(super) fn rivals(&self, node: &Node, held: Option<&LoadedRecord>) -> Vec<Rival> {
        let name = self.record_name(node, held);
        name.map(|name| self.rivals_for(&name, node, held.map(LoadedRecord::stored))).unwrap_or_default()
    }

    /// Returns the name of the record of a node: of the one that was read, or of its first one.
    fn record_name(&self, node: &Node, held: Option<&LoadedRecord>) -> Option<RecordName> {
        let filed = held.map(|held| RecordName(held.name().to_owned()));
        filed.or_else(|| self.policies.current().identify(node).map(|identity| identity.record_name()))
    }

    fn rivals_for(&self, name: &RecordName, node: &Node, stored: Option<&Stored>) -> Vec<Rival> {
        let record = stored.and_then(|stored| stored.record_for(node));
        let uid = record.as_ref().map(|record| record.node.uid.as_str());
        self.cache.rivals(name, uid, &node.name)
    }

    pub(super) fn live(&self, node: Node, held: Option<&LoadedRecord>) -> Case {
        let rivals = self.rivals(&node, held);
        Case::live(node, held.map(LoadedRecord::share), rivals, &self.context(&self.policies.current()))
    }

    pub(super) fn gone(&self, node: Node, stored: Option<Arc<Stored>>, rivals: Vec<Rival>) -> Case {
        Case::gone(node, stored, rivals, &self.context(&self.policies.current()))
    }

    /// Returns the record of a node as it will be once the last states of its predecessors are
    /// written. `None` if the record holds them.
    ///
    /// A node that exists is passed as the API server has it, not as the watch delivered it.
    pub(super) fn pending_record(&self, node: &Node, held: Option<&LoadedRecord>) -> Option<Arc<Stored>> {
        let name = self.record_name(node, held)?;
        let is_its = |state: &Node| self.identities_of(state).iter().any(|identity| identity.record_name() == name);
        let states = self.cache.pending_for(&name, &node.name).into_iter();
        let states = states.filter(|state| state.uid != node.uid && is_its(state) && !is_of_lost_history(state, node));
        let stored = held.map(LoadedRecord::share);
        let rivals = |state: &Node, stored: Option<&Stored>| self.rivals_for(&name, state, stored);
        after_last_states(stored.as_ref(), states, rivals, &self.context(&self.policies.current()))
    }

    /// Builds the case of a live node with a record that is not written yet. `held` is the written
    /// one.
    pub(super) fn before_write(&self, node: Node, held: Option<&LoadedRecord>, record: Arc<Stored>) -> Case {
        let name = self.record_name(&node, held);
        let rivals = name.map(|name| self.rivals_for(&name, &node, Some(&record))).unwrap_or_default();
        Case::live(node, Some(record), rivals, &self.context(&self.policies.current()))
    }

    /// Returns the record under the identity that its policy has now. `None` if it stays.
    pub(super) fn moved(&self, held: &LoadedRecord) -> Option<Record> {
        migrate(&self.absent(held), &self.policies.current())
    }

    pub(super) fn absent(&self, held: &LoadedRecord) -> Case {
        Case::absent(Some(held.share()), &self.context(&self.policies.current()))
    }

    /// Builds the case of a node that is being created. `held` is the record that was read, `stored`
    /// the one to restore from, which may differ: a last state that is not written yet, or one in
    /// memory.
    pub(super) fn creating(
        &self,
        node: Node,
        by_kubelet: bool,
        held: Option<&LoadedRecord>,
        stored: Option<Arc<Stored>>,
    ) -> Case {
        let rivals = self.rivals(&node, held);
        let phase = Phase::Creating { by_kubelet };
        Case::new(phase, Some(node), stored, rivals, &self.context(&self.policies.current()))
    }

    /// Builds the case of a live node with the recalled last state of its predecessor as the
    /// record.
    pub(super) fn recalled(&self, node: Node, record: Record) -> Case {
        let stored = Arc::new(Stored::Good(Box::new(record)));
        Case::live(node, Some(stored), Vec::new(), &self.context(&self.policies.current()))
    }

    /// Returns the same node with a record that was read again.
    pub(super) fn with_record(&self, case: &Case, held: Option<&LoadedRecord>) -> Case {
        case.with_record(held.map(LoadedRecord::share), &self.context(&self.policies.current()))
    }
}

/// Whether the last state of a predecessor belongs to a history that a restore of etcd took back. A
/// node is created after its predecessor is deleted, so its version is higher in the same history.
/// A node that is being created has no version.
pub(super) fn is_of_lost_history(state: &Node, node: &Node) -> bool {
    node.resource_version > 0 && state.name == node.name && state.resource_version >= node.resource_version
}
