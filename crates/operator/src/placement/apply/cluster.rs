//! Requests of placement for pods and workloads. Every write is conditional, every request has a
//! deadline and is within the budget.

use std::{fmt::Debug, time::Duration};

use futures::TryStreamExt as _;
use k8s_openapi::api::core::v1::{Node as CoreNode, Pod as CorePod};
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
};
use super::room::fits;
use crate::{
    keeper::node::Node,
    runtime::{
        budget::{Budget, Urgency},
        error_category::Category,
        pages::{PAGE, next_token, pages},
        request::{FIELD_MANAGER, Failure, send},
    },
};

/// A list of a workload's pods.
#[derive(Debug)]
pub struct ListedPods {
    pub pods: Vec<Pod>,
    /// resourceVersion of the list. A cached pod that is not newer and not in the list is gone.
    pub as_of: u64,
}

/// A failed request.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("could not place pod {pod}")]
    Place { pod: String, source: Failure },
    #[error("could not relabel pod {pod}")]
    Relabel { pod: String, source: Failure },
    #[error("could not ungate pod {pod}")]
    Ungate { pod: String, source: Failure },
    #[error("could not adopt pod {pod}")]
    Adopt { pod: String, source: Failure },
    #[error("could not evict pod {pod}")]
    Evict { pod: String, source: Failure },
    #[error("could not delete pod {pod}")]
    Delete { pod: String, source: Failure },
    #[error("could not write the state of {workload}")]
    Save { workload: String, source: Failure },
    #[error("could not list the pods of {workload}")]
    List { workload: String, source: Failure },
    #[error("could not read {what}")]
    Read { what: String, source: Failure },
}

impl Error {
    pub fn failure(&self) -> &Failure {
        match self {
            Self::Place { source, .. }
            | Self::Relabel { source, .. }
            | Self::Ungate { source, .. }
            | Self::Adopt { source, .. }
            | Self::Evict { source, .. }
            | Self::Delete { source, .. }
            | Self::Save { source, .. }
            | Self::List { source, .. }
            | Self::Read { source, .. } => source,
        }
    }

    pub fn category(&self) -> Category {
        self.failure().category()
    }

    pub fn retry_after(&self) -> Option<Duration> {
        self.failure().retry_after()
    }

    /// Returns the missing permission, if that is the cause.
    pub fn missing_permission(&self) -> Option<&'static str> {
        (self.category() == Category::Forbidden).then_some(match self {
            Self::Place { .. } | Self::Relabel { .. } | Self::Ungate { .. } | Self::Adopt { .. } => "patch pods",
            Self::Evict { .. } => "create pods/eviction",
            Self::Delete { .. } => "delete pods",
            Self::Save { .. } => "patch deployments and statefulsets",
            Self::List { .. } => "list pods",
            Self::Read { .. } => {
                "get and list nodes, namespaces, deployments, statefulsets, replicasets, pods and poddisruptionbudgets"
            }
        })
    }
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
pub struct Cluster {
    client: Client,
    budget: Budget,
}

impl Cluster {
    pub fn new(client: Client, budget: Budget) -> Self {
        Self { client, budget }
    }

