//! Writes the last states of deleted nodes, and restores their successors while that fails.

use std::time::Duration;

use perennial_core::keeper::{
    decide::{Decision, decide},
    pending::restore_before_write,
    selection::{self, ignored},
};
use tracing::warn;

use super::NodeReconciler;
use crate::{
    keeper::{
        NodeKey, Priority,
        apply::{KeeperError, LoadedRecord},
        cases::is_of_lost_history,
    },
    runtime::reporter::Retry,
};

/// Result of handling the last states for a record.
pub(super) struct Predecessors {
    /// Something was written.
    pub(super) wrote: bool,
    /// Some wait until a process that may write records has written them.
    pub(super) wait: bool,
}

/// Result of handling one last state.
enum LastStep {
    /// The record holds it, or it is not kept.
    Quiet,
    Wrote,
    /// It must be written, and this process may not write records.
    Waits,
}

/// Maximum number of other replicas' last states that are checked in one run.
const FOREIGN_AT_ONCE: usize = 100;

impl NodeReconciler {
    /// Writes the last states for the record of a name, in order.
    pub(super) async fn settle_predecessors(&self, key: &NodeKey) -> Result<Predecessors, KeeperError> {
        let mut all = self.settle_all_last(key).await?;
        // The same machine may have left under another name. Its last state comes first, also if
        // another replica owns the shard of that name: the write is conditional, so a second writer
        // does no harm.
        while !all.wait
            && let Some(left) = self.cache.left_as(key)
        {
            let more = self.settle_all_last(&left).await?;
            all = Predecessors { wrote: all.wrote || more.wrote, wait: more.wait };
        }
        Ok(all)
    }

    /// Restores a node while the last states of its predecessors are not written, from the record
    /// that they will become. Returns false if the record holds them: the node is reconciled as
    /// usual.
    pub(super) async fn settle_before_write(&self, key: &NodeKey) -> Result<bool, KeeperError> {
        if !self.duties.restore || !self.cache.contains_node(key) {
            return Ok(true);
        }
        let Some(node) = self.cases.read_node(&self.cluster, key, Priority::Restore).await? else { return Ok(true) };
        // Before the watch has delivered this incarnation, the last state of its predecessor may be
        // missing.
        if ignored(&node) || !self.cache.is_current(&node) {
            return Ok(true);
        }
        let held = self.cases.read_record(&self.cluster, &node, Priority::Restore).await?;
        let Some(pending) = self.cases.pending_record(&node, held.as_ref()) else { return Ok(false) };
        let case = self.cases.before_write(node, held.as_ref(), pending);
        let sequence = case.record().map(|record| record.sequence);
        if let Some(restore) = restore_before_write(&case) {
            self.restore(key, &case, &restore, sequence).await?;
        } else if case.subject().is_gated() && matches!(decide(&case), Decision::WriteRecord(..)) {
            self.ungate(case.subject()).await?;
        }
        Ok(true)
    }

    /// Settles last states of other replicas' shards that are older than `age`. Most are dropped
    /// when the watch delivers the record. The rest is written here, since the owner of the shard
    /// may have missed the deletion: the write is conditional, so a second writer does no harm.
    ///
    /// Nothing is written before all lists are complete and the policies are known: a last state
    /// would be filed by the rules of the configuration.
    pub(in crate::keeper) async fn settle_foreign_last_states(&self, age: Duration) {
        if !self.duties.capture || !self.cache.is_synced() || !self.cases.policies.are_known() {
            return;
        }
        let is_foreign = |name: &NodeKey| !self.ownership.is_ours(self.ownership.shard_of(name));
        for name in self.cache.pending_since(age).into_iter().filter(is_foreign).take(FOREIGN_AT_ONCE) {
            if let Err(error) = self.settle_all_last(&name).await {
                return self.report_failure(&name, &error, Retry::default());
            }
        }
    }

    /// Writes the last states of a name, in order. One that this process may not write stays until
    /// the watch delivers the record with it.
    async fn settle_all_last(&self, key: &NodeKey) -> Result<Predecessors, KeeperError> {
        let mut wrote = false;
        loop {
            let next = self.cache.next_last(key);
            let Some(last) = next else { return Ok(Predecessors { wrote, wait: false }) };
            match self.settle_last(&last).await? {
                LastStep::Waits => return Ok(Predecessors { wrote, wait: true }),
                LastStep::Wrote => wrote = true,
                LastStep::Quiet => {}
            }
            self.cache.finish_last(key, &last.uid);
        }
    }

    /// Writes the last state of a deleted node, unless the record holds it.
    async fn settle_last(&self, node: &selection::Node) -> Result<LastStep, KeeperError> {
        if ignored(node) || self.is_lost(node).await? {
            return Ok(LastStep::Quiet);
        }
        let held = self.cases.read_record(&self.cluster, node, Priority::LastState).await?;
        self.reports.invalid_record(node, held.as_ref());
        let rivals = self.cases.rivals(node, held.as_ref());
        let case = self.cases.gone(node.clone(), held.as_ref().map(LoadedRecord::share), rivals);
        match decide(&case) {
            Decision::WriteRecord(kind, next) if self.duties.capture => {
                self.write(&case, kind, held.as_ref(), &next).await?;
                Ok(LastStep::Wrote)
            }
            Decision::WriteRecord(..) => Ok(LastStep::Waits),
            Decision::PatchNode(_) | Decision::Nothing(_) => Ok(LastStep::Quiet),
        }
    }

    /// Whether a last state belongs to a history that a restore of etcd took back: the API server
    /// has that incarnation of the node, or an older one. Reads the node only if the cache contains
    /// one that cannot follow the last state.
    async fn is_lost(&self, last: &selection::Node) -> Result<bool, KeeperError> {
        if !self.cache.contradicts_last(last) {
            return Ok(false);
        }
        let live = self.cluster.read_node(&last.name, Priority::LastState).await?;
        let is_lost = live.is_some_and(|live| live.uid == last.uid || is_of_lost_history(last, &live));
        if is_lost {
            warn!(
                node = last.name,
                uid = last.uid,
                "last state of a lost history, as before a restore of etcd; dropped"
            );
        }
        Ok(is_lost)
    }
}
