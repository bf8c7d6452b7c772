//! Nodes that come and go faster than anyone can follow.

use perennial_harness::TestCluster;

#[tokio::test]
async fn a_flapping_node_keeps_its_record() {
    let cluster = TestCluster::new().await;
    let _operator = cluster.operator().start().await;
    cluster.node("n1").label("team", "ml").label("tier", "gold").create().await;
    cluster.wait_for_record("n1", [("team", "ml"), ("tier", "gold")]).await;

    for _ in 0..10 {
        cluster.delete_node("n1").await;
        cluster.node("n1").create().await;
    }

    cluster.wait_for_labels("n1", [("team", "ml"), ("tier", "gold")]).await;
    cluster.wait_for_record("n1", [("team", "ml"), ("tier", "gold")]).await;
}

#[tokio::test]
async fn a_node_that_flaps_before_it_can_be_restored_keeps_its_record() {
    let cluster = TestCluster::new().await;
    let mut operator = cluster.operator().start().await;
    cluster.node("n1").label("team", "ml").create().await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;

    // All of this reaches the operator as one burst of late news.
    operator.pause();
    for _ in 0..10 {
        cluster.delete_node("n1").await;
        cluster.node("n1").create().await;
    }
    operator.resume();

    cluster.wait_for_labels("n1", [("team", "ml")]).await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;
}

#[tokio::test]
async fn what_a_flapping_node_brings_itself_is_kept_as_well() {
    let cluster = TestCluster::new().await;
    let mut operator = cluster.operator().start().await;
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

#[tokio::test]
async fn two_nodes_do_not_get_each_others_labels() {
    let cluster = TestCluster::new().await;
    let _operator = cluster.operator().start().await;
    for (name, team) in [("n1", "ml"), ("n1.example", "web"), ("n11", "data")] {
        cluster.node(name).label("team", team).create().await;
        cluster.wait_for_record(name, [("team", team)]).await;
    }

    cluster.delete_all_nodes().await;
    for name in ["n11", "n1", "n1.example"] {
        cluster.node(name).create().await;
    }

    for (name, team) in [("n1", "ml"), ("n1.example", "web"), ("n11", "data")] {
        cluster.wait_for_labels(name, [("team", team)]).await;
    }
}
