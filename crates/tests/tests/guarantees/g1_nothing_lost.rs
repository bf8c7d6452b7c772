//! G1: a kept key that was on a node when it was deleted is on its next incarnation, whatever
//! crashed in between.

use std::collections::BTreeMap;

use futures::{StreamExt, stream};
use kube::api::ListParams;
use perennial_core::keeper::record::Record;
use perennial_harness::{Labels, OperatorBuilder, TestCluster, Webhooks, eventually, labels, node_count, record_name};
use rstest::rstest;
use serde_json::{Value, json};

/// Maximum number of concurrent requests.
const AT_ONCE: usize = 64;

fn name(number: usize) -> String {
    format!("worker-{number:04}")
}

/// Returns the labels of each record by ConfigMap name.
async fn recorded(cluster: &TestCluster) -> BTreeMap<String, Labels> {
    let list = cluster.records().list(&ListParams::default().labels("perennial.dev/record=v1")).await.unwrap();
    let read = |data: Option<BTreeMap<String, String>>| -> Labels {
        let text = data.unwrap_or_default().remove("record.json").unwrap_or_default();
        let record: Value = serde_json::from_str(&text).unwrap_or_default();
        serde_json::from_value(record["labels"].clone()).unwrap_or_default()
    };
    list.items.into_iter().map(|object| (object.metadata.name.unwrap_or_default(), read(object.data))).collect()
}

/// Returns the numbers of the nodes whose record does not contain the change.
async fn lost(cluster: &TestCluster, count: usize) -> Vec<usize> {
    let records = recorded(cluster).await;
    let has = |number: usize| records.get(&record_name(&name(number))) == Some(&after(number));
    (0..count).filter(|number| !has(*number)).collect()
}

fn before(number: usize) -> Labels {
    labels([("team".to_owned(), "ml".to_owned()), ("change".to_owned(), format!("before-{number}"))])
}

fn after(number: usize) -> Labels {
    labels([("team".to_owned(), "ml".to_owned()), ("change".to_owned(), format!("after-{number}"))])
}

/// Creates the nodes, then changes each by the request before its delete.
async fn change_and_delete(cluster: &TestCluster, count: usize) {
    let create = |number| cluster.node(&name(number)).labels(before(number)).create();
    stream::iter((0..count).map(create)).buffer_unordered(AT_ONCE).for_each(async |_| ()).await;
    let change = async |number: usize| {
        cluster.label(&name(number), "change", &format!("after-{number}")).await;
        cluster.delete_node(&name(number)).await;
    };
    stream::iter((0..count).map(change)).buffer_unordered(AT_ONCE).for_each(async |()| ()).await;
}

/// Creates the nodes without labels. Returns the number of responses without the restored labels.
async fn return_bare(cluster: &TestCluster, count: usize) -> usize {
    let create = async |number: usize| {
        let node = cluster.node(&name(number)).create().await;
        usize::from(node.metadata.labels != Some(after(number)))
    };
    stream::iter((0..count).map(create)).buffer_unordered(AT_ONCE).fold(0, async |sum, one| sum + one).await
}

async fn wait_until_all_are_back(cluster: &TestCluster, count: usize) {
    eventually("every node has its labels", async || {
        let nodes = cluster.nodes().list_metadata(&ListParams::default()).await.unwrap().items;
        let expected: BTreeMap<String, Labels> = (0..count).map(|number| (name(number), after(number))).collect();
        let bare = nodes.iter().filter(|node| {
            node.metadata.labels.as_ref() != expected.get(node.metadata.name.as_deref().unwrap_or_default())
        });
        let bare = bare.count() + count - nodes.len();
        if bare == 0 { Ok(()) } else { Err(format!("{bare} have not")) }
    })
    .await;
}

/// The operator has the webhook role only and does not watch.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_changes_in_the_request_before_the_delete_are_kept_by_admission_alone() {
    let cluster = TestCluster::new().await;
    let count = node_count();
    // On a busy machine a late review would pass uncaptured, which is not tested here.
    let alone = |builder: OperatorBuilder| builder.set("controller.roles", "webhooks").set("webhook.timeout", "20s");
    let operator = cluster.start_with(Webhooks::On, alone).await;

    change_and_delete(&cluster, count).await;

    // Each delete was answered after its capture: no need to wait.
    let lost = lost(&cluster, count).await;
    assert!(lost.is_empty(), "{} of {count} changes were lost: {:?}", lost.len(), &lost[..lost.len().min(10)]);
    let bare = return_bare(&cluster, count).await;
    assert_eq!(bare, 0, "nodes without their labels in the create itself");
    // The API server repeats a review if the object changed: there may be more captures than nodes.
    let captures = operator.metrics().sum("perennial_captures_total", &[("via", "admission")]);
    assert!(captures >= f64::from(u32::try_from(count).unwrap()), "{captures}");
    assert!(operator.metrics().sum("perennial_captures_total", &[("via", "watch")]) < 0.5);
}

