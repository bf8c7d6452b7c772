//! Reconciles one node: builds its case, decides, and applies the decision.
//!
//! # Guarantees
//! A pending last state is written before any decision about its successor, or used as the record
//! that it will become while the write fails. A node is read once more before it is captured. A
//! node is restored only from a record that was read after it, or, if it has not changed since its
//! creation, from the last state of its predecessor ([`recall_cache`](super::recall_cache)).

mod capture;
mod last_states;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use perennial_core::keeper::{
    case::Case,
    decide::{Decision, Reason, Restore, decide},
    identity::{Identified, RecordName},
    selection::{self, ignored},
};
use tracing::{Span, debug, field, info, info_span};

use self::last_states::Predecessors;
use super::{
    NodeKey, NodeWork, Priority,
    apply::{KeeperClient, KeeperError, LoadedRecord},
    cache::KeeperCache,
    cases::Cases,
    controller::Duties,
    gc::{Absence, note_absence},
    intake::Intake,
    metrics::{KeeperMetrics, Via},
    reports::{Reports, event_about},
};
use crate::runtime::{
    ownership::Ownership,
    reconciler::{NextStep, Reconcile},
    reporter::{Reporter, Retry, log_failure},
    traces,
};

/// Reconciles nodes with their records.
#[derive(Debug)]
pub(super) struct NodeReconciler {
    pub(super) cluster: KeeperClient,
    pub(super) cache: Arc<KeeperCache>,
    pub(super) cases: Cases,
    pub(super) intake: Arc<Intake>,
    pub(super) reports: Reports,
    pub(super) reporter: Reporter,
    pub(super) duties: Duties,
    pub(super) ownership: Ownership,
    pub(super) metrics: KeeperMetrics,
    /// The process stops: only last states are written.
    pub(super) draining: AtomicBool,
}

/// Result of reconciling a node.
enum Done {
    /// The node needs nothing.
    Quiet,
    /// Something was written.
    Wrote,
    /// The node or its record has changed since it was read.
    Again,
}

impl NodeReconciler {
    /// Reconciles the last states of a name, then its live node.
    async fn settle(&self, work: &NodeWork) -> Result<Done, KeeperError> {
        let wrote = match self.settle_predecessors(&work.key).await {
            Ok(Predecessors { wrote, wait }) => {
                // The successor does not wait for another process.
                if wait && self.settle_before_write(&work.key).await? {
                    return Ok(Done::Quiet);
                }
                wrote
            }
            // The successor does not wait for the write.
            Err(error) if error.is_failed_write() => {
                self.settle_before_write(&work.key).await?;
                // The successor has the keys now. A last state that can never be written must not
                // prevent its captures.
                if error.is_too_large()
                    && self.cache.contains_node(&work.key)
                    && let Some(last) = self.cache.next_last(&work.key)
                {
                    self.cache.finish_last(&work.key, &last.uid);
                    self.reports.last_state_too_large(&last, &error);
                    return Ok(Done::Again);
                }
                return Err(error);
            }
            Err(error) => return Err(error),
        };
        // A node missing from the cache is deleted; a new one arrives as an event.
        if self.draining.load(Ordering::Relaxed) || !self.cache.contains_node(&work.key) {
            return Ok(if wrote { Done::Wrote } else { Done::Quiet });
        }
        match self.settle_live(&work.key, work.priority).await? {
            Done::Quiet if wrote => Ok(Done::Wrote),
            done => Ok(done),
        }
    }

