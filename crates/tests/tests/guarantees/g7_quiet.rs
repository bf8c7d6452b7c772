//! G7: without changes there are no writes, counted by the API server. Lease renewals are excluded:
//! they coordinate the replicas and write Leases only.

use std::{collections::BTreeMap, time::Instant};

use perennial_harness::{Requests, TestCluster, Webhooks, eventually, labels, ten_labels};
use rstest::rstest;
use serde_json::json;

fn writes(pairs: &[(&'static str, u64)]) -> BTreeMap<&'static str, u64> {
    pairs.iter().copied().collect()
}

/// Waits until all previous changes are processed: a later one is recorded. Costs one POST each of
/// a node and a ConfigMap.
async fn fence(cluster: &TestCluster, name: &str) {
    cluster.node(name).label("fence", name).create().await;
    cluster.wait_for_record(name, [("fence", name)]).await;
}

async fn counted(cluster: &TestCluster, before: &Requests, nodes: &[(&'static str, u64)]) -> Requests {
    eventually("the API server has counted the requests", async || {
        let now = cluster.requests().await;
        let seen = now.writes_since(before, "nodes");
        if seen == writes(nodes) { Ok(now) } else { Err(format!("{seen:?}")) }
    })
    .await
}

#[tokio::test]
async fn an_unchanged_node_that_leaves_and_returns_costs_only_an_event_with_webhooks_on() {
    let cluster = TestCluster::new().await;
    let operator = cluster.start(Webhooks::On).await;
    cluster.node("n1").label("team", "ml").label("tier", "gold").create().await;
    cluster.wait_for_record("n1", [("team", "ml"), ("tier", "gold")]).await;
    operator.wait_for_metric("perennial_nodes_current_ratio", &[], 1.0).await;
    let before = cluster.requests().await;

    for _ in 0..5 {
        cluster.delete_node("n1").await;
        let node = cluster.node("n1").create().await;
        assert_eq!(node.metadata.labels.unwrap_or_default().len(), 2, "the labels ride in the create");
    }
    fence(&cluster, "fence").await;
    operator.wait_for_metric("perennial_nodes_current_ratio", &[], 1.0).await;

    let after = counted(&cluster, &before, &[("DELETE", 5), ("POST", 6)]).await;
    assert_eq!(after.writes_since(&before, "configmaps"), writes(&[("POST", 1)]), "the fence's");
    eventually("one Event of each restore is written", async || {
        let seen = cluster.requests().await.writes_since(&before, "events");
        if seen == writes(&[("POST", 5)]) { Ok(()) } else { Err(format!("{seen:?}")) }
    })
    .await;
}

#[tokio::test]
async fn an_unchanged_node_that_leaves_and_returns_costs_one_write_with_webhooks_off() {
    let cluster = TestCluster::new().await;
    let operator = cluster.start(Webhooks::Off).await;
    cluster.node("n1").label("team", "ml").label("tier", "gold").create().await;
    cluster.wait_for_record("n1", [("team", "ml"), ("tier", "gold")]).await;
    operator.wait_for_metric("perennial_nodes_current_ratio", &[], 1.0).await;
    let before = cluster.requests().await;

    for _ in 0..5 {
        cluster.delete_node("n1").await;
        cluster.node("n1").create().await;
        cluster.wait_for_labels("n1", [("team", "ml"), ("tier", "gold")]).await;
    }
    fence(&cluster, "fence").await;
    operator.wait_for_metric("perennial_nodes_current_ratio", &[], 1.0).await;

    let after = counted(&cluster, &before, &[("DELETE", 5), ("PATCH", 5), ("POST", 6)]).await;
    assert_eq!(after.writes_since(&before, "configmaps"), writes(&[("POST", 1)]), "the fence's");
}

#[rstest]
#[case::on(Webhooks::On)]
#[case::off(Webhooks::Off)]
#[tokio::test]
async fn a_cluster_where_nothing_changes_gets_no_write(#[case] webhooks: Webhooks) {
    let cluster = TestCluster::new().await;
    let often = |builder: perennial_harness::OperatorBuilder| {
        builder.set("controller.resyncPeriod", "5s").set("controller.auditPeriod", "5s")
    };
    let operator = cluster.start_with(webhooks, often).await;
    for number in 0..20 {
        cluster.node(&format!("n{number}")).label("team", "ml").create().await;
    }
    cluster.wait_for_records(20).await;
    operator.wait_for_metric("perennial_nodes_current_ratio", &[], 1.0).await;
    let before = cluster.requests().await;

    // Irrelevant changes. Resyncs and audits run, as the recorded absence shows.
    for number in 0..20 {
        cluster.patch_node(&format!("n{number}"), json!({"metadata": {"annotations": {"heartbeat": "1"}}})).await;
    }
    cluster.delete_node("n19").await;
    eventually("an audit notes the absence", async || {
        let object = cluster.config_map("n19").await.ok_or("no record")?;
        let noted = object.metadata.annotations.unwrap_or_default().contains_key("perennial.dev/absent-since");
        if noted { Ok(()) } else { Err("not yet") }
    })
    .await;
    fence(&cluster, "fence").await;

    let after = counted(&cluster, &before, &[("DELETE", 1), ("PATCH", 20), ("POST", 1)]).await;
    assert_eq!(after.writes_since(&before, "configmaps"), writes(&[("PATCH", 1), ("POST", 1)]), "note and fence");
    for resource in ["events", "secrets", "mutatingwebhookconfigurations", "validatingwebhookconfigurations"] {
        assert_eq!(after.writes_since(&before, resource), writes(&[]), "{resource}");
    }
}

#[tokio::test]
async fn a_restart_on_a_quiet_cluster_writes_nothing() {
    let cluster = TestCluster::new().await;
    let operator = cluster.operator().start().await;
    for i in 0..20 {
        cluster.node(&format!("n{i}")).label("team", "ml").create().await;
    }
    cluster.wait_for_records(20).await;
    operator.wait_for_metric("perennial_nodes_current_ratio", &[], 1.0).await;
    let before = cluster.requests().await;

    // A new process lists everything. Irrelevant changes follow, and a relevant one as a fence.
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

    // One write per second, one more at either end, and one for the reconcile in progress.
    let most = began.elapsed().as_secs() + 3;
    let written = cluster.requests().await.writes_since(&before, "configmaps");
    assert!(written.values().sum::<u64>() <= most, "{written:?}, at most {most}");
    assert_eq!(cluster.labels("n1").await, labels([("count", "100")]));
}
