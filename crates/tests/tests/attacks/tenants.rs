//! A tenant with `edit` in a namespace, and a kubelet of another node, beside the shipped policies.

use http::Method;
use perennial_harness::TestCluster;
use serde_json::{Value, json};

use crate::account::{Attack, DEPLOYMENT, PODS, all_are_refused, attack, patch, refusal, stage};

/// Returns the requests that neither a tenant nor a kubelet may send.
fn attacks_on_perennial(namespace: &str) -> Vec<Attack> {
    let own = format!("/api/v1/namespaces/{namespace}");
    let record = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "node-n1", "labels": {"perennial.dev/record": "true"}}, "data": {"record": "{}"},
    });
    let lease =
        json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "perennial-keeper"}});
    let policy = json!({
        "apiVersion": "perennial.dev/v1alpha1", "kind": "KeepPolicy", "metadata": {"name": "mine"},
        "spec": {"keep": ["*"]},
    });
    let configuration = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": "perennial"},
    });
    vec![
        attack("forge a record", Method::POST, format!("{own}/configmaps"), record),
        attack("delete all records", Method::DELETE, format!("{own}/configmaps"), Value::Null),
        attack("read the webhook key", Method::GET, format!("{own}/secrets/perennial-webhook-certs"), Value::Null),
        attack(
            "take a Lease",
            Method::POST,
            format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"),
            lease,
        ),
        attack("a KeepPolicy", Method::POST, "/apis/perennial.dev/v1alpha1/keeppolicies", policy),
        attack(
            "the webhook configuration",
            Method::POST,
            "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
            configuration,
        ),
        patch(
            "the defaults of a namespace",
            "/api/v1/namespaces/default",
            json!({"metadata": {"annotations": {"a": "b"}}}),
        ),
    ]
}

#[tokio::test]
async fn a_tenant_can_do_nothing_outside_of_its_namespace() {
    let cluster = TestCluster::new().await;
    stage(&cluster).await;
    // `edit` itself is aggregated by a controller that does not run here.
    cluster.kubectl("create rolebinding tenant -n default --clusterrole=system:aggregate-to-edit --user=tenant");
    let tenant = cluster.client_of("tenant", &[]).await;
    let mut attacks = attacks_on_perennial(cluster.namespace());
    attacks.extend([
        patch("the labels of a node", "/api/v1/nodes/n1", json!({"metadata": {"labels": {"team": "evil"}}})),
        attack("delete a node", Method::DELETE, "/api/v1/nodes/n1", Value::Null),
    ]);

    all_are_refused(&tenant, &attacks).await;

    // Changes that the tenant may make to its own objects, with or without Perennial.
    let work = [
        patch(
            "its workload",
            DEPLOYMENT,
            json!({"metadata": {"annotations": {"perennial.dev/spot-percentage": "50"}}}),
        ),
        patch("its pod", format!("{PODS}/bare"), json!({"metadata": {"labels": {"perennial.dev/managed": "true"}}})),
    ];
    for work in &work {
        assert_eq!(refusal(&tenant, work).await.unwrap_err(), "it would be let through", "{}", work.name);
    }
}

#[tokio::test]
async fn a_kubelet_of_another_node_changes_only_its_own() {
    let cluster = TestCluster::new().await;
    stage(&cluster).await;
    cluster.node("n2").create().await;
    let kubelet = cluster.as_kubelet("n2").await;
    let labels = |key: &str| json!({"metadata": {"labels": {key: "evil"}}});
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n3"}});
    let mut attacks = attacks_on_perennial(cluster.namespace());
    attacks.extend(
        [
            patch("the labels of another node", "/api/v1/nodes/n1", labels("team")),
            patch("the status of another node", "/api/v1/nodes/n1/status", json!({"status": {"phase": "x"}})),
            patch("a protected label", "/api/v1/nodes/n2", labels("node-restriction.kubernetes.io/team")),
            attack("create another node", Method::POST, "/api/v1/nodes", node),
        ]
        .map(|attack| attack.refused_by("not allowed to modify")),
    );
    attacks.push(attack("delete another node", Method::DELETE, "/api/v1/nodes/n1", Value::Null).refused_by("n2"));

    all_are_refused(&kubelet, &attacks).await;

    let own = patch("a label of its own node", "/api/v1/nodes/n2", labels("team"));
    assert_eq!(refusal(&kubelet, &own).await.unwrap_err(), "it would be let through");
}
