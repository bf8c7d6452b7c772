//! Last states of deleted nodes that cannot be written for a while: they wait until they are, and
//! their successors do not.

use std::time::Duration;

use futures::{StreamExt, stream};
use kube::api::ListParams;
use perennial_core::coordination::shards::shard_of;
use perennial_harness::{ApiRequest, Fault, FaultProxy, Operator, TestCluster, Webhooks, eventually};
use rstest::rstest;
use serde_json::{Value, json};

/// Answers every write of a record with this status.
fn deny_record_writes(proxy: &FaultProxy, status: u16) {
    proxy.inject(move |asked: &ApiRequest| {
        (asked.resource == "configmaps" && asked.is_write()).then_some(Fault::Answered(status, None))
    });
}

async fn wait_until_denied(proxy: &FaultProxy, times: u64) {
    eventually("the write of a record is denied", async || {
        let denied: u64 = proxy.faults().values().sum();
        if denied >= times { Ok(()) } else { Err(denied) }
    })
    .await;
}

/// A quota, an admission policy and an outage of etcd refuse writes with these.
#[rstest]
#[case::forbidden(403, Webhooks::Off)]
#[case::invalid(422, Webhooks::Off)]
#[case::unavailable(503, Webhooks::Off)]
#[case::forbidden_webhooks_on(403, Webhooks::On)]
#[tokio::test]
async fn a_change_is_restored_while_its_record_cannot_be_written(#[case] status: u16, #[case] webhooks: Webhooks) {
    let cluster = TestCluster::new().await;
    let proxy = cluster.fault_proxy().await;
    let operator = cluster.start_with(webhooks, |builder| builder.without_leader_election().through(&proxy)).await;
    for node in ["changed", "emptied", "unchanged"] {
        cluster.node(node).label("team", "ml").label("tier", "gold").create().await;
        cluster.wait_for_record(node, [("team", "ml"), ("tier", "gold")]).await;
    }

    deny_record_writes(&proxy, status);
    cluster.label("changed", "team", "web").await;
    cluster.unlabel("changed", "tier").await;
    cluster.patch_node("emptied", json!({"metadata": {"labels": {"team": null, "tier": null}}})).await;
    for node in ["changed", "emptied", "unchanged"] {
        cluster.delete_node(node).await;
    }
    wait_until_denied(&proxy, 2).await;
    for node in ["changed", "emptied", "unchanged"] {
        cluster.node(node).create().await;
    }

    // Each is restored although no record can be written, and nothing that was removed is restored.
    cluster.wait_for_labels("changed", [("team", "web")]).await;
    cluster.wait_for_labels("unchanged", [("team", "ml"), ("tier", "gold")]).await;
    cluster.wait_for_labels::<String, String>("emptied", []).await;
    assert_eq!(cluster.record("changed").await.unwrap()["labels"], json!({"team": "ml", "tier": "gold"}));
    operator.wait_for_metric("perennial_last_states_pending", &[], 2.0).await;

    // A whole life passes in the meantime.
    cluster.label("changed", "rack", "r7").await;
    cluster.delete_node("changed").await;
    operator.wait_for_metric("perennial_last_states_pending", &[], 3.0).await;
    cluster.node("changed").create().await;
    cluster.wait_for_labels("changed", [("team", "web"), ("rack", "r7")]).await;

    proxy.clear_faults();
    // An event of the node ends the pause after the refusal.
    cluster.label("changed", "fence", "1").await;
    cluster.label("emptied", "fence", "1").await;
    cluster.wait_for_record("changed", [("team", "web"), ("rack", "r7"), ("fence", "1")]).await;
    cluster.wait_for_record("emptied", [("fence", "1")]).await;
    operator.wait_for_metric("perennial_last_states_pending", &[], 0.0).await;
    cluster.wait_for_labels("changed", [("team", "web"), ("rack", "r7"), ("fence", "1")]).await;
    cluster.wait_for_labels("emptied", [("fence", "1")]).await;
    assert!(operator.metrics().sum("perennial_last_states_dropped_total", &[]) < 0.5);
}

