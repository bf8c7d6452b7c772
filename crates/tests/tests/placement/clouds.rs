//! Node classes without configuration: nodes as each platform labels and taints them.

use std::collections::BTreeMap;

use perennial_harness::{TestCluster, eventually};
use serde_json::{Value, json};

use super::{configured::by_kind, quick};

/// A kind of node: its name, labels and taints, and how many pods have room on all of them.
struct NodeKind {
    name: &'static str,
    labels: Value,
    taints: Value,
    room: usize,
}

fn kind(name: &'static str, labels: Value, room: usize) -> NodeKind {
    NodeKind { name, labels, taints: json!([]), room }
}

/// Places ten replicas of a Deployment, seven of them on spot, and two of a StatefulSet, one of
/// them on spot, on nodes of these kinds. `expected`: the replicas on each kind.
async fn place_on(kinds: Vec<NodeKind>, scheme: &str, expected: &[(&str, usize)]) {
    let cluster = TestCluster::full().await;
    let operator = quick(&cluster).start().await;
    // Nodes join after the operator started: the labels are detected while it runs.
    for NodeKind { name, labels, taints, room } in kinds {
        cluster
            .capacity_node(name, room, |node| {
                node["metadata"]["labels"] = labels;
                node["spec"]["taints"] = taints;
            })
            .await;
    }
    eventually("the log names the labels", async || {
        let named = |line: &Value| {
            line.to_string().contains("node classes determined") && line.to_string().contains(&format!("\"{scheme}\""))
        };
        if operator.log().iter().any(named) { Ok(()) } else { Err("not yet") }
    })
    .await;

    cluster.deployment("web").annotate("spot-percentage", "70").replicas(10).create().await;
    cluster.stateful_set("db").annotate("spot-percentage", "50").replicas(2).create().await;

    let expected: BTreeMap<String, usize> = expected.iter().map(|(kind, count)| ((*kind).to_owned(), *count)).collect();
    eventually("every replica runs on its class", async || {
        let mut seen = by_kind(&cluster, "web").await;
        for (kind, count) in by_kind(&cluster, "db").await {
            *seen.entry(kind).or_default() += count;
        }
        if seen == expected { Ok(()) } else { Err(format!("{seen:?}")) }
    })
    .await;
    let checked = cluster.perennial("check").stdout;
    assert!(checked.contains(&format!("(labels: {scheme})")), "{checked}");
    let workloads = cluster.perennial_all_namespaces("workloads");
    assert!(workloads.contains("7/7") && workloads.contains("3/3"), "{workloads}");
}

#[tokio::test(flavor = "multi_thread")]
async fn on_karpenter_reserved_nodes_are_on_demand() {
    let label = |value: &str| json!({"karpenter.sh/capacity-type": value, "karpenter.sh/nodepool": "default"});
    let kinds = vec![
        kind("spot", label("spot"), 50),
        kind("demand", label("on-demand"), 2),
        kind("reserved", label("reserved"), 2),
    ];
    place_on(kinds, "Karpenter, Karpenter reserved", &[("spot", 8), ("demand", 2), ("reserved", 2)]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_eks_managed_groups_and_karpenter_are_used_together() {
    let label = |value: &str| json!({"eks.amazonaws.com/capacityType": value, "eks.amazonaws.com/nodegroup": "a"});
    let karpenter = json!({"karpenter.sh/capacity-type": "spot"});
    let kinds =
        vec![kind("spot", label("SPOT"), 3), kind("demand", label("ON_DEMAND"), 50), kind("karpenter", karpenter, 5)];
    place_on(kinds, "Karpenter, EKS", &[("spot", 3), ("karpenter", 5), ("demand", 4)]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_gke_spot_and_preemptible_nodes_are_spot() {
    let label = |kind: &str| json!({"cloud.google.com/gke-provisioning": kind, "cloud.google.com/gke-nodepool": "a"});
    let mut spot = label("spot");
    spot["cloud.google.com/gke-spot"] = json!("true");
    let mut preemptible = label("preemptible");
    preemptible["cloud.google.com/gke-preemptible"] = json!("true");
    let taints = json!([{"key": "cloud.google.com/gke-spot", "value": "true", "effect": "NoSchedule"}]);
    let kinds = vec![
        NodeKind { taints, ..kind("spot", spot, 4) },
        kind("preemptible", preemptible, 4),
        kind("demand", label("standard"), 50),
    ];
    place_on(kinds, "GKE", &[("spot", 4), ("preemptible", 4), ("demand", 4)]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_aks_nodes_without_the_spot_label_are_on_demand() {
    let regular = json!({"kubernetes.azure.com/agentpool": "system", "kubernetes.azure.com/mode": "system"});
    let mut spot = regular.clone();
    spot["kubernetes.azure.com/scalesetpriority"] = json!("spot");
    let taints = json!([{"key": "kubernetes.azure.com/scalesetpriority", "value": "spot", "effect": "NoSchedule"}]);
    let kinds = vec![NodeKind { taints, ..kind("spot", spot, 50) }, kind("demand", regular, 50)];
    place_on(kinds, "AKS", &[("spot", 8), ("demand", 4)]).await;
}