    async fn settle_live(&self, key: &NodeKey, priority: Priority) -> Result<Done, KeeperError> {
        let hot = self.cache.take_hot(key);
        let (node, held, from_watch) = if let Some(node) = hot {
            if let Some((case, restore)) = self.restore_by_recall(&node) {
                return self.restore(key, &case, &restore, None).await;
            }
            let held = self.record_of(&node, priority).await?;
            (node, held, true)
        } else {
            // The record is read before the node: the write is conditional on the record, so this
            // read of the node is the last one.
            let held = match self.cache.known_record(key) {
                Some(name) => self.cluster.read_record(&name, priority).await?,
                None => None,
            };
            let Some(node) = self.cases.read_node(&self.cluster, key, priority).await? else { return Ok(Done::Quiet) };
            (node, held, false)
        };

        if ignored(&node) {
            return Ok(Done::Quiet);
        }
        // Another record may belong to this state of the node. It is read after the node, which is
        // then read once more before it is captured.
        let (held, from_watch) = if from_watch || self.is_only_record(&node, held.as_ref()) {
            (held, from_watch)
        } else {
            (self.record_of(&node, priority).await?, true)
        };
        self.reports.invalid_record(&node, held.as_ref());
        let lost_label = |held: &LoadedRecord| !held.is_labelled() && held.stored().good().is_some();
        if held.as_ref().is_some_and(lost_label) && self.duties.may_write_records() {
            match self.label_record(&node).await {
                Ok(true) => return Ok(Done::Again),
                Ok(false) => {}
                // The node is restored anyway.
                Err(error) if error.is_failed_write() => self.report_failure(key, &error, Retry::default()),
                Err(error) => return Err(error),
            }
        }
        if let Some(held) = &held {
            self.cache.remember(held);
        }
        let case = self.cases.live(node, held.as_ref());
        if !case.rivals().is_empty() && !case.has_newer_record() {
            self.reports.conflict(&case);
        }

        match decide(&case) {
            Decision::Nothing(reason) => self.rest(key, &case, reason, held.as_ref()).await,
            Decision::WriteRecord(kind, next) if self.duties.capture => {
                if from_watch && !self.is_still(&case).await? {
                    return Ok(Done::Again);
                }
                self.capture(key, &case, kind, (held.as_ref(), &next)).await
            }
            Decision::PatchNode(_) if self.duties.restore => {
                let held = if from_watch { held } else { self.record_of(case.subject(), Priority::Restore).await? };
                let case = self.cases.with_record(&case, held.as_ref());
                let sequence = case.record().map(|record| record.sequence);
                match decide(&case) {
                    Decision::PatchNode(restore) => self.restore(key, &case, &restore, sequence).await,
                    _ => Ok(Done::Again),
                }
            }
            Decision::WriteRecord(..) | Decision::PatchNode(_) => Ok(Done::Quiet),
        }
    }

    /// Ends the work on a node that needs no write of its labels or its record.
    async fn rest(
        &self,
        key: &NodeKey,
        case: &Case,
        reason: Reason,
        held: Option<&LoadedRecord>,
    ) -> Result<Done, KeeperError> {
        let node = case.subject();
        debug!(node = &**key, ?reason, "nothing to do");
        match reason {
            Reason::Absent | Reason::Ignored | Reason::Unidentified | Reason::Contested => return Ok(Done::Quiet),
            Reason::MachineUnknown => self.reports.waits(node),
            Reason::NoRecord | Reason::Current | Reason::Older if node.is_gated() => {
                self.ungate(node).await?;
                return Ok(Done::Wrote);
            }
            Reason::NewerRecord | Reason::NoRecord | Reason::Current | Reason::Older => {}
        }
        // The node exists: clear `absent-since`, also between two runs of garbage collection.
        let may_write = self.duties.capture && !self.duties.dry_run && reason != Reason::NewerRecord;
        if let Some(held) = held.filter(|held| held.is_noted_absent() && may_write) {
            note_absence(&self.cluster, &self.intake, held, Absence::Over).await?;
            return Ok(Done::Wrote);
        }
        self.cache.note_clean(key, node, held);
        Ok(Done::Quiet)
    }

    /// Returns the restore of a node whose predecessor's last state is cached, without reading the
    /// record.
    fn restore_by_recall(&self, node: &selection::Node) -> Option<(Case, Restore)> {
        if !self.duties.restore || node.is_gated() || self.cases.has_other_records(node) {
            return None;
        }
        let case = self.cases.recalled(node.clone(), self.cache.recall(node)?);
        match decide(&case) {
            Decision::PatchNode(restore) if case.identity().is_some_and(Identified::is_name) => Some((case, restore)),
            _ => None,
        }
    }

