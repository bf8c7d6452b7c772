//! Webhooks for nodes: the last state is captured before a DELETE commits, and records are restored
//! in the CREATE request.
//!
//! # Guarantees
//! Every replica serves both, without leadership. Fails open: on any error the request passes, and
//! the controller does the rest. No write is started after the deadline. A forged review cannot
//! write false content, since the captured state is read from the API server.

use std::sync::Arc;

use perennial_core::{
    admission_review::{AdmissionRequest, AdmissionResponse},
    keeper::{
        admission::{KUBELETS, admit},
        case::{Case, Phase, Rival},
        decide::{Decision, RecordWrite, decide},
        identity::Identified,
        selection::{self, ignored},
        stored_record::Stored,
    },
};
use tracing::{debug, info, warn};

use super::{
    Priority,
    apply::{Error, Held},
    controller::Keeper,
    metrics::Via,
    node::Node,
};
use crate::runtime::{error_category::Category, error_chain::Chain};

impl Keeper {
    /// Answers a Node CREATE.
    pub async fn admit_create(&self, request: AdmissionRequest) -> AdmissionResponse {
        let (Some(object), Some(mut node)) = (&request.object, read(request.object.as_ref())) else {
            return AdmissionResponse::allowed();
        };
        if node.name.is_empty() {
            node.name = request.name.clone().unwrap_or_default();
        }
        if self.duties.dry_run || ignored(&node) {
            return AdmissionResponse::allowed();
        }
        let recalled = self.cache.recall_for_create(&node.name);
        let stored = match recalled {
            Some(record) => Some(Arc::new(Stored::Good(Box::new(record)))),
            None => match self.read_for_create(&node).await {
                Some(held) => held.as_ref().map(Held::share),
                None => return AdmissionResponse::allowed(),
            },
        };
        let policies = self.policies.current();
        let rivals = policies.identify(&node).map(|identity| self.rivals(&node, &identity, None)).unwrap_or_default();
        let by_kubelet = request.user_info.groups.iter().any(|group| group == KUBELETS);
        let phase = Phase::Creating { by_kubelet };
        let case = Case::new(phase, Some(node), stored, rivals, &self.context(&policies));
        let admitted = admit(object, &case, self.gate);

        if let Some(restore) = &admitted.restore
            && !request.dry_run
        {
            let (set, withheld, complete) = (restore.set.len(), restore.withheld.len(), restore.mark.complete);
            if set > 0 {
                info!(node = case.subject().name, set, withheld, complete, "restored in the create");
                self.metrics.restored(Via::Admission, set);
            }
        }
        AdmissionResponse::patched(admitted.patch)
    }

    /// Reads the record for a node that is being created. `None` if it cannot be read: the create
    /// passes unchanged.
    async fn read_for_create(&self, node: &selection::Node) -> Option<Option<Held>> {
        let identity = self.policies.current().identify(node);
        let Some(name) = identity.map(|identity| identity.record_name()) else { return Some(None) };
        let read = self.admission.read_record(&name, Priority::Restore);
        match tokio::time::timeout(self.admission_deadline, read).await {
            Ok(Ok(held)) => Some(held),
            Ok(Err(error)) => {
                self.failed_open(node, &error);
                None
            }
            Err(_) => {
                debug!(node = node.name, "record not read before the deadline; the create passes unchanged");
                None
            }
        }
    }

    /// Answers a Node DELETE. `oldObject` is the node that is being deleted. Called again if it
    /// changes before the delete commits.
    pub async fn admit_delete(&self, request: AdmissionRequest) -> AdmissionResponse {
        let Some(node) = read(request.old_object.as_ref()) else { return AdmissionResponse::allowed() };
        if request.dry_run || self.duties.dry_run || ignored(&node) || node.name.is_empty() {
            return AdmissionResponse::allowed();
        }
        match tokio::time::timeout(self.admission_deadline, self.capture_last(&node)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => self.failed_open(&node, &error),
            Err(_) => warn!(node = node.name, "last state not captured before the deadline; the delete passes"),
        }
        AdmissionResponse::allowed()
    }

    /// Captures the last state that a review reports. Anyone who reaches the port can send a
    /// review, so its content is only a hint that there may be something to write. The state that
    /// is written is read from the API server, which still has the node.
    async fn capture_last(&self, reported: &selection::Node) -> Result<(), Error> {
        let (mut node, mut confirmed) = (reported.clone(), false);
        loop {
            let policies = self.policies.current();
            let Some(identity) = policies.identify(&node) else { return Ok(()) };
            let held = self.admission.read_record(&identity.record_name(), Priority::LastState).await?;
            self.report_invalid_record(&node, held.as_ref());
            let rivals = self.confirmed_rivals(&node, &identity, held.as_ref()).await?;
            let last = |node: &selection::Node| {
                let stored = held.as_ref().map(Held::share);
                decide(&Case::gone(node.clone(), stored, rivals.clone(), &self.context(&policies)))
            };
            let Decision::WriteRecord(mut kind, mut next) = last(&node) else { return Ok(()) };
            if !confirmed {
                let Some(live) = self.confirm(reported).await? else { return Ok(()) };
                (node, confirmed) = (live, true);
                if policies.identify(&node).as_ref() != Some(&identity) {
                    continue;
                }
                let Decision::WriteRecord(again, record) = last(&node) else { return Ok(()) };
                (kind, next) = (again, record);
            }
            match self.admission.write_record(held.as_ref(), &next, Priority::LastState).await {
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
                    return Ok(());
                }
                // Concurrent write: read and decide again, until the deadline.
                Err(error) if error.category() == Category::Conflict => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns the rivals of a node that is being deleted. The watch may lag behind, so rivals that
    /// hold the record are looked up in the API server.
    async fn confirmed_rivals(
        &self,
        node: &selection::Node,
        identity: &Identified,
        held: Option<&Held>,
    ) -> Result<Vec<Rival>, Error> {
        let rivals = self.rivals(node, identity, held);
        let record = held.and_then(|held| held.stored().record_for(node));
        if record.is_none_or(|record| record.node.uid == node.uid) {
            return Ok(rivals);
        }
        let mut confirmed = Vec::new();
        for rival in rivals {
            let exists =
                !rival.holds_record || self.admission.read_node(&rival.name, Priority::LastState).await?.is_some();
            confirmed.extend(exists.then_some(rival));
        }
        Ok(confirmed)
    }

    /// Reads the node that is being deleted. `None` if this incarnation does not exist.
    async fn confirm(&self, reported: &selection::Node) -> Result<Option<selection::Node>, Error> {
        let live = self.admission.read_node(&reported.name, Priority::LastState).await?;
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
    fn failed_open(&self, node: &selection::Node, error: &Error) {
        let category = error.category().as_str();
        self.reporter.count(error.category());
        warn!(node = node.name, category, error = %Chain(error), "webhook failed open");
    }
}

fn read(object: Option<&serde_json::Value>) -> Option<selection::Node> {
    serde::Deserialize::deserialize(object?).ok().map(Node::into_view)
}
