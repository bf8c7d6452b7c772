//! G5: invalid records are quarantined, neither applied nor destroyed. All kinds of corruption,
//! without webhooks, are in `cluster::bad_records`; these tests cover admission.

use perennial_harness::{OperatorBuilder, TestCluster, Webhooks, labels, record_name};
use rstest::rstest;
use serde_json::json;

#[rstest]
#[case::on(Webhooks::On)]
#[case::off(Webhooks::Off)]
#[tokio::test]
async fn a_corrupted_record_restores_nothing_and_is_kept(#[case] webhooks: Webhooks) {
    let cluster = TestCluster::new().await;
    let operator = cluster.start(webhooks).await;
    cluster.node("n1").label("team", "ml").create().await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;
    // Never a record, and the name of one.
    cluster.corrupt_record("n2", json!({"record.json": "rubbish"})).await;
    cluster.node("n2").label("team", "web").create().await;
    cluster.wait_for_record_under("recovered.json", "n2", [("team", "web")]).await;
    cluster.delete_node("n2").await;
    cluster.node("n2").create().await;
    cluster.wait_for_labels("n2", [("team", "web")]).await;
    assert_eq!(cluster.record_bytes("n2", "record.json").await.as_deref(), Some("rubbish"));
    cluster.delete_node("n1").await;
    operator.wait_for_metric("perennial_records", &[("state", "absent")], 1.0).await;
    let mut bad = cluster.record("n1").await.unwrap();
    bad["labels"]["team"] = json!("evil");
    cluster.corrupt_record("n1", json!({"record.json": bad.to_string()})).await;
    operator.wait_for_metric("perennial_records_invalid", &[], 2.0).await;

    let node = cluster.node("n1").label("own", "1").create().await;
    assert_eq!(node.metadata.labels.unwrap_or_default(), labels([("own", "1")]));
    let message = cluster.wait_for_event("n1", "RecordInvalid").await;
    assert!(message.contains(&record_name("n1")), "{message}");
    // Deleted and created again: the state since then is restored from beside the corrupted bytes,
    // which stay.
    cluster.wait_for_record_under("recovered.json", "n1", [("own", "1")]).await;
    cluster.label("n1", "own", "2").await;
    cluster.delete_node("n1").await;
    cluster.wait_for_record_under("recovered.json", "n1", [("own", "2")]).await;
    cluster.node("n1").create().await;

    cluster.wait_for_labels("n1", [("own", "2")]).await;
    assert_eq!(cluster.record_bytes("n1", "record.json").await, Some(bad.to_string()));
    assert_eq!(cluster.perennial_json("show n1 -o json")["record"]["state"], "Invalid");
}

/// After a restart the operator has only the record; otherwise it has also observed the node.
#[rstest]
#[case::on(Webhooks::On, false)]
#[case::off(Webhooks::Off, false)]
#[case::restarted(Webhooks::Off, true)]
#[tokio::test]
async fn the_newest_good_history_entry_replaces_a_bad_record(#[case] webhooks: Webhooks, #[case] restarts: bool) {
    let cluster = TestCluster::new().await;
    let mut operator = cluster.start(webhooks).await;
    cluster.node("n1").label("team", "first").create().await;
    cluster.wait_for_record("n1", [("team", "first")]).await;
    cluster.label("n1", "team", "second").await;
    cluster.wait_for_record("n1", [("team", "second")]).await;
    cluster.label("n1", "team", "third").await;
    cluster.wait_for_record("n1", [("team", "third")]).await;
    if restarts {
        operator.crash();
        cluster.delete_node("n1").await;
        operator = cluster.start_with(webhooks, OperatorBuilder::without_leader_election).await;
    } else {
        cluster.delete_node("n1").await;
    }
    operator.wait_for_metric("perennial_records", &[("state", "absent")], 1.0).await;
    let mut bad = cluster.record("n1").await.unwrap();
    bad["labels"]["team"] = json!("evil");
    cluster.corrupt_record("n1", json!({"record.json": bad.to_string()})).await;
    operator.wait_for_metric("perennial_records_invalid", &[], 1.0).await;

    cluster.node("n1").create().await;

    cluster.wait_for_labels("n1", [("team", "second")]).await;
    assert_eq!(cluster.record_bytes("n1", "record.json").await, Some(bad.to_string()));
}
