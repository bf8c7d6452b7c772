//! Admission of pods: those of managed workloads are gated or assigned their class, all others stay
//! unchanged.
//!
//! # Guarantees
//! Every replica serves it, without leadership. A pod is never refused. A pod without a managed
//! owner costs a lookup in memory. An owner that is not in the cache yet is read once, within a
//! deadline.

use std::{sync::Arc, time::Duration};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use perennial_core::{
    admission_review::{AdmissionRequest, AdmissionResponse, FailOpen},
    placement::{
        Class,
        admission::{Assignment, IncomingPod, PodAdmission, PodOwner, admit, left_alone, ordinal_class, without_class},
        spec::{Spec, parse},
        workload::{Kind, Place},
    },
};
use serde::Deserialize;
use serde_json::{Value, json};
use tracing::{debug, warn};

use super::{
    WorkloadKey,
    apply::{PlacementClient, PlacementError},
    cache::{
        MANAGED, NamespaceEntry, OwnerLookup, SharedCache, WorkloadEntry, about, controller, deployment, is_apps,
        may_be_managed, namespace_entry, other_controller, replica_set, shard_key, stateful_set,
    },
    reconcile::PlacerParts,
    refusals::OrdinalAdmission,
    tasks::is_unreadable,
};
use crate::runtime::{
    budget::Urgency,
    events::{Events, Severity},
    health::Health,
    metrics::Metrics,
    ownership::Ownership,
    reconciler::Reconciler,
    reporter::CategorizedError as _,
};

/// The webhook of pods.
pub(super) struct PodWebhook {
    cache: Arc<SharedCache>,
    cluster: PlacementClient,
    deadline: Duration,
    reconciler: Arc<Reconciler<WorkloadKey, Urgency>>,
    ownership: Ownership,
    events: Events,
    metrics: Metrics,
    health: Health,
    decides: bool,
    dry_run: bool,
}

impl PodWebhook {
    pub(super) fn new(
        parts: &PlacerParts,
        cache: Arc<SharedCache>,
        reconciler: Arc<Reconciler<WorkloadKey, Urgency>>,
    ) -> Self {
        Self {
            cache,
            cluster: parts.admission.clone(),
            deadline: parts.admission_deadline,
            reconciler,
            ownership: parts.ownership.clone(),
            events: parts.events.clone(),
            metrics: parts.metrics.clone(),
            health: parts.health.clone(),
            decides: parts.decides,
            dry_run: parts.dry_run,
        }
    }

    /// Answers the admission request of a pod CREATE.
    pub(super) async fn admit_pod(&self, request: AdmissionRequest) -> AdmissionResponse {
        let Some(object) = request.object.as_ref().filter(|_| !self.dry_run) else {
            return AdmissionResponse::allowed();
        };
        let (Some(owner), Some(namespace)) = (owner(object), request.namespace.as_deref()) else {
            return AdmissionResponse::allowed();
        };
        let found = match self.cache.lookup_owner(&owner, namespace) {
            OwnerLookup::Unmanaged => return AdmissionResponse::allowed(),
            OwnerLookup::Managed(found) => Some(*found),
            OwnerLookup::Unknown => match self.read_owner_in_time(&owner, namespace, object).await {
                Ok(found) => found,
                Err(reason) => return AdmissionResponse::failed_open(reason),
            },
        };
        let Some((workload, spec)) = found else { return AdmissionResponse::allowed() };
        let Ok(pod) = IncomingPod::deserialize(object) else { return AdmissionResponse::allowed() };
        if !self.cache.has_classes() {
            // The platform is not known yet. The pod is counted where it runs.
            return AdmissionResponse::patched(managed_label(object).into_iter().collect());
        }
        let configured = self.cache.configured();
        let labels = &configured.settings.labels;
        let state = workload.view.state();
        let owner = match workload.view.kind {
            Kind::StatefulSet { start } => {
                let assigned = ordinal_class(&pod, start, &spec, &state);
                let takes = !request.dry_run && left_alone(&pod, spec.strength, labels).is_none();
                if let Some((ordinal, class)) = assigned.filter(|_| takes)
                    && let OrdinalAdmission::WithoutClass { newly } =
                        self.cache.admit_ordinal(&owner.uid, ordinal, class)
                {
                    return self.without_class((object, &pod), &workload, class, newly);
                }
                PodOwner::StatefulSet { start, state: &state }
            }
            Kind::Deployment | Kind::ReplicaSet | Kind::Other { .. } => {
                // Only a pod that takes the slot may reserve one.
                let takes = !request.dry_run && !pod.is_gated() && left_alone(&pod, spec.strength, labels).is_none();
                let place = takes.then(|| self.reserve(&workload.key, &owner.uid)).flatten();
                PodOwner::Deployment(match place {
                    Some(place) => Assignment::Placed(place),
                    None if self.may_gate(&workload.key) => Assignment::Gated,
                    None => Assignment::Ownerless,
                })
            }
        };
        self.answer(object, &pod, (&workload, &spec), owner)
    }

