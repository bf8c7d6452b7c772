//! Requests of placement for pods and workloads. Every write is conditional, every request has a
//! deadline and is within the budget.

use std::fmt::Debug;

use futures::TryStreamExt as _;
use k8s_openapi::{
    api::{
        authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec},
        core::v1::{Node as CoreNode, Pod as CorePod},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api, Client, Resource,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions},
    core::NamespaceResourceScope,
};
use perennial_core::{
    config::names::{is_dns_label, is_dns_subdomain},
    placement::{
        decision::PodRef,
        node_labels::schemes::SchemeSet,
        workload::{Kind, WorkloadView},
    },
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::super::{
    cache::{MANAGED, WorkloadEntry, key_of, version},
    objects::{Deployment, Namespace, Pod, ReplicaSet, StatefulSet},
    settings::Configured,
    takeover::{self, PodVersions},
};
use super::{PlacementError, room::fits};
use crate::{
    keeper::node::Node,
    runtime::{
        budget::{Budget, Urgency},
        error_category::Category,
        pages::{PAGE, next_token, pages},
        request::{FIELD_MANAGER, RequestFailure, send},
    },
};

/// A list of a workload's pods.
#[derive(Debug)]
pub struct ListedPods {
    pub pods: Vec<Pod>,
    /// resourceVersion of the list. A cached pod that is not newer and not in the list is gone.
    pub as_of: u64,
}

/// Answer to an eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Eviction {
    Done,
    /// A PodDisruptionBudget does not allow it now.
    Blocked,
    /// More than one PodDisruptionBudget selects the pod, so that the API server cannot evict it.
    Ambiguous,
    /// The pod is gone or was replaced.
    Gone,
}

/// Client for pods and workloads.
#[derive(Clone)]
#[expect(missing_debug_implementations, reason = "kube's client has none")]
pub struct PlacementClient {
    client: Client,
    budget: Budget,
}

