//! Operators that may not do everything.

use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::{Api, api::PostParams};
use perennial_tests::{TestCluster, labels};
use serde_json::{Value, json};

const EVERYTHING: [(&str, &[&str]); 3] = [
    ("nodes", &["get", "list", "watch", "patch"]),
    ("configmaps", &["get", "list", "watch", "create", "update", "delete"]),
    ("events", &["create", "patch"]),
];

/// Gives a user all permissions of the operator but some, and says its name.
async fn user_without(cluster: &TestCluster, resource: &str, verbs: &[&str]) -> String {
    let user = format!("{}-user", cluster.namespace());
    let rules: Vec<Value> = EVERYTHING
        .iter()
        .map(|(of, all)| {
            let left: Vec<_> = all.iter().filter(|verb| *of != resource || !verbs.contains(verb)).collect();
            json!({"apiGroups": [""], "resources": [of], "verbs": left})
        })
        .collect();
    grant(cluster, &user, &user, json!(rules)).await;
    user
}

async fn grant(cluster: &TestCluster, name: &str, user: &str, rules: Value) {
    let role = json!({"metadata": {"name": name}, "rules": rules});
    let binding = json!({
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
    });
    let roles: Api<ClusterRole> = Api::all(cluster.client());
    roles.create(&PostParams::default(), &serde_json::from_value(role).unwrap()).await.unwrap();
    let bindings: Api<ClusterRoleBinding> = Api::all(cluster.client());
    bindings.create(&PostParams::default(), &serde_json::from_value(binding).unwrap()).await.unwrap();
}

#[tokio::test]
async fn without_patch_nodes_it_says_so_and_still_captures() {
    let cluster = TestCluster::new().await;
    let user = user_without(&cluster, "nodes", &["patch"]).await;
    let operator = cluster.operator_as(&user, &[]).set("controller.resyncPeriod", "5s").start().await;
    cluster.node("n1").label("team", "ml").create().await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;

    cluster.delete_node("n1").await;
    cluster.node("n1").create().await;

    let line = operator.wait_for_log("patch nodes is missing", |line| line["missing"] == "patch nodes").await;
    assert_eq!(line["node"], "n1");
    cluster.node("n2").label("team", "web").create().await;
    cluster.wait_for_record("n2", [("team", "web")]).await;
    assert_eq!(cluster.labels("n1").await, labels::<&str, &str>([]));
    assert!(operator.metrics().sum("perennial_errors_total", &[("category", "forbidden")]) >= 1.0);
    assert_eq!(operator.get("/livez").0, 200);

    // Once it may, it does.
    let rules = json!([{"apiGroups": [""], "resources": ["nodes"], "verbs": ["patch"]}]);
    grant(&cluster, &format!("{user}-more"), &user, rules).await;
    cluster.wait_for_labels("n1", [("team", "ml")]).await;
}

#[tokio::test]
async fn without_create_configmaps_it_says_so_and_still_restores() {
    let cluster = TestCluster::new().await;
    let full = cluster.operator().start().await;
    cluster.node("n1").label("team", "ml").create().await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;
    full.crash();
    let user = user_without(&cluster, "configmaps", &["create", "update"]).await;
    let operator = cluster.operator_as(&user, &[]).start().await;

    cluster.node("n2").label("team", "web").create().await;
    cluster.delete_node("n1").await;
    cluster.node("n1").create().await;

    let missing = "create and update configmaps in Perennial's namespace";
    operator.wait_for_log(missing, |line| line["missing"] == missing && line["node"] == "n2").await;
    cluster.wait_for_labels("n1", [("team", "ml")]).await;
}

#[tokio::test]
async fn without_list_nodes_it_says_so_and_is_not_ready() {
    let cluster = TestCluster::new().await;
    let user = user_without(&cluster, "nodes", &["list", "watch"]).await;
    let operator = cluster.operator_as(&user, &[]).start_unready().await;

    let said = |line: &Value| {
        line["what"] == "nodes"
            && line["message"].as_str().is_some_and(|text| text.contains("permission to list and watch"))
    };
    operator.wait_for_log("may not list nodes", said).await;

    assert_eq!(operator.get("/readyz").0, 503);
    assert_eq!(operator.get("/livez").0, 200);
}

#[tokio::test]
async fn without_events_everything_else_works() {
    let cluster = TestCluster::new().await;
    let user = user_without(&cluster, "events", &["create", "patch"]).await;
    let _operator = cluster.operator_as(&user, &[]).start().await;
    cluster.node("n1").label("team", "ml").create().await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;

    for _ in 0..2 {
        cluster.delete_node("n1").await;
        cluster.node("n1").create().await;
        cluster.wait_for_labels("n1", [("team", "ml")]).await;
    }
}
