//! All nodes are deleted and created again at once.

use perennial_harness::{Labels, TestCluster, node_count, ten_labels};

#[tokio::test]
async fn all_nodes_deleted_and_recreated_at_once_come_back_complete() {
    let cluster = TestCluster::new().await;
    let operator = cluster.operator().start().await;
    let count = node_count();
    cluster.create_many(count, ten_labels).await;
    cluster.wait_for_records(count).await;
    operator.wait_for_metric("perennial_nodes_current_ratio", &[], 1.0).await;

    cluster.delete_all_nodes().await;
    cluster.create_many(count, |_| Labels::new()).await;

    cluster.wait_for_complete_nodes(count).await;
    let memory = operator.rss() / 1_000_000;
    assert!(memory < 150, "{memory} MB for {count} nodes");
}