impl PlacementClient {
    pub fn new(client: Client, budget: Budget) -> Self {
        Self { client, budget }
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    fn pods(&self, namespace: &str) -> Api<Pod> {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// Sends a strategic merge patch of a pod, conditional on the resourceVersion in it.
    pub async fn patch_pod(&self, namespace: &str, name: &str, patch: &Value) -> Result<Pod, RequestFailure> {
        let api = self.pods(namespace);
        self.send(Urgency::Immediate, api.patch(name, &params(), &Patch::Strategic(patch))).await
    }

    /// Removes the gate. If the API server refuses the patch, sends `on_refusal`. Returns None if
    /// the pod is gone.
    pub async fn ungate_pod(
        &self,
        namespace: &str,
        name: &str,
        patch: &Value,
        on_refusal: Option<&Value>,
    ) -> Result<Option<Pod>, PlacementError> {
        let mut answer = self.patch_pod(namespace, name, patch).await;
        if let (Err(failure), Some(gate_only)) = (&answer, on_refusal)
            && failure.is_refusal()
        {
            answer = self.patch_pod(namespace, name, gate_only).await;
        }
        match answer {
            Ok(pod) => Ok(Some(pod)),
            Err(failure) if failure.category() == Category::NotFound => Ok(None),
            Err(source) => Err(PlacementError::Ungate { pod: name.to_owned(), source }),
        }
    }

    /// Adds the label by which pods are watched to a pod that was created without the webhook.
    pub async fn adopt(&self, namespace: &str, pod: &PodRef) -> Result<Pod, PlacementError> {
        let patch = json!({"metadata": {"uid": pod.uid, "labels": {MANAGED: "true"}}});
        let api = self.pods(namespace);
        let patched = self.send(Urgency::Normal, api.patch(&pod.name, &params(), &Patch::Merge(patch))).await;
        patched.map_err(|source| PlacementError::Adopt { pod: pod.name.clone(), source })
    }

    /// Sends a merge patch of a workload, conditional on the resourceVersion in it.
    pub async fn save(&self, workload: &WorkloadView, patch: &Value) -> Result<Saved, PlacementError> {
        let (namespace, name) = (&workload.namespace, &workload.name);
        let patch = Patch::Merge(patch);
        let saved = match workload.kind {
            Kind::Deployment => {
                let api: Api<Deployment> = Api::namespaced(self.client.clone(), namespace);
                self.send(Urgency::Immediate, api.patch(name, &params(), &patch)).await.map(Saved::Deployment)
            }
            Kind::ReplicaSet => {
                let api: Api<ReplicaSet> = Api::namespaced(self.client.clone(), namespace);
                self.send(Urgency::Immediate, api.patch(name, &params(), &patch)).await.map(Saved::ReplicaSet)
            }
            Kind::StatefulSet { .. } => {
                let api: Api<StatefulSet> = Api::namespaced(self.client.clone(), namespace);
                self.send(Urgency::Immediate, api.patch(name, &params(), &patch)).await.map(Saved::StatefulSet)
            }
            Kind::Other { .. } => return Ok(Saved::InMemory),
        };
        saved.map_err(|source| PlacementError::Save { workload: key_of(workload).to_string(), source })
    }

    pub async fn evict(&self, namespace: &str, pod: &PodRef) -> Result<Eviction, PlacementError> {
        // kube 5 serializes this field as `delete_options`, which the API server ignores together
        // with the precondition.
        let eviction = json!({
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod.name, "namespace": namespace},
            "deleteOptions": only(pod),
        });
        let (api, params) = (self.pods(namespace), PostParams::default());
        let request = api.create_subresource::<Value, Value>("eviction", &pod.name, &params, &eviction);
        match self.send(Urgency::Normal, request).await {
            Ok(_) => Ok(Eviction::Done),
            Err(source) => match source.code() {
                Some(429) => Ok(Eviction::Blocked),
                Some(500) => Ok(Eviction::Ambiguous),
                Some(404 | 409) => Ok(Eviction::Gone),
                _ => Err(PlacementError::Evict { pod: pod.name.clone(), source }),
            },
        }
    }

    /// Deletes a pod that has not changed. Returns false if it has changed or is gone.
    pub async fn delete(&self, namespace: &str, pod: &PodRef) -> Result<bool, PlacementError> {
        let mut params = only(pod);
        if let Some(preconditions) = &mut params.preconditions {
            preconditions.resource_version = Some(pod.resource_version.clone());
        }
        match self.send(Urgency::Normal, self.pods(namespace).delete(&pod.name, &params)).await {
            Ok(_) => Ok(true),
            Err(source) if matches!(source.code(), Some(404 | 409)) => Ok(false),
            Err(source) => Err(PlacementError::Delete { pod: pod.name.clone(), source }),
        }
    }

    /// Lists the pods that the workload's selector matches, or all pods of its namespace if its
    /// selector is not known.
    pub async fn list_pods(&self, workload: &WorkloadEntry) -> Result<ListedPods, PlacementError> {
        let api = self.pods(&workload.view.namespace);
        let api = &api;
        let list = |params: ListParams| async move {
            let page = self.send(Urgency::Immediate, api.list(&params)).await;
            let page = page.map_err(|source| PlacementError::List { workload: workload.key.to_string(), source })?;
            let next = next_token(&page.metadata);
            Ok::<_, PlacementError>((page, next))
        };
        let params = ListParams::default().labels(&workload.selector.to_string()).limit(PAGE);
        let mut pages = std::pin::pin!(pages(params, list));
        let mut listed = ListedPods { pods: Vec::new(), as_of: 0 };
        while let Some(page) = pages.try_next().await? {
            listed.pods.extend(page.items);
            listed.as_of = version(page.metadata.resource_version.as_deref().unwrap_or_default());
        }
        Ok(listed)
    }

    /// Lists the versions of all pods with the label [`MANAGED`].
    pub async fn list_versions(&self) -> Result<PodVersions, PlacementError> {
        let api: Api<Pod> = Api::all(self.client.clone());
        let api = &api;
        let list = |params: ListParams| async move {
            let page = self.send(Urgency::Immediate, api.list_metadata(&params)).await;
            let page = page.map_err(|source| PlacementError::List { workload: "all workloads".to_owned(), source })?;
            let next = next_token(&page.metadata);
            Ok::<_, PlacementError>((page, next))
        };
        let params = ListParams::default().labels(&format!("{MANAGED}=true")).limit(takeover::PAGE);
        let mut pages = std::pin::pin!(pages(params, list));
        let mut versions = PodVersions::default();
        while let Some(page) = pages.try_next().await? {
            versions.as_of = version(page.metadata.resource_version.as_deref().unwrap_or_default());
            for ObjectMeta { uid, resource_version, owner_references, .. } in
                page.items.into_iter().map(|pod| pod.metadata)
            {
                let owner = owner_references.into_iter().flatten().find(|owner| owner.controller == Some(true));
                let (Some(owner), Some(uid)) = (owner, uid) else { continue };
                let read = version(resource_version.as_deref().unwrap_or_default());
                versions.by_owner.entry(owner.uid).or_default().insert(uid, read);
            }
        }
        Ok(versions)
    }

    /// Returns whether this process may remove gates. False only if the API server denies it.
    pub async fn may_release(&self) -> bool {
        let attributes = ResourceAttributes {
            verb: Some("patch".to_owned()),
            resource: Some("pods".to_owned()),
            ..ResourceAttributes::default()
        };
        let spec = SelfSubjectAccessReviewSpec { resource_attributes: Some(attributes), non_resource_attributes: None };
        let review = SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() };
        let api: Api<SelfSubjectAccessReview> = Api::all(self.client.clone());
        let answer = self.send(Urgency::Low, api.create(&PostParams::default(), &review)).await;
        !answer.is_ok_and(|review| review.status.is_some_and(|status| !status.allowed))
    }

