//! Extreme load. `PERENNIAL_NODES` sets the number of nodes; the default fits into a test run.

use std::{collections::BTreeMap, time::Duration};

use futures::{StreamExt, stream};
use kube::api::{ListParams, Patch, PatchParams};
use perennial_harness::{
    Labels, LoadBalancer, TestCluster, eventually_within, labels, node_count_or, record_name, ten_labels,
};
use serde_json::json;

/// Maximum number of concurrent requests.
const AT_ONCE: usize = 32;
/// For some thousand nodes on a small machine.
const PATIENCE: Duration = Duration::from_mins(10);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_are_all_deleted_during_a_rolling_restart_come_back_whole() {
    let cluster = crate::shipped().await;
    let count = node_count_or(300);
    let balancer = LoadBalancer::of(3).await;
    let replica = |number| balancer.operator(&cluster, number).set("controller.shards", "6");
    let first = replica(0).start().await;
    cluster.wait_for_admission(&first).await;
    let mut replicas = vec![first];
    for number in 1..3 {
        replicas.push(replica(number).start().await);
    }
    cluster.create_many(count, ten_labels).await;
    cluster.wait_for_records(count).await;

    let churn = async {
        cluster.delete_all_nodes().await;
        cluster.create_many(count, |_| Labels::new()).await;
    };
    let restarts = async {
        let mut renewed = Vec::new();
        for (number, replica_before) in replicas.into_iter().enumerate() {
            let status = replica_before.stop().await.expect("it stops within five seconds");
            assert!(status.success(), "{status}");
            renewed.push(replica(number).start().await);
        }
        renewed
    };
    let ((), replicas) = tokio::join!(churn, restarts);

    eventually_within(PATIENCE, format!("{count} nodes are complete"), async || {
        let (found, other) = cluster.complete_nodes().await;
        if found >= count { Ok(()) } else { Err(format!("{found} are, {other:?} is not")) }
    })
    .await;
    let peak = replicas.iter().map(perennial_harness::Operator::peak_rss).max().unwrap_or_default();
    assert!(peak < 400 << 20, "a replica took {} MiB", peak >> 20);
}

/// Every record is corrupted while the operator is down. Nothing of it is restored, nothing is
/// destroyed, and other nodes are unaffected.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_that_are_all_tampered_with_restore_nothing_and_stop_nothing() {
    let cluster = crate::shipped().await;
    let count = node_count_or(200);
    let first = cluster.operator().without_leader_election().start().await;
    cluster.create_many(count, ten_labels).await;
    cluster.node("honest").label("team", "ml").create().await;
    cluster.wait_for_records(count + 1).await;
    cluster.wait_for_record("honest", [("team", "ml")]).await;
    first.crash();
    cluster.delete_all_nodes().await;
    let names: Vec<String> = (0..count).map(|number| format!("node-{number:05}")).collect();
    let tamper = async |name: &String| {
        let mut record = cluster.record(name).await.expect("a record");
        record["labels"] = json!({"team": "evil"});
        let patch = json!({"data": {"record.json": record.to_string()}});
        let patch = Patch::Merge(&patch);
        cluster.records().patch(&record_name(name), &PatchParams::default(), &patch).await.expect("tampering");
    };
    stream::iter(names.iter().map(tamper)).buffer_unordered(AT_ONCE).for_each(async |()| ()).await;
    let before = records(&cluster).await;

    let operator = cluster.operator().without_leader_election().start().await;
    cluster.create_many(count, |_| Labels::new()).await;
    cluster.node("honest").create().await;

    let invalid = f64::from(u32::try_from(count).expect("a number"));
    eventually_within(PATIENCE, "all of them are known to be bad", async || {
        let seen = operator.metrics().sum("perennial_records_invalid", &[]);
        if (seen - invalid).abs() < 0.5 { Ok(()) } else { Err(seen) }
    })
    .await;
    cluster.wait_for_labels("honest", [("team", "ml")]).await;
    let nodes = cluster.nodes().list_metadata(&ListParams::default()).await.expect("listing nodes").items;
    let evil = nodes.iter().filter(|node| node.metadata.labels.as_ref().is_some_and(|has| has.contains_key("team")));
    let evil: Vec<_> = evil.filter_map(|node| node.metadata.name.as_deref()).filter(|name| *name != "honest").collect();
    assert!(evil.is_empty(), "{evil:?}");
    // The corrupted bytes are unchanged: evidence is kept.
    let after = records(&cluster).await;
    let changed = |name: &&String| {
        before.get(*name).is_some_and(|text| text.contains("evil")) && before.get(*name) != after.get(*name)
    };
    assert_eq!(before.keys().filter(changed).collect::<Vec<_>>(), Vec::<&String>::new());
    assert_eq!(after.values().filter(|text| text.contains("evil")).count(), count);
    assert!(operator.peak_rss() < 400 << 20, "{} MiB", operator.peak_rss() >> 20);
}

/// A user stores a megabyte in many record ConfigMaps. Memory usage must stay bounded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_of_a_megabyte_each_do_not_exhaust_memory() {
    let cluster = crate::shipped().await;
    let count = 150;
    let first = cluster.operator().without_leader_election().start().await;
    cluster.create_many(count, ten_labels).await;
    cluster.wait_for_records(count).await;
    first.crash();
    let notes = "x".repeat((1 << 20) - 20 * 1024);
    let patch = json!({"data": {"notes": notes}});
    let names: Vec<String> = (0..count).map(|number| record_name(&format!("node-{number:05}"))).collect();
    let grow = async |name: &String| {
        cluster.records().patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await.expect("growing a record");
    };
    stream::iter(names.iter().map(grow)).buffer_unordered(8).for_each(async |()| ()).await;

    let operator = cluster.operator().without_leader_election().set("controller.auditPeriod", "5s").start().await;
    cluster.delete_all_nodes().await;
    cluster.create_many(count, |_| Labels::new()).await;

    cluster.wait_for_complete_nodes(count).await;
    // New state is recorded beside the foreign data, which stays.
    cluster.label("node-00000", "fence", "1").await;
    let mut wanted = ten_labels(0);
    wanted.extend(labels([("fence", "1")]));
    cluster.wait_for_record("node-00000", wanted).await;
    assert_eq!(cluster.record_bytes("node-00000", "notes").await.map(|text| text.len()), Some(notes.len()));
    let peak = operator.peak_rss();
    assert!(peak < 256 << 20, "it took {} MiB for {count} MiB of notes", peak >> 20);
}

async fn records(cluster: &TestCluster) -> BTreeMap<String, String> {
    let params = ListParams::default().labels("perennial.dev/record=v1");
    let list = cluster.records().list(&params).await.expect("listing records");
    let text =
        |data: Option<BTreeMap<String, String>>| data.unwrap_or_default().remove("record.json").unwrap_or_default();
    list.items.into_iter().map(|object| (object.metadata.name.unwrap_or_default(), text(object.data))).collect()
}
