//! KeepPolicies, written with kubectl.

use serde_json::{Value, json};

use crate::{TestCluster, eventually, perennial};

impl TestCluster {
    /// Starts a cluster with the KeepPolicy CRD and without policies.
    pub async fn with_policies() -> Self {
        let cluster = Self::new().await;
        let crds = perennial(["manifests", "crds"], &[]).expect_success();
        cluster.try_kubectl_with("apply", &crds).expect_success();
        cluster.kubectl("wait --for=condition=Established crd/keeppolicies.perennial.dev --timeout=30s");
        eventually("policies can be listed", async || {
            let answer = cluster.try_kubectl("delete keeppolicies --all");
            if answer.success { Ok(()) } else { Err(answer.stderr) }
        })
        .await;
        cluster
    }

    pub fn apply_policy(&self, name: &str, spec: &Value) {
        self.try_kubectl_with("apply", &keep_policy(name, spec)).expect_success();
    }
}

/// Returns the manifest of a policy.
pub fn keep_policy(name: &str, spec: &Value) -> String {
    json!({"apiVersion": "perennial.dev/v1alpha1", "kind": "KeepPolicy", "metadata": {"name": name}, "spec": spec})
        .to_string()
}
