//! Configuration of placement: other capacity labels, other namespaces.

use std::collections::BTreeMap;

use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use kube::{Api, api::ListParams};
use perennial_harness::{TestCluster, eventually, eventually_within};
use serde_json::json;

use super::{is_gated, quick};

const EKS: &str = "eks.amazonaws.com/capacityType";
const GKE: &str = "cloud.google.com/gke-spot";

/// Counts the pods of an app by kind of node.
pub(super) async fn by_kind(cluster: &TestCluster, app: &str) -> BTreeMap<String, usize> {
    let mut kinds = BTreeMap::new();
    for pod in cluster.pods(app).await {
        let node = pod.spec.and_then(|spec| spec.node_name).unwrap_or_else(|| "none-0".to_owned());
        *kinds.entry(node.rsplit_once('-').unwrap().0.to_owned()).or_default() += 1;
    }
    kinds
}

#[tokio::test(flavor = "multi_thread")]
async fn several_labels_mean_spot_and_tainted_spot_nodes_are_tolerated() {
    let cluster = TestCluster::full().await;
    let tainted = json!([{"key": "spot", "value": "true", "effect": "NoSchedule"}]);
    for (kind, label) in [("eks", json!({EKS: "SPOT"})), ("gke", json!({GKE: "true"}))] {
        cluster
            .capacity_node(kind, 4, |node| {
                node["metadata"]["labels"] = label;
                node["spec"]["taints"] = tainted.clone();
            })
            .await;
    }
    cluster.capacity_node("regular", 50, |node| node["metadata"]["labels"] = json!({EKS: "ON_DEMAND"})).await;
    let operator = quick(&cluster)
        .set("nodeLabels.spot", &format!("{EKS}=SPOT,{GKE}=true"))
        .set("nodeLabels.onDemand", &format!("{EKS} in (ON_DEMAND,CAPACITY_BLOCK)"))
        .set("placement.spotTolerations", "spot=true:NoSchedule");
    let _operator = operator.start().await;

    cluster.deployment("web").annotate("spot-percentage", "80").replicas(10).create().await;
    cluster.stateful_set("db").annotate("spot-percentage", "0").replicas(3).create().await;

    let full = BTreeMap::from([("eks".to_owned(), 4), ("gke".to_owned(), 4), ("regular".to_owned(), 2)]);
    eventually("both kinds of spot nodes are full", async || {
        let seen = by_kind(&cluster, "web").await;
        if seen == full { Ok(()) } else { Err(format!("{seen:?}")) }
    })
    .await;
    eventually("on-demand is on-demand", async || {
        let seen = by_kind(&cluster, "db").await;
        if seen == BTreeMap::from([("regular".to_owned(), 3)]) { Ok(()) } else { Err(format!("{seen:?}")) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_namespaces_that_are_selected_are_looked_at() {
    let cluster = super::roomy().await;
    cluster.kubectl("create namespace outside");
    cluster.kubectl("label namespace default placement=on team=web");
    let builder = quick(&cluster).set("controller.namespaceSelector", "placement=on,team in (web,shop)");
    let operator = builder.start().await;

    let api: Api<MutatingWebhookConfiguration> = Api::all(cluster.client());
    let selector = eventually("the webhook configuration has a namespace selector", async || {
        let found = api.list(&ListParams::default()).await.unwrap().items;
        let mut webhooks = found.into_iter().flat_map(|found| found.webhooks.unwrap_or_default());
        webhooks.find(|webhook| webhook.name.contains("pod")).and_then(|pods| pods.namespace_selector).ok_or("not yet")
    })
    .await;
    assert_eq!(selector.match_labels.unwrap_or_default().get("placement").map(String::as_str), Some("on"));
    let expressions = selector.match_expressions.unwrap_or_default();
    assert!(expressions.iter().any(|expression| expression.key == "team"), "{expressions:?}");

    let outside = cluster.deployment("web").annotate("spot-percentage", "50").replicas(4).text();
    let file = cluster.plane().dir().join("outside.json");
    std::fs::write(&file, outside).unwrap();
    cluster.kubectl(&format!("create -n outside -f {}", file.display()));
    cluster.deployment("web").annotate("spot-percentage", "50").replicas(4).create().await;

    cluster.wait_for_split("web", 2, 2).await;
    let pods: Api<k8s_openapi::api::core::v1::Pod> = Api::namespaced(cluster.client(), "outside");
    let there = eventually_within(std::time::Duration::from_mins(1), "pods outside", async || {
        let found = pods.list(&ListParams::default()).await.unwrap().items;
        if found.len() == 4 { Ok(found) } else { Err(found.len()) }
    })
    .await;
    assert!(!there.iter().any(is_gated));
    assert!(there.iter().all(|pod| super::class(pod).is_none()));

    // A namespace that is selected later is managed without a restart.
    cluster.kubectl("label namespace outside placement=on team=shop");
    eventually_within(std::time::Duration::from_mins(1), "the workload outside is looked at", async || {
        let seen = operator.metrics().sum("perennial_placement_replicas", &[]);
        if (seen - 8.0).abs() < 0.5 { Ok(()) } else { Err(seen) }
    })
    .await;
}
