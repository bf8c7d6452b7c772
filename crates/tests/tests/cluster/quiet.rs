//! G7: what does not change costs nothing, counted by the API server itself.

use std::{collections::BTreeMap, time::Instant};

use perennial_harness::{TestCluster, eventually, labels, ten_labels};
use serde_json::json;

/// What is left of writes by these verbs when the test's own are taken off.
fn writes(pairs: &[(&'static str, u64)]) -> BTreeMap<&'static str, u64> {
    pairs.iter().copied().collect()
}

#[tokio::test]
async fn a_quiet_cluster_gets_no_writes() {
    let cluster = TestCluster::new().await;
    let operator = cluster.operator().start().await;
    for i in 0..20 {
        cluster.node(&format!("n{i}")).label("team", "ml").create().await;
    }
    cluster.wait_for_records(20).await;
    operator.wait_for_metric("perennial_nodes_current_ratio", &[], 1.0).await;
    let before = cluster.requests().await;

    // A new process lists everything; then changes that do not matter; then one that does, as a fence.
    operator.crash();
    let operator = cluster.operator().start().await;
    operator.wait_for_metric("perennial_nodes_current_ratio", &[], 1.0).await;
    for i in 0..20 {
        cluster.patch_node(&format!("n{i}"), json!({"metadata": {"annotations": {"heartbeat": "1"}}})).await;
        cluster.label(&format!("n{i}"), "topology.kubernetes.io/zone", "eu-1a").await;
    }
    cluster.label("n0", "fence", "1").await;
    cluster.wait_for_record("n0", [("team", "ml"), ("fence", "1")]).await;

    let after = cluster.requests().await;
    assert_eq!(after.writes_since(&before, "nodes"), writes(&[("PATCH", 41)]), "the test's own patches");
    assert_eq!(after.writes_since(&before, "configmaps"), writes(&[("PUT", 1)]), "the fence");
    assert_eq!(after.writes_since(&before, "events"), writes(&[]));
}

#[tokio::test]
async fn nodes_that_return_as_they_left_cost_no_read_of_their_records() {
    let cluster = TestCluster::new().await;
    let operator = cluster.operator().start().await;
    cluster.create_many(50, ten_labels).await;
    cluster.wait_for_records(50).await;
    operator.wait_for_metric("perennial_nodes_current_ratio", &[], 1.0).await;
    let before = cluster.requests().await;

    cluster.delete_all_nodes().await;
    for number in 0..50 {
        cluster.node(&format!("node-{number:05}")).create().await;
    }
    cluster.wait_for_complete_nodes(50).await;

    let reads = cluster.requests().await.count("GET", "configmaps") - before.count("GET", "configmaps");
    assert_eq!(reads, 0);
}

#[tokio::test]
async fn an_unchanged_node_that_leaves_and_returns_costs_one_patch() {
    let cluster = TestCluster::new().await;
    let operator = cluster.operator().start().await;
    cluster.node("n1").label("team", "ml").label("tier", "gold").create().await;
    cluster.wait_for_record("n1", [("team", "ml"), ("tier", "gold")]).await;
    operator.wait_for_metric("perennial_nodes_current_ratio", &[], 1.0).await;
    let before = cluster.requests().await;

    cluster.delete_node("n1").await;
    cluster.node("n1").create().await;
    cluster.wait_for_labels("n1", [("team", "ml"), ("tier", "gold")]).await;
    cluster.node("fence").label("team", "web").create().await;
    cluster.wait_for_record("fence", [("team", "web")]).await;
    operator.wait_for_metric("perennial_nodes_current_ratio", &[], 1.0).await;

    eventually("the API server has counted the patch", async || {
        let seen = cluster.requests().await.writes_since(&before, "nodes");
        if seen == writes(&[("DELETE", 1), ("PATCH", 1), ("POST", 2)]) { Ok(()) } else { Err(format!("{seen:?}")) }
    })
    .await;
    let after = cluster.requests().await;
    assert_eq!(after.writes_since(&before, "configmaps"), writes(&[("POST", 1)]), "the fence");
}

#[tokio::test]
async fn a_burst_of_changes_costs_few_writes_and_its_last_state_is_kept() {
    let cluster = TestCluster::new().await;
    let _operator = cluster.operator().start().await;
    cluster.node("n1").label("count", "0").create().await;
    cluster.wait_for_record("n1", [("count", "0")]).await;
    let before = cluster.requests().await;

    let began = Instant::now();
    for i in 1..=100 {
        cluster.label("n1", "count", &i.to_string()).await;
    }
    cluster.wait_for_record("n1", [("count", "100")]).await;

    // One a second; one more at either end, and one for the look that was under way.
    let most = began.elapsed().as_secs() + 3;
    let written = cluster.requests().await.writes_since(&before, "configmaps");
    assert!(written.values().sum::<u64>() <= most, "{written:?}, at most {most}");
    assert_eq!(cluster.labels("n1").await, labels([("count", "100")]));
}