    fn pods(&self, namespace: &str) -> Api<Pod> {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// Sends a strategic merge patch of a pod, conditional on the resourceVersion in it.
    pub async fn patch_pod(&self, namespace: &str, name: &str, patch: &Value) -> Result<Pod, Failure> {
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
    ) -> Result<Option<Pod>, Error> {
        let mut answer = self.patch_pod(namespace, name, patch).await;
        if let (Err(failure), Some(gate_only)) = (&answer, on_refusal)
            && failure.is_refusal()
        {
            answer = self.patch_pod(namespace, name, gate_only).await;
        }
        match answer {
            Ok(pod) => Ok(Some(pod)),
            Err(failure) if failure.category() == Category::NotFound => Ok(None),
            Err(source) => Err(Error::Ungate { pod: name.to_owned(), source }),
        }
    }

    /// Adds the label by which pods are watched to a pod that was created without the webhook.
    pub async fn adopt(&self, namespace: &str, pod: &PodRef) -> Result<Pod, Error> {
        let patch = json!({"metadata": {"uid": pod.uid, "labels": {MANAGED: "true"}}});
        let api = self.pods(namespace);
        let patched = self.send(Urgency::Normal, api.patch(&pod.name, &params(), &Patch::Merge(patch))).await;
        patched.map_err(|source| Error::Adopt { pod: pod.name.clone(), source })
    }

    /// Sends a merge patch of a workload, conditional on the resourceVersion in it.
    pub async fn save(&self, workload: &WorkloadView, patch: &Value) -> Result<Saved, Error> {
        let (namespace, name) = (&workload.namespace, &workload.name);
        let patch = Patch::Merge(patch);
        let saved = if workload.kind == Kind::Deployment {
            let api: Api<Deployment> = Api::namespaced(self.client.clone(), namespace);
            self.send(Urgency::Immediate, api.patch(name, &params(), &patch)).await.map(Saved::Deployment)
        } else {
            let api: Api<StatefulSet> = Api::namespaced(self.client.clone(), namespace);
            self.send(Urgency::Immediate, api.patch(name, &params(), &patch)).await.map(Saved::StatefulSet)
        };
        saved.map_err(|source| Error::Save { workload: key_of(workload).to_string(), source })
    }

    pub async fn evict(&self, namespace: &str, pod: &PodRef) -> Result<Eviction, Error> {
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
                _ => Err(Error::Evict { pod: pod.name.clone(), source }),
            },
        }
    }

    /// Deletes a pod that has not changed. Returns false if it has changed or is gone.
    pub async fn delete(&self, namespace: &str, pod: &PodRef) -> Result<bool, Error> {
        let mut params = only(pod);
        if let Some(preconditions) = &mut params.preconditions {
            preconditions.resource_version = Some(pod.resource_version.clone());
        }
        match self.send(Urgency::Normal, self.pods(namespace).delete(&pod.name, &params)).await {
            Ok(_) => Ok(true),
            Err(source) if matches!(source.code(), Some(404 | 409)) => Ok(false),
            Err(source) => Err(Error::Delete { pod: pod.name.clone(), source }),
        }
    }

    /// Lists the pods that the workload's selector matches.
    pub async fn list_pods(&self, workload: &WorkloadEntry) -> Result<ListedPods, Error> {
        let api = self.pods(&workload.view.namespace);
        let api = &api;
        let list = |params: ListParams| async move {
            let page = self.send(Urgency::Immediate, api.list(&params)).await;
            let page = page.map_err(|source| Error::List { workload: workload.key.to_string(), source })?;
            let next = next_token(&page.metadata);
            Ok::<_, Error>((page, next))
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

    /// Lists one page of all pods with the label [`MANAGED`]. Returns the token of the next page.
    pub async fn list_managed(&self, params: ListParams) -> Result<(Vec<Pod>, Option<String>), Error> {
        let api: Api<Pod> = Api::all(self.client.clone());
        let params = params.labels(&format!("{MANAGED}=true"));
        let page = self.send(Urgency::Low, api.list(&params)).await;
        let page = page.map_err(|source| Error::List { workload: "all workloads".to_owned(), source })?;
        let next = next_token(&page.metadata);
        Ok((page.items, next))
    }

    /// Returns whether a pod like this one fits on a node. What is not known counts as room.
    pub async fn has_room(&self, node: &str, namespace: &str, pod: &str) -> Result<bool, Error> {
        let read = |what: String| move |source| Error::Read { what, source };
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
    pub async fn detect_schemes(&self, configured: &mut Configured) -> Result<(), Error> {
        if !configured.schemes.is_auto() {
            return Ok(());
        }
        let api: Api<Node> = Api::all(self.client.clone());
        let page = self.send(Urgency::Low, api.list_metadata(&ListParams::default().limit(PAGE))).await;
        let page = page.map_err(|source| Error::Read { what: "nodes".to_owned(), source })?;
        let labels = page.items.iter().filter_map(|node| node.metadata.labels.as_ref());
        let detected = labels.fold(SchemeSet::default(), |set, labels| set | configured.schemes.detect(labels));
        configured.detect(detected);
        Ok(())
    }

    pub async fn replica_set(&self, namespace: &str, name: &str) -> Result<Option<ReplicaSet>, Error> {
        self.read(namespace, name).await
    }

    pub async fn deployment(&self, namespace: &str, name: &str) -> Result<Option<Deployment>, Error> {
        self.read(namespace, name).await
    }

    pub async fn stateful_set(&self, namespace: &str, name: &str) -> Result<Option<StatefulSet>, Error> {
        self.read(namespace, name).await
    }

    pub async fn namespace(&self, name: &str) -> Result<Option<Namespace>, Error> {
        if !is_dns_label(name) {
            return Ok(None);
        }
        let api: Api<Namespace> = Api::all(self.client.clone());
        let found = self.send(Urgency::Immediate, api.get_opt(name)).await;
        found.map_err(|source| Error::Read { what: format!("namespace {name}"), source })
    }

    /// Reads an object. No request is sent for a name that no object can have: names come from
    /// owner references, which the API server does not check, and from reviews, which anyone can
    /// send.
    async fn read<K>(&self, namespace: &str, name: &str) -> Result<Option<K>, Error>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Debug,
    {
        if !is_dns_label(namespace) || !is_dns_subdomain(name) {
            return Ok(None);
        }
        let api: Api<K> = Api::namespaced(self.client.clone(), namespace);
        let found = self.send(Urgency::Immediate, api.get_opt(name)).await;
        found.map_err(|source| Error::Read { what: format!("{} {namespace}/{name}", K::plural(&())), source })
    }

    async fn send<T>(
        &self,
        urgency: Urgency,
        request: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, Failure> {
        send(&self.budget, urgency, request).await
    }
}

/// A workload in the answer to a write.
#[derive(Debug)]
pub enum Saved {
    Deployment(Deployment),
    StatefulSet(StatefulSet),
}

fn params() -> PatchParams {
    PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() }
}

/// Restricts a deletion to this pod: a successor of the same name has another UID.
fn only(pod: &PodRef) -> DeleteParams {
    let preconditions = Preconditions { resource_version: None, uid: Some(pod.uid.clone()) };
    DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() }
}
