//! A slow kubelet for nodes that kwok does not manage.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use perennial_harness::TestCluster;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

const LOOK: Duration = Duration::from_millis(200);

/// Ends with the test.
pub(crate) struct Kubelet(JoinHandle<()>);

impl Kubelet {
    /// Creates a node whose pods become Ready only after a delay.
    pub(crate) async fn slow(cluster: &TestCluster, class: &str, pods: usize, after: Duration) -> Self {
        let node = cluster
            .capacity_node(class, pods, |node| {
                node["metadata"]["annotations"] = json!({});
                let now = jiff::Timestamp::now().to_string();
                node["status"]["conditions"] = json!([{"type": "Ready", "status": "True", "reason": "Test",
                    "lastHeartbeatTime": now, "lastTransitionTime": now}]);
            })
            .await;
        let api: Api<Pod> = Api::default_namespaced(cluster.client());
        Self(tokio::spawn(async move {
            let mut bound = HashMap::new();
            let params = ListParams::default().fields(&format!("spec.nodeName={node}"));
            loop {
                for pod in api.list(&params).await.map(|list| list.items).unwrap_or_default() {
                    let name = pod.metadata.name.unwrap_or_default();
                    if pod.metadata.deletion_timestamp.is_some() {
                        let _ = api.delete(&name, &DeleteParams::default().grace_period(0)).await;
                        continue;
                    }
                    let since = *bound.entry(pod.metadata.uid.unwrap_or_default()).or_insert_with(Instant::now);
                    let running = pod.status.is_some_and(|status| status.phase.as_deref() == Some("Running"));
                    if !running && since.elapsed() >= after {
                        let _ = api.patch_status(&name, &PatchParams::default(), &Patch::Merge(running_now())).await;
                    }
                }
                tokio::time::sleep(LOOK).await;
            }
        }))
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn running_now() -> Value {
    let now = jiff::Timestamp::now().to_string();
    let condition = |kind: &str| json!({"type": kind, "status": "True", "lastTransitionTime": now});
    let conditions: Vec<Value> =
        ["Initialized", "Ready", "ContainersReady", "PodScheduled"].into_iter().map(condition).collect();
    json!({"status": {"phase": "Running", "startTime": now, "conditions": conditions}})
}
