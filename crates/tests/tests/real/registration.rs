//! A real kubelet registers its node again.

use k8s_openapi::api::core::v1::Node;
use kube::{Api, api::DeleteParams};
use localplane::Component;
use perennial_harness::{Operator, TestCluster, Webhooks, eventually};

const NODE: &str = "real-0";
const KUBELET: Component = Component::Kubelet(0);

/// Returns the number of reviews of creates, and of restores.
fn counted(operator: &Operator) -> (f64, f64) {
    let metrics = operator.metrics();
    let creates = [("webhook", "mutate/nodes")];
    let reviews = metrics.sum("controller_runtime_webhook_requests_total", &creates);
    (reviews, metrics.sum("perennial_restores_total", &[]))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_real_kubelet_that_restarts_is_restored_only_if_it_creates_its_node() {
    let Some(cluster) = TestCluster::with_real_nodes(1).await else { return };
    let nodes: Api<Node> = Api::all(cluster.client());
    let before = nodes.get(NODE).await.unwrap();
    let info = before.status.unwrap().node_info.unwrap();
    assert!(info.container_runtime_version.starts_with("containerd://"), "{info:?}");
    let operator = cluster.operator().webhooks(Webhooks::On).start().await;
    cluster.label(NODE, "team", "ml").await;
    cluster.wait_for_record(NODE, [("team", "ml")]).await;

    // The node exists: the create that the kubelet sends is reviewed, and answered AlreadyExists.
    let (reviews, restores) = counted(&operator);
    cluster.plane().kill(KUBELET).unwrap();
    cluster.plane().restart(KUBELET).unwrap();
    eventually("the create is reviewed", async || {
        let seen = counted(&operator).0;
        if seen > reviews { Ok(()) } else { Err(seen) }
    })
    .await;
    let same = nodes.get(NODE).await.unwrap();
    assert_eq!(same.metadata.uid, before.metadata.uid, "the Node object is the same");
    // The operator has handled what the watch delivered by then.
    cluster.label(NODE, "tier", "gold").await;
    cluster.wait_for_record(NODE, [("team", "ml"), ("tier", "gold")]).await;
    assert!((counted(&operator).1 - restores).abs() < 0.5, "a create that was rejected is counted as a restore");

    // The node is deleted. A running kubelet does not register again, so it is stopped first.
    cluster.plane().kill(KUBELET).unwrap();
    nodes.delete(NODE, &DeleteParams::default()).await.unwrap();
    eventually("the node is gone", async || match nodes.get_opt(NODE).await.unwrap() {
        None => Ok(()),
        Some(_) => Err("it exists"),
    })
    .await;
    cluster.plane().restart(KUBELET).unwrap();

    let after = nodes.get(NODE).await.unwrap();
    assert_ne!(after.metadata.uid, before.metadata.uid, "the kubelet created another Node object");
    assert_eq!(after.metadata.labels.unwrap().get("team").map(String::as_str), Some("ml"));
    eventually("the restore is counted", async || {
        let seen = counted(&operator).1 - restores;
        if seen > 0.5 { Ok(()) } else { Err(seen) }
    })
    .await;
}
