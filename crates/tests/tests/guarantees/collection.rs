//! Garbage collection of old records: after their retention, and never during a mass absence.

use perennial_harness::{OperatorBuilder, TestCluster, Webhooks, eventually, record_name};
use rstest::rstest;

fn often(builder: OperatorBuilder) -> OperatorBuilder {
    builder.set("controller.auditPeriod", "5s").set("keeper.retention", "10m")
}

async fn with_records(cluster: &TestCluster, names: &[&str]) {
    for name in names {
        cluster.node(name).label("team", name).create().await;
    }
    for name in names {
        cluster.wait_for_record(name, [("team", *name)]).await;
    }
}

fn minutes_ago(minutes: i64) -> String {
    use jiff::ToSpan;
    (jiff::Timestamp::now() - minutes.minutes()).to_string()
}

/// Sets the time since which the record's node is absent.
fn away_since(cluster: &TestCluster, node: &str, minutes: i64) {
    let (name, since) = (record_name(node), minutes_ago(minutes));
    let absence = format!("perennial.dev/absent-since={since}");
    cluster.kubectl(&format!("annotate configmap {name} -n {} --overwrite {absence}", cluster.namespace()));
}

async fn wait_until_collected(cluster: &TestCluster, node: &str) {
    eventually(format!("the record of {node} is collected"), async || match cluster.config_map(node).await {
        None => Ok(()),
        Some(_) => Err("it is there"),
    })
    .await;
}

async fn wait_for_note(cluster: &TestCluster, node: &str, noted: bool) {
    eventually(format!("the absence of {node} is noted: {noted}"), async || {
        let object = cluster.config_map(node).await.ok_or("no record")?;
        let seen = object.metadata.annotations.unwrap_or_default().contains_key("perennial.dev/absent-since");
        if seen == noted { Ok(()) } else { Err("it is not so") }
    })
    .await;
}

#[rstest]
#[case::on(Webhooks::On)]
#[case::off(Webhooks::Off)]
#[tokio::test]
async fn a_node_that_returns_between_two_audits_is_not_absent(#[case] webhooks: Webhooks) {
    let cluster = TestCluster::new().await;
    // The next audit is an hour away.
    let _operator = cluster.start(webhooks).await;
    with_records(&cluster, &["back"]).await;
    cluster.delete_node("back").await;
    away_since(&cluster, "back", 11);
    cluster.node("back").create().await;

    wait_for_note(&cluster, "back", false).await;
    cluster.wait_for_labels("back", [("team", "back")]).await;
}

#[tokio::test]
async fn a_record_is_collected_past_its_retention_unless_it_is_held() {
    let cluster = TestCluster::new().await;
    let operator = cluster.start_with(Webhooks::Off, often).await;
    with_records(&cluster, &["a", "b", "c", "d", "e", "away", "held", "fresh", "back"]).await;
    for node in ["away", "held", "fresh", "back"] {
        cluster.delete_node(node).await;
        wait_for_note(&cluster, node, true).await;
    }
    cluster.perennial("hold held").expect_success();
    away_since(&cluster, "away", 11);
    away_since(&cluster, "held", 11);
    away_since(&cluster, "back", 11);
    // Created before the next audit: the node is looked up again before its record is deleted.
    cluster.node("back").create().await;

    wait_until_collected(&cluster, "away").await;
    wait_for_note(&cluster, "back", false).await;
    for node in ["held", "fresh", "back", "a"] {
        assert!(cluster.config_map(node).await.is_some(), "{node}");
    }
    operator.wait_for_metric("perennial_records_collected_total", &[], 1.0).await;
    cluster.wait_for_labels("back", [("team", "back")]).await;

    // A hold can be released.
    cluster.perennial("hold held --release").expect_success();
    wait_until_collected(&cluster, "held").await;
}

#[tokio::test]
async fn a_mass_absence_stops_collection_until_it_is_confirmed_or_expires() {
    let cluster = TestCluster::new().await;
    let operator = cluster.start_with(Webhooks::Off, often).await;
    with_records(&cluster, &["stays", "gone", "confirmed", "long"]).await;
    for node in ["gone", "confirmed", "long"] {
        cluster.delete_node(node).await;
    }
    operator.wait_for_metric("perennial_mass_absence", &[], 1.0).await;
    for node in ["gone", "confirmed", "long"] {
        wait_for_note(&cluster, node, true).await;
    }

    away_since(&cluster, "gone", 11);
    away_since(&cluster, "confirmed", 11);
    let confirmed = record_name("confirmed");
    cluster.kubectl(&format!(
        "annotate configmap {confirmed} -n {} perennial.dev/absence-confirmed=true",
        cluster.namespace()
    ));
    away_since(&cluster, "long", 21);

    wait_until_collected(&cluster, "confirmed").await;
    wait_until_collected(&cluster, "long").await;
    assert!(cluster.config_map("gone").await.is_some(), "in a mass absence nothing is collected by its age alone");
}

#[tokio::test]
async fn an_empty_list_of_nodes_is_a_mass_absence() {
    let cluster = TestCluster::new().await;
    let operator = cluster.start_with(Webhooks::Off, often).await;
    with_records(&cluster, &["a", "b"]).await;
    cluster.delete_all_nodes().await;

    operator.wait_for_metric("perennial_mass_absence", &[], 1.0).await;
    wait_for_note(&cluster, "a", true).await;
    away_since(&cluster, "a", 11);
    cluster.node("new").label("team", "new").create().await;

    // One node shows that the list is not empty by mistake, and this few absent records are no mass
    // absence.
    operator.wait_for_metric("perennial_mass_absence", &[], 0.0).await;
    wait_until_collected(&cluster, "a").await;
    assert!(cluster.config_map("b").await.is_some());
}
