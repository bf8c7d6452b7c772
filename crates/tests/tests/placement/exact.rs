//! The spot share is exact at every size.

use futures::future::join_all;
use perennial_core::placement::slots::Split;
use perennial_harness::eventually;
use rstest::rstest;
use serde_json::json;

use super::{class, shared};

#[rstest]
#[case(70, 3)]
#[case(90, 4)]
#[tokio::test(flavor = "multi_thread")]
async fn a_deployment_is_exact_at_every_stop(#[case] percentage: u8, #[case] floor: u32) {
    let (cluster, operator) = shared().await;
    let split = Split::new(percentage, floor);
    let web = cluster.deployment("web").annotate("spot-percentage", &percentage.to_string());
    web.annotate("min-on-demand", &floor.to_string()).replicas(10).create().await;

    for replicas in [10, 100, 37, 3, 50] {
        cluster.scale("web", replicas).await;
        let (spot, on_demand) = (split.spot(replicas) as usize, split.on_demand(replicas) as usize);
        cluster.wait_for_split("web", spot, on_demand).await;
        // ReplicaSets remove pods that are not Ready first, whatever their slot.
        cluster.kubectl("rollout status deployment web --timeout=60s");
    }

    assert_eq!(cluster.evictions(operator, "web"), 0, "nothing had to be moved");
}

/// The owner of a workload places pods within their create.
#[tokio::test(flavor = "multi_thread")]
async fn pods_that_are_placed_as_they_are_created_cost_no_write() {
    let cluster = super::roomy().await;
    let operator = super::quick(&cluster).start().await;
    super::web(&cluster, 1).await;
    cluster.wait_for_split("web", 0, 1).await;
    let writes = || operator.metrics().sum("rest_client_requests_total", &[("method", "PATCH")]);
    let before = writes();

    cluster.scale("web", 200).await;
    cluster.wait_for_split("web", 140, 60).await;

    let pods = cluster.pods("web").await;
    let mut slots: Vec<u32> =
        pods.iter().filter_map(|pod| super::annotation(pod, "perennial.dev/slot")?.parse().ok()).collect();
    slots.sort_unstable();
    assert_eq!(slots, (0..200).collect::<Vec<u32>>());
    // The first pods may be created before the owner has observed the new size.
    let written = writes() - before;
    assert!(written < 100.0, "{written} writes for 199 pods");
}

/// Quota is checked after the webhooks: the slot of a pod that was refused goes to another pod.
#[tokio::test(flavor = "multi_thread")]
async fn pods_that_are_refused_after_they_were_placed_leave_nothing_behind() {
    let (cluster, operator) = shared().await;
    cluster.kubectl("create quota few --hard=pods=4");
    eventually("the quota is in force", async || {
        let used = cluster.kubectl("get quota few -o jsonpath={.status.used.pods}");
        if used == "0" { Ok(()) } else { Err(used) }
    })
    .await;
    cluster
        .deployment("web")
        .annotate("spot-percentage", "70")
        .annotate("min-on-demand", "3")
        .replicas(20)
        .create()
        .await;
    cluster.wait_for_split("web", 1, 3).await;

    cluster.kubectl("delete quota few");

    cluster.wait_for_split("web", 14, 6).await;
    assert_eq!(cluster.evictions(operator, "web"), 0, "nothing had to be moved");
}

/// Their owners are newer than the caches.
#[tokio::test(flavor = "multi_thread")]
async fn the_first_pods_of_a_brand_new_workload_are_not_missed() {
    let (cluster, operator) = shared().await;
    let all: Vec<String> = (0..20).map(|number| format!("new-{number}")).collect();

    let create = async |name: &String| {
        let builder = if name.ends_with('0') { cluster.stateful_set(name) } else { cluster.deployment(name) };
        builder.annotate("spot-percentage", "50").replicas(4).create().await;
    };
    join_all(all.iter().map(create)).await;

    for name in &all {
        cluster.wait_for_split(name, 2, 2).await;
        let pods = cluster.pods(name).await;
        assert!(pods.iter().all(|pod| class(pod).is_some()), "each was given its class: {name}");
        assert_eq!(cluster.evictions(operator, name), 0, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crashed_pod_leaves_a_hole_that_its_replacement_fills() {
    let (cluster, operator) = shared().await;
    cluster
        .deployment("web")
        .annotate("spot-percentage", "50")
        .annotate("min-on-demand", "2")
        .replicas(8)
        .create()
        .await;
    cluster.wait_for_split("web", 4, 4).await;

    for pod in cluster.pods("web").await.iter().take(5) {
        cluster.kubectl(&format!("delete pod {} --wait=false", pod.metadata.name.as_deref().unwrap()));
    }
    eventually("the slots are 0 to 7 again", async || {
        let pods = cluster.pods("web").await;
        let slots = pods.iter().filter_map(|pod| super::annotation(pod, "perennial.dev/slot")?.parse().ok());
        let mut slots: Vec<u32> = slots.collect();
        slots.sort_unstable();
        if slots == (0..8).collect::<Vec<u32>>() { Ok(()) } else { Err(format!("{slots:?}")) }
    })
    .await;
    cluster.wait_for_split("web", 4, 4).await;
    cluster.kubectl("rollout status deployment web --timeout=60s");

    cluster.scale("web", 3).await;
    cluster.wait_for_split("web", 1, 2).await;
    assert_eq!(cluster.evictions(operator, "web"), 0, "holes are relabelled, not moved");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_has_defaults_and_a_workload_may_opt_out() {
    let (cluster, _) = shared().await;
    cluster.kubectl(&format!("annotate namespace {} perennial.dev/spot-percentage=50", cluster.workspace()));
    cluster.deployment("web").replicas(10).create().await;
    cluster.deployment("own").annotate("ignore", "true").replicas(4).create().await;

    cluster.wait_for_split("web", 5, 5).await;

    let own = cluster.pods("own").await;
    assert!(own.iter().all(|pod| class(pod).is_none()));
}

/// `preferred`: without spot capacity pods run anyway.
#[tokio::test(flavor = "multi_thread")]
async fn preferred_pods_run_wherever_there_is_room() {
    let cluster = perennial_harness::TestCluster::shared().await;
    cluster.capacity("on-demand", 1, 100).await;
    let operator = cluster.shared_operator().await;
    let web = cluster.deployment("web").annotate("spot-percentage", "50").annotate("selection", "preferred");
    web.annotate("fallback-after", "1s").replicas(6).create().await;

    cluster.wait_for_split("web", 0, 6).await;

    let asked: Vec<Option<String>> =
        cluster.pods("web").await.iter().map(|pod| super::annotation(pod, "perennial.dev/class")).collect();
    assert_eq!(asked.iter().filter(|class| class.as_deref() == Some("spot")).count(), 3, "{asked:?}");
    assert_eq!(cluster.evictions(operator, "web"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_minimum_above_the_replicas_means_all_on_demand() {
    let (cluster, _) = shared().await;
    cluster
        .deployment("web")
        .annotate("spot-percentage", "70")
        .annotate("min-on-demand", "9")
        .replicas(4)
        .create()
        .await;

    cluster.wait_for_split("web", 0, 4).await;

    let message = cluster.wait_for_workload_event("web", "PlacementNote").await;
    assert!(message.contains("min-on-demand 9"), "{message}");
    cluster.patch_deployment("web", json!({"spec": {"replicas": 12}})).await;
    cluster.wait_for_split("web", 3, 9).await;
}
