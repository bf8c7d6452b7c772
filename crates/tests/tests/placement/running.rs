//! Pods that run already: moved when asked for, and only when everyone agrees; spot that runs out.

use perennial_core::placement::FALLBACK;
use perennial_tests::{TestCluster, eventually};

use super::{quick, roomy};

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_annotation_moves_pods_and_a_budget_is_respected() {
    let cluster = roomy().await;
    let operator = quick(&cluster).start().await;
    cluster.deployment("web").asks("spot-percentage", "70").replicas(10).create().await;
    cluster.wait_for_split("web", 7, 3).await;
    cluster.budget("all", "web", 10).await;

    cluster.ask("web", "spot-percentage", "50").await;

    eventually("it waits for the budget", async || {
        let said = cluster.about_workloads("workloads");
        if said.contains("PodDisruptionBudget all") { Ok(()) } else { Err(said) }
    })
    .await;
    cluster.wait_for_split("web", 7, 3).await;
    assert!(operator.metrics().sum("perennial_placement_moves_total", &[("result", "evicted")]) < 0.5);

    cluster.kubectl("delete pdb all");
    cluster.wait_for_split("web", 5, 5).await;
    operator.wait_for_metric("perennial_placement_moves_total", &[("result", "evicted")], 2.0).await;
    operator.wait_for_metric("perennial_placement_drift", &[], 0.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_budgets_on_one_pod_are_an_event_and_a_stop() {
    let cluster = roomy().await;
    let operator = quick(&cluster).start().await;
    cluster.deployment("web").asks("spot-percentage", "70").replicas(10).create().await;
    cluster.wait_for_split("web", 7, 3).await;
    cluster.budget("one", "web", 1).await;
    cluster.budget("two", "web", 1).await;

    cluster.ask("web", "spot-percentage", "50").await;

    eventually("the operator says why", async || {
        let said = cluster.about_workloads("workloads");
        if said.contains("PodDisruptionBudgets") || said.contains("more than one") { Ok(()) } else { Err(said) }
    })
    .await;
    assert!(operator.metrics().sum("perennial_placement_moves_total", &[("result", "evicted")]) < 0.5);
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_that_were_there_before_are_taken_in_and_moved() {
    let cluster = roomy().await;
    cluster.deployment("web").replicas(10).create().await;
    eventually("all run", async || {
        let seen = cluster.placed("web").await;
        if seen.spot + seen.on_demand == 10 { Ok(()) } else { Err(seen.to_string()) }
    })
    .await;

    let _operator = quick(&cluster).start().await;
    cluster.ask("web", "spot-percentage", "30").await;

    cluster.wait_for_split("web", 3, 7).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn when_spot_runs_out_replicas_fall_back_to_on_demand() {
    let cluster = TestCluster::whole().await;
    cluster.capacity("spot", 1, 3).await;
    cluster.capacity("on-demand", 2, 100).await;
    let operator = quick(&cluster).start().await;
    let web = cluster.deployment("web").asks("spot-percentage", "70").asks("fallback-after", "2s");
    web.replicas(10).create().await;

    cluster.wait_for_split("web", 3, 7).await;

    operator.wait_for_metric("perennial_fallback_active", &[], 1.0).await;
    eventually("four pods are marked", async || {
        let pods = cluster.pods("web").await;
        let marked = pods.iter().filter(|pod| {
            pod.metadata.annotations.as_ref().is_some_and(|annotations| annotations.contains_key(FALLBACK))
        });
        let marked = marked.count();
        if marked == 4 { Ok(()) } else { Err(marked) }
    })
    .await;
}
