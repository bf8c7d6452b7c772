//! G8: Perennial fails open: down, slow or failing, it never blocks a node create or delete.

use std::time::Duration;

use perennial_harness::{Fault, TestCluster, Webhooks, labels};

/// Much longer than the webhook timeout of two seconds, much shorter than a client's timeout.
const SOON: Duration = Duration::from_secs(15);

async fn come_and_go(cluster: &TestCluster, node: &str) {
    let requests = async {
        cluster.node(node).label("own", "1").create().await;
        cluster.label(node, "own", "2").await;
        cluster.delete_node(node).await;
    };
    tokio::time::timeout(SOON, requests).await.expect("requests do not wait for an operator that does not respond");
}

#[tokio::test]
async fn an_operator_that_is_gone_blocks_no_create_and_no_delete() {
    let cluster = TestCluster::new().await;
    let operator = cluster.start(Webhooks::On).await;
    cluster.node("n1").label("team", "ml").create().await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;

    operator.crash();
    cluster.delete_node("n1").await;
    come_and_go(&cluster, "other").await;
    let node = cluster.node("n1").create().await;

    assert_eq!(node.metadata.labels, None, "it came in without us");
    let again = |builder: perennial_harness::OperatorBuilder| builder.set("controller.leaderElection.enabled", "false");
    let _operator = cluster.start_with(Webhooks::On, again).await;
    cluster.wait_for_labels("n1", [("team", "ml")]).await;
}

#[tokio::test]
async fn an_operator_that_does_not_answer_delays_a_node_by_its_timeout_at_most() {
    let cluster = TestCluster::new().await;
    let mut operator = cluster.start(Webhooks::On).await;
    cluster.node("n1").label("team", "ml").create().await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;

    operator.pause();
    come_and_go(&cluster, "other").await;
    tokio::time::timeout(SOON, cluster.delete_node("n1")).await.expect("the delete is not blocked");
    tokio::time::timeout(SOON, cluster.node("n1").create()).await.expect("the create is not blocked");
    operator.resume();

    cluster.wait_for_labels("n1", [("team", "ml")]).await;
}

#[tokio::test]
async fn an_operator_that_may_not_read_its_records_blocks_nothing() {
    let cluster = TestCluster::new().await;
    let proxy = cluster.fault_proxy().await;
    let operator = cluster.start_with(Webhooks::On, |builder| builder.through(&proxy)).await;
    cluster.node("n1").label("team", "ml").create().await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;

    proxy.inject(|asked| (asked.resource == "configmaps").then_some(Fault::Answered(403, None)));
    come_and_go(&cluster, "other").await;
    tokio::time::timeout(SOON, cluster.delete_node("n1")).await.expect("the delete is not blocked");
    tokio::time::timeout(SOON, cluster.node("n1").create()).await.expect("the create is not blocked");

    // Admission was asked and could not read a record.
    assert!(proxy.faults().get("answered 403").copied().unwrap_or_default() >= 2, "{:?}", proxy.faults());
    operator.wait_for_log("admission failed open", |line| line.to_string().contains("webhook failed open")).await;
    assert_eq!(operator.get("/livez").0, 200);
    assert_eq!(cluster.record("other").await, None);
    proxy.clear_faults();
    // An event of the node ends the pause after the refusal.
    cluster.label("n1", "fence", "1").await;
    cluster.wait_for_labels("n1", [("team", "ml"), ("fence", "1")]).await;
}

#[tokio::test]
async fn an_operator_without_any_permission_blocks_nothing() {
    let cluster = TestCluster::new().await;
    let operator = cluster.operator_as("without-permissions", &[]).webhooks(Webhooks::Off).start_unready().await;

    come_and_go(&cluster, "n1").await;

    assert_eq!(operator.get("/livez").0, 200);
    assert_eq!(cluster.record("n1").await, None);
}

#[tokio::test]
async fn the_webhooks_fail_open_and_leave_everything_else_alone() {
    let cluster = TestCluster::new().await;
    let _operator = cluster.start(Webhooks::On).await;

    for kind in ["mutatingwebhookconfiguration", "validatingwebhookconfiguration"] {
        let text = cluster.kubectl(&format!("get {kind} perennial -o json"));
        let object: serde_json::Value = serde_json::from_str(&text).unwrap();
        for hook in object["webhooks"].as_array().unwrap() {
            assert_eq!(hook["failurePolicy"], "Ignore");
            assert_eq!(hook["timeoutSeconds"], 2);
            assert_eq!(hook["sideEffects"], "NoneOnDryRun");
            let of = if hook["name"].as_str().unwrap().starts_with("pods.") { "pods" } else { "nodes" };
            assert_eq!(hook["rules"][0]["resources"], serde_json::json!([of]), "and no subresources");
        }
    }
    // Neither records nor nodes have finalizers.
    cluster.node("n1").label("team", "ml").create().await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;
    assert_eq!(cluster.config_map("n1").await.unwrap().metadata.finalizers, None);
    assert_eq!(cluster.get_node("n1").await.metadata.finalizers, None);
    assert_eq!(cluster.labels("n1").await, labels([("team", "ml")]));
}