    /// Lists one page of all pods with the label [`MANAGED`]. Returns the token of the next page.
    pub async fn list_managed(&self, params: ListParams) -> Result<(Vec<Pod>, Option<String>), PlacementError> {
        let api: Api<Pod> = Api::all(self.client.clone());
        let params = params.labels(&format!("{MANAGED}=true"));
        let page = self.send(Urgency::Low, api.list(&params)).await;
        let page = page.map_err(|source| PlacementError::List { workload: "all workloads".to_owned(), source })?;
        let next = next_token(&page.metadata);
        Ok((page.items, next))
    }

    /// Returns whether a pod like this one fits on a node. What is not known counts as room.
    pub async fn has_room(&self, node: &str, namespace: &str, pod: &str) -> Result<bool, PlacementError> {
        let read = |what: String| move |source| PlacementError::Read { what, source };
        let nodes: Api<CoreNode> = Api::all(self.client.clone());
        let found = self.send(Urgency::Normal, nodes.get_opt(node)).await;
        let Some(found) = found.map_err(read(format!("node {node}")))? else { return Ok(false) };
        let allocatable = found.status.and_then(|status| status.allocatable).unwrap_or_default();
        if allocatable.is_empty() {
            return Ok(true);
        }
        let named = ListParams::default().fields(&format!("metadata.name={pod}"));
        let api: Api<CorePod> = Api::namespaced(self.client.clone(), namespace);
        let like = self.send(Urgency::Normal, api.list(&named)).await;
        let like = like.map_err(read(format!("pod {namespace}/{pod}")))?;
        let on_node = ListParams::default().fields(&format!("spec.nodeName={node}"));
        let api: Api<CorePod> = Api::all(self.client.clone());
        let there = self.send(Urgency::Normal, api.list(&on_node)).await;
        let there = there.map_err(read(format!("the pods on node {node}")))?;
        Ok(like.items.first().is_none_or(|like| fits(like, node, &there.items, &allocatable)))
    }

    /// Detects the label schemes of the node classes, if they are not configured. One page of nodes
    /// is enough: platforms label every node.
    pub async fn detect_schemes(&self, configured: &mut Configured) -> Result<(), PlacementError> {
        if !configured.schemes.is_auto() {
            return Ok(());
        }
        let api: Api<Node> = Api::all(self.client.clone());
        let page = self.send(Urgency::Low, api.list_metadata(&ListParams::default().limit(PAGE))).await;
        let page = page.map_err(|source| PlacementError::Read { what: "nodes".to_owned(), source })?;
        let labels = page.items.iter().filter_map(|node| node.metadata.labels.as_ref());
        let detected = labels.fold(SchemeSet::default(), |set, labels| set | configured.schemes.detect(labels));
        configured.detect(detected);
        Ok(())
    }

    pub async fn replica_set(&self, namespace: &str, name: &str) -> Result<Option<ReplicaSet>, PlacementError> {
        self.read(namespace, name).await
    }

    pub async fn deployment(&self, namespace: &str, name: &str) -> Result<Option<Deployment>, PlacementError> {
        self.read(namespace, name).await
    }

    pub async fn stateful_set(&self, namespace: &str, name: &str) -> Result<Option<StatefulSet>, PlacementError> {
        self.read(namespace, name).await
    }

    pub async fn namespace(&self, name: &str) -> Result<Option<Namespace>, PlacementError> {
        if !is_dns_label(name) {
            return Ok(None);
        }
        let api: Api<Namespace> = Api::all(self.client.clone());
        let found = self.send(Urgency::Immediate, api.get_opt(name)).await;
        found.map_err(|source| PlacementError::Read { what: format!("namespace {name}"), source })
    }

    /// Reads an object. No request is sent for a name that no object can have: names come from
    /// owner references, which the API server does not check, and from reviews, which anyone can
    /// send.
    async fn read<K>(&self, namespace: &str, name: &str) -> Result<Option<K>, PlacementError>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Debug,
    {
        if !is_dns_label(namespace) || !is_dns_subdomain(name) {
            return Ok(None);
        }
        let api: Api<K> = Api::namespaced(self.client.clone(), namespace);
        let found = self.send(Urgency::Immediate, api.get_opt(name)).await;
        found.map_err(|source| PlacementError::Read { what: format!("{} {namespace}/{name}", K::plural(&())), source })
    }

    pub(super) async fn send<T>(
        &self,
        urgency: Urgency,
        request: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, RequestFailure> {
        send(&self.budget, urgency, request).await
    }
}

/// A workload in the answer to a write.
#[derive(Debug)]
pub enum Saved {
    Deployment(Deployment),
    ReplicaSet(ReplicaSet),
    StatefulSet(StatefulSet),
    /// The controller cannot be annotated: the state is kept in this process.
    InMemory,
}

fn params() -> PatchParams {
    PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() }
}

/// Restricts a deletion to this pod: a successor of the same name has another UID.
fn only(pod: &PodRef) -> DeleteParams {
    let preconditions = Preconditions { resource_version: None, uid: Some(pod.uid.clone()) };
    DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() }
}
