//! Admission of pods: those of managed workloads are gated or given their class, all others pass untouched.
//!
//! # Guarantees
//! Every replica serves it, without leadership. A pod is never refused. A pod without a managed owner costs a look into
//! memory; an owner that the caches do not know yet is asked for once, within a deadline.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use perennial_core::{
    admission_review::{AdmissionRequest, AdmissionResponse},
    placement::{
        fallback::State as Remembered,
        pod_patch::{Fate, IncomingPod, Mutation, Owner, left_alone, mutate},
        spec::{Spec, parse},
        view::Kind,
    },
};
use serde::Deserialize;
use serde_json::{Value, json};
use tracing::{debug, warn};

use super::{
    apply::Error,
    controller::Placer,
    index::{NamespaceEntry, Workload, controller},
    observe::{MANAGED, deployment, namespace_entry, stateful_set},
};
use crate::runtime::events::Severity;

/// What the caches know of a pod's owner.
enum Known {
    /// It is not managed, or not of a kind that is.
    Unmanaged,
    Managed(Box<(Workload, Spec)>),
    /// The caches have not seen it.
    Unknown,
}

impl Placer {
    /// Pod CREATE.
    pub async fn admit_pod(&self, request: AdmissionRequest) -> AdmissionResponse {
        let Some(object) = request.object.as_ref().filter(|_| !self.dry_run) else {
            return AdmissionResponse::allowed();
        };
        let (Some(owner), Some(namespace)) = (owner(object), request.namespace.as_deref()) else {
            return AdmissionResponse::allowed();
        };
        let found = match self.known(&owner, namespace) {
            Known::Unmanaged => return AdmissionResponse::allowed(),
            Known::Managed(found) => Some(*found),
            Known::Unknown => match tokio::time::timeout(self.admission_deadline, self.find(&owner, namespace)).await {
                Ok(Ok(found)) => found,
                Ok(Err(error)) => {
                    self.reporter.count(error.category());
                    warn!(namespace, owner = owner.name, why = %error, "its owner could not be read; the pod passes");
                    None
                }
                Err(_) => {
                    warn!(namespace, owner = owner.name, "its owner was not read in time; the pod passes");
                    None
                }
            },
        };
        let Some((workload, spec)) = found else { return AdmissionResponse::allowed() };
        let Ok(pod) = IncomingPod::deserialize(object) else { return AdmissionResponse::allowed() };
        let labels = &self.configured.settings.labels;
        let (remembered, _) = Remembered::read(workload.view.state.as_deref());
        let owner = match workload.view.kind {
            Kind::StatefulSet { start } => Owner::StatefulSet { start, state: &remembered },
            Kind::Deployment => {
                // A place is given away only to a pod that takes it.
                let takes = !request.dry_run && !pod.is_gated() && left_alone(&pod, spec.strength, labels).is_none();
                let place = takes.then(|| self.give_place(&workload.key, &owner.uid)).flatten();
                Owner::Deployment(match place {
                    Some(place) => Fate::Placed(place),
                    None if self.may_gate(&workload.key) => Fate::Gated,
                    None => Fate::Ownerless,
                })
            }
        };
        self.answer(object, &pod, &workload, &spec, owner)
    }

    fn answer(
        &self,
        object: &Value,
        pod: &IncomingPod,
        workload: &Workload,
        spec: &Spec,
        owner: Owner<'_>,
    ) -> AdmissionResponse {
        let (labels, tolerations) = (&self.configured.settings.labels, &self.configured.tolerations);
        let mut patch = match mutate(pod, spec, owner, labels, tolerations) {
            Mutation::Patch { operations, reason } => {
                debug!(workload = &*workload.key, reason, "a pod was admitted");
                operations
            }
            Mutation::Nothing { reason, tell } => {
                if tell {
                    self.events.say(workload.about(), Severity::Warning, "PodNotPlaced", || {
                        format!("a pod is counted and left as it is: {reason}")
                    });
                }
                Vec::new()
            }
        };
        patch.extend(managed(object));
        AdmissionResponse::patched(patch)
    }

