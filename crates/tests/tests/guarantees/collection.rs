//! Garbage collection of old records: after their retention, and never during a mass absence.

use jiff::ToSpan as _;
use kube::api::{DeleteParams, ListParams};
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

/// Sets the time since which the record's node is absent.
async fn away_since(cluster: &TestCluster, node: &str, minutes: i64) {
    cluster.set_absent_since(node, jiff::Timestamp::now() - minutes.minutes()).await;
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
    away_since(&cluster, "back", 11).await;
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
    away_since(&cluster, "away", 11).await;
    away_since(&cluster, "held", 11).await;
    away_since(&cluster, "back", 11).await;
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

/// Nothing else has what such a record kept, so it must not vanish in silence.
#[tokio::test]
async fn a_record_of_an_absent_node_that_a_user_deletes_is_reported() {
    let cluster = TestCluster::new().await;
    let operator = cluster.start_with(Webhooks::Off, often).await;
    with_records(&cluster, &["a", "b", "c", "d", "e", "live", "away", "old", "forgotten"]).await;
    for node in ["away", "old", "forgotten"] {
        cluster.delete_node(node).await;
    }
    let delete = |node: &str| {
        cluster.kubectl(&format!("delete configmap {} -n {}", record_name(node), cluster.namespace()));
    };
    let lost = || operator.metrics().sum("perennial_records_lost_total", &[]);

    // None of these is a loss: the record of a live node is written again, a user forgets a node,
    // and Perennial collects a record.
    delete("live");
    cluster.wait_for_record("live", [("team", "live")]).await;
    cluster.perennial("forget forgotten --yes").expect_success();
    wait_for_note(&cluster, "old", true).await;
    away_since(&cluster, "old", 11).await;
    wait_until_collected(&cluster, "old").await;
    operator.wait_for_metric("perennial_records_collected_total", &[], 1.0).await;
    delete("away");

    operator.wait_for_metric("perennial_records_lost_total", &[], 1.0).await;
    let event = cluster.wait_for_event("away", "RecordDeleted").await;
    assert!(event.contains("perennial import"), "{event}");
    let log = operator.log();
    let warned: Vec<_> = log.iter().filter(|line| line.to_string().contains("deleted by another client")).collect();
    assert!(warned.len() == 1 && warned[0].to_string().contains("WARN"), "{warned:?}");
    assert!((lost() - 1.0).abs() < 0.5);
}

/// `kubectl delete configmaps -l …` deletes the records of live and absent nodes in one request.
#[tokio::test]
async fn records_that_a_user_deletes_by_their_label_are_reported() {
    let cluster = TestCluster::new().await;
    let operator = cluster.start(Webhooks::Off).await;
    for name in ["live", "away-1", "away-2"] {
        cluster.node(name).label("team", name).create().await;
        cluster.wait_for_record(name, [("team", name)]).await;
    }
    for name in ["away-1", "away-2"] {
        cluster.delete_node(name).await;
    }

    let all = ListParams::default().labels("perennial.dev/record=v1");
    let _ = cluster.records().delete_collection(&DeleteParams::default(), &all).await.unwrap();

    operator.wait_for_metric("perennial_records_lost_total", &[], 2.0).await;
    for name in ["away-1", "away-2"] {
        cluster.wait_for_event(name, "RecordDeleted").await;
    }
    cluster.wait_for_record("live", [("team", "live")]).await;
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

    away_since(&cluster, "gone", 11).await;
    away_since(&cluster, "confirmed", 11).await;
    let confirmed = record_name("confirmed");
    cluster.kubectl(&format!(
        "annotate configmap {confirmed} -n {} perennial.dev/absence-confirmed=true",
        cluster.namespace()
    ));
    away_since(&cluster, "long", 21).await;

    wait_until_collected(&cluster, "confirmed").await;
    wait_until_collected(&cluster, "long").await;
    assert!(cluster.config_map("gone").await.is_some(), "in a mass absence nothing is collected by its age alone");
}

/// Autoscaled names come and go, and leave more records than there are nodes.
#[tokio::test]
async fn names_that_never_return_do_not_stop_collection() {
    let cluster = TestCluster::new().await;
    let operator = cluster.start_with(Webhooks::Off, often).await;
    let others = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k"];
    with_records(&cluster, &["stays"]).await;
    with_records(&cluster, &others).await;
    let autoscaled: Vec<String> = (0..10).map(|i| format!("auto-{i}")).collect();
    for pair in autoscaled.chunks(2) {
        let pair: Vec<&str> = pair.iter().map(String::as_str).collect();
        with_records(&cluster, &pair).await;
        for node in pair {
            cluster.delete_node(node).await;
        }
    }
    for node in &autoscaled {
        wait_for_note(&cluster, node, true).await;
        away_since(&cluster, node, 11).await;
    }

    for node in &autoscaled {
        wait_until_collected(&cluster, node).await;
    }
    operator.wait_for_metric("perennial_mass_absence", &[], 0.0).await;
    assert!(cluster.config_map("stays").await.is_some());

    // The loss of most nodes that were there is still noticed, and written on their records.
    for node in others {
        cluster.delete_node(node).await;
    }
    operator.wait_for_metric("perennial_mass_absence", &[], 1.0).await;
    wait_for_note(&cluster, "a", true).await;
    let annotations = cluster.config_map("a").await.and_then(|map| map.metadata.annotations).unwrap_or_default();
    assert!(annotations.contains_key("perennial.dev/mass-absence"), "{annotations:?}");

    // It is over once half as many nodes exist as before, under any name.
    away_since(&cluster, "a", 11).await;
    with_records(&cluster, &["u", "v", "w", "x", "y", "z"]).await;
    wait_until_collected(&cluster, "a").await;
    operator.wait_for_metric("perennial_mass_absence", &[], 0.0).await;
}

#[tokio::test]
async fn the_oldest_records_over_the_limit_are_deleted() {
    let cluster = TestCluster::new().await;
    let operator = cluster.start(Webhooks::Off).await;
    with_records(&cluster, &["a", "b", "c", "d", "e", "oldest", "held", "old", "new"]).await;
    for node in ["oldest", "held", "old", "new"] {
        cluster.delete_node(node).await;
    }
    operator.stop().await;
    for (node, minutes) in [("oldest", 50), ("held", 60), ("old", 30), ("new", 10)] {
        away_since(&cluster, node, minutes).await;
    }
    cluster.perennial("hold held").expect_success();

    let limited = |builder: OperatorBuilder| builder.set("controller.auditPeriod", "5s").set("keeper.maxAbsent", "2");
    let operator = cluster.start_with(Webhooks::Off, limited).await;

    wait_until_collected(&cluster, "oldest").await;
    wait_until_collected(&cluster, "old").await;
    operator.wait_for_metric("perennial_records_over_limit_total", &[], 2.0).await;
    for node in ["held", "new", "a", "e"] {
        assert!(cluster.config_map(node).await.is_some(), "{node}");
    }
}

#[tokio::test]
async fn an_empty_list_of_nodes_is_a_mass_absence() {
    let cluster = TestCluster::new().await;
    let operator = cluster.start_with(Webhooks::Off, often).await;
    with_records(&cluster, &["a", "b"]).await;
    cluster.delete_all_nodes().await;

    operator.wait_for_metric("perennial_mass_absence", &[], 1.0).await;
    wait_for_note(&cluster, "a", true).await;
    away_since(&cluster, "a", 11).await;
    cluster.node("new").label("team", "new").create().await;

    // One node shows that the list is not empty by mistake, and this few absent records are no mass
    // absence.
    operator.wait_for_metric("perennial_mass_absence", &[], 0.0).await;
    wait_until_collected(&cluster, "a").await;
    assert!(cluster.config_map("b").await.is_some());
}

/// A wrong clock, or an annotation that was copied with a record, collects nothing.
#[tokio::test]
async fn an_absence_from_before_the_capture_is_not_believed() {
    let cluster = TestCluster::new().await;
    let _operator = cluster.start_with(Webhooks::Off, often).await;
    with_records(&cluster, &["a", "b", "c", "d", "old", "new"]).await;
    cluster.delete_node("old").await;
    cluster.delete_node("new").await;
    away_since(&cluster, "old", 11).await;
    let (record, namespace) = (record_name("new"), cluster.namespace());
    let since = "perennial.dev/absent-since=2020-01-01T00:00:00Z";
    cluster.kubectl(&format!("annotate configmap {record} -n {namespace} --overwrite {since}"));

    wait_until_collected(&cluster, "old").await;
    eventually("the absence is noted again", async || {
        let object = cluster.config_map("new").await.ok_or("it is gone")?;
        let since = object.metadata.annotations.unwrap_or_default().remove("perennial.dev/absent-since");
        if since.as_ref().is_some_and(|since| !since.starts_with("2020")) { Ok(()) } else { Err("it is not") }
    })
    .await;
}

/// One API server of several is a month ahead, or behind. An absence that begins then is noted with
/// the right time, or later: one that is too early would end the retention early.
#[rstest]
#[case::ahead(31)]
#[case::behind(-20)]
#[tokio::test]
async fn an_api_server_whose_clock_is_wrong_collects_nothing(#[case] days: i64) {
    let cluster = TestCluster::new().await;
    let proxy = cluster.fault_proxy().await;
    let operator = cluster.start_with(Webhooks::Off, |builder| often(builder).through(&proxy)).await;
    with_records(&cluster, &["a", "b", "c", "d", "away"]).await;
    cluster.delete_node("away").await;
    wait_for_note(&cluster, "away", true).await;

    let before = jiff::Timestamp::now();
    proxy.shift_dates(jiff::SignedDuration::from_hours(days * 24));
    let is_doubted = |line: &serde_json::Value| line.to_string().contains("clock jump or skew");
    operator.wait_for_log("the time is not trusted", is_doubted).await;
    cluster.delete_node("d").await;
    wait_for_note(&cluster, "d", true).await;
    let annotations = cluster.config_map("d").await.and_then(|map| map.metadata.annotations).unwrap_or_default();
    let since: jiff::Timestamp = annotations["perennial.dev/absent-since"].parse().unwrap();
    assert!(since >= before - 10.seconds(), "noted as absent since {since}, deleted after {before}");
    assert!(cluster.config_map("away").await.is_some(), "it is away for some seconds");

    // Once the clock has been right for an audit period, old records are collected again.
    proxy.shift_dates(jiff::SignedDuration::ZERO);
    away_since(&cluster, "away", 11).await;
    wait_until_collected(&cluster, "away").await;
    assert!(cluster.config_map("d").await.is_some());
}
