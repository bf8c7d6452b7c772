//! Replicas that share the nodes: joining, leaving, crashing and pausing.

use std::{collections::BTreeMap, time::Duration};

use futures::{StreamExt, stream};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, api::ListParams};
use perennial_core::coordination::shards;
use perennial_harness::{Labels, Operator, OperatorBuilder, TestCluster, eventually, eventually_within};
use serde_json::Value;

const SHARDS: u32 = 8;
const NODES: usize = 96;
const PATIENCE: Duration = Duration::from_mins(2);

fn sharded(cluster: &TestCluster, shards: u32) -> OperatorBuilder {
    cluster.operator().set("controller.shards", &shards.to_string())
}

/// Returns the member identity from the operator's log.
pub(crate) fn identity(operator: &Operator) -> String {
    let joined = operator.log().into_iter().find(|line| line["message"] == "joining the election");
    joined.expect("an operator that has joined")["identity"].as_str().expect("an identity").to_owned()
}

/// Waits until each shard is held by its assigned member, and returns the assignment. It depends on
/// random identities; a member may have no shard.
pub(crate) async fn shared(cluster: &TestCluster, operators: &[&Operator], shards: u32) -> BTreeMap<String, String> {
    let members: Vec<String> = operators.iter().map(|operator| identity(operator)).collect();
    let rightful: BTreeMap<String, String> = shards::assignment(shards, members.iter().map(String::as_str))
        .into_iter()
        .map(|(shard, member)| (format!("perennial-shard-{shard}"), member.to_owned()))
        .collect();
    eventually_within(PATIENCE, format!("{shards} shards are shared by {}", operators.len()), async || {
        let held = holders(cluster).await;
        if held == rightful { Ok(()) } else { Err(format!("{held:?}, not {rightful:?}")) }
    })
    .await;
    rightful
}

/// Returns the holder of each shard from the Leases.
async fn holders(cluster: &TestCluster) -> BTreeMap<String, String> {
    let leases: Api<Lease> = Api::namespaced(cluster.client(), cluster.namespace());
    let leases = leases.list(&ListParams::default()).await.expect("listing leases").items;
    leases
        .into_iter()
        .filter_map(|lease| {
            let name = lease.metadata.name.filter(|name| name.contains("-shard-"))?;
            Some((name, lease.spec?.holder_identity.filter(|holder| !holder.is_empty())?))
        })
        .collect()
}

fn name(number: usize) -> String {
    format!("n{number:03}")
}

/// Sets a new value on every node and waits until every record contains it.
async fn round(cluster: &TestCluster, value: &str) {
    stream::iter(0..NODES)
        .for_each_concurrent(16, async |number| cluster.label(&name(number), "round", value).await)
        .await;
    eventually_within(PATIENCE, format!("round {value} is captured"), async || {
        let behind = records(cluster).await.values().filter(|record| record["labels"]["round"] != value).count();
        if behind == 0 { Ok(()) } else { Err(format!("{behind} are behind")) }
    })
    .await;
}

async fn records(cluster: &TestCluster) -> BTreeMap<String, Value> {
    let list = cluster.records().list(&ListParams::default()).await.expect("listing records").items;
    list.into_iter()
        .filter_map(|record| {
            let text = record.data?.remove("record.json")?;
            Some((record.metadata.name?, serde_json::from_str(&text).ok()?))
        })
        .collect()
}

/// Asserts exactly one write per change: a replica that wrongly considered itself the owner wrote
/// nothing.
async fn each_change_was_written_once(cluster: &TestCluster, changes: u64) {
    for (name, record) in records(cluster).await {
        assert_eq!(record["sequence"], changes, "{name}: {record}");
    }
}

