//! Outages of the API server and etcd.

use localplane::Component::{ApiServer, Etcd};
use perennial_harness::{Labels, TestCluster, eventually, labels, ten_labels};
use rstest::rstest;

#[tokio::test]
async fn an_api_server_that_restarts_in_the_middle_of_a_mass_return_costs_nothing() {
    let cluster = TestCluster::new().await;
    let mut operator = cluster.operator().start().await;
    cluster.create_many(300, ten_labels).await;
    cluster.wait_for_records(300).await;
    operator.wait_for_metric("perennial_nodes_current_ratio", &[], 1.0).await;
    cluster.delete_all_nodes().await;
    cluster.create_many(300, |_| Labels::new()).await;

    cluster.plane().restart(ApiServer(0)).unwrap();

    cluster.wait_for_complete_nodes(300).await;
    assert!(operator.is_running());
    assert_eq!(operator.get("/livez").0, 200);
}

#[tokio::test]
async fn changes_during_an_outage_are_observed_afterwards() {
    let cluster = TestCluster::new().await;
    let mut operator = cluster.operator().start().await;
    cluster.node("n1").label("team", "ml").create().await;
    cluster.node("n2").label("team", "web").create().await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;
    cluster.wait_for_record("n2", [("team", "web")]).await;

    // The watch is cut, and the operator reconnects only after all of these changes.
    operator.pause();
    cluster.plane().restart(ApiServer(0)).unwrap();
    cluster.delete_node("n1").await;
    cluster.node("n1").create().await;
    cluster.label("n2", "team", "data").await;
    operator.resume();

    cluster.wait_for_labels("n1", [("team", "ml")]).await;
    cluster.wait_for_record("n2", [("team", "data")]).await;
    assert_eq!(cluster.labels("n2").await, labels([("team", "data")]));
}

#[tokio::test]
async fn a_frozen_etcd_delays_and_loses_nothing() {
    let cluster = TestCluster::new().await;
    let mut operator = cluster.operator().start().await;
    for node in ["changed", "returned"] {
        cluster.node(node).label("team", "ml").create().await;
        cluster.wait_for_record(node, [("team", "ml")]).await;
    }
    // The operator learns of these changes only while etcd is frozen.
    operator.pause();
    cluster.label("changed", "team", "web").await;
    cluster.delete_node("returned").await;
    cluster.node("returned").create().await;

    cluster.plane().pause(Etcd).unwrap();
    operator.resume();
    // Longer than its requests and its Lease last.
    eventually("the operator gives up its Lease", async || {
        let leads = operator.metrics().sum("leader_election_master_status", &[]);
        if leads < 0.5 { Ok(()) } else { Err(leads) }
    })
    .await;
    assert_eq!(operator.get("/livez").0, 200);
    cluster.plane().resume(Etcd).unwrap();

    cluster.wait_for_record("changed", [("team", "web")]).await;
    cluster.wait_for_labels("returned", [("team", "ml")]).await;
    cluster.wait_for_labels("changed", [("team", "web")]).await;
}

#[rstest]
#[case::down(false)]
#[case::hanging(true)]
#[tokio::test]
async fn an_operator_that_starts_before_the_api_server_answers_is_alive_and_waits(#[case] hangs: bool) {
    let cluster = TestCluster::new().await;
    let plane = cluster.plane();
    if hangs { plane.pause(ApiServer(0)) } else { plane.kill(ApiServer(0)) }.unwrap();
    let operator = cluster.operator().start_unready().await;
    assert_eq!(operator.get("/readyz").0, 503);
    assert_eq!(operator.get("/livez").0, 200);

    if hangs { plane.resume(ApiServer(0)) } else { plane.restart(ApiServer(0)) }.unwrap();

    operator.wait_until_ready().await;
    cluster.node("n1").label("team", "ml").create().await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;
}