    fn answer(
        &self,
        object: &Value,
        pod: &IncomingPod,
        (workload, spec): (&WorkloadEntry, &Spec),
        owner: PodOwner<'_>,
    ) -> AdmissionResponse {
        let configured = self.cache.configured();
        let mut patch = match admit(pod, spec, owner, &configured.settings.labels, &configured.tolerations) {
            PodAdmission::Patch { operations, reason } => {
                debug!(workload = &*workload.key, reason, "admitted pod");
                operations
            }
            PodAdmission::Unchanged { reason, report } => {
                if report {
                    self.events.occurred(about(&workload.view), Severity::Warning, "PodNotPlaced", || {
                        format!("a pod is counted but not placed: {reason}")
                    });
                }
                Vec::new()
            }
        };
        patch.extend(managed_label(object));
        AdmissionResponse::patched(patch)
    }

    /// Admits a pod of a StatefulSet without its class, because creates with it do not succeed.
    fn without_class(
        &self,
        (object, pod): (&Value, &IncomingPod),
        workload: &WorkloadEntry,
        class: Class,
        newly: bool,
    ) -> AdmissionResponse {
        if newly {
            let name = object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
            self.events.occurred(about(&workload.view), Severity::Warning, "PlacementRefused", || {
                format!("pod {name} was not created with class {class}, probably refused by a policy: it gets no class")
            });
        }
        let mut patch = without_class(pod, class);
        patch.extend(managed_label(object));
        AdmissionResponse::patched(patch)
    }

    /// Reserves a slot for a pod that is being created, if this replica owns its workload and has
    /// decided about it.
    fn reserve(&self, key: &str, set: &str) -> Option<Place> {
        let permit =
            self.ownership.may_act(shard_key(key)).filter(|_| self.decides && self.ownership.is_exclusive())?;
        // As every request, the create must end before another replica may decide.
        if permit.remaining() < self.deadline {
            return None;
        }
        self.cache.reserve(set, permit.term())
    }

    /// Returns whether a pod may be gated, that is, whether a replica will remove the gate. A
    /// replica that lacks the permission to watch cannot ungate pods, and the others have the same
    /// permissions; neither can one whose writes were refused. A replica that is stopping does not
    /// know which other replicas run.
    fn may_gate(&self, key: &str) -> bool {
        let attended = self.ownership.has_owner(self.ownership.shard_of(shard_key(key)));
        let watches = self.cache.is_synced() && !is_unreadable(&self.health);
        attended && watches && !self.reconciler.is_closed() && !self.cache.is_refused(key)
    }

