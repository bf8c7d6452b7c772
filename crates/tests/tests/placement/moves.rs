//! Evictions of running pods: on request, and only if every constraint allows it.

use perennial_core::placement::{DELETION_COST, STATE};
use perennial_harness::{TestCluster, eventually};
use serde_json::{Value, json};

use super::{annotation, class, shared};

/// Waits until `perennial workloads` shows this.
async fn until_told(cluster: &TestCluster, what: &str) {
    eventually(format!("perennial workloads shows {what:?}"), async || {
        let message = cluster.perennial_all_namespaces("explain deploy/web");
        if message.contains(what) { Ok(()) } else { Err(message) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_annotation_moves_pods_one_by_one_and_a_budget_is_respected() {
    let (cluster, operator) = shared().await;
    cluster.deployment("web").annotate("spot-percentage", "70").replicas(10).create().await;
    cluster.wait_for_split("web", 7, 3).await;
    cluster.budget("all", "web", 10).await;
    eventually("the budget counts", async || {
        let seen = cluster.kubectl("get pdb all -o jsonpath={.status.currentHealthy}");
        if seen == "10" { Ok(()) } else { Err(seen) }
    })
    .await;

    cluster.annotate_deployment("web", "spot-percentage", "50").await;

    until_told(&cluster, "PodDisruptionBudget all").await;
    assert_eq!(cluster.evictions(operator, "web"), 0);

    cluster.kubectl("delete pdb all");
    cluster.wait_for_split("web", 5, 5).await;
    assert_eq!(cluster.evictions(operator, "web"), 2, "no more than needed");
    let state = cluster.kubectl("get deployment web -o json");
    let state: Value = serde_json::from_str(&state).unwrap();
    let state = state["metadata"]["annotations"][STATE].as_str().unwrap().to_owned();
    assert!(state.contains("\"moved\""), "the cooldown is kept on the workload: {state}");
}

/// Its PodDisruptionBudget selects by a label that only pods have: only the API server can evaluate
/// it.
#[tokio::test(flavor = "multi_thread")]
async fn an_eviction_that_is_answered_429_waits() {
    let (cluster, operator) = shared().await;
    cluster.deployment("web").annotate("spot-percentage", "70").replicas(10).create().await;
    cluster.wait_for_split("web", 7, 3).await;
    let selector = json!({"matchLabels": {"perennial.dev/managed": "true"}});
    let budget = json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "hidden"},
        "spec": {"minAvailable": 10, "selector": selector}});
    cluster.try_kubectl_with("create", &budget.to_string()).expect_success();
    eventually("the budget counts", async || {
        let seen = cluster.kubectl("get pdb hidden -o jsonpath={.status.currentHealthy}");
        if seen == "10" { Ok(()) } else { Err(seen) }
    })
    .await;
    let blocked = || operator.metrics().sum("perennial_placement_moves_total", &[("result", "blocked")]);
    let before = blocked();

    cluster.annotate_deployment("web", "spot-percentage", "50").await;

    eventually("it was refused", async || if blocked() > before { Ok(()) } else { Err(blocked()) }).await;
    assert_eq!(cluster.evictions(operator, "web"), 0);
    cluster.kubectl("delete pdb hidden");
    cluster.wait_for_split("web", 5, 5).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_budgets_on_one_pod_are_an_event_and_a_stop() {
    let (cluster, operator) = shared().await;
    cluster.deployment("web").annotate("spot-percentage", "70").replicas(10).create().await;
    cluster.wait_for_split("web", 7, 3).await;
    cluster.budget("one", "web", 1).await;
    cluster.budget("two", "web", 1).await;

    cluster.annotate_deployment("web", "spot-percentage", "50").await;

    let message = cluster.wait_for_workload_event("web", "SeveralBudgets").await;
    assert!(message.contains("one") && message.contains("two"), "{message}");
    until_told(&cluster, "several PodDisruptionBudgets").await;
    assert_eq!(cluster.evictions(operator, "web"), 0);

    cluster.kubectl("delete pdb two");
    cluster.wait_for_split("web", 5, 5).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn existing_pods_are_adopted_and_moved() {
    let (cluster, _) = shared().await;
    cluster.deployment("web").replicas(10).create().await;
    eventually("all run", async || {
        let seen = cluster.pod_counts("web").await;
        if seen.spot + seen.on_demand == 10 { Ok(()) } else { Err(seen.to_string()) }
    })
    .await;

    cluster.annotate_deployment("web", "spot-percentage", "30").await;

    cluster.wait_for_split("web", 3, 7).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn paused_and_outside_its_schedule_nothing_is_moved() {
    let (cluster, operator) = shared().await;
    let web = cluster.deployment("web").annotate("spot-percentage", "70").annotate("paused", "true");
    web.replicas(10).create().await;
    cluster.wait_for_split("web", 7, 3).await;

    cluster.annotate_deployment("web", "spot-percentage", "50").await;
    until_told(&cluster, "paused").await;
    // Open for one minute on the 29th of February.
    cluster.annotate_deployment("web", "disruption-duration", "1m").await;
    cluster.annotate_deployment("web", "disruption-schedule", "0 0 29 2 *").await;
    cluster.annotate_deployment("web", "paused", "false").await;
    until_told(&cluster, "outside the disruption schedule").await;
    assert_eq!(cluster.evictions(operator, "web"), 0);

    cluster.annotate_deployment("web", "disruption-schedule", "* * * * *").await;
    cluster.wait_for_split("web", 5, 5).await;
}

/// Karpenter is about to remove the node: pods that move to spot go elsewhere.
#[tokio::test(flavor = "multi_thread")]
async fn a_spot_node_that_karpenter_disrupts_gets_no_pods() {
    let cluster = TestCluster::shared().await;
    cluster.shared_operator().await;
    let leaving = cluster
        .capacity_node("spot", 100, |node| {
            node["spec"]["taints"] = json!([{"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}]);
        })
        .await;
    cluster.capacity("on-demand", 1, 100).await;
    cluster.deployment("web").annotate("spot-percentage", "0").replicas(6).create().await;
    cluster.wait_for_split("web", 0, 6).await;

    cluster.annotate_deployment("web", "spot-percentage", "50").await;
    until_told(&cluster, "a spot pod is not scheduled yet").await;
    cluster.capacity("spot", 1, 100).await;

    cluster.wait_for_split("web", 3, 3).await;
    let there = cluster
        .pods("web")
        .await
        .into_iter()
        .filter(|pod| pod.spec.as_ref().is_some_and(|spec| spec.node_name.as_deref() == Some(leaving.as_str())));
    assert_eq!(there.count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_writer_of_the_deletion_cost_is_reported_and_not_overwritten() {
    let (cluster, _) = shared().await;
    cluster.deployment("web").annotate("spot-percentage", "50").replicas(4).create().await;
    cluster.wait_for_split("web", 2, 2).await;
    let pod = cluster.pods("web").await.remove(0).metadata.name.unwrap();

    cluster.kubectl(&format!("annotate pod {pod} {DELETION_COST}=1000 --overwrite"));

    let message = cluster.wait_for_workload_event("web", "ForeignDeletionCost").await;
    assert!(message.contains("scale-in is not exact"), "{message}");
    cluster.scale("web", 6).await;
    cluster.wait_for_split("web", 3, 3).await;
    let pods = cluster.pods("web").await;
    let foreign = pods.iter().find(|found| found.metadata.name.as_ref() == Some(&pod)).unwrap();
    assert_eq!(annotation(foreign, DELETION_COST).as_deref(), Some("1000"));
    assert!(class(foreign).is_some());
}
