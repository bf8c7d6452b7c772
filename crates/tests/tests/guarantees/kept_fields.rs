//! Other kept fields: annotations, taints, the cordon.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Node;
use perennial_harness::{OperatorBuilder, TestCluster, Webhooks, eventually};
use rstest::rstest;
use serde_json::json;

fn everything(builder: OperatorBuilder) -> OperatorBuilder {
    builder.set("keeper.annotations", "example.com/*").set("keeper.taints", "*").set("keeper.cordon", "true")
}

/// Returns taints as `key=value:effect`, without those of the API server.
fn taints(node: &Node) -> BTreeSet<String> {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default();
    let own = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unschedulable"];
    let text = |taint: &k8s_openapi::api::core::v1::Taint| {
        format!("{}={}:{}", taint.key, taint.value.clone().unwrap_or_default(), taint.effect)
    };
    taints.iter().filter(|taint| !own.contains(&taint.key.as_str())).map(text).collect()
}

async fn wait_for_annotation(cluster: &TestCluster, node: &str, key: &str, value: &str) -> Node {
    eventually(format!("node {node} has {key}={value}"), async || {
        let node = cluster.get_node(node).await;
        let annotations = node.metadata.annotations.clone().unwrap_or_default();
        if annotations.get(key).is_some_and(|seen| seen == value) { Ok(node) } else { Err(format!("{annotations:?}")) }
    })
    .await
}

async fn wait_for_record_of(cluster: &TestCluster, node: &str, pointer: &str, value: serde_json::Value) {
    eventually(format!("the record of {node} has {pointer} = {value}"), async || {
        let record = cluster.record(node).await.unwrap_or_default();
        let seen = record.pointer(pointer).cloned().unwrap_or_default();
        if seen == value { Ok(()) } else { Err(record.to_string()) }
    })
    .await;
}

#[rstest]
#[case::on(Webhooks::On)]
#[case::off(Webhooks::Off)]
#[tokio::test]
async fn annotations_taints_and_cordons_come_back_and_startup_taints_do_not(#[case] webhooks: Webhooks) {
    let cluster = TestCluster::new().await;
    let _operator = cluster.start_with(webhooks, everything).await;
    cluster
        .node("n1")
        .label("team", "ml")
        .annotation("example.com/owner", "ada")
        .annotation("note", "not kept")
        .annotation("perennial.dev/cordon-reason", "bad disk")
        .taint("dedicated", "gpu", "NoSchedule")
        .taint("dedicated", "gpu", "NoExecute")
        .taint("node.cilium.io/agent-not-ready", "", "NoSchedule")
        .taint("node.cloudprovider.kubernetes.io/uninitialized", "true", "NoSchedule")
        .cordoned()
        .create()
        .await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;
    cluster.delete_node("n1").await;

    cluster.node("n1").taint("theirs", "", "NoSchedule").create().await;

    let node = wait_for_annotation(&cluster, "n1", "example.com/owner", "ada").await;
    let annotations = node.metadata.annotations.clone().unwrap_or_default();
    assert_eq!(annotations.get("perennial.dev/cordon-reason").map(String::as_str), Some("bad disk"));
    assert!(!annotations.contains_key("note"));
    let expected = ["dedicated=gpu:NoExecute", "dedicated=gpu:NoSchedule", "theirs=:NoSchedule"];
    assert_eq!(taints(&node), expected.map(str::to_owned).into());
    assert_eq!(node.spec.unwrap_or_default().unschedulable, Some(true));
    cluster.wait_for_labels("n1", [("team", "ml")]).await;
}

#[rstest]
#[case::on(Webhooks::On)]
#[case::off(Webhooks::Off)]
#[tokio::test]
async fn a_taint_of_the_new_node_wins_by_key_and_effect(#[case] webhooks: Webhooks) {
    let cluster = TestCluster::new().await;
    let _operator = cluster.start_with(webhooks, everything).await;
    cluster
        .node("n1")
        .annotation("example.com/owner", "ada")
        .taint("dedicated", "gpu", "NoSchedule")
        .taint("dedicated", "gpu", "NoExecute")
        .create()
        .await;
    wait_for_record_of(&cluster, "n1", "/annotations/example.com~1owner", json!("ada")).await;
    cluster.delete_node("n1").await;

    cluster.node("n1").taint("dedicated", "web", "NoSchedule").create().await;

    let node = wait_for_annotation(&cluster, "n1", "example.com/owner", "ada").await;
    assert_eq!(taints(&node), ["dedicated=web:NoSchedule", "dedicated=gpu:NoExecute"].map(str::to_owned).into());
}

#[rstest]
#[case::on(Webhooks::On)]
#[case::off(Webhooks::Off)]
#[tokio::test]
async fn a_taint_or_cordon_that_was_removed_stays_removed(#[case] webhooks: Webhooks) {
    let cluster = TestCluster::new().await;
    let _operator = cluster.start_with(webhooks, everything).await;
    cluster.node("n1").label("team", "ml").taint("dedicated", "gpu", "NoSchedule").cordoned().create().await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;
    cluster.delete_node("n1").await;
    cluster.node("n1").create().await;
    cluster.wait_for_labels("n1", [("team", "ml")]).await;

    cluster.kubectl("uncordon n1");
    cluster.kubectl("taint node n1 dedicated:NoSchedule-");
    cluster.label("n1", "team", "web").await;
    cluster.wait_for_record("n1", [("team", "web")]).await;
    cluster.delete_node("n1").await;
    cluster.node("n1").create().await;

    cluster.wait_for_labels("n1", [("team", "web")]).await;
    let node = cluster.get_node("n1").await;
    assert_eq!(taints(&node), BTreeSet::new());
    assert_ne!(node.spec.unwrap_or_default().unschedulable, Some(true));
}

#[tokio::test]
async fn only_labels_are_kept_by_default() {
    let cluster = TestCluster::new().await;
    let _operator = cluster.start(Webhooks::Off).await;
    cluster
        .node("n1")
        .label("team", "ml")
        .annotation("example.com/owner", "ada")
        .taint("dedicated", "gpu", "NoSchedule")
        .cordoned()
        .create()
        .await;
    let record = cluster.wait_for_record("n1", [("team", "ml")]).await;

    for key in ["annotations", "taints", "unschedulable"] {
        assert!(
            record.get(key).is_none_or(|value| value == &json!({}) || value == &json!([]) || value == false),
            "{record}"
        );
    }
}
