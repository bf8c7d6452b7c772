//! Other kept fields: annotations, taints, the cordon.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Node;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use perennial_core::keeper::{keys::Key, record::Record};
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

/// Controllers write their labels again. A label that a person wrote, or that Perennial gave back
/// in a create by the kubelet, is the person's.
#[rstest]
#[case::on(Webhooks::On)]
#[case::off(Webhooks::Off)]
#[tokio::test]
async fn labels_that_only_controllers_write_are_not_kept(#[case] webhooks: Webhooks) {
    let cluster = TestCluster::new().await;
    let _operator = cluster.start(webhooks).await;
    let write = async |manager: &str, key: &str, value: &str| {
        let params = PatchParams { field_manager: Some(manager.to_owned()), ..PatchParams::default() };
        let patch = Patch::Merge(json!({"metadata": {"labels": {key: value}}}));
        cluster.nodes().patch("n1", &params, &patch).await.unwrap();
    };
    let create_by_kubelet = async || {
        let params = PostParams { field_manager: Some("kubelet".to_owned()), ..PostParams::default() };
        let node = cluster.node("n1").label("example.com/pool", "blue").into_node();
        cluster.nodes().create(&params, &node).await.unwrap();
    };
    create_by_kubelet().await;
    write("nfd-master", "vendor.example.com/feature", "on").await;
    write("aws-node-termination-handler", "example.com/draining", "true").await;
    write("anyone", "nvidia.com/gpu.deploy.driver", "paused").await;
    write("nfd-master", "example.com/shared", "1").await;
    // An update with the same value changes nothing; only an apply makes a second owner.
    let params = PatchParams::apply("kubectl");
    let applied = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"labels": {"example.com/shared": "1"}}});
    cluster.nodes().patch("n1", &params, &Patch::Apply(applied)).await.unwrap();
    write("kubectl-label", "team", "ml").await;
    cluster.wait_for_record("n1", [("team", "ml"), ("example.com/shared", "1")]).await;
    let explained = cluster.perennial("explain example.com/draining --node n1").expect_success();
    assert!(explained.contains("written only by aws-node-termination-handler"), "{explained}");
    let explained = cluster.perennial("explain team --node n1").expect_success();
    assert!(explained.contains("written by kubectl-label"), "{explained}");

    // Twice, since the labels that are given back may be attributed to the kubelet.
    for _ in 0..2 {
        cluster.delete_node("n1").await;
        create_by_kubelet().await;
        cluster
            .wait_for_labels("n1", [("team", "ml"), ("example.com/shared", "1"), ("example.com/pool", "blue")])
            .await;
        write("anyone", "example.com/seen", "yes").await;
        cluster.wait_for_record("n1", [("team", "ml"), ("example.com/shared", "1"), ("example.com/seen", "yes")]).await;
        write("kubectl-label", "example.com/seen", "again").await;
        cluster
            .wait_for_record("n1", [("team", "ml"), ("example.com/shared", "1"), ("example.com/seen", "again")])
            .await;
        cluster
            .nodes()
            .patch(
                "n1",
                &PatchParams::default(),
                &Patch::Merge(json!({"metadata": {"labels": {"example.com/seen": null}}})),
            )
            .await
            .unwrap();
        cluster.wait_for_record("n1", [("team", "ml"), ("example.com/shared", "1")]).await;
    }
    let labels = cluster.get_node("n1").await.metadata.labels.unwrap_or_default();
    assert!(!labels.contains_key("vendor.example.com/feature") && !labels.contains_key("nvidia.com/gpu.deploy.driver"));
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

/// The record is from an import or from another version: the API server would refuse the whole
/// create or patch because of one taint.
#[rstest]
#[case::on(Webhooks::On)]
#[case::off(Webhooks::Off)]
#[tokio::test]
async fn a_taint_that_the_api_server_refuses_stops_neither_the_node_nor_its_capture(#[case] webhooks: Webhooks) {
    let cluster = TestCluster::new().await;
    let all = |builder: OperatorBuilder| builder.set("keeper.taints", "*").set("keeper.annotations", "*");
    let _operator = cluster.start_with(webhooks, all).await;
    cluster.node("n1").label("team", "ml").annotation("Example.COM/Owner", "ada").create().await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;
    cluster.delete_node("n1").await;
    let text = cluster.record_bytes("n1", "record.json").await.unwrap();
    let mut record = Record::decode(&text).unwrap();
    let taint = |key: &str, effect: &str| Key::Taint { key: key.to_owned(), effect: effect.to_owned() };
    record.kept.insert(taint("dedicated", "NoSchedul"), "gpu".to_owned());
    record.kept.insert(taint("not a key", "NoSchedule"), "gpu".to_owned());
    record.kept.insert(taint("good", "NoSchedule"), "gpu".to_owned());
    record.sequence += 1;
    // As an import does: later than the last state of the node.
    record.node.uid = "imported".to_owned();
    let list = cluster.nodes().list_metadata(&ListParams::default().limit(1)).await.unwrap();
    record.node.resource_version = list.metadata.resource_version.unwrap().parse().unwrap();
    cluster.corrupt_record("n1", json!({"record.json": record.encode().unwrap()})).await;

    cluster.node("n1").create().await;

    cluster.wait_for_labels("n1", [("team", "ml")]).await;
    let node = eventually("the valid taint is given back", async || {
        let node = cluster.get_node("n1").await;
        if taints(&node).contains("good=gpu:NoSchedule") { Ok(node) } else { Err(format!("{:?}", taints(&node))) }
    })
    .await;
    assert_eq!(taints(&node), BTreeSet::from(["good=gpu:NoSchedule".to_owned()]));
    assert_eq!(node.metadata.annotations.unwrap()["Example.COM/Owner"], "ada");
    cluster.label("n1", "team", "web").await;
    cluster.wait_for_record("n1", [("team", "web")]).await;
}