/// The process dies while the change is only in its memory and on the successor: the older record
/// does not undo it.
#[tokio::test]
async fn a_change_that_was_restored_before_its_write_survives_a_crash() {
    let cluster = TestCluster::new().await;
    let proxy = cluster.fault_proxy().await;
    let first = cluster.operator().without_leader_election().through(&proxy).start().await;
    for node in ["changed", "emptied"] {
        cluster.node(node).label("team", "ml").create().await;
        cluster.wait_for_record(node, [("team", "ml")]).await;
    }
    deny_record_writes(&proxy, 403);
    cluster.label("changed", "team", "web").await;
    cluster.unlabel("emptied", "team").await;
    for node in ["changed", "emptied"] {
        cluster.delete_node(node).await;
        cluster.node(node).create().await;
    }
    cluster.wait_for_labels("changed", [("team", "web")]).await;
    eventually("the node without labels has its mark", async || {
        let marks = cluster.get_node("emptied").await.metadata.annotations.unwrap_or_default();
        if marks.contains_key("perennial.dev/restored") { Ok(()) } else { Err("not yet") }
    })
    .await;

    first.crash();
    let _second = cluster.operator().without_leader_election().start().await;

    cluster.wait_for_record("changed", [("team", "web")]).await;
    cluster.wait_for_record::<String, String>("emptied", []).await;
    cluster.wait_for_labels("changed", [("team", "web")]).await;
    cluster.wait_for_labels::<String, String>("emptied", []).await;
}

/// Admission and the controller are separate processes, so that each can be denied separately.
#[tokio::test]
async fn a_delete_that_admission_missed_is_not_overtaken_by_the_next_one() {
    let cluster = TestCluster::new().await;
    let (door, work) = (cluster.fault_proxy().await, cluster.fault_proxy().await);
    let roles = |roles: &'static str| cluster.operator().without_leader_election().set("controller.roles", roles);
    let controller = roles("capture,restore").through(&work).start().await;
    let _admission =
        cluster.start_with(Webhooks::On, |builder| builder.set("controller.roles", "webhooks").through(&door)).await;
    cluster.node("n1").label("team", "ml").create().await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;

    // The delete fails open, and the controller cannot write its last state.
    deny_record_writes(&door, 503);
    deny_record_writes(&work, 403);
    cluster.label("n1", "team", "web").await;
    cluster.delete_node("n1").await;
    wait_until_denied(&door, 1).await;
    wait_until_denied(&work, 1).await;
    door.clear_faults();
    cluster.node("n1").label("rack", "r7").create().await;
    cluster.delete_node("n1").await;

    let record = cluster.wait_for_record("n1", [("team", "web"), ("rack", "r7")]).await;
    let history: Vec<&Value> = record["history"].as_array().unwrap().iter().map(|past| &past["labels"]).collect();
    assert_eq!(history, [&json!({"team": "web"}), &json!({"team": "ml"})], "each state is in the history");
    work.clear_faults();
    cluster.node("n1").create().await;
    cluster.wait_for_labels("n1", [("team", "web"), ("rack", "r7")]).await;
    controller.wait_for_metric("perennial_last_states_pending", &[], 0.0).await;
}

/// The process that may write records does not run for a while.
#[tokio::test]
async fn a_process_that_only_restores_waits_for_the_write_of_another_one() {
    let cluster = TestCluster::new().await;
    let roles = |roles: &'static str| cluster.operator().without_leader_election().set("controller.roles", roles);
    let mut capture = roles("capture").start().await;
    let restore = roles("restore").start().await;
    cluster.node("n1").label("team", "ml").create().await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;

    capture.pause();
    cluster.label("n1", "team", "web").await;
    cluster.delete_node("n1").await;
    cluster.node("n1").create().await;

    cluster.wait_for_labels("n1", [("team", "web")]).await;
    assert_eq!(cluster.record("n1").await.unwrap()["labels"], json!({"team": "ml"}));
    capture.resume();
    cluster.wait_for_record("n1", [("team", "web")]).await;
    restore.wait_for_metric("perennial_last_states_pending", &[], 0.0).await;
    cluster.delete_node("n1").await;
    cluster.node("n1").create().await;
    cluster.wait_for_labels("n1", [("team", "web")]).await;
}

