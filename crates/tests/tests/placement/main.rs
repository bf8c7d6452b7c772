//! Placement on a real Kubernetes, with its scheduler and its controllers: what people are promised.
//!
//! Most tests share one cluster and one operator ([`shared`]); those that start, stop or configure operators have a cluster of
//! their own ([`roomy`]).

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "whatever fails here fails the test")]

mod configured;
mod exact;
mod failsafe;
mod kubelet;
mod leave_alone;
mod moves;
mod owners;
mod rollouts;
mod shortage;
mod stateful;
mod told;

use k8s_openapi::api::core::v1::Pod;
use perennial_harness::{Operator, OperatorBuilder, TestCluster, Webhooks};

const CAPACITY: &str = "karpenter.sh/capacity-type";

/// A place on the cluster that tests share, with room for everyone, and the operator there.
async fn shared() -> (TestCluster, &'static Operator) {
    let cluster = TestCluster::shared().await;
    cluster.capacity("spot", 1, 200).await;
    cluster.capacity("on-demand", 1, 200).await;
    let operator = cluster.shared_operator().await;
    (cluster, operator)
}

/// A cluster of the test's own, with room for everyone.
async fn roomy() -> TestCluster {
    let cluster = TestCluster::full().await;
    cluster.capacity("spot", 2, 200).await;
    cluster.capacity("on-demand", 2, 200).await;
    cluster
}

/// An operator that does everything, moves quickly and waits for nobody long.
fn quick(cluster: &TestCluster) -> OperatorBuilder {
    cluster.operator().webhooks(Webhooks::On).set("placement.cooldown", "1s")
}

/// What decides where a pod may run, as far as it is ours.
fn class(pod: &Pod) -> Option<String> {
    pod.spec.as_ref()?.node_selector.as_ref()?.get(CAPACITY).cloned()
}

fn is_gated(pod: &Pod) -> bool {
    pod.spec.as_ref().is_some_and(|spec| spec.scheduling_gates.as_ref().is_some_and(|gates| !gates.is_empty()))
}

fn annotation(pod: &Pod, name: &str) -> Option<String> {
    pod.metadata.annotations.as_ref()?.get(name).cloned()
}

/// 70% and a floor of 3, so many replicas.
async fn web(cluster: &TestCluster, replicas: u32) {
    cluster
        .deployment("web")
        .annotate("spot-percentage", "70")
        .annotate("min-on-demand", "3")
        .replicas(replicas)
        .create()
        .await;
}
