//! Placement on a real Kubernetes, with its scheduler and its controllers: what people are promised.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "whatever fails here fails the test")]

mod exact;
mod leave_alone;
mod owners;
mod running;

use perennial_tests::{Operator, OperatorBuilder, TestCluster, Webhooks};

/// A cluster with room for everyone.
async fn roomy() -> TestCluster {
    let cluster = TestCluster::whole().await;
    cluster.capacity("spot", 3, 200).await;
    cluster.capacity("on-demand", 3, 200).await;
    cluster
}

/// An operator that does everything, moves quickly and waits for nobody long.
fn quick(cluster: &TestCluster) -> OperatorBuilder {
    cluster.operator().webhooks(Webhooks::On).set("placement.cooldown", "1s")
}

/// Only answers admission, and frees what nobody attends to.
async fn doorman(cluster: &TestCluster) -> Operator {
    doorman_with(cluster, "5s").await
}

async fn doorman_with(cluster: &TestCluster, gate_timeout: &str) -> Operator {
    let builder = quick(cluster).set("controller.roles", "webhooks").set("placement.gateTimeout", gate_timeout);
    let builder = builder.set("controller.leaderElection.leaseDuration", "5s");
    builder.start().await
}

/// Decides about workloads, and answers no admission.
async fn owner(cluster: &TestCluster) -> Operator {
    let builder = cluster.operator().set("controller.roles", "capture,restore,placement");
    let builder = builder.set("placement.cooldown", "1s").set("placement.gateTimeout", "5s");
    builder.set("controller.leaderElection.leaseDuration", "5s").start().await
}
