//! Placement on a real Kubernetes with its scheduler and controllers.
//!
//! Most tests share one cluster and one operator ([`shared`]); those that start, stop or configure
//! operators have their own cluster ([`roomy`]).

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failure here fails the test")]

mod clouds;
mod configured;
mod events;
mod exact;
mod failsafe;
mod kubelet;
mod liveness;
mod moves;
mod other_owners;
mod owners;
mod rollouts;
mod shortage;
mod spotalis;
mod stateful;
mod takeover;
mod unmanaged;
mod variations;
mod volumes;

use k8s_openapi::api::core::v1::Pod;
use perennial_harness::{Operator, OperatorBuilder, TestCluster, Webhooks};

const CAPACITY: &str = "karpenter.sh/capacity-type";

/// Namespace on the shared cluster with sufficient capacity, and its operator.
async fn shared() -> (TestCluster, &'static Operator) {
    let cluster = TestCluster::shared().await;
    cluster.capacity("spot", 1, 200).await;
    cluster.capacity("on-demand", 1, 200).await;
    let operator = cluster.shared_operator().await;
    (cluster, operator)
}

/// A cluster of its own with sufficient capacity.
async fn roomy() -> TestCluster {
    let cluster = TestCluster::full().await;
    cluster.capacity("spot", 2, 200).await;
    cluster.capacity("on-demand", 2, 200).await;
    cluster
}

/// Operator with all roles, short delays and short timeouts.
fn quick(cluster: &TestCluster) -> OperatorBuilder {
    cluster.operator().webhooks(Webhooks::On).set("placement.cooldown", "1s")
}

/// Returns the class that Perennial assigned to a pod.
fn class(pod: &Pod) -> Option<String> {
    pod.spec.as_ref()?.node_selector.as_ref()?.get(CAPACITY).cloned()
}

fn is_gated(pod: &Pod) -> bool {
    pod.spec.as_ref().is_some_and(|spec| spec.scheduling_gates.as_ref().is_some_and(|gates| !gates.is_empty()))
}

fn annotation(pod: &Pod, name: &str) -> Option<String> {
    pod.metadata.annotations.as_ref()?.get(name).cloned()
}

/// Creates a Deployment with 70% spot and a minimum of 3 on-demand.
async fn web(cluster: &TestCluster, replicas: u32) {
    cluster
        .deployment("web")
        .annotate("spot-percentage", "70")
        .annotate("min-on-demand", "3")
        .replicas(replicas)
        .create()
        .await;
}
