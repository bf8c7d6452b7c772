//! Forged admission reviews: any client that reaches the port can send one.

use std::time::Duration;

use perennial_harness::{Operator, TestCluster, Webhooks, labels};
use serde_json::{Value, json};

/// Sends a review to the webhook server, as any client in the cluster can.
fn send(operator: &Operator, path: &str, request: &Value) -> Value {
    let port = port(operator);
    let tls = ureq::tls::TlsConfig::builder().disable_verification(true).build();
    let agent = ureq::Agent::config_builder().tls_config(tls).timeout_global(Some(Duration::from_secs(5))).build();
    let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request});
    let sent = ureq::Agent::from(agent).post(format!("https://127.0.0.1:{port}{path}")).send_json(&review);
    sent.unwrap().body_mut().read_json::<Value>().unwrap()["response"].clone()
}

/// Port of the webhook server.
pub(crate) fn port(operator: &Operator) -> u16 {
    let line = operator.log().into_iter().find(|line| line["message"] == "serving admission").unwrap();
    line["address"].as_str().unwrap().rsplit_once(':').unwrap().1.parse().unwrap()
}

fn deletion(node: &Value) -> Value {
    json!({
        "uid": "1", "operation": "DELETE", "dryRun": false, "userInfo": {"username": "system:apiserver"},
        "kind": {"group": "", "version": "v1", "kind": "Node"}, "resource": {"group": "", "version": "v1", "resource": "nodes"},
        "name": node["metadata"]["name"], "object": null, "oldObject": node,
    })
}

/// A node with labels that an attacker tries to get recorded.
fn node(name: &str, uid: &str, wanted: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Node", "spec": {"providerID": "p1"},
        "metadata": {"name": name, "uid": uid, "resourceVersion": "999999999", "labels": wanted},
        "status": {"nodeInfo": {"systemUUID": "s1", "machineID": "m1"}},
    })
}

/// If a forged last state were captured, any client could set labels of the next incarnation.
#[tokio::test]
async fn a_forged_review_of_a_delete_writes_nothing() {
    let cluster = TestCluster::new().await;
    let operator = cluster.start(Webhooks::On).await;
    cluster.node("n1").machine("p1", "s1", "m1").label("team", "ml").create().await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;
    let uid = cluster.get_node("n1").await.metadata.uid.unwrap();
    let before = cluster.config_map("n1").await.unwrap().metadata.resource_version;
    let evil = json!({"team": "evil", "node-role.kubernetes.io/control-plane": ""});

    // An existing node, one of that name that never existed, and an unknown one.
    for (name, uid) in [("n1", uid.as_str()), ("n1", "another"), ("n2", "unknown"), ("n2", "")] {
        let response = send(&operator, "/validate/nodes", &deletion(&node(name, uid, &evil)));
        assert_eq!(response["allowed"], true, "nothing is ever refused");
    }

    assert_eq!(cluster.config_map("n1").await.unwrap().metadata.resource_version, before);
    assert_eq!(cluster.config_map("n2").await.map(|_| ()), None);
    cluster.delete_node("n1").await;
    let back = cluster.node("n1").machine("p1", "s1", "m1").create().await;
    assert_eq!(back.metadata.labels.unwrap_or_default(), labels([("team", "ml")]));
    // The record of an absent node does not change.
    cluster.delete_node("n1").await;
    let uid = back.metadata.uid.unwrap();
    send(&operator, "/validate/nodes", &deletion(&node("n1", &uid, &evil)));
    let back = cluster.node("n1").machine("p1", "s1", "m1").create().await;
    assert_eq!(back.metadata.labels.unwrap_or_default(), labels([("team", "ml")]));
}

/// A forged review can only trigger what would happen anyway: the true state of the node is
/// captured.
#[tokio::test]
async fn a_forged_review_captures_the_truth_at_most() {
    let cluster = TestCluster::new().await;
    // Only admission captures here.
    let operator = cluster.start_with(Webhooks::On, |builder| builder.set("controller.roles", "webhooks")).await;
    let created = cluster.node("n1").machine("p1", "s1", "m1").label("team", "ml").create().await;

    let forged = node("n1", &created.metadata.uid.unwrap(), &json!({"team": "evil", "more": "1"}));
    send(&operator, "/validate/nodes", &deletion(&forged));

    cluster.wait_for_record("n1", [("team", "ml")]).await;
}

/// A review of a create is only a question. Its response contains the labels of the node, which
/// readers of nodes can see, but not every client of the port. See the threat model.
#[tokio::test]
async fn a_forged_review_of_a_create_changes_nothing() {
    let cluster = TestCluster::new().await;
    let operator = cluster.start(Webhooks::On).await;
    cluster.node("n1").machine("p1", "s1", "m1").label("team", "ml").create().await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;
    cluster.delete_node("n1").await;
    let before = cluster.config_map("n1").await.unwrap().metadata.resource_version;

    let mut request = deletion(&Value::Null);
    request["operation"] = json!("CREATE");
    request["oldObject"] = Value::Null;
    request["object"] = node("n1", "", &json!({"team": "evil"}));
    send(&operator, "/mutate/nodes", &request);

    assert_eq!(cluster.config_map("n1").await.unwrap().metadata.resource_version, before);
    assert_eq!(cluster.nodes().get_opt("n1").await.unwrap().map(|_| ()), None);
    let back = cluster.node("n1").machine("p1", "s1", "m1").create().await;
    assert_eq!(back.metadata.labels.unwrap_or_default(), labels([("team", "ml")]));
}
