//! G5: an invalid record is neither applied nor destroyed, and it is reported.

use perennial_harness::{TestCluster, labels, record_name};
use rstest::rstest;
use serde_json::{Value, json};

const RECORD: &str = "record.json";
const RECOVERED: &str = "recovered.json";

/// Kinds of corruption of a record.
#[derive(Clone, Copy, Debug)]
enum Fault {
    NotJson,
    NotARecord,
    WithoutVersion,
    WrongChecksum,
    Swapped,
    NearTheLimit,
    MissingKey,
}

impl Fault {
    /// Returns the data that replaces the valid record.
    async fn data(self, cluster: &TestCluster, node: &str) -> Value {
        let good = cluster.record(node).await.unwrap();
        let with = |key: &str, value: Value| {
            let mut bad = good.clone();
            bad[key] = value;
            bad.to_string()
        };
        let text = match self {
            Self::NotJson => "{\"version\":1,".to_owned(),
            Self::NotARecord => json!({"version": 1, "labels": ["team", "evil"]}).to_string(),
            Self::WithoutVersion => with("version", Value::Null),
            Self::WrongChecksum => with("labels", json!({"team": "evil"})),
            Self::Swapped => cluster.record("other").await.unwrap().to_string(),
            Self::NearTheLimit => "x".repeat(1024 * 1024 - 100),
            Self::MissingKey => return json!({RECORD: null, "something.else": "1"}),
        };
        json!({ RECORD: text })
    }
}

#[rstest]
#[case::not_json(Fault::NotJson)]
#[case::not_a_record(Fault::NotARecord)]
#[case::without_version(Fault::WithoutVersion)]
#[case::wrong_checksum(Fault::WrongChecksum)]
#[case::of_another_node(Fault::Swapped)]
#[case::near_the_limit(Fault::NearTheLimit)]
#[case::missing(Fault::MissingKey)]
#[tokio::test]
async fn a_bad_record_restores_nothing_and_is_kept(#[case] fault: Fault) {
    let cluster = TestCluster::new().await;
    let operator = cluster.operator().start().await;
    for (node, team) in [("n1", "ml"), ("other", "web")] {
        cluster.node(node).label("team", team).create().await;
        cluster.wait_for_record(node, [("team", team)]).await;
    }
    // No operator observed the delete: only the record is left.
    operator.crash();
    cluster.delete_all_nodes().await;
    let spoilt = fault.data(&cluster, "n1").await;
    cluster.corrupt_record("n1", spoilt.clone()).await;
    let operator = cluster.operator().without_leader_election().start().await;
    operator.wait_for_metric("perennial_records_invalid", &[], 1.0).await;

    cluster.node("n1").label("own", "1").create().await;
    cluster.node("other").create().await;

    let message = cluster.wait_for_event("n1", "RecordInvalid").await;
    assert!(message.contains(&record_name("n1")), "{message}");
    // Other nodes are unaffected.
    cluster.wait_for_labels("other", [("team", "web")]).await;
    // Nothing is restored, even after the next change is processed.
    cluster.label("n1", "fence", "1").await;
    if matches!(fault, Fault::NearTheLimit) {
        // The ConfigMap has no room left: the API server refuses the write, and an Event reports
        // it.
        let message = cluster.wait_for_event("n1", "PerennialRefused").await;
        assert!(message.contains(&record_name("n1")), "{message}");
    } else {
        cluster.wait_for_record_under(RECOVERED, "n1", [("own", "1"), ("fence", "1")]).await;
    }
    assert_eq!(cluster.labels("n1").await, labels([("own", "1"), ("fence", "1")]));
    // Its bytes are kept.
    let bytes = cluster.record_bytes("n1", RECORD).await;
    assert_eq!(bytes.as_deref(), spoilt[RECORD].as_str());
    // The command line reports it.
    let table = cluster.perennial("records").expect_success();
    let row = table.lines().find(|line| line.starts_with("n1 ")).unwrap_or_default();
    assert!(row.contains("Invalid"), "{table}");
    let json = cluster.perennial_json("show n1 -o json");
    assert_eq!(json["record"]["state"], "Invalid");
}

#[tokio::test]
async fn a_record_of_a_newer_operator_is_left_alone() {
    let cluster = TestCluster::new().await;
    let operator = cluster.operator().start().await;
    let newer = json!({"version": 2, "labels": {"team": "ml"}}).to_string();
    cluster.corrupt_record("n1", json!({RECORD: newer})).await;
    operator.wait_for_metric("perennial_records_invalid", &[], 1.0).await;
    let before = cluster.config_map("n1").await.unwrap().metadata.resource_version;

    cluster.node("n1").label("own", "1").create().await;
    cluster.wait_for_event("n1", "RecordInvalid").await;
    cluster.node("fence").label("team", "web").create().await;
    cluster.wait_for_record("fence", [("team", "web")]).await;

    assert_eq!(cluster.config_map("n1").await.unwrap().metadata.resource_version, before);
    assert_eq!(cluster.labels("n1").await, labels([("own", "1")]));
    assert_eq!(cluster.perennial_json("show n1 -o json")["record"]["state"], "Newer");
}

#[tokio::test]
async fn a_repaired_record_is_restored_again() {
    let cluster = TestCluster::new().await;
    let operator = cluster.operator().start().await;
    cluster.node("n1").label("team", "ml").create().await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;
    operator.crash();
    cluster.delete_node("n1").await;
    let good = cluster.record_bytes("n1", RECORD).await.unwrap();
    cluster.corrupt_record("n1", json!({RECORD: "rubbish"})).await;
    let operator = cluster.operator().without_leader_election().start().await;
    cluster.node("n1").create().await;
    cluster.wait_for_event("n1", "RecordInvalid").await;

    cluster.corrupt_record("n1", json!({RECORD: good})).await;

    cluster.wait_for_labels("n1", [("team", "ml")]).await;
    operator.wait_for_metric("perennial_records_invalid", &[], 0.0).await;
}

#[tokio::test]
async fn a_node_with_more_labels_than_a_record_holds_does_not_stop_the_others() {
    let cluster = TestCluster::new().await;
    let operator = cluster.operator().start().await;
    let value = "v".repeat(63);
    cluster.node("huge").labels((0..12_600).map(|i| (format!("k{i}"), value.clone()))).create().await;

    let message = cluster.wait_for_event("huge", "PerennialRefused").await;
    cluster.node("n1").label("team", "ml").create().await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;
    cluster.delete_node("n1").await;
    cluster.node("n1").create().await;

    cluster.wait_for_labels("n1", [("team", "ml")]).await;
    assert!(message.contains("bytes"), "{message}");
    assert_eq!(cluster.record("huge").await, None);
    assert!(operator.metrics().sum("perennial_errors_total", &[("category", "refused")]) >= 1.0);
}
