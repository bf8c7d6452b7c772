//! The taint that keeps pods off a node until it is restored.

use k8s_openapi::api::core::v1::Node;
use perennial_harness::{OperatorBuilder, TestCluster, Webhooks, eventually, labels};

const GATE: &str = "perennial.dev/restoring";

fn taint_keys(node: &Node) -> Vec<String> {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default();
    // The API server adds its own taint to every new node.
    taints.into_iter().map(|taint| taint.key).filter(|key| key != "node.kubernetes.io/not-ready").collect()
}

#[tokio::test]
async fn a_node_is_gated_until_it_is_restored() {
    let cluster = TestCluster::new().await;
    let mut operator = cluster.start_with(Webhooks::On, |builder| builder.set("keeper.gate", "needed")).await;
    let kept = [("team", "ml"), ("node-restriction.kubernetes.io/tenant", "blue")];
    let kubelet = cluster.as_kubelet("n1").await;
    let node = || cluster.node("n1").machine("cloud://1", "system-1", "machine-1");
    let first = node().taint("theirs", "1", "NoSchedule").create().await;
    assert_eq!(taint_keys(&first), ["theirs"], "nothing is to be restored");
    for (key, value) in kept {
        cluster.label("n1", key, value).await;
    }
    cluster.wait_for_record("n1", kept).await;
    cluster.delete_node("n1").await;

    let requests = cluster.requests().await;
    let gated = node().taint("theirs", "1", "NoSchedule").by(kubelet).create().await;

    assert_eq!(taint_keys(&gated), ["theirs", GATE]);
    cluster.wait_for_labels("n1", kept).await;
    assert_eq!(taint_keys(&cluster.get_node("n1").await), ["theirs"], "gone with the very patch that restores");
    assert_eq!(cluster.requests().await.writes_since(&requests, "nodes").get("PATCH"), Some(&1));
    // A user's create is restored completely and not gated.
    cluster.delete_node("n1").await;
    assert_eq!(taint_keys(&node().create().await), Vec::<String>::new());
    assert!(operator.is_running());
}

#[tokio::test]
async fn a_gate_is_lifted_after_its_timeout_even_if_the_restore_fails() {
    let cluster = TestCluster::new().await;
    let gate = |builder: OperatorBuilder| builder.set("keeper.gate", "always").set("keeper.gateTimeout", "1s");
    let _operator = cluster.start_with(Webhooks::On, gate).await;
    let protected = ("node-restriction.kubernetes.io/tenant", "blue");
    let first = cluster.node("n1").machine("cloud://1", "system-1", "machine-1").create().await;
    assert_eq!(taint_keys(&first), [GATE], "always, even an unknown node");
    cluster.label("n1", protected.0, protected.1).await;
    cluster.wait_for_record("n1", [protected]).await;
    cluster.delete_node("n1").await;

    // The machine is not known yet: protected keys wait, pods do not.
    let waits = cluster.node("n1").create().await;
    assert_eq!(taint_keys(&waits), [GATE]);
    eventually("the gate is lifted", async || {
        let keys = taint_keys(&cluster.get_node("n1").await);
        if keys.is_empty() { Ok(()) } else { Err(format!("{keys:?}")) }
    })
    .await;
    assert_eq!(cluster.labels("n1").await, labels::<String, String>([]));
}

#[tokio::test]
async fn a_gate_is_lifted_by_any_replica() {
    let cluster = TestCluster::new().await;
    let mut asked = cluster
        .start_with(Webhooks::On, |builder| builder.set("keeper.gate", "always").set("controller.roles", "webhooks"))
        .await;
    cluster.node("n1").label("team", "ml").create().await;
    assert_eq!(taint_keys(&cluster.get_node("n1").await), [GATE]);
    asked.pause();

    let _other = cluster.operator().set("controller.roles", "capture,restore,placement").start().await;

    eventually("the gate is lifted", async || {
        let keys = taint_keys(&cluster.get_node("n1").await);
        if keys.is_empty() { Ok(()) } else { Err(format!("{keys:?}")) }
    })
    .await;
    asked.resume();
}
