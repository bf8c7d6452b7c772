//! Which labels come back, and with which values.

use perennial_harness::{TestCluster, labels};
use serde_json::json;

#[tokio::test]
async fn a_label_that_was_removed_stays_removed() {
    let cluster = TestCluster::new().await;
    let _operator = cluster.operator().start().await;
    cluster.node("n1").label("team", "ml").label("old", "yes").create().await;
    cluster.wait_for_record("n1", [("team", "ml"), ("old", "yes")]).await;

    cluster.unlabel("n1", "old").await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;
    cluster.delete_node("n1").await;
    cluster.node("n1").create().await;

    cluster.wait_for_labels("n1", [("team", "ml")]).await;
}

#[tokio::test]
async fn a_label_that_was_removed_after_a_restore_stays_removed() {
    let cluster = TestCluster::new().await;
    let operator = cluster.operator().start().await;
    cluster.node("n1").label("team", "ml").label("old", "yes").create().await;
    cluster.wait_for_record("n1", [("team", "ml"), ("old", "yes")]).await;
    cluster.delete_node("n1").await;
    cluster.node("n1").create().await;
    cluster.wait_for_labels("n1", [("team", "ml"), ("old", "yes")]).await;

    cluster.unlabel("n1", "old").await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;

    // A new process looks at everything afresh; the fence is a change that it captures.
    operator.crash();
    let _operator = cluster.operator().start().await;
    cluster.label("n1", "fence", "1").await;
    cluster.wait_for_record("n1", [("team", "ml"), ("fence", "1")]).await;
    assert_eq!(cluster.labels("n1").await, labels([("team", "ml"), ("fence", "1")]));
}

#[tokio::test]
async fn after_the_last_label_was_removed_nothing_comes_back() {
    let cluster = TestCluster::new().await;
    let _operator = cluster.operator().start().await;
    cluster.node("n1").label("team", "ml").create().await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;
    let nothing: [(&str, &str); 0] = [];

    cluster.unlabel("n1", "team").await;
    cluster.wait_for_record("n1", nothing).await;
    cluster.delete_node("n1").await;
    cluster.node("n1").create().await;

    cluster.label("n1", "fence", "1").await;
    cluster.wait_for_record("n1", [("fence", "1")]).await;
    assert_eq!(cluster.labels("n1").await, labels([("fence", "1")]));
}

#[tokio::test]
async fn a_value_that_the_new_incarnation_brings_wins() {
    let cluster = TestCluster::new().await;
    let _operator = cluster.operator().start().await;
    cluster.node("n1").label("team", "ml").label("tier", "gold").create().await;
    cluster.wait_for_record("n1", [("team", "ml"), ("tier", "gold")]).await;

    cluster.delete_node("n1").await;
    cluster.node("n1").label("team", "web").create().await;

    cluster.wait_for_labels("n1", [("team", "web"), ("tier", "gold")]).await;
    cluster.wait_for_record("n1", [("team", "web"), ("tier", "gold")]).await;
}

#[tokio::test]
async fn with_overwrite_the_value_of_the_record_wins() {
    let cluster = TestCluster::new().await;
    let _operator = cluster.operator().set("keeper.merge", "overwrite").start().await;
    cluster.node("n1").label("team", "ml").create().await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;

    cluster.delete_node("n1").await;
    cluster.node("n1").label("team", "web").label("mine", "too").create().await;

    cluster.wait_for_labels("n1", [("team", "ml"), ("mine", "too")]).await;
}

#[tokio::test]
async fn with_overwrite_a_change_on_a_settled_node_is_kept() {
    let cluster = TestCluster::new().await;
    let _operator = cluster.operator().set("keeper.merge", "overwrite").start().await;
    cluster.node("n1").label("team", "ml").create().await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;
    cluster.delete_node("n1").await;
    cluster.node("n1").create().await;
    cluster.wait_for_labels("n1", [("team", "ml")]).await;

    cluster.label("n1", "team", "web").await;

    cluster.wait_for_record("n1", [("team", "web")]).await;
    assert_eq!(cluster.labels("n1").await, labels([("team", "web")]));
}

#[tokio::test]
async fn what_programs_write_on_nodes_is_not_kept() {
    let cluster = TestCluster::new().await;
    let _operator = cluster.operator().start().await;
    let theirs = [
        ("kubernetes.io/hostname", "n1"),
        ("kubernetes.io/os", "linux"),
        ("topology.kubernetes.io/zone", "eu-1a"),
        ("node.kubernetes.io/instance-type", "m5.large"),
        ("feature.node.kubernetes.io/cpu-model.id", "1"),
        ("karpenter.sh/capacity-type", "spot"),
    ];
    cluster.node("n1").labels(theirs).label("team", "ml").create().await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;

    cluster.delete_node("n1").await;
    cluster.node("n1").label("topology.kubernetes.io/zone", "eu-1b").create().await;

    cluster.wait_for_labels("n1", [("team", "ml"), ("topology.kubernetes.io/zone", "eu-1b")]).await;
}

#[tokio::test]
async fn a_single_prefix_keeps_only_it() {
    let cluster = TestCluster::new().await;
    let _operator = cluster.operator().set("keeper.keep", "example.com/*").start().await;
    cluster.node("n1").label("example.com/rack", "r7").label("team", "ml").create().await;
    cluster.wait_for_record("n1", [("example.com/rack", "r7")]).await;

    cluster.delete_node("n1").await;
    cluster.node("n1").create().await;

    cluster.wait_for_labels("n1", [("example.com/rack", "r7")]).await;
}

