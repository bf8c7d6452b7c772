//! Webhooks for nodes: the last state is captured before a DELETE commits, and records are restored
//! in the CREATE request.
//!
//! # Guarantees
//! Every replica serves both, without leadership. Fails open: on any error the request passes, and
//! the controller does the rest. No write is started after the deadline. A forged review cannot
//! write false content, since the captured state is read from the API server.

use std::{sync::Arc, time::Duration};

use perennial_core::{
    admission_review::{AdmissionRequest, AdmissionResponse, FailOpen},
    config::Gate,
    keeper::{
        admission::{KUBELETS, admit, admit_before_write},
        case::{Case, Rival},
        decide::{Decision, RecordWrite, capture_again, decide},
        record::Record,
        selection::{self, ignored},
        stored_record::Stored,
    },
};
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::{
    Priority,
    apply::{KeeperClient, KeeperError, LoadedRecord},
    cache::KeeperCache,
    cases::Cases,
    metrics::{KeeperMetrics, Via},
    node::Node,
    pending_restores::{AnsweredCreate, PendingRestores},
    reports::Reports,
};
use crate::runtime::{
    error_category::Category,
    error_chain::Chain,
    reporter::{CategorizedError as _, Reporter},
};

/// Longest time that the admission of a DELETE waits for the watch of nodes.
const WATCH_LAG: Duration = Duration::from_millis(500);
const WATCH_CHECK: Duration = Duration::from_millis(5);
/// Interval at which the admission of a DELETE looks again for a record that was moved.
const MOVED_CHECK: Duration = Duration::from_millis(50);

/// Answers admission reviews of nodes.
#[derive(Debug)]
pub(super) struct NodeAdmission {
    /// Client with a separate budget, since the API server waits for the answer.
    pub(super) cluster: KeeperClient,
    pub(super) cache: Arc<KeeperCache>,
    pub(super) cases: Cases,
    pub(super) reports: Reports,
    pub(super) reporter: Reporter,
    pub(super) metrics: KeeperMetrics,
    pub(super) restores: Arc<PendingRestores>,
    pub(super) gate: Gate,
    /// Below the deadline of the admission server, which is below the timeout of the webhook.
    pub(super) deadline: Duration,
    pub(super) dry_run: bool,
}

impl NodeAdmission {
    /// Answers a Node CREATE.
    pub(super) async fn create(&self, request: AdmissionRequest) -> AdmissionResponse {
        let (Some(object), Some(mut node)) = (&request.object, read(request.object.as_ref())) else {
            return AdmissionResponse::allowed();
        };
        if node.name.is_empty() {
            node.name = request.name.clone().unwrap_or_default();
        }
        // Without a name, which the API server generates later, there is no identity to restore by.
        if self.dry_run || ignored(&node) || node.name.is_empty() {
            return AdmissionResponse::allowed();
        }
        if let Err(reason) = self.policies_are_known(&node).await {
            return AdmissionResponse::failed_open(reason);
        }
        let is_plain = !self.cases.has_other_records(&node);
        let recalled = self.cache.recall_for_create(&node.name).filter(|_| is_plain);
        let held = match &recalled {
            Some(_) => None,
            None => match self.read_for_create(&node).await {
                Ok(held) => held,
                Err(reason) => return AdmissionResponse::failed_open(reason),
            },
        };
        let by_kubelet = request.user_info.groups.iter().any(|group| group == KUBELETS);
        let creating = |stored| self.cases.creating(node.clone(), by_kubelet, held.as_ref(), stored);
        // Last states of predecessors that are not written yet come first, unless a later one may be
        // missing: the controller restores the node then.
        let is_known = recalled.is_none() && self.cache.is_fresh_without(&node.name);
        let pending = is_known.then(|| self.cases.pending_record(&node, held.as_ref())).flatten();
        let (case, admitted) = if let Some(pending) = pending {
            let case = creating(Some(pending));
            let admitted = admit_before_write(object, &case, self.gate);
            (case, admitted)
        } else {
            let recalled = recalled.map(|record| Arc::new(Stored::Good(Box::new(record))));
            let case = creating(recalled.or_else(|| held.as_ref().map(LoadedRecord::share)));
            let admitted = admit(object, &case, self.gate);
            (case, admitted)
        };

        if let Some(restore) = &admitted.restore
            && !request.dry_run
        {
            let (set, withheld, complete) = (restore.set.len(), restore.withheld.len(), restore.mark.complete);
            if set > 0 {
                let name = &case.subject().name;
                let exists = self.cache.contains_node(name);
                self.restores.expect(name, AnsweredCreate { set, withheld, complete, exists });
            }
        }
        AdmissionResponse::patched(admitted.patch)
    }