#[rstest]
#[case::on(Webhooks::On, 1000)]
#[case::off(Webhooks::Off, 300)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_in_the_request_before_the_delete_is_kept(#[case] webhooks: Webhooks, #[case] count: usize) {
    let cluster = TestCluster::new().await;
    let count = count.min(node_count());
    let _operator = cluster.start(webhooks).await;

    change_and_delete(&cluster, count).await;

    eventually("every change is in a record", async || {
        let lost = lost(&cluster, count).await;
        if lost.is_empty() { Ok(()) } else { Err(format!("{} are not, {:?} first", lost.len(), lost.first())) }
    })
    .await;
    return_bare(&cluster, count).await;
    wait_until_all_are_back(&cluster, count).await;
}

#[rstest]
#[case::on(Webhooks::On)]
#[case::off(Webhooks::Off)]
#[tokio::test]
async fn a_flapping_node_never_erases_its_record(#[case] webhooks: Webhooks) {
    let cluster = TestCluster::new().await;
    let mut operator = cluster.start(webhooks).await;
    cluster.node("n1").label("team", "ml").label("tier", "gold").create().await;
    cluster.wait_for_record("n1", [("team", "ml"), ("tier", "gold")]).await;

    for _ in 0..20 {
        cluster.delete_node("n1").await;
        cluster.node("n1").create().await;
    }
    cluster.wait_for_labels("n1", [("team", "ml"), ("tier", "gold")]).await;
    // Again, while the operator is paused and cannot restore: the webhooks fail open.
    operator.pause();
    let rounds = if webhooks == Webhooks::On { 2 } else { 10 };
    for _ in 0..rounds {
        cluster.delete_node("n1").await;
        cluster.node("n1").create().await;
    }
    operator.resume();

    cluster.wait_for_labels("n1", [("team", "ml"), ("tier", "gold")]).await;
    cluster.wait_for_record("n1", [("team", "ml"), ("tier", "gold")]).await;
}

#[rstest]
#[case::on(Webhooks::On)]
#[case::off(Webhooks::Off)]
#[tokio::test]
async fn labels_of_an_unsettled_node_are_merged_into_its_record(#[case] webhooks: Webhooks) {
    let cluster = TestCluster::new().await;
    let mut operator = cluster.start(webhooks).await;
    cluster.node("n1").label("team", "ml").create().await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;

    operator.pause();
    cluster.delete_node("n1").await;
    cluster.node("n1").label("rack", "r7").create().await;
    cluster.delete_node("n1").await;
    cluster.node("n1").create().await;
    operator.resume();

    cluster.wait_for_labels("n1", [("team", "ml"), ("rack", "r7")]).await;
}

#[rstest]
#[case::on(Webhooks::On)]
#[case::off(Webhooks::Off)]
#[tokio::test]
async fn a_crash_between_delete_and_create_loses_nothing(#[case] webhooks: Webhooks) {
    let cluster = TestCluster::new().await;
    let short = |builder: OperatorBuilder| builder.set("controller.leaderElection.leaseDuration", "2s");
    let operator = cluster.start_with(webhooks, short).await;
    for node in ["early", "late"] {
        cluster.node(node).label("team", "ml").create().await;
        cluster.wait_for_record(node, [("team", "ml")]).await;
    }
    cluster.label("late", "team", "web").await;
    cluster.delete_node("late").await;
    if webhooks == Webhooks::Off {
        // The watch must deliver the change first.
        cluster.wait_for_record("late", [("team", "web")]).await;
    }
    operator.crash();
    cluster.delete_node("early").await;
    cluster.node("late").create().await;

    let _operator = cluster.start_with(webhooks, short).await;
    cluster.node("early").create().await;

    cluster.wait_for_labels("late", [("team", "web")]).await;
    cluster.wait_for_labels("early", [("team", "ml")]).await;
}

#[rstest]
#[case::on(Webhooks::On)]
#[case::off(Webhooks::Off)]
#[tokio::test]
async fn changes_made_while_the_operator_was_down_are_captured_and_restored(#[case] webhooks: Webhooks) {
    let cluster = TestCluster::new().await;
    let operator = cluster.start(webhooks).await;
    for node in ["changed", "returned", "returns", "replaced"] {
        cluster.node(node).label("team", "ml").create().await;
        cluster.wait_for_record(node, [("team", "ml")]).await;
    }
    operator.stop().await.expect("it stops within five seconds");

    cluster.label("changed", "team", "web").await;
    cluster.delete_node("returned").await;
    cluster.node("returned").create().await;
    cluster.delete_node("returns").await;
    cluster.delete_node("replaced").await;
    cluster.node("replaced").label("team", "data").create().await;
    cluster.node("new").label("team", "ops").create().await;
    let _operator = cluster.start(webhooks).await;

    cluster.wait_for_labels("returned", [("team", "ml")]).await;
    cluster.wait_for_record("changed", [("team", "web")]).await;
    cluster.wait_for_record("replaced", [("team", "data")]).await;
    cluster.wait_for_record("new", [("team", "ops")]).await;
    cluster.node("returns").create().await;
    cluster.wait_for_labels("returns", [("team", "ml")]).await;
    cluster.wait_for_labels("replaced", [("team", "data")]).await;
    cluster.wait_for_labels("changed", [("team", "web")]).await;
}