#[tokio::test]
async fn without_drop_patterns_everything_is_kept() {
    let cluster = TestCluster::new().await;
    let _operator = cluster.operator().set("keeper.drop", "").start().await;
    let all = [("kubernetes.io/hostname", "n1"), ("topology.kubernetes.io/zone", "eu-1a"), ("team", "ml")];
    cluster.node("n1").labels(all).create().await;
    cluster.wait_for_record("n1", all).await;

    cluster.delete_node("n1").await;
    cluster.node("n1").create().await;

    cluster.wait_for_labels("n1", all).await;
}

#[tokio::test]
async fn keeping_less_takes_nothing_out_of_records() {
    let cluster = TestCluster::new().await;
    let operator = cluster.operator().start().await;
    cluster.node("n1").label("example.com/rack", "r7").label("team", "ml").create().await;
    cluster.wait_for_record("n1", [("example.com/rack", "r7"), ("team", "ml")]).await;
    operator.crash();

    let _operator = cluster.operator().set("keeper.keep", "example.com/*").start().await;
    cluster.label("n1", "example.com/rack", "r8").await;

    cluster.wait_for_record("n1", [("example.com/rack", "r8"), ("team", "ml")]).await;
}

#[tokio::test]
async fn what_is_not_ours_is_not_touched() {
    let cluster = TestCluster::new().await;
    let _operator = cluster.operator().start().await;
    cluster.node("n1").label("team", "ml").annotation("theirs", "1").taint("gpu", "x", "NoSchedule").create().await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;

    cluster.delete_node("n1").await;
    cluster.node("n1").annotation("theirs", "2").taint("disk", "y", "NoExecute").cordoned().create().await;
    cluster.wait_for_labels("n1", [("team", "ml")]).await;

    let node = serde_json::to_value(cluster.get_node("n1").await).unwrap();
    let annotations = node["metadata"]["annotations"].as_object().unwrap();
    assert_eq!(annotations.keys().collect::<Vec<_>>(), ["perennial.dev/restored", "theirs"]);
    assert_eq!(annotations["theirs"], "2");
    assert_eq!(node["spec"]["unschedulable"], true);
    let taints: Vec<&str> =
        node["spec"]["taints"].as_array().unwrap().iter().filter_map(|t| t["key"].as_str()).collect();
    assert!(taints.contains(&"disk") && !taints.contains(&"gpu"), "{taints:?}");
    let ours = node["metadata"]["managedFields"].as_array().unwrap().iter().find(|f| f["manager"] == "perennial");
    let fields = json!({
        "f:annotations": {"f:perennial.dev/restored": {}},
        "f:labels": {".": {}, "f:team": {}},
    });
    assert_eq!(ours.unwrap()["fieldsV1"]["f:metadata"], fields);
}

#[tokio::test]
async fn a_node_that_asks_to_be_left_alone_is() {
    let cluster = TestCluster::new().await;
    let _operator = cluster.operator().start().await;
    cluster.node("ignored").label("team", "ml").annotation("perennial.dev/ignore", "true").create().await;

    cluster.node("fence").label("team", "ml").create().await;
    cluster.wait_for_record("fence", [("team", "ml")]).await;

    assert_eq!(cluster.record("ignored").await, None);
}

#[tokio::test]
async fn names_of_253_characters_have_records_of_their_own() {
    let cluster = TestCluster::new().await;
    let _operator = cluster.operator().start().await;
    let [a, b] = ["a", "b"].map(|end| format!("{}{end}", "x".repeat(252)));
    for (name, team) in [(&a, "ml"), (&b, "web")] {
        cluster.node(name).label("team", team).create().await;
        cluster.wait_for_record(name, [("team", team)]).await;
    }

    for name in [&a, &b] {
        cluster.delete_node(name).await;
        cluster.node(name).create().await;
    }

    cluster.wait_for_labels(&a, [("team", "ml")]).await;
    cluster.wait_for_labels(&b, [("team", "web")]).await;
}

#[tokio::test]
async fn the_longest_keys_and_values_come_back() {
    let cluster = TestCluster::new().await;
    let _operator = cluster.operator().start().await;
    let domain = ["x".repeat(63), "y".repeat(63), "z".repeat(63), "w".repeat(61)].join(".");
    let wanted = labels([
        (format!("{domain}/{}", "k".repeat(63)), "v".repeat(63)),
        ("example.com/a.b_c-D".to_owned(), "E.f_g-1".to_owned()),
        ("empty".to_owned(), String::new()),
    ]);
    cluster.node("n1").labels(wanted.clone()).create().await;
    cluster.wait_for_record("n1", wanted.clone()).await;

    cluster.delete_node("n1").await;
    cluster.node("n1").create().await;

    cluster.wait_for_labels("n1", wanted).await;
}

#[tokio::test]
async fn three_thousand_labels_on_one_node_come_back() {
    let cluster = TestCluster::new().await;
    let _operator = cluster.operator().start().await;
    let many = labels((0..3000).map(|i| (format!("example.com/a-rather-long-key-{i}"), format!("value-{i}"))));
    cluster.node("n1").labels(many.clone()).create().await;
    cluster.wait_for_record("n1", many.clone()).await;

    cluster.delete_node("n1").await;
    cluster.node("n1").create().await;
    cluster.wait_for_labels("n1", many.clone()).await;

    // What was too much for the mark to remember is still the node's own to change.
    cluster.unlabel("n1", "example.com/a-rather-long-key-0").await;
    let rest = labels(many.into_iter().filter(|(key, _)| key != "example.com/a-rather-long-key-0"));
    cluster.wait_for_record("n1", rest.clone()).await;
    assert_eq!(cluster.labels("n1").await, rest);
}
