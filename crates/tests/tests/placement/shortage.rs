//! Spot capacity that runs out, returns, or is interrupted at once.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use perennial_core::placement::{FALLBACK, STATE};
use perennial_harness::{TestCluster, eventually, eventually_within};
use serde_json::{Value, json};

use super::{annotation, class, is_gated};

/// A cluster with room for this number of spot pods and sufficient on-demand capacity.
async fn short(spot: usize) -> TestCluster {
    let cluster = TestCluster::shared().await;
    cluster.shared_operator().await;
    cluster.capacity("spot", 1, spot).await;
    cluster.capacity("on-demand", 1, 100).await;
    cluster
}

async fn until_marked(cluster: &TestCluster, wanted: usize) {
    eventually(format!("{wanted} pods are marked"), async || {
        let pods = cluster.pods("web").await;
        let marked = pods.iter().filter(|pod| annotation(pod, FALLBACK).is_some()).count();
        if marked == wanted { Ok(()) } else { Err(marked) }
    })
    .await;
}

/// Returns the state annotation of the workload.
fn state(cluster: &TestCluster) -> Value {
    let object: Value = serde_json::from_str(&cluster.kubectl("get deployment web -o json")).unwrap();
    let text = object["metadata"]["annotations"][STATE].as_str().unwrap_or("{}").to_owned();
    serde_json::from_str(&text).unwrap()
}

/// Returns the time until spot is tried again.
fn pause(breaker: &Value) -> Option<SignedDuration> {
    let time = |name: &str| breaker[name].as_str()?.parse::<Timestamp>().ok();
    Some(time("probe")?.duration_since(time("since")?))
}

/// Moves the state back in time, so that the backoff is over.
async fn let_the_pause_end(cluster: &TestCluster) {
    let mut state = state(cluster);
    state["breaker"]["probe"] = json!(Timestamp::now().to_string());
    let annotations = json!({STATE: state.to_string()});
    cluster.patch_deployment("web", json!({"metadata": {"annotations": annotations}})).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_fall_back_to_on_demand_and_leave_first() {
    let cluster = short(3).await;
    let web = cluster.deployment("web").annotate("spot-percentage", "70").annotate("fallback-after", "2s");
    web.replicas(10).create().await;

    cluster.wait_for_split("web", 3, 7).await;
    until_marked(&cluster, 4).await;
    cluster.wait_for_workload_event("web", "SpotShortage").await;
    let explained = cluster.perennial_all_namespaces("explain deploy/web");
    assert!(explained.contains("spot has been short since"), "{explained}");
    eventually("the list shows the reason and no misplaced replicas", async || {
        let message = cluster.perennial_all_namespaces(&format!("workloads -n {}", cluster.workspace()));
        let line = message.lines().last().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ");
        let wanted = "deployment/web 10 3/7 7/3 10/10 0 4 spot has been short for";
        if line.contains(wanted) { Ok(()) } else { Err(message) }
    })
    .await;

    cluster.scale("web", 6).await;
    cluster.wait_for_split("web", 3, 3).await;
    until_marked(&cluster, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_more_fall_back_than_the_budget_allows() {
    let cluster = short(3).await;
    let web = cluster.deployment("web").annotate("spot-percentage", "70").annotate("fallback-after", "2s");
    web.annotate("fallback-budget", "2").replicas(10).create().await;

    eventually_within(Duration::from_mins(1), "two of four have fallen back", async || {
        let seen = cluster.pod_counts("web").await;
        if (seen.spot, seen.on_demand, seen.waiting) == (3, 5, 2) { Ok(()) } else { Err(seen.to_string()) }
    })
    .await;
    until_marked(&cluster, 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn spot_is_retried_with_backoff_and_replicas_return_when_it_is_back() {
    let cluster = short(3).await;
    let web = cluster.deployment("web").annotate("spot-percentage", "70").annotate("fallback-after", "2s");
    web.replicas(10).create().await;
    cluster.wait_for_split("web", 3, 7).await;
    let first = state(&cluster)["breaker"].clone();
    assert_eq!(first["is"], "open", "{first}");

    let_the_pause_end(&cluster).await;
    let second = eventually("it was tried, in vain", async || {
        let breaker = state(&cluster)["breaker"].clone();
        let longer = breaker["is"] == "open" && pause(&breaker) > pause(&first);
        if longer { Ok(breaker) } else { Err(breaker.to_string()) }
    })
    .await;
    assert_eq!(pause(&second), pause(&first).map(|pause| pause * 2), "{second}");
    cluster.wait_for_split("web", 3, 7).await;

    cluster.capacity("spot", 1, 50).await;
    let_the_pause_end(&cluster).await;
    cluster.wait_for_split("web", 7, 3).await;
    until_marked(&cluster, 0).await;
    cluster.wait_for_workload_event("web", "SpotBack").await;
}

/// Many spot nodes fail at once without replacements: the minimum first, the rest a few at a time.
#[tokio::test(flavor = "multi_thread")]
async fn after_a_mass_interruption_replacements_are_rate_limited() {
    let cluster = TestCluster::shared().await;
    cluster.shared_operator().await;
    let doomed = cluster.capacity_node("spot", 40, |_| ()).await;
    cluster.capacity("on-demand", 1, 100).await;
    let web = cluster.deployment("web").annotate("spot-percentage", "80").annotate("min-on-demand", "2").replicas(40);
    web.create().await;
    cluster.wait_for_split("web", 32, 8).await;

    cluster.kubectl(&format!("taint node {doomed} karpenter.sh/disrupted=:NoSchedule"));
    let on_spot = cluster.pods("web").await.into_iter().filter(|pod| class(pod).as_deref() == Some("spot"));
    // Most pods are evicted and the node still exists: the interruption continues.
    let names: Vec<String> = on_spot.filter_map(|pod| pod.metadata.name).take(20).collect();
    cluster.kubectl(&format!("delete pod {} --wait=false", names.join(" ")));

    eventually("five wait for a node, the rest for their turn", async || {
        let pods = cluster.pods("web").await;
        let unbound = pods.iter().filter(|pod| pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_none()));
        let (gated, free): (Vec<_>, Vec<_>) = unbound.partition(|pod| is_gated(pod));
        assert!(free.len() <= 5, "{} at a time", free.len());
        if (gated.len(), free.len()) == (15, 5) { Ok(()) } else { Err(format!("{} and {}", gated.len(), free.len())) }
    })
    .await;

    cluster.capacity("spot", 1, 100).await;
    cluster.wait_for_split("web", 32, 8).await;
}