    /// Reads the record for a node that is being created. If it cannot be read, the create passes
    /// unchanged.
    async fn read_for_create(&self, node: &selection::Node) -> Result<Option<LoadedRecord>, FailOpen> {
        let read = self.cases.read_record(&self.cluster, node, Priority::Restore);
        match tokio::time::timeout(self.deadline, read).await {
            Ok(Ok(held)) => Ok(held),
            Ok(Err(error)) => {
                self.failed_open(node, &error);
                Err(FailOpen::Error)
            }
            Err(_) => {
                warn!(node = node.name, "record not read before the deadline; the create passes unchanged");
                Err(FailOpen::Deadline)
            }
        }
    }

    /// Answers a Node DELETE. `oldObject` is the node that is being deleted. Called again if it
    /// changes before the delete commits.
    pub(super) async fn delete(&self, request: AdmissionRequest) -> AdmissionResponse {
        let Some(node) = read(request.old_object.as_ref()) else { return AdmissionResponse::allowed() };
        if request.dry_run || self.dry_run || ignored(&node) || node.name.is_empty() {
            return AdmissionResponse::allowed();
        }
        if let Err(reason) = self.policies_are_known(&node).await {
            return AdmissionResponse::failed_open(reason);
        }
        match tokio::time::timeout(self.deadline, self.capture_last(&node)).await {
            Ok(Ok(())) => AdmissionResponse::allowed(),
            Ok(Err(error)) => {
                self.failed_open(&node, &error);
                AdmissionResponse::failed_open(FailOpen::Error)
            }
            Err(_) => {
                warn!(node = node.name, "last state not captured before the deadline; the delete passes");
                AdmissionResponse::failed_open(FailOpen::Deadline)
            }
        }
    }

    /// Checks that it is known which keys of a node are kept. If not, the request passes unchanged, and
    /// the controller does the rest once it is.
    async fn policies_are_known(&self, node: &selection::Node) -> Result<(), FailOpen> {
        let reason = match tokio::time::timeout(self.deadline, self.cases.policies_are_known()).await {
            Ok(true) => return Ok(()),
            Ok(false) => FailOpen::Error,
            Err(_) => FailOpen::Deadline,
        };
        debug!(node = node.name, "KeepPolicies are not known; the request passes unchanged");
        Err(reason)
    }

