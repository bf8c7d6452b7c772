//! Two versions as two programs: an upgrade, a rollback, and both side by side. Only the next
//! version can read its newer record format.

use std::collections::BTreeMap;

use perennial_core::coordination::shards;
use perennial_harness::{LoadBalancer, Operator, TestCluster, labels};
use serde_json::Value;

use crate::sharding::{identity, shared};

const RECORD: &str = "record.json";
const THIS: u64 = 1;
const NEXT: u64 = 2;
const SHARDS: u32 = 8;
const NODES: usize = 32;

async fn stop(operator: Operator) {
    assert!(operator.stop().await.is_some_and(|status| status.success()));
}

/// Creates a node as a fence and returns the format version of its record, which identifies the
/// leader.
async fn written_by(cluster: &TestCluster, node: &str) -> Value {
    cluster.node(node).label("team", "fence").create().await;
    cluster.wait_for_record(node, [("team", "fence")]).await["version"].clone()
}

#[tokio::test]
async fn an_upgrade_and_a_rollback_lose_nothing() {
    let cluster = TestCluster::new().await;
    let this = cluster.operator().start().await;
    for node in ["changed", "same"] {
        cluster.node(node).label("team", "first").create().await;
        let record = cluster.wait_for_record(node, [("team", "first")]).await;
        assert_eq!(record["version"], THIS);
    }
    let before = cluster.record_bytes("same", RECORD).await;

    // Upgrade: the next version starts before this one stops. It reads the existing records and
    // writes new ones in its own format.
    let next = cluster.operator().next_version().start().await;
    stop(this).await;
    assert_eq!(written_by(&cluster, "fence-1").await, NEXT);
    cluster.label("changed", "team", "second").await;
    let record = cluster.wait_for_record("changed", [("team", "second")]).await;
    assert_eq!((&record["version"], &record["sequence"]), (&NEXT.into(), &2.into()));
    assert_eq!(cluster.record_bytes("same", RECORD).await, before, "what did not change was written again");
    cluster.delete_node("same").await;
    cluster.node("same").create().await;
    cluster.wait_for_labels("same", [("team", "first")]).await;

    // Rollback: this version leaves records that it cannot read alone and reports them. Everything
    // else works.
    let this = cluster.operator().set("controller.auditPeriod", "5s").start().await;
    stop(next).await;
    assert_eq!(written_by(&cluster, "fence-2").await, THIS);
    let newer = cluster.record_bytes("changed", RECORD).await;
    cluster.delete_node("changed").await;
    cluster.node("changed").create().await;
    let message = cluster.wait_for_event("changed", "RecordInvalid").await;
    assert!(message.contains("it has version 2, and this operator reads up to version 1"), "{message}");
    cluster.label("changed", "own", "1").await;
    cluster.delete_node("same").await;
    cluster.node("same").create().await;
    cluster.wait_for_labels("same", [("team", "first")]).await;
    // `changed` and the first fence were written by the next version.
    this.wait_for_metric("perennial_records_invalid", &[], 2.0).await;
    assert_eq!(written_by(&cluster, "fence-3").await, THIS);
    assert_eq!(cluster.labels("changed").await, labels([("own", "1")]));
    assert_eq!(cluster.record_bytes("changed", RECORD).await, newer, "a newer record was touched");
    assert_eq!(cluster.perennial_json("show changed -o json")["record"]["state"], "Newer");

    // Upgrade again: pending labels are restored, together with newer ones.
    let _next = cluster.operator().next_version().start().await;
    stop(this).await;
    cluster.wait_for_labels("changed", [("own", "1"), ("team", "second")]).await;
    let record = cluster.wait_for_record("changed", [("own", "1"), ("team", "second")]).await;
    assert_eq!(record["version"], NEXT);
}

fn name(number: usize) -> String {
    format!("n{number:02}")
}

/// Waits until each shard is held by its assigned member. Returns the assignment by node.
async fn shared_by(cluster: &TestCluster, operators: &[&Operator]) -> BTreeMap<String, String> {
    let holders = shared(cluster, operators, SHARDS).await;
    let holder = |node: &str| holders[&format!("perennial-shard-{}", shards::shard_of(node, SHARDS))].clone();
    (0..NODES).map(|node| (name(node), holder(&name(node)))).collect()
}

/// Sets this value on every node and waits until every record contains it. Returns the format
/// version of each record.
async fn round(cluster: &TestCluster, value: &str) -> BTreeMap<String, Value> {
    for node in 0..NODES {
        cluster.label(&name(node), "round", value).await;
    }
    let mut versions = BTreeMap::new();
    for node in 0..NODES {
        let record = cluster.wait_for_record(&name(node), [("round", value)]).await;
        versions.insert(name(node), record["version"].clone());
    }
    versions
}

async fn all_leave_and_return(cluster: &TestCluster) {
    cluster.delete_all_nodes().await;
    for node in 0..NODES {
        cluster.node(&name(node)).create().await;
    }
}

/// With webhooks, which replicas of both versions serve.
#[tokio::test]
async fn two_versions_share_the_nodes_side_by_side() {
    let cluster = TestCluster::new().await;
    let balancer = LoadBalancer::of(2).await;
    let sharded = |number| balancer.operator(&cluster, number).set("controller.shards", &SHARDS.to_string());
    let (this, next) = (sharded(0).start().await, sharded(1).next_version().start().await);
    let holders = shared_by(&cluster, &[&this, &next]).await;
    for node in 0..NODES {
        cluster.node(&name(node)).create().await;
    }

    // Each version writes its nodes in its own format and restores them.
    let versions = round(&cluster, "both").await;
    for (node, holder) in &holders {
        let expected = if *holder == identity(&this) { THIS } else { NEXT };
        assert_eq!(versions[node], expected, "{node} of {holder}");
    }
    all_leave_and_return(&cluster).await;
    for node in holders.keys() {
        cluster.wait_for_labels(node, [("round", "both")]).await;
    }

    // The next version alone reads all records.
    stop(this).await;
    shared_by(&cluster, &[&next]).await;
    let versions = round(&cluster, "next").await;
    assert!(versions.values().all(|version| *version == NEXT), "{versions:?}");

    // This version alone can read none of them: it restores nothing, writes nothing, and nothing is
    // lost.
    let this = sharded(0).start().await;
    stop(next).await;
    shared_by(&cluster, &[&this]).await;
    all_leave_and_return(&cluster).await;
    for node in holders.keys() {
        let is_it = |line: &Value| line["node"] == node.as_str() && line["error"].to_string().contains("version 2");
        this.wait_for_log("what it leaves alone", is_it).await;
    }
    // Restores have priority over captures: the writer of this record has processed all of them.
    assert_eq!(written_by(&cluster, "fence").await, THIS);
    for node in holders.keys() {
        assert_eq!(cluster.labels(node).await, labels::<&str, &str>([]), "{node}");
        assert_eq!(cluster.record(node).await.unwrap()["labels"]["round"], "next", "{node}");
    }

    // With the next version beside it, and then with the next version alone, everything is
    // restored.
    let next = sharded(1).next_version().start().await;
    shared_by(&cluster, &[&this, &next]).await;
    stop(this).await;
    for node in holders.keys() {
        cluster.wait_for_labels(node, [("round", "next")]).await;
    }
}
