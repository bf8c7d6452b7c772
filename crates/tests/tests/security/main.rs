//! Attacks, one test each. `docs/explain/security.md` lists these tests; `page` checks the list.

// clippy does not recognise helpers as tests, but they fail by panics as well.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod page;
mod policies;
mod reviews;
mod signatures;
mod traffic;

use perennial_harness::{OperatorBuilder, TestCluster};
use serde_json::json;

/// Service account of the operator.
pub(crate) const ACCOUNT: &str = "perennial";

/// Applies a part of the output of `perennial manifests`.
pub(crate) fn install(cluster: &TestCluster, part: &str) {
    let objects = cluster.perennial(&format!("manifests {part}")).expect_success();
    cluster.try_kubectl_with("apply --server-side --force-conflicts --validate=strict", &objects).expect_success();
}

/// Operator with its own service account and permissions.
pub(crate) fn operator(cluster: &TestCluster) -> OperatorBuilder {
    install(cluster, "permissions");
    install(cluster, "crds");
    cluster.operator_in_cluster(ACCOUNT)
}

/// Grants a user these rules in Perennial's namespace.
pub(crate) fn allow(cluster: &TestCluster, user: &str, rules: &serde_json::Value) {
    let name = format!("allowed-{user}");
    let metadata = json!({"name": name, "namespace": cluster.namespace()});
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": metadata, "rules": rules,
    });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": metadata,
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
    });
    for object in [role, binding] {
        cluster.try_kubectl_with("apply", &object.to_string()).expect_success();
    }
}

/// Rules with all verbs on ConfigMaps.
pub(crate) fn config_maps() -> serde_json::Value {
    let verbs = ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"];
    json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": verbs}])
}