    async fn record_of(&self, node: &selection::Node, priority: Priority) -> Result<Option<LoadedRecord>, KeeperError> {
        self.cases.read_record(&self.cluster, node, priority).await
    }

    /// Whether no other record than this one may belong to a node.
    fn is_only_record(&self, node: &selection::Node, held: Option<&LoadedRecord>) -> bool {
        let mut names = self.cases.identities_of(node).into_iter().map(|identity| identity.record_name());
        if let Some(held) = held {
            return names.map(|name| name.0).eq([held.name()]);
        }
        let name = names.next();
        let is_moved = |name: RecordName| self.cases.may_have_moved(&self.cluster, node, &name);
        names.next().is_none() && !name.is_some_and(is_moved)
    }

    async fn restore(
        &self,
        key: &NodeKey,
        case: &Case,
        restore: &Restore,
        sequence: Option<u64>,
    ) -> Result<Done, KeeperError> {
        let node = case.subject();
        let (set, removed, withheld) = (restore.set.len(), restore.remove.len(), restore.withheld.len());
        if self.duties.dry_run {
            info!(node = node.name, set, removed, withheld, "would restore the node");
            return Ok(Done::Quiet);
        }
        // Read before the patch: the watch may deliver the restored node before the response
        // arrives.
        let waits_since = self.cache.waits_since(key);
        let patched = self.cluster.patch_node(node, restore).await?;
        info!(node = node.name, set, removed, withheld, sequence, "node restored");
        self.metrics.restored(Via::Watch, set);
        if let Some(since) = waits_since {
            self.metrics.restore_took(since.elapsed());
        }
        self.reports.restored(node, restore);
        self.intake.learn_node(&patched);
        Ok(Done::Wrote)
    }

    /// Removes the gate taint from a node that is settled, or has been gated for too long.
    async fn ungate(&self, node: &selection::Node) -> Result<(), KeeperError> {
        if self.duties.dry_run {
            info!(node = node.name, "would remove the gate taint");
            return Ok(());
        }
        let patched = self.cluster.ungate_node(node).await?;
        info!(node = node.name, "gate taint removed");
        self.intake.learn_node(&patched);
        Ok(())
    }

    /// Ungates nodes that have been gated for longer than `limit`, including those of other
    /// replicas: a node must not stay gated because the owner of its shard is down.
    pub(super) async fn ungate_overdue(&self, limit: Duration) {
        for name in self.cache.overdue(limit) {
            let ungated = async {
                match self.cluster.read_node(&name, Priority::Restore).await? {
                    Some(node) if node.is_gated() => self.ungate(&node).await,
                    _ => Ok(()),
                }
            };
            if let Err(error) = ungated.await {
                self.report_failure(&name, &error, Retry::default());
            }
        }
    }

    fn report_failure(&self, node: &str, error: &KeeperError, retry: Retry) {
        let report = self.reporter.failure(error, retry, Some(event_about(node, "")));
        log_failure!(report, node = node);
    }
}

impl Reconcile for NodeReconciler {
    type Key = NodeKey;
    type Priority = Priority;
    type Error = KeeperError;

    fn shard_key(key: &NodeKey) -> &str {
        key
    }

    fn span(&self, key: &NodeKey) -> Span {
        info_span!(target: traces::TARGET, "keeper", node = &**key, outcome = field::Empty)
    }

    async fn reconcile(&self, work: &NodeWork, _term: u64) -> Result<NextStep, KeeperError> {
        Ok(match self.settle(work).await? {
            Done::Quiet | Done::Wrote => NextStep::Done,
            Done::Again => NextStep::Requeue,
        })
    }

    fn report(&self, key: &NodeKey, error: &KeeperError, retry: Retry) {
        self.report_failure(key, error, retry);
    }
}