    async fn read_owner_in_time(
        &self,
        owner: &OwnerReference,
        namespace: &str,
        pod: &Value,
    ) -> Result<Option<(WorkloadEntry, Spec)>, FailOpen> {
        match tokio::time::timeout(self.deadline, self.read_owner(owner, namespace, pod)).await {
            Ok(Ok(found)) => Ok(found),
            Ok(Err(error)) => {
                self.metrics.failed(error.category());
                warn!(namespace, owner = owner.name, %error, "cannot read the owner of a pod, pod admitted unchanged");
                Err(FailOpen::Error)
            }
            Err(_) => {
                warn!(namespace, owner = owner.name, "deadline exceeded reading the owner, pod admitted unchanged");
                Err(FailOpen::Deadline)
            }
        }
    }

    /// Reads an owner that is not in the cache yet from the API server. An owner of another kind is
    /// described by its pod.
    async fn read_owner(
        &self,
        owner: &OwnerReference,
        namespace: &str,
        pod: &Value,
    ) -> Result<Option<(WorkloadEntry, Spec)>, PlacementError> {
        let configured = self.cache.configured();
        let workload = if is_apps(owner, &["ReplicaSet"]) {
            self.read_replica_set(owner, namespace).await?
        } else if is_apps(owner, &["StatefulSet"]) {
            let found = self.cluster.stateful_set(namespace, &owner.name).await?;
            found.map(|found| stateful_set(found, &configured)).filter(|found| found.view.uid == owner.uid)
        } else {
            let metadata = ObjectMeta::deserialize(&pod["metadata"]).ok();
            metadata.and_then(|metadata| other_controller(&metadata, namespace, &configured))
        };
        let Some(workload) = workload else { return Ok(None) };
        let defaults = match self.cache.namespace(namespace) {
            Some(known) => known,
            None => self.read_namespace(namespace).await?,
        };
        if !defaults.selected {
            return Ok(None);
        }
        let spec = parse(&configured.annotations, &defaults.annotations, &workload.annotations);
        Ok(spec.ok().flatten().map(|spec| (workload, spec)))
    }

    /// Reads the Deployment of a ReplicaSet, or the ReplicaSet itself if it has none.
    async fn read_replica_set(
        &self,
        owner: &OwnerReference,
        namespace: &str,
    ) -> Result<Option<WorkloadEntry>, PlacementError> {
        let configured = self.cache.configured();
        let mut name = self.cache.deployment_of(&owner.uid);
        if name.is_none() {
            let set = self.cluster.replica_set(namespace, &owner.name).await?;
            let Some(set) = set.filter(|set| set.metadata.uid.as_deref() == Some(&owner.uid)) else { return Ok(None) };
            if let Some(workload) = replica_set(&set, &configured) {
                return Ok(Some(workload));
            }
            name = controller(&set.metadata).map(|above| above.name.clone());
        }
        let Some(name) = name else { return Ok(None) };
        let found = self.cluster.deployment(namespace, &name).await?;
        Ok(found.map(|found| deployment(found, &configured)))
    }

    async fn read_namespace(&self, name: &str) -> Result<NamespaceEntry, PlacementError> {
        let found = self.cluster.namespace(name).await?;
        Ok(found.map(|found| namespace_entry(&found.metadata, &self.cache.configured())).unwrap_or_default())
    }
}

/// Returns the controller of an incoming pod, if it is of a kind that may be managed.
fn owner(object: &Value) -> Option<OwnerReference> {
    let all = object.pointer("/metadata/ownerReferences")?.as_array()?;
    let above = all.iter().find(|owner| owner["controller"] == true)?;
    OwnerReference::deserialize(above).ok().filter(may_be_managed)
}

/// Returns the operation that adds the label by which the pod is watched.
fn managed_label(object: &Value) -> Option<Value> {
    match object.pointer("/metadata/labels") {
        Some(Value::Object(labels)) if labels.get(MANAGED).is_some_and(|value| value == "true") => None,
        Some(Value::Object(_)) => {
            let path = format!("/metadata/labels/{}", MANAGED.replace('/', "~1"));
            Some(json!({"op": "add", "path": path, "value": "true"}))
        }
        _ => Some(json!({"op": "add", "path": "/metadata/labels", "value": {MANAGED: "true"}})),
    }
}

#[cfg(test)]
mod tests;
