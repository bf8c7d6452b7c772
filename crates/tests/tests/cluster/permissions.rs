//! Operators with missing permissions. That the deployed ones are enough is tested in
//! `install::permissions`.

use kube::{
    Api,
    api::{ApiResource, DynamicObject, GroupVersionKind, PostParams},
};
use perennial_harness::{TestCluster, labels};
use serde_json::{Value, json};

/// Creates a user with the deployed permissions except for some verbs on a resource. Returns its
/// name.
async fn user_without(cluster: &TestCluster, resource: &str, verbs: &[&str]) -> String {
    let user = format!("{}-user", cluster.namespace());
    let text = include_str!("../../../../deploy/permissions.yaml").replace("perennial-system", cluster.namespace());
    for (number, document) in text.split("\n---\n").enumerate() {
        let object: Value = serde_saphyr::from_str(document).unwrap();
        let mut rules = object["rules"].as_array().cloned().unwrap_or_default();
        for rule in &mut rules {
            if rule["resources"].as_array().unwrap().contains(&json!(resource)) {
                rule["verbs"].as_array_mut().unwrap().retain(|verb| !verbs.contains(&verb.as_str().unwrap()));
            }
        }
        rules.retain(|rule| rule["verbs"] != json!([]));
        if !rules.is_empty() {
            grant(cluster, &format!("{user}-{number}"), &user, object["metadata"]["namespace"].as_str(), json!(rules))
                .await;
        }
    }
    user
}

/// Creates a role with these rules, in a namespace or cluster-wide, and binds it to the user.
async fn grant(cluster: &TestCluster, name: &str, user: &str, namespace: Option<&str>, rules: Value) {
    let kind = if namespace.is_some() { "Role" } else { "ClusterRole" };
    let create = async |kind: &str, mut object: Value| {
        object["metadata"] = json!({"name": name, "namespace": namespace});
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("rbac.authorization.k8s.io", "v1", kind));
        let api: Api<DynamicObject> = match namespace {
            Some(namespace) => Api::namespaced_with(cluster.client(), namespace, &resource),
            None => Api::all_with(cluster.client(), &resource),
        };
        api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
    };
    create(kind, json!({"rules": rules})).await;
    let binding = json!({
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
    });
    create(&format!("{kind}Binding"), binding).await;
}

#[tokio::test]
async fn without_patch_nodes_it_reports_the_permission_and_still_captures() {
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

    // The restore succeeds once the permission is granted.
    let rules = json!([{"apiGroups": [""], "resources": ["nodes"], "verbs": ["patch"]}]);
    grant(&cluster, &format!("{user}-more"), &user, None, rules).await;
    cluster.wait_for_labels("n1", [("team", "ml")]).await;
}

#[tokio::test]
async fn without_create_configmaps_it_reports_the_permission_and_still_restores() {
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
async fn without_list_nodes_it_reports_the_permission_and_is_not_ready() {
    let cluster = TestCluster::new().await;
    let user = user_without(&cluster, "nodes", &["list", "watch"]).await;
    let operator = cluster.operator_as(&user, &[]).start_unready().await;

    let message = |line: &Value| {
        line["what"] == "nodes"
            && line["message"].as_str().is_some_and(|text| text.contains("permissions list and watch"))
    };
    operator.wait_for_log("may not list nodes", message).await;

    assert_eq!(operator.get("/readyz").0, 503);
    assert_eq!(operator.get("/livez").0, 200);
}

#[tokio::test]
async fn without_events_everything_else_works() {
    let cluster = TestCluster::new().await;
    let user = user_without(&cluster, "events", &["create"]).await;
    let _operator = cluster.operator_as(&user, &[]).start().await;
    cluster.node("n1").label("team", "ml").create().await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;

    for _ in 0..2 {
        cluster.delete_node("n1").await;
        cluster.node("n1").create().await;
        cluster.wait_for_labels("n1", [("team", "ml")]).await;
    }
}
