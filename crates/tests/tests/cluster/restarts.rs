//! Operators that are away, stop, or crash.

use std::time::Duration;

use perennial_harness::{Labels, TestCluster, eventually_within, node_count, ten_labels};

#[tokio::test]
async fn what_happened_while_the_operator_was_down_is_made_good() {
    let cluster = TestCluster::new().await;
    let operator = cluster.operator().start().await;
    for name in ["changed", "returned", "left", "replaced"] {
        cluster.node(name).label("team", "ml").create().await;
        cluster.wait_for_record(name, [("team", "ml")]).await;
    }
    operator.stop().await.expect("it stops in time");

    cluster.label("changed", "team", "web").await;
    cluster.delete_node("returned").await;
    cluster.node("returned").create().await;
    cluster.delete_node("left").await;
    cluster.delete_node("replaced").await;
    cluster.node("replaced").label("team", "data").create().await;
    cluster.node("new").label("team", "ops").create().await;
    let _operator = cluster.operator().start().await;

    cluster.wait_for_labels("returned", [("team", "ml")]).await;
    cluster.wait_for_record("changed", [("team", "web")]).await;
    cluster.wait_for_record("replaced", [("team", "data")]).await;
    cluster.wait_for_record("new", [("team", "ops")]).await;
    cluster.node("left").create().await;
    cluster.wait_for_labels("left", [("team", "ml")]).await;
    cluster.wait_for_labels("replaced", [("team", "data")]).await;
    cluster.wait_for_labels("changed", [("team", "web")]).await;
}

#[tokio::test]
async fn a_stop_is_graceful_and_quick() {
    let cluster = TestCluster::new().await;
    let operator = cluster.operator().start().await;
    cluster.create_many(200, ten_labels).await;

    let status = operator.stop().await.expect("it stops within five seconds");

    assert!(status.success(), "{status}");
}

#[tokio::test]
async fn a_crash_at_any_point_of_a_mass_capture_loses_nothing() {
    let cluster = TestCluster::new().await;
    let count = node_count() / 2;
    cluster.create_many(count, ten_labels).await;

    for share in [0, 1, 30, 60, 90] {
        let operator = cluster.operator().alone().start_unready().await;
        cluster.wait_for_records(count * share / 100).await;
        operator.crash();
    }
    let operator = cluster.operator().alone().start().await;
    cluster.wait_for_records(count).await;
    // The last one written is the last word: nothing else waits.
    operator.wait_for_metric("perennial_nodes_current_ratio", &[], 1.0).await;
    cluster.delete_all_nodes().await;
    cluster.create_many(count, |_| Labels::new()).await;

    cluster.wait_for_complete_nodes(count).await;
}

#[tokio::test]
async fn a_crash_at_any_point_of_a_mass_return_loses_nothing() {
    let cluster = TestCluster::new().await;
    let count = node_count();
    cluster.create_many(count, ten_labels).await;
    let operator = cluster.operator().alone().start().await;
    cluster.wait_for_records(count).await;

    // While they leave and return: news of both are lost with each crash.
    let mut running = Some(operator);
    for share in [0, 1, 20, 50, 80, 99] {
        if share < 2 {
            cluster.delete_all_nodes().await;
            cluster.create_many(count, |_| Labels::new()).await;
        }
        let operator = match running.take() {
            Some(operator) => operator,
            None => cluster.operator().alone().start_unready().await,
        };
        eventually_within(Duration::from_mins(2), format!("{share} % are complete"), async || {
            let (complete, _) = cluster.complete_nodes().await;
            if complete >= count * share / 100 { Ok(()) } else { Err(complete) }
        })
        .await;
        operator.crash();
    }
    let _operator = cluster.operator().alone().start().await;

    cluster.wait_for_complete_nodes(count).await;
}

#[tokio::test]
async fn an_operator_that_was_paused_does_not_undo_what_people_did_meanwhile() {
    let cluster = TestCluster::new().await;
    let mut operator = cluster.operator().start().await;
    cluster.node("n1").label("team", "ml").label("tier", "gold").create().await;
    cluster.wait_for_record("n1", [("team", "ml"), ("tier", "gold")]).await;

    operator.pause();
    cluster.delete_node("n1").await;
    cluster.node("n1").create().await;
    cluster.label("n1", "team", "web").await;
    operator.resume();

    cluster.wait_for_labels("n1", [("team", "web"), ("tier", "gold")]).await;
    cluster.wait_for_record("n1", [("team", "web"), ("tier", "gold")]).await;
}