    fn known(&self, owner: &OwnerReference, namespace: &str) -> Known {
        let state = self.lock();
        let index = &state.view.index;
        if index.namespace(namespace).is_some_and(|known| !known.selected) {
            return Known::Unmanaged;
        }
        let workload = if owner.kind == "ReplicaSet" {
            let Some(set) = index.set(&owner.uid) else { return Known::Unknown };
            let Some(deployment) = &set.owner else { return Known::Unmanaged };
            index.workload_by_uid(deployment)
        } else {
            index.workload_by_uid(&owner.uid)
        };
        let (Some(workload), Some(_)) = (workload, index.namespace(namespace)) else { return Known::Unknown };
        match index.spec(workload, &self.configured.prefixes) {
            Ok(Some(spec)) => Known::Managed(Box::new((workload.clone(), spec))),
            // What cannot be understood is left alone.
            Ok(None) | Err(_) => Known::Unmanaged,
        }
    }

    /// Asks the API server for what the caches do not know yet.
    async fn find(&self, owner: &OwnerReference, namespace: &str) -> Result<Option<(Workload, Spec)>, Error> {
        let workload = if owner.kind == "ReplicaSet" {
            self.deployment_of(owner, namespace).await?
        } else {
            let found = self.admission.stateful_set(namespace, &owner.name).await?;
            found.map(|found| stateful_set(found, &self.configured)).filter(|found| found.view.uid == owner.uid)
        };
        let Some(workload) = workload else { return Ok(None) };
        let known = self.lock().view.index.namespace(namespace).cloned();
        let defaults = match known {
            Some(known) => known,
            None => self.read_namespace(namespace).await?,
        };
        if !defaults.selected {
            return Ok(None);
        }
        let spec = parse(&self.configured.prefixes, &defaults.annotations, &workload.annotations);
        Ok(spec.ok().flatten().map(|spec| (workload, spec)))
    }

    async fn deployment_of(&self, owner: &OwnerReference, namespace: &str) -> Result<Option<Workload>, Error> {
        let known = self.lock().view.index.set(&owner.uid).and_then(|set| set.owner_name.clone());
        let name = if known.is_some() {
            known
        } else {
            let set = self.admission.replica_set(namespace, &owner.name).await?;
            let set = set.filter(|set| set.metadata.uid.as_deref() == Some(&owner.uid));
            let above = set.as_ref().and_then(|set| controller(&set.metadata));
            above.filter(|above| above.kind == "Deployment").map(|above| above.name.clone())
        };
        let Some(name) = name else { return Ok(None) };
        let found = self.admission.deployment(namespace, &name).await?;
        Ok(found.map(|found| deployment(found, &self.configured)))
    }

    async fn read_namespace(&self, name: &str) -> Result<NamespaceEntry, Error> {
        let found = self.admission.namespace(name).await?;
        Ok(found.map(|found| namespace_entry(found.metadata, &self.configured)).unwrap_or_default())
    }
}

/// The controller of an incoming pod, if it is of a kind that may be managed.
fn owner(object: &Value) -> Option<OwnerReference> {
    let all = object.pointer("/metadata/ownerReferences")?.as_array()?;
    let above = all.iter().find(|owner| owner["controller"] == true)?;
    let managed = above["apiVersion"] == "apps/v1" && (above["kind"] == "ReplicaSet" || above["kind"] == "StatefulSet");
    managed.then(|| OwnerReference::deserialize(above).ok()).flatten()
}

/// Our label, by which the watch finds the pod.
fn managed(object: &Value) -> Option<Value> {
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
mod tests {
    use super::*;

    #[test]
    fn only_pods_of_replica_sets_and_stateful_sets_are_looked_at() {
        let pod = |kind: &str, version: &str| {
            let above = json!({"apiVersion": version, "kind": kind, "name": "web", "uid": "u", "controller": true});
            json!({"metadata": {"ownerReferences": [above]}})
        };
        assert!(owner(&pod("ReplicaSet", "apps/v1")).is_some());
        assert!(owner(&pod("StatefulSet", "apps/v1")).is_some());
        assert!(owner(&pod("DaemonSet", "apps/v1")).is_none());
        assert!(owner(&pod("Job", "batch/v1")).is_none());
        assert!(owner(&pod("StatefulSet", "apps.kruise.io/v1beta1")).is_none());
        assert!(owner(&json!({"metadata": {}})).is_none());
    }

    #[test]
    fn the_label_is_added_beside_others_and_once() {
        let with = |labels: Value| json!({"metadata": {"labels": labels}});
        assert_eq!(managed(&with(json!({"app": "web"}))).unwrap()["path"], "/metadata/labels/perennial.dev~1managed");
        assert!(managed(&with(json!({MANAGED: "true"}))).is_none());
        assert_eq!(managed(&json!({"metadata": {}})).unwrap()["path"], "/metadata/labels");
    }
}
