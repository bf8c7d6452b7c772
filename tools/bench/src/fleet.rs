//! Nodes of the benchmark: 6 KB each, as a kubelet creates them, plus user labels.

use std::{collections::BTreeMap, time::Duration};

use futures::{Stream, StreamExt, stream};
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use perennial_harness::{Labels, TestCluster, eventually_within};
use serde_json::{Value, json};

/// Default number of concurrent requests of the driver.
pub(crate) const AT_ONCE: usize = 16;
/// Prefix of user labels.
const PREFIX: &str = "bench.example.com/";
/// Label that is removed before the node is deleted. It must not be restored.
const REMOVED: &str = "bench.example.com/removed";

/// Nodes `node-00000`, `node-00001`, …
#[derive(Clone)]
pub(crate) struct Fleet {
    api: Api<Node>,
}

pub(crate) fn name(number: usize) -> String {
    format!("node-{number:06}")
}

pub(crate) fn number(name: &str) -> usize {
    name.rsplit('-').next().and_then(|number| number.parse().ok()).unwrap_or_default()
}

/// The ten labels that a node has when it is deleted and must have when it is back.
pub(crate) fn ten_labels(number: usize) -> Labels {
    (0..10).map(|key| (format!("{PREFIX}key-{key}"), format!("value-{key}-of-{number}"))).collect()
}

/// Labels of a node compared with the expected ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Complete,
    Wrong,
    /// It has a label that was removed.
    Resurrected,
}

pub(crate) fn state(labels: Option<&BTreeMap<String, String>>, number: usize) -> State {
    let theirs: Labels = labels
        .into_iter()
        .flatten()
        .filter(|(key, _)| key.starts_with(PREFIX))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    if theirs.contains_key(REMOVED) {
        State::Resurrected
    } else if theirs == ten_labels(number) {
        State::Complete
    } else {
        State::Wrong
    }
}

impl Fleet {
    pub(crate) fn of(cluster: &TestCluster) -> Self {
        Self { api: Api::all(cluster.client()) }
    }

    /// Creates a node without user labels. Returns the response.
    pub(crate) async fn create_bare(&self, number: usize) -> Node {
        self.create(number, &Labels::new()).await
    }

    /// Creates a node before its changes: one label will be changed and one removed.
    pub(crate) async fn create_raw(&self, number: usize) -> Node {
        let mut labels = ten_labels(number);
        labels.insert(format!("{PREFIX}key-0"), "to-be-changed".to_owned());
        labels.insert(REMOVED.to_owned(), "yes".to_owned());
        self.create(number, &labels).await
    }

    pub(crate) async fn create_labelled(&self, number: usize) -> Node {
        self.create(number, &ten_labels(number)).await
    }

    async fn create(&self, number: usize, labels: &Labels) -> Node {
        let node = node(number, labels);
        self.api.create(&PostParams::default(), &node).await.expect("creating a node")
    }

    /// Sets the ten labels and removes the extra one, in one PATCH.
    pub(crate) async fn label(&self, number: usize) {
        let mut labels = json!(ten_labels(number));
        labels[REMOVED] = Value::Null;
        self.patch(number, &json!({"metadata": {"labels": labels}})).await;
    }

    pub(crate) async fn patch(&self, number: usize, patch: &Value) {
        let patched = self.api.patch(&name(number), &PatchParams::default(), &Patch::Merge(patch)).await;
        patched.expect("patching a node");
    }

    /// Sends the status update that a kubelet sends every ten seconds.
    pub(crate) async fn heartbeat(&self, number: usize, beat: u64) {
        let status = json!({"status": {"conditions": [{
            "type": "Ready", "status": "True", "reason": "KubeletReady", "message": format!("beat {beat} at {:?}", std::time::SystemTime::now()),
        }]}});
        let patched = self.api.patch_status(&name(number), &PatchParams::default(), &Patch::Strategic(&status)).await;
        patched.expect("updating a node's status");
    }

    pub(crate) async fn delete(&self, number: usize) {
        drop(self.api.delete(&name(number), &DeleteParams::default()).await.expect("deleting a node"));
    }

    /// Waits until all nodes are gone: finalizers may delay them.
    pub(crate) async fn wait_until_gone(&self, cluster: &TestCluster) {
        eventually_within(Duration::from_mins(10), "all nodes are gone", async || {
            let left = count(&cluster.nodes()).await;
            if left == 0 { Ok(()) } else { Err(left) }
        })
        .await;
    }
}

