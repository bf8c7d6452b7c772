//! G4: a record is restored to the identity that it was taken from, protected keys only to the same
//! machine.

use perennial_harness::{TestCluster, Webhooks, labels};
use rstest::rstest;
use serde_json::json;

const TENANT: &str = "node-restriction.kubernetes.io/tenant";
const ROLE: &str = "node-role.kubernetes.io/worker";

#[rstest]
#[case::on(Webhooks::On)]
#[case::off(Webhooks::Off)]
#[tokio::test]
async fn another_machine_of_the_same_name_does_not_get_protected_keys(#[case] webhooks: Webhooks) {
    let cluster = TestCluster::new().await;
    let operator = cluster.start(webhooks).await;
    let kept = [("team", "ml"), (TENANT, "blue"), (ROLE, "")];
    cluster.node("n1").machine("p1", "s1", "m1").labels(kept).create().await;
    cluster.wait_for_record("n1", kept).await;
    cluster.delete_node("n1").await;

    cluster.node("n1").machine("p2", "s2", "m2").create().await;

    cluster.wait_for_labels("n1", [("team", "ml")]).await;
    let message = cluster.wait_for_event("n1", "Withheld").await;
    assert!(message.contains(TENANT) && message.contains(ROLE), "{message}");
    operator.wait_for_metric("perennial_protected_refusals_total", &[], 2.0).await;
    assert_eq!(cluster.labels("n1").await, labels([("team", "ml")]));

    // The original machine gets them, although another one had the name in between.
    cluster.label("n1", "seen", "1").await;
    cluster.wait_for_record("n1", [("team", "ml"), ("seen", "1")]).await;
    cluster.delete_node("n1").await;
    cluster.node("n1").machine("p1", "s1", "m1").create().await;
    cluster.wait_for_labels("n1", [("team", "ml"), ("seen", "1"), (TENANT, "blue"), (ROLE, "")]).await;
}

/// No other key is restored, so there is no patch that would report the refusal.
#[rstest]
#[case::on(Webhooks::On)]
#[case::off(Webhooks::Off)]
#[tokio::test]
async fn a_refusal_is_reported_even_if_nothing_else_is_restored(#[case] webhooks: Webhooks) {
    let cluster = TestCluster::new().await;
    let operator = cluster.start(webhooks).await;
    cluster.node("n1").machine("p1", "s1", "m1").label(TENANT, "blue").create().await;
    cluster.wait_for_record("n1", [(TENANT, "blue")]).await;
    cluster.delete_node("n1").await;

    cluster.node("n1").machine("p1", "s1", "other").create().await;

    let message = cluster.wait_for_event("n1", "Withheld").await;
    assert!(message.contains(TENANT), "{message}");
    operator.wait_for_metric("perennial_protected_refusals_total", &[], 1.0).await;
    assert_eq!(cluster.labels("n1").await, labels([("", ""); 0]));
}

#[rstest]
#[case::on(Webhooks::On)]
#[case::off(Webhooks::Off)]
#[tokio::test]
async fn the_same_machine_gets_protected_keys(#[case] webhooks: Webhooks) {
    let cluster = TestCluster::new().await;
    let operator = cluster.start(webhooks).await;
    let kept = [("team", "ml"), (TENANT, "blue"), (ROLE, "")];
    cluster.node("n1").machine("p1", "s1", "m1").labels(kept).create().await;
    cluster.wait_for_record("n1", kept).await;
    cluster.delete_node("n1").await;

    cluster.node("n1").machine("p1", "s1", "m1").create().await;

    cluster.wait_for_labels("n1", kept).await;
    assert!(operator.metrics().sum("perennial_protected_refusals_total", &[]) < 0.5);
}

#[rstest]
#[case::on(Webhooks::On)]
#[case::off(Webhooks::Off)]
#[tokio::test]
async fn protected_keys_wait_until_the_machine_is_known(#[case] webhooks: Webhooks) {
    let cluster = TestCluster::new().await;
    let _operator = cluster.start(webhooks).await;
    let kept = [("team", "ml"), (TENANT, "blue")];
    cluster.node("n1").machine("p1", "s1", "m1").labels(kept).create().await;
    cluster.wait_for_record("n1", kept).await;
    cluster.delete_node("n1").await;

    cluster.node("n1").machine("", "s1", "m1").create().await;
    cluster.wait_for_labels("n1", [("team", "ml")]).await;
    cluster.wait_for_event("n1", "RestoreWaits").await;
    assert_eq!(cluster.labels("n1").await, labels([("team", "ml")]));
    cluster.patch_node("n1", json!({"spec": {"providerID": "p1"}})).await;

    cluster.wait_for_labels("n1", kept).await;
}

#[tokio::test]
async fn protected_keys_are_configurable() {
    let cluster = TestCluster::new().await;
    let _operator = cluster.start_with(Webhooks::Off, |builder| builder.set("keeper.protected", "example.com/*")).await;
    let kept = [("example.com/tenant", "blue"), (TENANT, "blue")];
    cluster.node("n1").machine("p1", "s1", "m1").labels(kept).create().await;
    cluster.wait_for_record("n1", kept).await;
    cluster.delete_node("n1").await;

    cluster.node("n1").machine("p2", "s2", "m2").create().await;

    cluster.wait_for_labels("n1", [(TENANT, "blue")]).await;
    let message = cluster.wait_for_event("n1", "Withheld").await;
    assert!(message.contains("example.com/tenant"), "{message}");
}
