//! Which labels are restored, and with which values.

use perennial_harness::{TestCluster, labels};

#[tokio::test]
async fn with_overwrite_the_record_wins_until_the_node_is_settled() {
    let cluster = TestCluster::new().await;
    let _operator = cluster.operator().set("keeper.merge", "overwrite").start().await;
    cluster.node("n1").label("team", "ml").create().await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;

    cluster.delete_node("n1").await;
    cluster.node("n1").label("team", "web").label("mine", "too").create().await;

    cluster.wait_for_labels("n1", [("team", "ml"), ("mine", "too")]).await;
    cluster.wait_for_record("n1", [("team", "ml"), ("mine", "too")]).await;
    cluster.label("n1", "team", "web").await;
    cluster.wait_for_record("n1", [("team", "web"), ("mine", "too")]).await;
    assert_eq!(cluster.labels("n1").await, labels([("team", "web"), ("mine", "too")]));
}

#[tokio::test]
async fn a_keep_prefix_keeps_only_matching_labels() {
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

    // A key that did not fit into the mark can still be removed from the node.
    cluster.unlabel("n1", "example.com/a-rather-long-key-0").await;
    let rest = labels(many.into_iter().filter(|(key, _)| key != "example.com/a-rather-long-key-0"));
    cluster.wait_for_record("n1", rest.clone()).await;
    assert_eq!(cluster.labels("n1").await, rest);
}

#[tokio::test]
async fn nodes_with_similar_or_long_names_do_not_get_each_others_labels() {
    let cluster = TestCluster::new().await;
    let _operator = cluster.operator().start().await;
    let [a, b] = ["a", "b"].map(|end| format!("{}{end}", "x".repeat(252)));
    let nodes = [("n1", "ml"), ("n1.example", "web"), ("n11", "data"), (&*a, "ops"), (&*b, "db")];
    for (name, team) in nodes {
        cluster.node(name).label("team", team).create().await;
        cluster.wait_for_record(name, [("team", team)]).await;
    }

    cluster.delete_all_nodes().await;
    for (name, _) in nodes.iter().rev() {
        cluster.node(name).create().await;
    }

    for (name, team) in nodes {
        cluster.wait_for_labels(name, [("team", team)]).await;
    }
}
