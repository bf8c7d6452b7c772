//! Rollouts under disturbance: the minimum of Ready on-demand replicas holds, and the final split
//! is exact.

use std::time::Duration;

use perennial_harness::{TestCluster, eventually, eventually_within};
use serde_json::json;

use super::{annotation, kubelet::Kubelet, shared, web};

/// Waits until all pods have this version (`None`: the first) and this split. Returns the smallest
/// number of Ready on-demand pods observed.
async fn until_all_are(cluster: &TestCluster, version: Option<&str>, spot: usize, on_demand: usize) -> usize {
    let mut fewest = usize::MAX;
    eventually_within(Duration::from_mins(2), format!("all are {version:?}, {spot} and {on_demand}"), async || {
        let seen = cluster.pod_counts("web").await;
        fewest = fewest.min(seen.ready_on_demand);
        let pods = cluster.pods("web").await;
        let right = pods.iter().filter(|pod| annotation(pod, "version").as_deref() == version).count();
        let done = (right, pods.len()) == (spot + on_demand, spot + on_demand)
            && (seen.spot, seen.on_demand, seen.waiting) == (spot, on_demand, 0);
        if done { Ok(()) } else { Err(format!("{right} of {} are, {seen}", pods.len())) }
    })
    .await;
    fewest
}

/// Waits until both the old and the new ReplicaSet have pods.
async fn in_the_middle(cluster: &TestCluster, version: &str) {
    eventually("the rollout is in the middle", async || {
        let pods = cluster.pods("web").await;
        let new = pods.iter().filter(|pod| annotation(pod, "version").as_deref() == Some(version)).count();
        if new > 0 && new < pods.len() { Ok(()) } else { Err(format!("{new} of {}", pods.len())) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_minimum_holds_when_on_demand_pods_start_slower_than_spot_pods() {
    let cluster = TestCluster::shared().await;
    cluster.shared_operator().await;
    cluster.capacity("spot", 1, 100).await;
    let _kubelet = Kubelet::slow(&cluster, "on-demand", 100, Duration::from_secs(2)).await;
    web(&cluster, 12).await;
    eventually("the floor is Ready", async || {
        let seen = cluster.pod_counts("web").await;
        if seen.ready_on_demand == 4 && seen.spot == 8 { Ok(()) } else { Err(seen.to_string()) }
    })
    .await;

    cluster.roll_out("web", "2").await;
    let fewest = until_all_are(&cluster, Some("2"), 8, 4).await;

    assert!(fewest >= 3, "only {fewest} Ready on-demand replicas during the rollout");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_undone_rollout_ends_exact() {
    let (cluster, _) = shared().await;
    web(&cluster, 20).await;
    cluster.wait_for_split("web", 14, 6).await;

    cluster.roll_out("web", "2").await;
    in_the_middle(&cluster, "2").await;
    cluster.kubectl("rollout undo deployment web");
    let fewest = until_all_are(&cluster, None, 14, 6).await;

    assert!(fewest >= 3, "only {fewest} Ready on-demand replicas");
}

/// Behaviour of Kubernetes itself that users should know.
#[tokio::test(flavor = "multi_thread")]
async fn a_rollout_undo_restores_the_annotations_of_that_revision() {
    let (cluster, _) = shared().await;
    cluster.deployment("web").annotate("spot-percentage", "50").replicas(4).create().await;
    cluster.wait_for_split("web", 2, 2).await;
    cluster.roll_out("web", "2").await;
    until_all_are(&cluster, Some("2"), 2, 2).await;
    cluster.annotate_deployment("web", "spot-percentage", "75").await;
    cluster.wait_for_split("web", 3, 1).await;

    cluster.kubectl("rollout undo deployment web");

    until_all_are(&cluster, None, 2, 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rollout_that_is_paused_in_the_middle_and_scaled_ends_exact() {
    let (cluster, _) = shared().await;
    web(&cluster, 20).await;
    cluster.wait_for_split("web", 14, 6).await;

    cluster.roll_out("web", "2").await;
    in_the_middle(&cluster, "2").await;
    cluster.kubectl("rollout pause deployment web");
    cluster.scale("web", 30).await;
    eventually("both versions are there, and all of them run", async || {
        let seen = cluster.pod_counts("web").await;
        if seen.waiting == 0 && seen.spot + seen.on_demand >= 30 { Ok(()) } else { Err(seen.to_string()) }
    })
    .await;
    cluster.kubectl("rollout resume deployment web");
    let fewest = until_all_are(&cluster, Some("2"), 21, 9).await;

    assert!(fewest >= 3, "only {fewest} Ready on-demand replicas");
}

#[tokio::test(flavor = "multi_thread")]
async fn scaling_in_the_middle_of_rollouts_ends_exact() {
    let (cluster, _) = shared().await;
    web(&cluster, 20).await;
    cluster.wait_for_split("web", 14, 6).await;

    cluster.roll_out("web", "2").await;
    in_the_middle(&cluster, "2").await;
    cluster.scale("web", 40).await;
    cluster.roll_out("web", "3").await;
    in_the_middle(&cluster, "3").await;
    cluster.scale("web", 30).await;

    until_all_are(&cluster, Some("3"), 21, 9).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn recreate_ends_exact() {
    let (cluster, operator) = shared().await;
    let builder =
        cluster.deployment("web").annotate("spot-percentage", "70").annotate("min-on-demand", "3").replicas(10);
    builder.with(|object| object["spec"]["strategy"] = json!({"type": "Recreate"})).create().await;
    cluster.wait_for_split("web", 7, 3).await;

    cluster.roll_out("web", "2").await;
    until_all_are(&cluster, Some("2"), 7, 3).await;

    assert_eq!(cluster.evictions(operator, "web"), 0);
}

/// A ReplicaSet without a Deployment is not managed; a Deployment that adopts it adopts its pods as
/// they are.
#[tokio::test(flavor = "multi_thread")]
async fn an_orphaned_replica_set_is_left_alone_and_exact_again_when_it_is_adopted() {
    let (cluster, _) = shared().await;
    web(&cluster, 6).await;
    cluster.wait_for_split("web", 3, 3).await;

    cluster.kubectl("delete deployment web --cascade=orphan");
    let set = cluster.kubectl("get rs -o name").trim().to_owned();
    eventually("the ReplicaSet has no owner", async || {
        let owners = cluster.kubectl(&format!("get {set} -o jsonpath={{.metadata.ownerReferences}}"));
        if owners.is_empty() { Ok(()) } else { Err(owners) }
    })
    .await;
    cluster.kubectl(&format!("scale {set} --replicas=12"));
    eventually("12 pods run, and none is kept waiting", async || {
        let seen = cluster.pod_counts("web").await;
        if seen.waiting == 0 && seen.spot + seen.on_demand == 12 { Ok(()) } else { Err(seen.to_string()) }
    })
    .await;
    let unplaced = cluster.pods("web").await.iter().filter(|pod| super::class(pod).is_none()).count();
    assert_eq!(unplaced, 6, "pods of an orphan pass untouched");

    web(&cluster, 12).await;
    cluster.wait_for_split("web", 8, 4).await;
    assert_eq!(cluster.kubectl("get rs -o name").trim(), set, "it was adopted");
}
