//! Variations of shortages: other sizes and proportions, changes in the middle of a shortage, budgets,
//! policies and restarts of the operator. Whatever the order of events, the split is reached once
//! capacity exists.

use perennial_core::placement::slots::Split;
use perennial_harness::{TestCluster, eventually};
use rstest::rstest;
use serde_json::{Value, json};

use super::{
    class,
    failsafe::refuse_never_on_demand,
    liveness::{until_counted, without_spot},
    quick,
};

/// Deletes a node and the pods on it, as a cloud does.
async fn lose(cluster: &TestCluster, node: &str, app: &str) {
    cluster.kubectl(&format!("delete node {node}"));
    let there = cluster.pods(app).await.into_iter();
    let there = there.filter(|pod| pod.spec.as_ref().is_some_and(|spec| spec.node_name.as_deref() == Some(node)));
    let names: Vec<String> = there.filter_map(|pod| pod.metadata.name).collect();
    if !names.is_empty() {
        cluster.kubectl(&format!("delete pod {} --force --grace-period=0", names.join(" ")));
    }
}

fn annotate(cluster: &TestCluster, kind: &str, name: &str, pair: &str) {
    cluster.kubectl(&format!("annotate {kind} {name} perennial.dev/{pair} --overwrite"));
}

/// Spot is lost while on-demand has room for only a few, and returns.
#[rstest]
#[case::twelve(90, 4, 12, 6)]
#[case::two(50, 1, 2, 1)]
#[tokio::test(flavor = "multi_thread")]
async fn both_classes_are_full_and_spot_returns(
    #[case] percentage: u8,
    #[case] floor: u32,
    #[case] replicas: u32,
    #[case] room: usize,
) {
    let (cluster, _) = without_spot(room).await;
    let split = Split::new(percentage, floor);
    let (spot, on_demand) = (split.spot(replicas) as usize, split.on_demand(replicas) as usize);
    let lost = cluster.capacity_node("spot", 20, |_| ()).await;
    let web = cluster.deployment("web").annotate("spot-percentage", &percentage.to_string());
    let web = web.annotate("min-on-demand", &floor.to_string()).annotate("fallback-after", "2s");
    web.replicas(replicas).create().await;
    cluster.wait_for_split("web", spot, on_demand).await;

    lose(&cluster, &lost, "web").await;
    let runs = room.min(replicas as usize);
    until_counted(&cluster, "web", runs, replicas as usize - runs).await;
    cluster.capacity("spot", 1, 20).await;

    cluster.wait_for_split("web", spot, on_demand).await;
}

/// The percentage or the floor changes while spot is short; spot returns later.
#[rstest]
#[case::raised_percentage("spot-percentage=100", 5, 5)]
#[case::lowered_floor("min-on-demand=0", 7, 3)]
#[tokio::test(flavor = "multi_thread")]
async fn the_split_changes_in_a_shortage(#[case] change: &str, #[case] spot: usize, #[case] on_demand: usize) {
    let (cluster, _) = without_spot(20).await;
    let web = cluster.deployment("web").annotate("spot-percentage", "70").annotate("min-on-demand", "5");
    web.annotate("fallback-after", "2s").replicas(10).create().await;
    cluster.wait_for_split("web", 0, 10).await;

    annotate(&cluster, "deployment", "web", change);
    cluster.capacity("spot", 1, 20).await;

    cluster.wait_for_split("web", spot, on_demand).await;
}

#[rstest]
#[case(1, 100)]
#[case(9, 60)]
#[tokio::test(flavor = "multi_thread")]
async fn ordered_sets_of_every_size_return_to_spot(#[case] replicas: u32, #[case] percentage: u8) {
    let (cluster, _) = without_spot(20).await;
    let db = cluster.stateful_set("db").annotate("spot-percentage", &percentage.to_string());
    let db = db.annotate("fallback-after", "2s").annotate("move-statefulset-pods", "true").replicas(replicas);
    db.with(|object| object["spec"]["podManagementPolicy"] = json!("OrderedReady")).create().await;
    cluster.wait_for_split("db", 0, replicas as usize).await;

    cluster.capacity("spot", 1, 20).await;

    let split = Split::new(percentage, 0);
    cluster.wait_for_split("db", split.spot(replicas) as usize, split.on_demand(replicas) as usize).await;
}

/// Running pods may not be moved, those that are created anyway are placed.
#[rstest]
#[case::none_unavailable(json!({"maxUnavailable": 0}))]
#[case::percentage(json!({"minAvailable": "100%"}))]
#[tokio::test(flavor = "multi_thread")]
async fn a_scale_out_is_the_probe_where_a_budget_forbids_moves(#[case] spec: Value) {
    let (cluster, operator) = without_spot(20).await;
    let web = cluster.deployment("web").annotate("spot-percentage", "50").annotate("fallback-after", "2s");
    web.replicas(4).create().await;
    cluster.wait_for_split("web", 0, 4).await;
    let mut spec = spec;
    spec["selector"] = json!({"matchLabels": {"app": "web"}});
    let pdb =
        json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "strict"}, "spec": spec});
    cluster.try_kubectl_with("create", &pdb.to_string()).expect_success();
    let spot = cluster.capacity_node("spot", 20, |_| ()).await;
    eventually("the spot node is usable", async || {
        let ready = "{.spec.taints}{.status.conditions[?(@.type==\"Ready\")].status}";
        let seen = cluster.kubectl(&format!("get node {spot} -o jsonpath={ready}"));
        if seen == "True" { Ok(()) } else { Err(seen) }
    })
    .await;

    cluster.scale("web", 8).await;

    cluster.wait_for_split("web", 4, 4).await;
    assert_eq!(cluster.evictions(operator, "web"), 0);
}