    /// Captures the last state that a review reports. Anyone who reaches the port can send a
    /// review, so its content is only a hint that there may be something to write. The state that
    /// is written is read from the API server, which still has the node.
    async fn capture_last(&self, reported: &selection::Node) -> Result<(), KeeperError> {
        let (mut node, mut confirmed) = (reported.clone(), false);
        loop {
            let identities = self.cases.identities_of(&node);
            let held = match self.cases.read_record(&self.cluster, &node, Priority::LastState).await {
                Err(KeeperError::Moved { .. }) => {
                    tokio::time::sleep(MOVED_CHECK).await;
                    continue;
                }
                held => held?,
            };
            self.reports.invalid_record(&node, held.as_ref());
            let rivals = self.confirmed_rivals(&node, held.as_ref()).await?;
            // Last states of predecessors that are not written yet come first, in the same write.
            let stored =
                self.cases.pending_record(&node, held.as_ref()).or_else(|| held.as_ref().map(LoadedRecord::share));
            let last = |node: &selection::Node| {
                self.last_write(&self.cases.gone(node.clone(), stored.clone(), rivals.clone()))
            };
            let Some((mut kind, mut next)) = last(&node) else { return Ok(()) };
            if !confirmed {
                let Some(live) = self.confirm(reported).await? else { return Ok(()) };
                let is_as_reported = live.resource_version == reported.resource_version;
                (node, confirmed) = (live, true);
                if self.wait_for_watch(&node).await || !is_as_reported || self.cases.identities_of(&node) != identities
                {
                    continue;
                }
                let Some(again) = last(&node) else { return Ok(()) };
                (kind, next) = again;
            }
            match self.cluster.write_or_move_record(held.as_ref(), &next, Priority::LastState).await {
                Ok(_) => {
                    info!(
                        node = reported.name,
                        act = kind.as_str(),
                        sequence = next.sequence,
                        "last state captured before the delete"
                    );
                    if kind == RecordWrite::Capture {
                        self.metrics.captured(Via::Admission);
                    }
                    if held.is_none() {
                        self.metrics.record_created();
                    }
                    return Ok(());
                }
                // Concurrent write: read and decide again, until the deadline.
                Err(error) if error.category() == Category::Conflict => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns the write that a last state needs. If the capture of an earlier state may be in
    /// flight, a record with the same content is written too: that capture must not land after the
    /// node is gone.
    fn last_write(&self, case: &Case) -> Option<(RecordWrite, Box<Record>)> {
        let recorded = case.record().map(|record| record.node.resource_version);
        match decide(case) {
            Decision::WriteRecord(kind, next) => Some((kind, next)),
            _ if self.cache.may_be_overtaken(case.subject(), recorded) => {
                capture_again(case).map(|next| (RecordWrite::Capture, next))
            }
            _ => None,
        }
    }

    /// Waits until the watch has delivered this incarnation of the node, and so the last states of
    /// all its predecessors. Returns whether it had to wait. A watch that lags further is not
    /// waited for.
    async fn wait_for_watch(&self, node: &selection::Node) -> bool {
        let is_current = || self.cache.is_current(node);
        if !self.cache.is_synced() || is_current() {
            return false;
        }
        let latest = Instant::now() + WATCH_LAG.min(self.deadline / 4);
        while !is_current() && Instant::now() < latest {
            tokio::time::sleep(WATCH_CHECK).await;
        }
        true
    }

    /// Returns the rivals of a node that is being deleted. The watch may lag behind, so rivals that
    /// hold the record are looked up in the API server.
    async fn confirmed_rivals(
        &self,
        node: &selection::Node,
        held: Option<&LoadedRecord>,
    ) -> Result<Vec<Rival>, KeeperError> {
        let rivals = self.cases.rivals(node, held);
        let record = held.and_then(|held| held.stored().record_for(node));
        if record.is_none_or(|record| record.node.uid == node.uid) {
            return Ok(rivals);
        }
        let mut confirmed = Vec::new();
        for rival in rivals {
            let exists =
                !rival.holds_record || self.cluster.read_node(&rival.name, Priority::LastState).await?.is_some();
            confirmed.extend(exists.then_some(rival));
        }
        Ok(confirmed)
    }

    /// Reads the node that is being deleted. `None` if this incarnation does not exist.
    async fn confirm(&self, reported: &selection::Node) -> Result<Option<selection::Node>, KeeperError> {
        let live = self.cases.read_node(&self.cluster, &reported.name, Priority::LastState).await?;
        let live = live.filter(|live| live.uid == reported.uid);
        if live.is_none() {
            debug!(
                node = reported.name,
                uid = reported.uid,
                "review of the deletion of an unknown node; nothing is written"
            );
        }
        Ok(live)
    }

    /// Logs an error after which a request passes unchanged.
    fn failed_open(&self, node: &selection::Node, error: &KeeperError) {
        let category = error.category().as_str();
        self.reporter.count(error.category());
        warn!(node = node.name, category, error = %Chain(error), "webhook failed open");
    }
}

fn read(object: Option<&serde_json::Value>) -> Option<selection::Node> {
    serde::Deserialize::deserialize(object?).ok().map(Node::into_view)
}