#[tokio::test]
async fn three_replicas_share_eight_shards_and_members_come_and_go() {
    let cluster = TestCluster::new().await;
    let (first, second) = (sharded(&cluster, SHARDS).start().await, sharded(&cluster, SHARDS).start().await);
    for number in 0..NODES {
        cluster.node(&name(number)).label("round", "0").create().await;
    }
    eventually("every node has a record", async || {
        let count = records(&cluster).await.len();
        if count == NODES { Ok(()) } else { Err(count) }
    })
    .await;

    // A replica joins.
    let mut third = sharded(&cluster, SHARDS).start().await;
    shared(&cluster, &[&first, &second, &third], SHARDS).await;
    round(&cluster, "joined").await;
    each_change_was_written_once(&cluster, 2).await;

    // A replica stops gracefully: only its shards move.
    let before = holders(&cluster).await;
    let leaver = identity(&first);
    assert!(first.stop().await.is_some_and(|status| status.success()));
    shared(&cluster, &[&second, &third], SHARDS).await;
    let after = holders(&cluster).await;
    for (shard, holder) in before.iter().filter(|(_, holder)| **holder != leaver) {
        assert_eq!(after.get(shard), Some(holder), "{before:?} {after:?}");
    }
    round(&cluster, "left").await;
    each_change_was_written_once(&cluster, 3).await;

    // A replica crashes.
    let fourth = sharded(&cluster, SHARDS).start().await;
    shared(&cluster, &[&second, &third, &fourth], SHARDS).await;
    second.crash();
    round(&cluster, "crashed").await;
    each_change_was_written_once(&cluster, 4).await;

    // A replica is paused while others take over; when it resumes it still considers itself the
    // owner.
    shared(&cluster, &[&third, &fourth], SHARDS).await;
    third.pause();
    round(&cluster, "paused").await;
    third.resume();
    round(&cluster, "resumed").await;
    shared(&cluster, &[&third, &fourth], SHARDS).await;
    each_change_was_written_once(&cluster, 6).await;

    // Nothing was lost.
    cluster.delete_all_nodes().await;
    for number in 0..NODES {
        cluster.node(&name(number)).create().await;
    }
    eventually_within(PATIENCE, "every node has its label", async || {
        let nodes = cluster.nodes().list(&ListParams::default()).await.expect("listing nodes").items;
        let wanted: Labels = perennial_harness::labels([("round", "resumed")]);
        let missing = nodes.iter().filter(|node| node.metadata.labels.as_ref() != Some(&wanted)).count();
        if missing == 0 { Ok(()) } else { Err(missing) }
    })
    .await;
}

#[tokio::test]
async fn more_replicas_than_shards_and_more_shards_than_nodes_both_work() {
    let cluster = TestCluster::new().await;
    let replicas =
        [sharded(&cluster, 2).start().await, sharded(&cluster, 2).start().await, sharded(&cluster, 2).start().await];
    let [first, second, third] = &replicas;
    shared(&cluster, &[first, second, third], 2).await;
    cluster.node("n1").label("team", "ml").create().await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;
    drop(replicas);

    let _many = sharded(&cluster, 64).start().await;
    cluster.label("n1", "team", "web").await;
    cluster.wait_for_record("n1", [("team", "web")]).await;
}

#[tokio::test]
async fn the_roles_may_be_processes_of_their_own() {
    let cluster = TestCluster::new().await;
    let _capture = cluster.operator().set("controller.roles", "capture").start().await;
    let restore = cluster.operator().set("controller.roles", "restore").start().await;
    cluster.node("n1").label("team", "ml").create().await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;
    cluster.delete_node("n1").await;
    cluster.node("n1").create().await;
    cluster.wait_for_labels("n1", [("team", "ml")]).await;

    // Without the replica that restores, a node stays without labels; the other one still captures.
    assert!(restore.stop().await.is_some_and(|status| status.success()));
    cluster.delete_node("n1").await;
    cluster.node("n1").create().await;
    cluster.node("n2").label("team", "web").create().await;
    cluster.wait_for_record("n2", [("team", "web")]).await;
    assert_eq!(cluster.labels("n1").await, Labels::new());
}
