//! Operators that stop or crash.

use std::time::Duration;

use perennial_harness::{Labels, TestCluster, eventually_within, node_count, ten_labels};

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
        let operator = cluster.operator().without_leader_election().start_unready().await;
        cluster.wait_for_records(count * share / 100).await;
        operator.crash();
    }
    let operator = cluster.operator().without_leader_election().start().await;
    cluster.wait_for_records(count).await;
    // The last record is written: nothing is pending.
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
    let operator = cluster.operator().without_leader_election().start().await;
    cluster.wait_for_records(count).await;

    // Each crash loses the watch events of deletes and creates.
    let mut running = Some(operator);
    for share in [0, 1, 20, 50, 80, 99] {
        if share < 2 {
            cluster.delete_all_nodes().await;
            cluster.create_many(count, |_| Labels::new()).await;
        }
        let operator = match running.take() {
            Some(operator) => operator,
            None => cluster.operator().without_leader_election().start_unready().await,
        };
        eventually_within(Duration::from_mins(2), format!("{share} % are complete"), async || {
            let (complete, _) = cluster.complete_nodes().await;
            if complete >= count * share / 100 { Ok(()) } else { Err(complete) }
        })
        .await;
        operator.crash();
    }
    let _operator = cluster.operator().without_leader_election().start().await;

    cluster.wait_for_complete_nodes(count).await;
}
