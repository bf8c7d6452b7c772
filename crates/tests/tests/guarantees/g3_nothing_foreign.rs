//! G3: Perennial writes only kept keys, the mark and its own taint to a node, and owns no other
//! fields.

use std::collections::BTreeSet;

use perennial_harness::{TestCluster, Webhooks, eventually, labels};
use rstest::rstest;
use serde_json::{Value, json};

/// Collects the paths of the fields that a manager owns, such as `metadata labels team`.
fn owned(fields: &Value, at: &str, found: &mut BTreeSet<String>) {
    let Some(map) = fields.as_object() else { return };
    for (key, below) in map {
        let Some(name) = key.strip_prefix("f:").or_else(|| key.strip_prefix("k:")) else { continue };
        let path = if at.is_empty() { name.to_owned() } else { format!("{at} {name}") };
        if below.as_object().is_some_and(|map| map.keys().all(|key| key == ".")) {
            found.insert(path);
        } else {
            owned(below, &path, found);
        }
    }
}

#[rstest]
#[case::on(Webhooks::On)]
#[case::off(Webhooks::Off)]
#[tokio::test]
async fn only_restored_fields_are_owned(#[case] webhooks: Webhooks) {
    let cluster = TestCluster::new().await;
    let _operator = cluster.start(webhooks).await;
    let protected = "node-restriction.kubernetes.io/tenant";
    let first = cluster.node("n1").machine("p", "s", "m").label("team", "ml").label(protected, "blue");
    first.annotation("theirs", "0").taint("gpu", "x", "NoSchedule").create().await;
    cluster.wait_for_record("n1", [("team", "ml"), (protected, "blue")]).await;
    cluster.delete_node("n1").await;

    let kubelet = cluster.as_kubelet("n1").await;
    cluster
        .node("n1")
        .machine("p", "s", "m")
        .label("kubernetes.io/hostname", "n1")
        .annotation("theirs", "1")
        .taint("their-taint", "1", "NoSchedule")
        .cordoned()
        .by(kubelet)
        .create()
        .await;
    cluster.wait_for_labels("n1", [("team", "ml"), (protected, "blue"), ("kubernetes.io/hostname", "n1")]).await;

    let node = cluster.get_node("n1").await;
    let mut ours = BTreeSet::new();
    for entry in node.metadata.managed_fields.unwrap_or_default() {
        if entry.manager.as_deref() == Some("perennial") {
            owned(&json!(entry.fields_v1.expect("fields").0), "", &mut ours);
        }
    }
    let mut expected = BTreeSet::from([
        "metadata annotations perennial.dev/restored".to_owned(),
        format!("metadata labels {protected}"),
    ]);
    if webhooks == Webhooks::Off {
        expected.insert("metadata labels team".to_owned());
    }
    if webhooks == Webhooks::Off {
        assert_eq!(ours, expected);
    }
    assert!(ours.is_subset(&expected) && ours.len() >= expected.len() - 1, "ours: {ours:?}");
    let annotations = node.metadata.annotations.unwrap_or_default();
    assert_eq!(annotations.keys().collect::<Vec<_>>(), ["perennial.dev/restored", "theirs"]);
    assert_eq!(annotations["theirs"], "1");
    assert!(node.metadata.finalizers.is_none(), "no finalizers");
    let spec = node.spec.unwrap_or_default();
    assert_eq!(spec.unschedulable, Some(true));
    let taints: Vec<String> = spec.taints.unwrap_or_default().into_iter().map(|taint| taint.key).collect();
    assert!(taints.contains(&"their-taint".to_owned()) && !taints.contains(&"gpu".to_owned()), "{taints:?}");
}

#[rstest]
#[case::on(Webhooks::On)]
#[case::off(Webhooks::Off)]
#[tokio::test]
async fn keys_that_are_not_kept_are_neither_restored_nor_removed(#[case] webhooks: Webhooks) {
    let cluster = TestCluster::new().await;
    let _operator = cluster.start(webhooks).await;
    let dropped = [
        ("kubernetes.io/hostname", "n1"),
        ("kubernetes.io/os", "linux"),
        ("topology.kubernetes.io/zone", "a"),
        ("node.kubernetes.io/instance-type", "m5.large"),
        ("feature.node.kubernetes.io/cpu-model.id", "1"),
        ("karpenter.sh/capacity-type", "spot"),
    ];
    cluster.node("n1").labels(dropped).label("team", "ml").annotation("note", "1").create().await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;
    cluster.delete_node("n1").await;

    cluster.node("n1").label("topology.kubernetes.io/zone", "b").cordoned().create().await;

    cluster.wait_for_labels("n1", [("team", "ml"), ("topology.kubernetes.io/zone", "b")]).await;
    let node = cluster.get_node("n1").await;
    assert!(!node.metadata.annotations.unwrap_or_default().contains_key("note"));
    assert_eq!(node.spec.unwrap_or_default().unschedulable, Some(true), "a cordon is left alone");
}

#[rstest]
#[case::on(Webhooks::On)]
#[case::off(Webhooks::Off)]
#[tokio::test]
async fn an_ignored_node_is_neither_captured_nor_restored(#[case] webhooks: Webhooks) {
    let cluster = TestCluster::new().await;
    let _operator = cluster.start(webhooks).await;
    cluster.node("n1").label("team", "ml").create().await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;
    cluster.delete_node("n1").await;

    cluster.node("n1").label("own", "1").annotation("perennial.dev/ignore", "true").create().await;
    cluster.node("new").label("own", "1").annotation("perennial.dev/ignore", "true").create().await;
    cluster.node("fence").label("fence", "1").create().await;
    cluster.wait_for_record("fence", [("fence", "1")]).await;
    assert_eq!(cluster.record("new").await, None);
    assert_eq!(cluster.labels("n1").await, labels([("own", "1")]));
    assert_eq!(cluster.record("n1").await.unwrap()["labels"], json!({"team": "ml"}));

    // Without the annotation the node is restored.
    cluster.patch_node("n1", json!({"metadata": {"annotations": {"perennial.dev/ignore": null}}})).await;
    eventually("it has everything", async || {
        let seen = cluster.labels("n1").await;
        if seen == labels([("own", "1"), ("team", "ml")]) { Ok(()) } else { Err(format!("{seen:?}")) }
    })
    .await;
}
