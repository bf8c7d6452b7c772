//! Admission of nodes: the last state is captured before a delete commits, and what is kept rides in the create itself.
//!
//! # Guarantees
//! Every replica serves both, without leadership. Nothing is ever refused: whatever goes wrong, the request passes, and
//! the controller does the rest. No write is begun after the deadline. A review that does not come from the API server
//! writes nothing that is not so: what is captured is read from the API server itself.

use perennial_core::{
    admission_review::{AdmissionRequest, AdmissionResponse},
    keeper::{
        admission::{KUBELETS, admit},
        claims,
        identity::Identified,
        plan::{Act, Plan, gone},
        record::{Fault, Record},
        selection::{self, ignored},
    },
};
use tracing::{debug, info, warn};

use super::{
    Priority,
    apply::{Error, Held},
    controller::Keeper,
    node::Node,
};
use crate::runtime::{
    error_category::Category,
    labels::{Via, ViaLabels},
};

impl Keeper {
    /// Node CREATE.
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
        let recalled = self.lock().view.recall_for_create(&node.name, &self.policies);
        let (policy, record) = if let Some(record) = recalled {
            (self.policies.with_record(&node, Some(&record)), Some(record))
        } else {
            let Some(held) = self.read_for_create(&node).await else { return AdmissionResponse::allowed() };
            self.informed(&node, held.as_ref())
        };
        let identity = Identified::of(&policy.identity, &node);
        let contested = identity.as_ref().is_some_and(|identity| self.has_claimants(identity, &node.name));
        let record = record.filter(|_| !contested);
        let context = self.context(&policy, identity.as_ref());
        let by_kubelet = request.user_info.groups.iter().any(|group| group == KUBELETS);
        let admitted = admit(object, &node, record.as_ref(), &context, by_kubelet, self.gate);

        if let Some(restore) = &admitted.restore
            && !request.dry_run
        {
            let (set, withheld, complete) = (restore.set.len(), restore.withheld.len(), restore.mark.complete);
            if set > 0 {
                info!(node = node.name, set, withheld, complete, "restored in the create");
                self.metrics.restores.get_or_create(&ViaLabels { via: Via::Admission }).inc();
                self.metrics.labels_restored.inc_by(set as u64);
            }
        }
        AdmissionResponse::patched(admitted.patch)
    }

    /// The record for a node that is about to be created. `None`: it cannot be had, and the create passes unchanged.
    async fn read_for_create(&self, node: &selection::Node) -> Option<Option<Held>> {
        let identity = Identified::of(&self.policies.of(node).identity, node);
        let Some(name) = identity.map(|identity| identity.record_name()) else { return Some(None) };
        let read = self.admission.read_record(&name, Priority::Restore);
        match tokio::time::timeout(self.admission_deadline, read).await {
            Ok(Ok(held)) => {
                let newer = held.as_ref().and_then(|held| held.stored.fault()).is_some_and(Fault::is_newer);
                (!newer).then_some(held)
            }
            Ok(Err(error)) => {
                self.failed_open(node, &error, "the create passes unchanged");
                None
            }
            Err(_) => {
                debug!(node = node.name, "the record was not read in time; the create passes unchanged");
                None
            }
        }
    }

    /// Node DELETE: `oldObject` is what is about to be deleted. Called again when it changes before the delete commits.
    pub async fn admit_delete(&self, request: AdmissionRequest) -> AdmissionResponse {
        let Some(node) = read(request.old_object.as_ref()) else { return AdmissionResponse::allowed() };
        if request.dry_run || self.duties.dry_run || ignored(&node) || node.name.is_empty() {
            return AdmissionResponse::allowed();
        }
        match tokio::time::timeout(self.admission_deadline, self.capture_last(&node)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => self.failed_open(&node, &error, "the delete passes"),
            Err(_) => warn!(node = node.name, "its last state was not captured in time; the delete passes"),
        }
        AdmissionResponse::allowed()
    }

    /// Captures a last state that a review told of. Whoever reaches the port can send a review, so what it says only hints
    /// that there may be something to write: what is written comes from the API server, which still has the node.
    async fn capture_last(&self, told: &selection::Node) -> Result<(), Error> {
        let (mut node, mut confirmed) = (told.clone(), false);
        loop {
            let Some(identity) = Identified::of(&self.policies.of(&node).identity, &node) else { return Ok(()) };
            let held = self.admission.read_record(&identity.record_name(), Priority::LastState).await?;
            if self.is_anothers(&node, &identity, held.as_ref()).await? {
                return Ok(());
            }
            let Some((mut act, mut next)) = self.plan_last(&node, &identity, held.as_ref()) else { return Ok(()) };
            if !confirmed {
                let Some(live) = self.confirm(told).await? else { return Ok(()) };
                (node, confirmed) = (live, true);
                if Identified::of(&self.policies.of(&node).identity, &node).as_ref() != Some(&identity) {
                    continue;
                }
                let Some(planned) = self.plan_last(&node, &identity, held.as_ref()) else { return Ok(()) };
                (act, next) = planned;
            }
            match self.admission.write_record(held.as_ref(), &next, Priority::LastState).await {
                Ok(_) => {
                    info!(
                        node = told.name,
                        act = act.as_str(),
                        sequence = next.sequence,
                        "last state captured before the delete"
                    );
                    if act == Act::Capture {
                        self.metrics.captures.get_or_create(&ViaLabels { via: Via::Admission }).inc();
                    }
                    return Ok(());
                }
                // Somebody was faster: read again and decide again, until the deadline.
                Err(error) if error.category() == Category::Conflict => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn plan_last(
        &self,
        node: &selection::Node,
        identity: &Identified,
        held: Option<&Held>,
    ) -> Option<(Act, Box<Record>)> {
        if self.is_unreadable(node, held) {
            return None;
        }
        let (policy, record) = self.informed(node, held);
        match gone(&policy.select(node), record.as_ref(), &self.context(&policy, Some(identity))) {
            Plan::Write(act, next) => Some((act, next)),
            _ => None,
        }
    }

    /// Whether the record was taken from another node that is there. The watch may be late, so the API server is asked.
    async fn is_anothers(
        &self,
        node: &selection::Node,
        identity: &Identified,
        held: Option<&Held>,
    ) -> Result<bool, Error> {
        let (_, record) = self.informed(node, held);
        let owner = record.as_ref().map(|record| record.node.uid.as_str()).filter(|uid| *uid != node.uid);
        let Some(name) = owner.and_then(|uid| self.other_holder(node, identity, uid)) else { return Ok(false) };
        let there = self.admission.read_node(&name, Priority::LastState).await?.is_some();
        Ok(claims::refuses_last(&node.uid, record.as_ref(), |_| there))
    }

    /// The node that is about to be deleted, as the API server has it. None: there is no such incarnation, so nobody
    /// deletes it.
    async fn confirm(&self, told: &selection::Node) -> Result<Option<selection::Node>, Error> {
        let live = self.admission.read_node(&told.name, Priority::LastState).await?;
        let live = live.filter(|live| live.uid == told.uid);
        if live.is_none() {
            debug!(node = told.name, uid = told.uid, "a review of a delete of no such node: nothing is written");
        }
        Ok(live)
    }

    fn failed_open(&self, node: &selection::Node, error: &Error, so: &str) {
        self.metrics.failed(error.category().as_str());
        let why = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
        warn!(node = node.name, category = error.category().as_str(), why, "{error}; {so}");
    }
}

fn read(object: Option<&serde_json::Value>) -> Option<selection::Node> {
    serde::Deserialize::deserialize(object?).ok().map(Node::into_view)
}