#[rstest]
#[case::on(Webhooks::On)]
#[case::off(Webhooks::Off)]
#[tokio::test]
async fn all_nodes_deleted_in_one_request_come_back(#[case] webhooks: Webhooks) {
    let cluster = TestCluster::new().await;
    // With webhooks on, the operator does not watch: records come from admission alone.
    let alone = |builder: OperatorBuilder| match webhooks {
        Webhooks::On => builder.set("controller.roles", "webhooks").set("webhook.timeout", "20s"),
        Webhooks::Off => builder,
    };
    let operator = cluster.start_with(webhooks, alone).await;
    for number in 0..50 {
        cluster.node(&name(number)).labels(before(number)).create().await;
    }
    for number in 0..50 {
        cluster.label(&name(number), "change", &format!("after-{number}")).await;
    }

    cluster.delete_all_nodes().await;
    if webhooks == Webhooks::On {
        assert_eq!(lost(&cluster, 50).await, Vec::<usize>::new(), "captured before the deletes were answered");
    }
    operator.wait_for_metric("perennial_records", &[("state", "absent")], 50.0).await;
    return_bare(&cluster, 50).await;

    wait_until_all_are_back(&cluster, 50).await;
}

/// A backup of the namespace contains records with resource versions of another cluster.
#[rstest]
#[case::on(Webhooks::On)]
#[case::off(Webhooks::Off)]
#[tokio::test]
async fn records_from_another_cluster_are_restored_and_updated(#[case] webhooks: Webhooks) {
    let cluster = TestCluster::new().await;
    let operator = cluster.start(webhooks).await;
    cluster.node("n1").labels([("team", "ml"), ("tier", "gold")]).create().await;
    cluster.wait_for_record("n1", [("team", "ml"), ("tier", "gold")]).await;
    cluster.delete_node("n1").await;
    operator.stop().await.expect("it stops within five seconds");
    let text = cluster.record_bytes("n1", "record.json").await.unwrap();
    let mut record = Record::decode(&text).unwrap();
    record.node.resource_version = 400_000_000;
    cluster.corrupt_record("n1", json!({"record.json": record.encode().unwrap()})).await;

    let _operator = cluster.start(webhooks).await;
    cluster.node("n1").create().await;
    cluster.wait_for_labels("n1", [("team", "ml"), ("tier", "gold")]).await;
    cluster.label("n1", "team", "db").await;
    cluster.wait_for_record("n1", [("team", "db"), ("tier", "gold")]).await;
    cluster.delete_node("n1").await;
    cluster.node("n1").create().await;

    cluster.wait_for_labels("n1", [("team", "db"), ("tier", "gold")]).await;
}

/// The watch does not deliver a record without its label.
#[tokio::test]
async fn a_record_that_lost_its_label_is_found_and_repaired() {
    let cluster = TestCluster::new().await;
    let _operator = cluster.start(Webhooks::Off).await;
    cluster.node("n1").label("team", "ml").create().await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;

    cluster.kubectl(&format!("label configmap {} -n {} perennial.dev/record-", record_name("n1"), cluster.namespace()));

    eventually("it has its label again", async || {
        let count = cluster.record_count().await;
        if count == 1 { Ok(()) } else { Err(count) }
    })
    .await;
    cluster.label("n1", "team", "web").await;
    cluster.wait_for_record("n1", [("team", "web")]).await;
}

/// The same for the record of a node that is absent, which returns bare.
#[tokio::test]
async fn a_record_that_lost_its_label_while_its_node_was_absent_is_found() {
    let cluster = TestCluster::new().await;
    let operator = cluster.start(Webhooks::Off).await;
    cluster.node("n1").label("team", "ml").create().await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;
    cluster.delete_node("n1").await;
    operator.wait_for_metric("perennial_records", &[("state", "absent")], 1.0).await;
    cluster.kubectl(&format!("label configmap {} -n {} perennial.dev/record-", record_name("n1"), cluster.namespace()));
    operator.wait_for_metric("perennial_records", &[("state", "absent")], 0.0).await;

    cluster.node("n1").create().await;

    cluster.wait_for_labels("n1", [("team", "ml")]).await;
    assert_eq!(cluster.record_count().await, 1, "it has its label again");
}
