//! Workloads, their pods, and the nodes that they run on.

use std::{collections::BTreeMap, fmt, sync::atomic::Ordering, time::Duration};

use k8s_openapi::api::{
    apps::v1::{Deployment, StatefulSet},
    core::v1::{Event, Node, Pod},
    policy::v1::PodDisruptionBudget,
};
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use crate::{Operator, TestCluster, eventually_within};

const CAPACITY: &str = "karpenter.sh/capacity-type";
/// Label of the nodes of one test on the shared cluster.
const POOL: &str = "pool";
/// Pods take longer than nodes: they are created, placed, bound and started.
const PATIENCE: Duration = Duration::from_mins(2);

/// Number of pods of a workload by location.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PodCounts {
    pub spot: usize,
    pub on_demand: usize,
    /// Without a node: gated or unschedulable.
    pub waiting: usize,
    /// On-demand and Ready.
    pub ready_on_demand: usize,
}

impl fmt::Display for PodCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { spot, on_demand, waiting, ready_on_demand } = self;
        write!(f, "{spot} on spot, {on_demand} on-demand ({ready_on_demand} Ready), {waiting} waiting")
    }
}

/// Builder of a Deployment or StatefulSet.
#[expect(missing_debug_implementations, reason = "kube's client has none")]
#[must_use = "a workload is created by `create`"]
pub struct WorkloadBuilder<'a> {
    cluster: &'a TestCluster,
    object: Value,
}

impl WorkloadBuilder<'_> {
    pub fn replicas(mut self, replicas: u32) -> Self {
        self.object["spec"]["replicas"] = json!(replicas);
        self
    }

    /// Sets a `perennial.dev/` annotation.
    pub fn annotate(mut self, name: &str, value: &str) -> Self {
        self.object["metadata"]["annotations"][format!("perennial.dev/{name}")] = json!(value);
        self
    }

    /// Changes any field of the object.
    pub fn with(mut self, change: impl FnOnce(&mut Value)) -> Self {
        change(&mut self.object);
        self
    }

    /// Gives every pod of a StatefulSet a claim `data`, for a volume of [`TestCluster::volume`].
    pub fn claims(mut self) -> Self {
        let resources = json!({"requests": {"storage": "1Gi"}});
        let spec = json!({"accessModes": ["ReadWriteOnce"], "storageClassName": "static", "resources": resources});
        self.object["spec"]["volumeClaimTemplates"] = json!([{"metadata": {"name": "data"}, "spec": spec}]);
        self
    }

    /// Returns the manifest.
    pub fn text(self) -> String {
        self.object.to_string()
    }

    pub async fn create(self) {
        let client = self.cluster.client();
        let created = if self.object["kind"] == "Deployment" {
            let object: Deployment = serde_json::from_value(self.object).expect("a Deployment");
            Api::default_namespaced(client).create(&PostParams::default(), &object).await.map(drop)
        } else {
            let object: StatefulSet = serde_json::from_value(self.object).expect("a StatefulSet");
            Api::default_namespaced(client).create(&PostParams::default(), &object).await.map(drop)
        };
        created.expect("creating a workload");
    }
}

impl TestCluster {
    /// Creates nodes of a class with room for `pods` pods each.
    pub async fn capacity(&self, class: &str, nodes: usize, pods: usize) {
        for _ in 0..nodes {
            self.capacity_node(class, pods, |_| ()).await;
        }
    }

    /// Creates one node of a class after applying `change`. Returns its name.
    pub async fn capacity_node(&self, class: &str, pods: usize, change: impl FnOnce(&mut Value)) -> String {
        let api: Api<Node> = Api::all(self.client());
        let prefix = self.pool().map(|pool| format!("{pool}-")).unwrap_or_default();
        let number = self.capacities.fetch_add(1, Ordering::Relaxed);
        let name = format!("{prefix}{class}-{number}");
        let room = json!({"cpu": "64", "memory": "256Gi", "pods": pods.to_string()});
        let mut node = json!({
            "metadata": {
                "name": name,
                "labels": {CAPACITY: class, POOL: self.pool().unwrap_or("all")},
                "annotations": {"kwok.x-k8s.io/node": "fake"},
            },
            "spec": {},
            "status": {"allocatable": room, "capacity": room},
        });
        change(&mut node);
        let node: Node = serde_json::from_value(node).expect("a node");
        api.create(&PostParams::default(), &node).await.expect("creating a node");
        name
    }