/// At ten requests a second, a stop would last for longer than it may.
#[rstest]
#[case::elected(true, "100")]
#[case::alone(false, "10")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_writes_the_last_states_of_deleted_nodes(#[case] elects: bool, #[case] qps: &str) {
    const NODES: usize = 200;
    let cluster = TestCluster::new().await;
    let fast = if elects { cluster.operator() } else { cluster.operator().without_leader_election() };
    let first = fast.start().await;
    let names: Vec<String> = (0..NODES).map(|number| format!("n{number}")).collect();
    let each = async |task: &dyn Fn(String) -> futures::future::BoxFuture<'static, ()>| {
        stream::iter(names.iter().cloned().map(task)).buffer_unordered(32).for_each(async |()| ()).await;
    };
    let nodes = cluster.nodes();
    for name in &names {
        cluster.node(name).label("change", "before").create().await;
    }
    cluster.wait_for_records(NODES).await;
    assert!(first.stop().await.is_some_and(|status| status.success()));

    let slow = if elects { cluster.operator() } else { cluster.operator().without_leader_election() };
    let slow = slow.set("controller.qps", qps).set("controller.burst", "1").start().await;
    // A change in the request before the delete, which the operator has no time to capture.
    each(&|name| {
        let nodes = nodes.clone();
        Box::pin(async move {
            let change = json!({"metadata": {"labels": {"change": "after"}}});
            let patch = kube::api::Patch::Merge(&change);
            nodes.patch(&name, &kube::api::PatchParams::default(), &patch).await.unwrap();
            nodes.delete(&name, &kube::api::DeleteParams::default()).await.unwrap();
        })
    })
    .await;
    let status = slow.stop_within(Duration::from_secs(20)).await.expect("it stops within its deadline");

    assert!(status.success(), "{status}");
    let records = cluster.records().list(&ListParams::default().labels("perennial.dev/record=v1")).await.unwrap();
    let is_lost = |data: &std::collections::BTreeMap<String, String>| {
        let record: Value = serde_json::from_str(&data["record.json"]).unwrap();
        record["labels"] != json!({"change": "after"})
    };
    let lost = records.items.iter().filter(|record| record.data.as_ref().is_none_or(is_lost)).count();
    assert_eq!((lost, records.items.len()), (0, NODES), "changes are lost");
}

const SHARDS: u32 = 8;

/// Returns a name in this shard.
fn name_in(shard: u32, prefix: &str) -> String {
    (0..1000).map(|number| format!("{prefix}-{number}")).find(|name| shard_of(name, SHARDS) == shard).unwrap()
}

/// Returns a shard that a replica owns.
fn owned(operator: &Operator) -> Option<u32> {
    let (metrics, name) = (operator.metrics(), |shard| format!("perennial-shard-{shard}"));
    (0..SHARDS).find(|shard| metrics.sum("leader_election_master_status", &[("name", &name(*shard))]) > 0.5)
}

/// The owner of the old name cannot write; the owner of the new name does not wait for it.
#[tokio::test]
async fn a_machine_that_returns_in_another_shard_has_its_last_change() {
    let cluster = TestCluster::new().await;
    let proxies = [cluster.fault_proxy().await, cluster.fault_proxy().await];
    let replica = |proxy: &FaultProxy| {
        let shards = SHARDS.to_string();
        let builder = cluster.operator().set("controller.shards", &shards).set("keeper.identity", "providerID");
        builder.through(proxy)
    };
    let replicas = [replica(&proxies[0]).start().await, replica(&proxies[1]).start().await];
    let (first, second) =
        eventually("each replica owns a shard", async || match (owned(&replicas[0]), owned(&replicas[1])) {
            (Some(first), Some(second)) => Ok((first, second)),
            other => Err(format!("{other:?}")),
        })
        .await;
    let (old, new) = (name_in(first, "old"), name_in(second, "new"));
    cluster.node(&old).machine("p-one", "s-one", "m-one").label("team", "ml").create().await;
    eventually("it is recorded", async || if cluster.record_count().await == 1 { Ok(()) } else { Err("not yet") })
        .await;

    deny_record_writes(&proxies[0], 403);
    cluster.label(&old, "team", "web").await;
    cluster.delete_node(&old).await;
    wait_until_denied(&proxies[0], 1).await;
    cluster.node(&new).machine("p-one", "s-one", "m-one").create().await;

    cluster.wait_for_labels(&new, [("team", "web")]).await;
}