/// Returns the number of objects without reading them.
pub(crate) async fn count<K>(api: &Api<K>) -> usize
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let page = api.list_metadata(&ListParams::default().limit(1)).await.expect("counting objects");
    let rest = page.metadata.remaining_item_count.unwrap_or_default();
    page.items.len() + usize::try_from(rest).unwrap_or_default()
}

/// Waits until there are exactly `wanted` records.
pub(crate) async fn wait_for_records(cluster: &TestCluster, wanted: usize) {
    let records: Api<ConfigMap> = Api::namespaced(cluster.client(), cluster.namespace());
    eventually_within(Duration::from_mins(20), format!("{wanted} records are there"), async || {
        let found = count(&records).await;
        if found >= wanted { Ok(()) } else { Err(found) }
    })
    .await;
}

/// Runs an action for each number, with a maximum concurrency.
pub(crate) fn each<T, F: Future<Output = T>>(
    numbers: std::ops::Range<usize>,
    at_once: usize,
    act: impl FnMut(usize) -> F,
) -> impl Stream<Item = T> {
    stream::iter(numbers.map(act)).buffer_unordered(at_once)
}

/// A node as a kubelet registers and reports it, about 6 KB.
fn node(number: usize, labels: &Labels) -> Node {
    let name = name(number);
    let mut all = json!({
        "beta.kubernetes.io/arch": "amd64", "beta.kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
        "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "node.kubernetes.io/instance-type": "m5.4xlarge",
        "topology.kubernetes.io/region": "eu-west-1", "topology.kubernetes.io/zone": format!("eu-west-1{}", ["a", "b", "c"][number % 3]),
    });
    for (key, value) in labels {
        all[key] = json!(value);
    }
    let resources = json!({
        "cpu": "16", "memory": "65120268Ki", "pods": "110", "ephemeral-storage": "104845292Ki",
        "hugepages-1Gi": "0", "hugepages-2Mi": "0",
    });
    let conditions: Vec<Value> = ["MemoryPressure", "DiskPressure", "PIDPressure", "Ready"]
        .into_iter()
        .map(|kind| {
            json!({
                "type": kind, "status": if kind == "Ready" { "True" } else { "False" },
                "reason": format!("KubeletHas{kind}"), "message": format!("kubelet has posted that {kind} is as it should be"),
                "lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z",
            })
        })
        .collect();
    let images: Vec<Value> = (0..14)
        .map(|image| {
            json!({
                "names": [
                    format!("images.example.com/team-{}/service-{image}@sha256:{:064x}", image % 4, image * 7919),
                    format!("images.example.com/team-{}/service-{image}:v1.{image}.0", image % 4),
                ],
                "sizeBytes": 100_000_000 + image,
            })
        })
        .collect();
    let node = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {
            "name": name, "labels": all,
            "annotations": {
                "node.alpha.kubernetes.io/ttl": "0", "volumes.kubernetes.io/controller-managed-attach-detach": "true",
                "csi.volume.kubernetes.io/nodeid": format!("{{\"ebs.csi.aws.com\":\"i-{number:017x}\"}}"),
            },
        },
        "spec": { "providerID": format!("openstack:///{number:017x}"), "podCIDR": format!("10.{}.{}.0/24", number / 250 % 250, number % 250) },
        "status": {
            "capacity": resources, "allocatable": resources, "conditions": conditions, "images": images,
            "addresses": [
                { "type": "InternalIP", "address": format!("10.{}.{}.1", number / 250 % 250, number % 250) },
                { "type": "Hostname", "address": name },
            ],
            "daemonEndpoints": { "kubeletEndpoint": { "Port": 10250 } },
            "nodeInfo": {
                "architecture": "amd64", "bootID": format!("{number:032x}"), "containerRuntimeVersion": "containerd://2.1.0",
                "kernelVersion": "6.12.0", "kubeProxyVersion": "", "kubeletVersion": "v1.36.3",
                "machineID": format!("{number:032x}"), "operatingSystem": "linux", "osImage": "Debian GNU/Linux 13",
                "systemUUID": format!("{number:08x}-0000-0000-0000-000000000000"),
            },
        },
    });
    serde_json::from_value(node).expect("a node")
}
