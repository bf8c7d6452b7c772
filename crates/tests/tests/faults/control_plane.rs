//! Control plane components that crash, hang or lose state, and wrong clocks.

use std::time::Duration;

use localplane::Component::{ApiServer, Etcd};
use perennial_harness::{LoadBalancer, OperatorBuilder, Webhooks, eventually, eventually_within, labels};
use rstest::rstest;

#[rstest]
#[case::off(Webhooks::Off)]
#[case::on(Webhooks::On)]
#[tokio::test]
async fn an_etcd_that_is_killed_costs_nothing(#[case] webhooks: Webhooks) {
    let cluster = crate::shipped().await;
    let operator = cluster.start(webhooks).await;
    for node in ["n1", "n2"] {
        cluster.node(node).label("team", "ml").label("tier", "gold").create().await;
        cluster.wait_for_record(node, [("team", "ml"), ("tier", "gold")]).await;
    }
    cluster.unlabel("n1", "tier").await;
    cluster.delete_node("n2").await;
    cluster.node("n2").create().await;

    cluster.plane().kill(Etcd).unwrap();
    assert_eq!(operator.get("/livez").0, 200);
    cluster.plane().restart(Etcd).unwrap();
    eventually("the API server answers again", async || cluster.nodes().get("n1").await.map(drop)).await;

    cluster.wait_for_record("n1", [("team", "ml")]).await;
    cluster.wait_for_labels("n2", [("team", "ml"), ("tier", "gold")]).await;
    cluster.label("n2", "team", "web").await;
    cluster.wait_for_record("n2", [("team", "web"), ("tier", "gold")]).await;
    cluster.wait_for_labels("n1", [("team", "ml")]).await;
}

/// The pause exceeds every request timeout: the operator has given up, and etcd commits the writes
/// later.
#[tokio::test]
async fn an_etcd_that_hangs_for_longer_than_requests_wait_costs_nothing() {
    let cluster = crate::shipped().await;
    let mut operator = cluster.operator().without_leader_election().start().await;
    for node in ["n1", "n2"] {
        cluster.node(node).label("team", "ml").label("tier", "gold").create().await;
        cluster.wait_for_record(node, [("team", "ml"), ("tier", "gold")]).await;
    }
    let failed = |operator: &perennial_harness::Operator| operator.metrics().sum("perennial_errors_total", &[]);
    let before = failed(&operator);
    // Work that is pending during the pause: the operator observes the changes only then.
    operator.pause();
    cluster.label("n1", "team", "web").await;
    cluster.delete_node("n2").await;
    cluster.node("n2").create().await;

    cluster.plane().pause(Etcd).unwrap();
    operator.resume();
    eventually_within(Duration::from_mins(1), "a request is given up", async || {
        let now = failed(&operator);
        if now > before { Ok(()) } else { Err(now) }
    })
    .await;
    assert_eq!(operator.get("/livez").0, 200);
    cluster.plane().resume(Etcd).unwrap();

    cluster.wait_for_record("n1", [("team", "web"), ("tier", "gold")]).await;
    cluster.wait_for_labels("n2", [("team", "ml"), ("tier", "gold")]).await;
    cluster.wait_for_labels("n1", [("team", "web"), ("tier", "gold")]).await;
}

/// The resource version of the watch is compacted, so the operator must list again: deletes in
/// between left no event.
#[tokio::test]
async fn an_operator_lists_again_after_a_compaction() {
    let cluster = crate::shipped().await;
    let mut operator = cluster.operator().without_leader_election().start().await;
    for node in ["changed", "returned", "gone"] {
        cluster.node(node).label("team", "ml").label("tier", "gold").create().await;
        cluster.wait_for_record(node, [("team", "ml"), ("tier", "gold")]).await;
    }

    operator.pause();
    cluster.unlabel("changed", "tier").await;
    cluster.delete_node("returned").await;
    cluster.node("returned").create().await;
    cluster.delete_node("gone").await;
    cluster.plane().compact().unwrap();
    // The watch cache starts with the newest version now.
    cluster.plane().restart(ApiServer(0)).unwrap();
    operator.resume();

    cluster.wait_for_record("changed", [("team", "ml")]).await;
    cluster.wait_for_labels("returned", [("team", "ml"), ("tier", "gold")]).await;
    cluster.node("gone").create().await;
    cluster.wait_for_labels("gone", [("team", "ml"), ("tier", "gold")]).await;
    cluster.wait_for_labels("changed", [("team", "ml")]).await;
}

/// Leases are judged by each replica's own observations, certificates are backdated, and persisted
/// times come from the API server's clock.
#[rstest]
#[case::ahead(3600)]
#[case::behind(-3600)]
#[tokio::test]
async fn a_replica_whose_clock_is_an_hour_off_is_like_the_others(#[case] off: i64) {
    let cluster = crate::shipped().await;
    let balancer = LoadBalancer::of(2).await;
    // The first replica issues the certificates.
    let wrong = balancer.operator(&cluster, 0).clock_off_by(off).start().await;
    cluster.wait_for_admission(&wrong).await;
    let right = balancer.operator(&cluster, 1).start().await;
    cluster.node("n1").label("team", "ml").label("tier", "gold").create().await;
    let record = cluster.wait_for_record("n1", [("team", "ml"), ("tier", "gold")]).await;
    let at: jiff::Timestamp = record["capturedAt"].as_str().unwrap().parse().unwrap();
    assert!((jiff::Timestamp::now().as_second() - at.as_second()).abs() < 600, "by the API server's clock: {at}");

    cluster.delete_node("n1").await;
    let returned = cluster.node("n1").create().await;
    assert_eq!(returned.metadata.labels, Some(labels([("team", "ml"), ("tier", "gold")])), "in the create itself");
    // They take over from each other.
    wrong.crash();
    cluster.unlabel("n1", "tier").await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;
    let again = balancer.operator(&cluster, 0).clock_off_by(off).start().await;
    right.crash();
    cluster.label("n1", "team", "web").await;
    cluster.wait_for_record("n1", [("team", "web")]).await;
    drop(again);
}

/// A tombstone is kept for an hour of the API server's time, whatever the local clock shows.
#[tokio::test]
async fn a_clock_that_is_ahead_collects_nothing_early() {
    let cluster = crate::shipped().await;
    let audits = |builder: OperatorBuilder| {
        builder.without_leader_election().set("controller.auditPeriod", "5s").set("keeper.retention", "1h")
    };
    let is_noted = async |node: &str| {
        eventually(format!("the audit notes that {node} is away"), async || {
            let object = cluster.config_map(node).await.ok_or("its record is gone")?;
            let noted = object.metadata.annotations.unwrap_or_default().contains_key("perennial.dev/absent-since");
            if noted { Ok(()) } else { Err("not yet") }
        })
        .await;
    };
    let first = audits(cluster.operator()).start().await;
    for node in ["away", "empty", "later", "stays"] {
        cluster.node(node).label("team", "ml").create().await;
        cluster.wait_for_record(node, [("team", "ml")]).await;
    }
    cluster.unlabel("empty", "team").await;
    cluster.wait_for_record::<String, String>("empty", []).await;
    cluster.delete_node("away").await;
    is_noted("away").await;
    first.crash();

    let _ahead = audits(cluster.operator()).clock_off_by(2 * 3600).start().await;
    cluster.delete_node("later").await;
    // Records are processed in the order of their names: the others before this one.
    is_noted("later").await;

    assert!(cluster.config_map("empty").await.is_some(), "a tombstone of a moment ago");
    assert!(cluster.config_map("away").await.is_some(), "a record of a moment ago");
}