/// The node of running spot pods loses its class label: they are not moved, new ones wait.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_loses_its_class_label_keeps_its_pods() {
    let (cluster, operator) = without_spot(20).await;
    let node = cluster.capacity_node("spot", 20, |_| ()).await;
    let web = cluster.deployment("web").annotate("spot-percentage", "50").annotate("fallback-after", "2s");
    web.replicas(4).create().await;
    cluster.wait_for_split("web", 2, 2).await;

    cluster.kubectl(&format!("label node {node} karpenter.sh/capacity-type-"));
    cluster.scale("web", 8).await;
    eventually("new pods fall back", async || {
        let seen = cluster.pod_counts("web").await;
        // Two run on the node that has no class now.
        if (seen.spot, seen.on_demand, seen.waiting) == (0, 6, 2) { Ok(()) } else { Err(seen.to_string()) }
    })
    .await;
    assert_eq!(cluster.evictions(operator, "web"), 0);
    cluster.kubectl(&format!("label node {node} karpenter.sh/capacity-type=spot"));

    cluster.wait_for_split("web", 4, 4).await;
}

/// A policy refuses on-demand pods of either kind of workload.
#[rstest]
#[case("deployment")]
#[case("statefulset")]
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_on_demand_class_is_dropped(#[case] kind: &str) {
    let (cluster, _) = without_spot(20).await;
    cluster.capacity("spot", 1, 20).await;
    refuse_never_on_demand(&cluster, &format!("{kind}-never-on-demand")).await;
    let web = if kind == "deployment" { cluster.deployment("web") } else { cluster.stateful_set("web") };

    web.annotate("spot-percentage", "50").replicas(4).create().await;

    let message = cluster.wait_for_workload_event("web", "PlacementRefused").await;
    assert!(message.contains("on-demand") || message.contains("class"), "{message}");
    eventually("all run, none with the refused class", async || {
        let pods = cluster.pods("web").await;
        let bound = pods.iter().filter(|pod| pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some())).count();
        let refused = pods.iter().filter(|pod| class(pod).as_deref() == Some("on-demand")).count();
        if (bound, refused) == (4, 0) { Ok(()) } else { Err(format!("{bound} bound, {refused} refused")) }
    })
    .await;
}

/// The operator is killed and started again in the middle of a shortage.
#[rstest]
#[case::before_the_fallback("2s", false)]
#[case::in_the_shortage("2s", true)]
#[tokio::test(flavor = "multi_thread")]
async fn a_restart_in_a_shortage_loses_nothing(#[case] after: &str, #[case] fallen: bool) {
    let cluster = TestCluster::full().await;
    cluster.capacity("on-demand", 1, 40).await;
    let first = quick(&cluster).start().await;
    let web = cluster.deployment("web").annotate("spot-percentage", "70").annotate("fallback-after", after);
    web.replicas(10).create().await;
    let db = cluster.stateful_set("db").annotate("spot-percentage", "50").annotate("fallback-after", after);
    db.annotate("move-statefulset-pods", "true").replicas(4).create().await;
    if fallen {
        cluster.wait_for_split("web", 0, 10).await;
        cluster.wait_for_split("db", 0, 4).await;
    }

    first.crash();
    let _second = quick(&cluster).start().await;

    cluster.wait_for_split("web", 0, 10).await;
    cluster.wait_for_split("db", 0, 4).await;
    cluster.capacity("spot", 1, 40).await;
    cluster.wait_for_split("web", 7, 3).await;
    cluster.wait_for_split("db", 2, 2).await;
}

/// On-demand is full, and replicas above the floor may run on spot.
#[rstest]
#[case("deployment")]
#[case("statefulset")]
#[tokio::test(flavor = "multi_thread")]
async fn replicas_above_the_floor_run_on_spot_while_on_demand_is_full(#[case] kind: &str) {
    let (cluster, _) = without_spot(3).await;
    cluster.capacity("spot", 1, 20).await;
    let web = if kind == "deployment" { cluster.deployment("web") } else { cluster.stateful_set("web") };
    let web = web.annotate("spot-percentage", "50").annotate("min-on-demand", "2").annotate("fallback-after", "2s");
    let web = web.annotate("on-demand-fallback", "spot").annotate("move-statefulset-pods", "true");
    web.replicas(10).create().await;

    cluster.wait_for_split("web", 7, 3).await;
    cluster.wait_for_workload_event("web", "OnDemandShortage").await;
    cluster.capacity("on-demand", 1, 20).await;

    cluster.wait_for_split("web", 5, 5).await;
}
