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

/// One machine reports its UUID in another case or byte order after an update of its firmware or
/// kernel.
#[rstest]
#[case::case("4C4C4544-0042-4A10-8053-B7C04F4B3732")]
#[case::white_space(" 4c4c4544-0042-4a10-8053-b7c04f4b3732")]
#[case::byte_order("44454c4c-4200-104a-8053-b7c04f4b3732")]
#[tokio::test]
async fn the_same_machine_in_another_spelling_gets_protected_keys(#[case] spelling: &str) {
    let cluster = TestCluster::new().await;
    let operator = cluster.start(Webhooks::Off).await;
    let kept = [("team", "ml"), (TENANT, "blue")];
    cluster.node("n1").machine("p1", "4c4c4544-0042-4a10-8053-b7c04f4b3732", "m1").labels(kept).create().await;
    cluster.wait_for_record("n1", kept).await;
    cluster.delete_node("n1").await;

    cluster.node("n1").machine("P1", spelling, "M1").create().await;

    cluster.wait_for_labels("n1", kept).await;
    assert!(operator.metrics().sum("perennial_protected_refusals_total", &[]) < 0.5);
}

/// NodeRestriction lets no kubelet set these itself, although no list names them.
#[rstest]
#[case::on(Webhooks::On)]
#[case::off(Webhooks::Off)]
#[tokio::test]
async fn every_label_that_a_kubelet_may_not_set_stays_with_its_machine(#[case] webhooks: Webhooks) {
    let cluster = TestCluster::new().await;
    let _operator = cluster.start(webhooks).await;
    let kept = [("team", "ml"), ("zone.k8s.io/pci", "1"), ("example.kubernetes.io/tier", "gold")];
    cluster.node("n1").machine("p1", "s1", "m1").labels(kept).create().await;
    cluster.wait_for_record("n1", kept).await;
    cluster.delete_node("n1").await;

    cluster.node("n1").machine("p2", "s2", "m2").create().await;

    let message = cluster.wait_for_event("n1", "Withheld").await;
    assert!(message.contains("zone.k8s.io/pci") && message.contains("example.kubernetes.io/tier"), "{message}");
    assert_eq!(cluster.labels("n1").await, labels([("team", "ml")]));
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