    pub fn deployment(&self, name: &str) -> WorkloadBuilder<'_> {
        WorkloadBuilder { cluster: self, object: workload("Deployment", name, self.pool()) }
    }

    pub fn stateful_set(&self, name: &str) -> WorkloadBuilder<'_> {
        let builder = WorkloadBuilder { cluster: self, object: workload("StatefulSet", name, self.pool()) };
        builder.with(|object| {
            object["spec"]["serviceName"] = json!(name);
            object["spec"]["podManagementPolicy"] = json!("Parallel");
        })
    }

    /// Creates the volume of a StatefulSet pod. With a label, only nodes with it can use the volume.
    pub fn volume(&self, pod: &str, label: Option<(&str, &str)>) {
        let namespace = self.workspace();
        let mut volume = json!({
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": format!("{namespace}-{pod}")},
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "capacity": {"storage": "1Gi"},
                "claimRef": {"namespace": namespace, "name": format!("data-{pod}")},
                "hostPath": {"path": "/none"},
                "storageClassName": "static",
            },
        });
        if let Some((key, value)) = label {
            let term = json!({"matchExpressions": [{"key": key, "operator": "In", "values": [value]}]});
            volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"] = json!([term]);
        }
        self.try_kubectl_with("create", &volume.to_string()).expect_success();
    }

    /// Sends a merge patch to a Deployment.
    pub async fn patch_deployment(&self, name: &str, patch: Value) {
        let api: Api<Deployment> = Api::default_namespaced(self.client());
        let patched = api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await;
        drop(patched.unwrap_or_else(|error| panic!("patching Deployment {name}: {error}")));
    }

    pub async fn scale(&self, name: &str, replicas: u32) {
        self.patch_deployment(name, json!({"spec": {"replicas": replicas}})).await;
    }

    pub async fn annotate_deployment(&self, name: &str, annotation: &str, value: &str) {
        let annotations = json!({format!("perennial.dev/{annotation}"): value});
        self.patch_deployment(name, json!({"metadata": {"annotations": annotations}})).await;
    }

    /// Changes the pod template.
    pub async fn roll_out(&self, name: &str, version: &str) {
        let template = json!({"metadata": {"annotations": {"version": version}}});
        self.patch_deployment(name, json!({"spec": {"template": template}})).await;
    }

    /// Creates a PodDisruptionBudget with this `minAvailable`.
    pub async fn budget(&self, name: &str, app: &str, min_available: u32) {
        let spec = json!({"minAvailable": min_available, "selector": {"matchLabels": {"app": app}}});
        let budget: PodDisruptionBudget =
            serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).expect("a budget");
        let api = Api::default_namespaced(self.client());
        api.create(&PostParams::default(), &budget).await.expect("creating a budget");
    }

    /// Returns the pods of a workload that are not terminating.
    pub async fn pods(&self, app: &str) -> Vec<Pod> {
        self.pods_with(&format!("app={app}")).await
    }

    /// Returns the pods that match a selector and are not terminating.
    pub async fn pods_with(&self, selector: &str) -> Vec<Pod> {
        let api: Api<Pod> = Api::default_namespaced(self.client());
        let listed = api.list(&ListParams::default().labels(selector)).await.expect("listing pods");
        listed.items.into_iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()).collect()
    }

    /// Counts the pods of a workload by the labels of their nodes.
    pub async fn pod_counts(&self, app: &str) -> PodCounts {
        let nodes = self.nodes().list_metadata(&ListParams::default()).await.expect("listing nodes");
        let class: BTreeMap<String, String> = nodes
            .items
            .into_iter()
            .filter_map(|node| Some((node.metadata.name?, node.metadata.labels?.remove(CAPACITY)?)))
            .collect();
        let mut placed = PodCounts::default();
        for pod in self.pods(app).await {
            let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref());
            let ready = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
            let ready = ready.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True");
            match node.and_then(|node| class.get(node)).map(String::as_str) {
                Some("spot") => placed.spot += 1,
                Some(_) => {
                    placed.on_demand += 1;
                    placed.ready_on_demand += usize::from(ready);
                }
                None => placed.waiting += 1,
            }
        }
        placed
    }

    /// Waits until exactly these numbers of its pods run on spot and on-demand nodes.
    pub async fn wait_for_split(&self, app: &str, spot: usize, on_demand: usize) {
        eventually_within(PATIENCE, format!("{app} has {spot} on spot and {on_demand} on-demand"), async || {
            let seen = self.pod_counts(app).await;
            let right = seen.spot == spot && seen.on_demand == on_demand && seen.waiting == 0;
            if right { Ok(()) } else { Err(seen.to_string()) }
        })
        .await;
    }

    /// Waits for an Event about a workload with this reason and returns its message.
    pub async fn wait_for_workload_event(&self, name: &str, reason: &str) -> String {
        let api: Api<Event> = Api::default_namespaced(self.client());
        let params = ListParams::default().fields(&format!("involvedObject.name={name},reason={reason}"));
        eventually_within(PATIENCE, format!("an Event {reason} about {name}"), async || {
            let events = api.list(&params).await.expect("listing events").items;
            events.into_iter().next().and_then(|event| event.message).ok_or("none")
        })
        .await
    }

    /// Returns the number of pods of a workload that an operator has evicted, from its log.
    pub fn evictions(&self, operator: &Operator, name: &str) -> usize {
        let whose = format!("/{}/{name}", self.workspace());
        let is_it = |line: &Value| {
            line["message"] == "evicted pod" && line["workload"].as_str().is_some_and(|key| key.ends_with(&whose))
        };
        operator.log().iter().filter(|line| is_it(line)).count()
    }
}

fn workload(kind: &str, name: &str, pool: Option<&str>) -> Value {
    let selector = pool.map_or_else(|| json!({}), |pool| json!({POOL: pool}));
    json!({
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": name, "annotations": {}},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {
                    "nodeSelector": selector,
                    "containers": [{"name": "main", "image": "none"}],
                    "terminationGracePeriodSeconds": 1,
                },
            },
        },
    })
}
