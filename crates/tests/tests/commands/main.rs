//! The command line on a real Kubernetes: what people type, and what they are told.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "whatever fails here fails the test")]

mod check;
mod complete;
mod explain;
mod look;
mod pages;
mod transfer;

use perennial_tests::{TestCluster, eventually, perennial};
use serde_json::{Value, json};

/// A cluster where KeepPolicies are installed and none is there.
async fn with_policies() -> TestCluster {
    let cluster = TestCluster::new().await;
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

fn apply_policy(cluster: &TestCluster, name: &str, spec: &Value) {
    let policy = json!({
        "apiVersion": "perennial.dev/v1alpha1", "kind": "KeepPolicy", "metadata": {"name": name}, "spec": spec,
    });
    cluster.try_kubectl_with("apply", &policy.to_string()).expect_success();
}

/// The cells of a table, line by line.
fn cells(table: &str) -> Vec<Vec<&str>> {
    table.lines().map(|line| line.split_whitespace().collect()).collect()
}
