//! Shortages end as soon as capacity exists, and no pod stays Pending in a class that it does not
//! belong to.

use perennial_core::placement::STATE;
use perennial_harness::{Operator, TestCluster, Webhooks, eventually};
use rstest::rstest;
use serde_json::{Value, json};

use super::{class, failsafe::refuse_never_spot, is_gated, quick};

/// A namespace on the shared cluster with room for this number of on-demand pods and no spot.
pub(super) async fn without_spot(on_demand: usize) -> (TestCluster, &'static Operator) {
    let cluster = TestCluster::shared().await;
    cluster.capacity("on-demand", 1, on_demand).await;
    let operator = cluster.shared_operator().await;
    (cluster, operator)
}

pub(super) async fn until_counted(cluster: &TestCluster, app: &str, on_demand: usize, waiting: usize) {
    eventually(format!("{on_demand} run on-demand and {waiting} wait"), async || {
        let seen = cluster.pod_counts(app).await;
        if (seen.on_demand, seen.waiting) == (on_demand, waiting) { Ok(()) } else { Err(seen.to_string()) }
    })
    .await;
}

async fn until_explained(cluster: &TestCluster, workload: &str, what: &str) -> String {
    eventually(format!("explain shows {what:?}"), async || {
        let text = cluster.perennial_all_namespaces(&format!("explain {workload}"));
        if text.contains(what) { Ok(text) } else { Err(text) }
    })
    .await
}

fn state(cluster: &TestCluster) -> Value {
    let object: Value = serde_json::from_str(&cluster.kubectl("get deployment web -o json")).unwrap();
    serde_json::from_str(object["metadata"]["annotations"][STATE].as_str().unwrap_or("{}")).unwrap()
}

/// Moves the time of the next probe into the past.
async fn let_the_pause_end(cluster: &TestCluster) {
    let mut state = state(cluster);
    state["breaker"]["probe"] = json!("2026-01-01T00:00:00Z");
    cluster.patch_deployment("web", json!({"metadata": {"annotations": {STATE: state.to_string()}}})).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn spot_that_is_back_is_used_although_on_demand_is_full() {
    let (cluster, operator) = without_spot(3).await;
    let lost = cluster.capacity_node("spot", 20, |_| ()).await;
    let web = cluster.deployment("web").annotate("spot-percentage", "70").annotate("min-on-demand", "3");
    web.annotate("fallback-after", "2s").replicas(10).create().await;
    cluster.wait_for_split("web", 7, 3).await;

    cluster.kubectl(&format!("delete node {lost}"));
    let there = cluster.pods("web").await.into_iter().filter(|pod| class(pod).as_deref() == Some("spot"));
    let names: Vec<String> = there.filter_map(|pod| pod.metadata.name).collect();
    cluster.kubectl(&format!("delete pod {} --force --grace-period=0", names.join(" ")));
    cluster.wait_for_workload_event("web", "SpotShortage").await;
    cluster.wait_for_workload_event("web", "OnDemandShortage").await;
    until_counted(&cluster, "web", 3, 7).await;
    let text = cluster.perennial_all_namespaces(&format!("workloads -n {}", cluster.workspace()));
    assert!(text.contains("wait for capacity") || text.contains("on-demand capacity"), "{text}");

    cluster.capacity("spot", 1, 20).await;

    cluster.wait_for_split("web", 7, 3).await;
    assert_eq!(cluster.evictions(operator, "web"), 0);
}

#[rstest]
#[case("spot-percentage", "0")]
#[case("min-on-demand", "10")]
#[tokio::test(flavor = "multi_thread")]
async fn pods_beyond_a_lowered_quota_run_on_demand_at_once(#[case] annotation: &str, #[case] value: &str) {
    let (cluster, _) = without_spot(20).await;
    let web = cluster.deployment("web").annotate("spot-percentage", "70").annotate("min-on-demand", "3");
    web.replicas(10).create().await;
    until_counted(&cluster, "web", 3, 7).await;

    cluster.annotate_deployment("web", annotation, value).await;

    cluster.wait_for_split("web", 0, 10).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_of_a_stateful_set_beyond_a_lowered_quota_run_on_demand_at_once() {
    let (cluster, _) = without_spot(20).await;
    cluster.stateful_set("db").annotate("spot-percentage", "80").replicas(5).create().await;
    until_counted(&cluster, "db", 1, 4).await;

    cluster.kubectl("annotate statefulset db perennial.dev/spot-percentage=0 --overwrite");

    cluster.wait_for_split("db", 0, 5).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_ready_replica_is_not_evicted_for_a_probe() {
    let (cluster, operator) = without_spot(20).await;
    let web = cluster.deployment("web").annotate("spot-percentage", "100").annotate("fallback-after", "1s");
    web.create().await;
    cluster.wait_for_split("web", 0, 1).await;

    let_the_pause_end(&cluster).await;

    until_explained(&cluster, "deploy/web", "only 1 of 1 replicas are available to spare one").await;
    assert_eq!(cluster.evictions(operator, "web"), 0);
    cluster.capacity("spot", 1, 20).await;
    cluster.wait_for_split("web", 1, 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ordered_pods_wait_once_for_spot() {
    let (cluster, operator) = without_spot(20).await;
    let db = cluster.stateful_set("db").annotate("spot-percentage", "80").annotate("fallback-after", "3s").replicas(5);
    db.with(|object| object["spec"]["podManagementPolicy"] = json!("OrderedReady")).create().await;

    cluster.wait_for_split("db", 0, 5).await;

    let whose = format!("/{}/db", cluster.workspace());
    let deleted = operator.log().into_iter().filter(|line| {
        line["message"] == "deleted unschedulable pod"
            && line["workload"].as_str().is_some_and(|it| it.ends_with(&whose))
    });
    assert_eq!(deleted.count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_workload_falls_back() {
    let (cluster, operator) = without_spot(20).await;
    let web = cluster.deployment("web").annotate("spot-percentage", "70").annotate("fallback-after", "2s");
    web.annotate("paused", "true").replicas(10).create().await;

    cluster.wait_for_split("web", 0, 10).await;

    cluster.wait_for_workload_event("web", "SpotShortage").await;
    assert_eq!(cluster.evictions(operator, "web"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_pods_of_a_rollout_are_the_probe_where_a_budget_forbids_evictions() {
    let (cluster, operator) = without_spot(40).await;
    let web = cluster.deployment("web").annotate("spot-percentage", "70").annotate("fallback-after", "2s");
    web.replicas(10).create().await;
    cluster.wait_for_split("web", 0, 10).await;
    cluster.budget("strict", "web", 10).await;
    eventually("the budget counts", async || {
        let seen = cluster.kubectl("get pdb strict -o jsonpath={.status.currentHealthy}");
        if seen == "10" { Ok(()) } else { Err(seen) }
    })
    .await;

    let_the_pause_end(&cluster).await;
    let text = until_explained(&cluster, "deploy/web", "PodDisruptionBudget strict allows no disruption now").await;
    assert!(!text.contains("2026-01-01"), "a time in the past: {text}");
    let spot = cluster.capacity_node("spot", 40, |_| ()).await;
    // A probe that the scheduler tries earlier finds no node, and the next pod falls back.
    eventually("the spot node is usable", async || {
        let ready = "{.spec.taints}{.status.conditions[?(@.type==\"Ready\")].status}";
        let seen = cluster.kubectl(&format!("get node {spot} -o jsonpath={ready}"));
        if seen == "True" { Ok(()) } else { Err(seen) }
    })
    .await;
    cluster.roll_out("web", "2").await;

    cluster.wait_for_split("web", 7, 3).await;
    assert_eq!(cluster.evictions(operator, "web"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_that_only_their_class_holds_back_are_released_when_the_annotations_are_removed() {
    let (cluster, _) = without_spot(20).await;
    let web = cluster.deployment("web").annotate("spot-percentage", "70").annotate("min-on-demand", "3");
    web.replicas(10).create().await;
    cluster.stateful_set("db").annotate("spot-percentage", "100").replicas(2).create().await;
    until_counted(&cluster, "web", 3, 7).await;
    until_counted(&cluster, "db", 0, 2).await;

    cluster.kubectl("annotate deployment web perennial.dev/spot-percentage- perennial.dev/min-on-demand-");
    cluster.kubectl("annotate statefulset db perennial.dev/spot-percentage-");

    cluster.wait_for_split("web", 0, 10).await;
    cluster.wait_for_split("db", 0, 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_class_that_a_policy_refuses_to_a_stateful_set_is_dropped_and_reported() {
    let (cluster, _) = without_spot(20).await;
    refuse_never_spot(&cluster, "db-never-spot").await;

    cluster.stateful_set("db").annotate("spot-percentage", "50").replicas(4).create().await;

    cluster.wait_for_split("db", 0, 4).await;
    let message = cluster.wait_for_workload_event("db", "PlacementRefused").await;
    assert!(message.contains("with class spot"), "{message}");
}

/// Ten pods on a node of neither class, of a workload that is then annotated.
async fn strays(paused: &str) -> (TestCluster, &'static Operator) {
    let cluster = TestCluster::shared().await;
    let operator = cluster.shared_operator().await;
    let unlabelled = |node: &mut Value| {
        node["metadata"]["labels"].as_object_mut().unwrap().remove("karpenter.sh/capacity-type");
    };
    cluster.capacity_node("plain", 40, unlabelled).await;
    cluster.deployment("web").replicas(10).create().await;
    eventually("all run", async || {
        let bound =
            cluster.pods("web").await.iter().filter(|pod| pod.spec.as_ref().unwrap().node_name.is_some()).count();
        if bound == 10 { Ok(()) } else { Err(bound) }
    })
    .await;
    cluster.capacity("spot", 1, 40).await;
    cluster.capacity("on-demand", 1, 40).await;
    cluster.annotate_deployment("web", "paused", paused).await;
    cluster.annotate_deployment("web", "min-on-demand", "3").await;
    cluster.annotate_deployment("web", "spot-percentage", "70").await;
    (cluster, operator)
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_on_nodes_of_neither_class_are_counted_and_leave_first() {
    let (cluster, operator) = strays("true").await;
    eventually("they are counted", async || {
        let text = cluster.perennial_all_namespaces(&format!("workloads -n {} -o json", cluster.workspace()));
        let listed: Value = serde_json::from_str(&text).unwrap();
        let counts = &listed["items"][0]["counts"];
        if counts["unknown"] == 10 && counts["drift"] == 10 { Ok(()) } else { Err(text) }
    })
    .await;
    eventually("the metric counts them", async || {
        let unknown = operator.metrics().sum("perennial_placement_unknown", &[]);
        if unknown >= 10.0 { Ok(()) } else { Err(unknown) }
    })
    .await;

    cluster.scale("web", 20).await;
    eventually("ten more are placed", async || {
        let seen = cluster.pod_counts("web").await;
        if (seen.spot, seen.on_demand) == (7, 3) { Ok(()) } else { Err(seen.to_string()) }
    })
    .await;
    eventually("the placed pods have the lowest slots", async || {
        let pods = cluster.pods("web").await;
        let low = |slot: &str| slot.parse::<u32>().is_ok_and(|slot| slot < 10);
        let slot = |pod| super::annotation(pod, "perennial.dev/slot").unwrap_or_default();
        let right = pods.iter().filter(|pod| low(&slot(pod)) == class(pod).is_some()).count();
        if right == 20 { Ok(()) } else { Err(right) }
    })
    .await;
    cluster.scale("web", 10).await;

    cluster.wait_for_split("web", 7, 3).await;
    assert_eq!(cluster.evictions(operator, "web"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_on_nodes_of_neither_class_are_moved_where_moves_are_allowed() {
    let (cluster, _) = strays("false").await;
    cluster.wait_for_split("web", 7, 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_class_without_nodes_is_named_everywhere() {
    let cluster = TestCluster::full().await;
    cluster.capacity_node("plain", 40, |node| node["metadata"]["labels"] = json!({"pool": "all"})).await;
    let operator = quick(&cluster).start().await;
    cluster.deployment("web").annotate("spot-percentage", "50").replicas(4).create().await;

    let message = cluster.wait_for_workload_event("web", "NoNodesOfClass").await;
    assert!(message.contains("no node is ") && message.contains("karpenter.sh/capacity-type="), "{message}");
    let text = until_explained(&cluster, "deploy/web", "unschedulable on spot").await;
    assert!(text.contains("no node is spot") && !text.contains("running as requested"), "{text}");
    let checked = cluster.perennial("check").stdout;
    assert!(checked.contains("no node is spot (karpenter.sh/capacity-type=spot)"), "{checked}");
    operator.wait_for_metric("perennial_placement_nodes", &[("class", "spot")], 0.0).await;
    operator.wait_for_metric("perennial_placement_nodes", &[("class", "unknown")], 1.0).await;
    operator.wait_for_metric("perennial_placement_unplaced", &[("class", "spot")], 2.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn moves_that_succeed_do_not_lengthen_the_cooldown() {
    let (cluster, operator) = without_spot(20).await;
    cluster.capacity("spot", 1, 20).await;
    cluster.deployment("web").annotate("spot-percentage", "50").replicas(4).create().await;
    cluster.wait_for_split("web", 2, 2).await;
    for (percentage, spot) in [("25", 1), ("50", 2), ("25", 1), ("50", 2)] {
        cluster.annotate_deployment("web", "spot-percentage", percentage).await;
        cluster.wait_for_split("web", spot, 4 - spot).await;
    }
    assert_eq!(cluster.evictions(operator, "web"), 4);

    eventually("the last move counts as a success", async || {
        let moved = state(&cluster)["moved"].clone();
        if moved["stalled"] == 0 && moved["drift"] == 0 { Ok(()) } else { Err(moved.to_string()) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stateful_set_with_two_lasting_revisions_is_moved() {
    let (cluster, _) = without_spot(20).await;
    cluster.capacity("spot", 1, 20).await;
    let db = cluster.stateful_set("db").annotate("spot-percentage", "80").annotate("move-statefulset-pods", "true");
    let partitioned = json!({"type": "RollingUpdate", "rollingUpdate": {"partition": 3}});
    db.replicas(5).with(|object| object["spec"]["updateStrategy"] = partitioned).create().await;
    cluster.wait_for_split("db", 4, 1).await;
    let template = json!({"spec": {"template": {"metadata": {"annotations": {"version": "2"}}}}});
    cluster.kubectl(&format!("patch statefulset db --type=merge -p {template}"));
    eventually("two are of the new revision", async || {
        let updated =
            cluster.kubectl("get statefulset db -o jsonpath={.status.updatedReplicas}/{.status.availableReplicas}");
        if updated == "2/5" { Ok(()) } else { Err(updated) }
    })
    .await;

    cluster.kubectl("annotate statefulset db perennial.dev/spot-percentage=40 --overwrite");

    cluster.wait_for_split("db", 2, 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_replica_to_stop_releases_gated_pods() {
    let cluster = TestCluster::full().await;
    cluster.capacity("spot", 1, 40).await;
    cluster.capacity("on-demand", 1, 3).await;
    let operator = quick(&cluster).start().await;
    let web = cluster.deployment("web").annotate("spot-percentage", "70").annotate("min-on-demand", "3");
    let surge = json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "100%", "maxUnavailable": 0}});
    web.replicas(10).with(|object| object["spec"]["strategy"] = surge).create().await;
    cluster.wait_for_split("web", 7, 3).await;
    // No room for on-demand pods of the new revision: its spot pods are held.
    cluster.roll_out("web", "2").await;
    eventually("pods are held", async || {
        let held = cluster.pods("web").await.iter().filter(|pod| is_gated(pod)).count();
        if held == 7 { Ok(()) } else { Err(held) }
    })
    .await;

    operator.stop().await;

    assert_eq!(cluster.pods("web").await.iter().filter(|pod| is_gated(pod)).count(), 0);
}

/// Once placement is off, no operator places the pods that wait for spot.
#[rstest]
#[case::uninstalled(true)]
#[case::disabled(false)]
#[tokio::test(flavor = "multi_thread")]
async fn pods_that_wait_in_a_class_are_replaced_without_one_when_placement_ends(#[case] uninstalled: bool) {
    let cluster = TestCluster::full().await;
    cluster.capacity("on-demand", 1, 20).await;
    let operator = quick(&cluster).start().await;
    cluster.deployment("web").annotate("spot-percentage", "70").replicas(10).create().await;
    until_counted(&cluster, "web", 3, 7).await;
    operator.crash();

    let _without = if uninstalled {
        cluster.perennial("uninstall --yes").expect_success();
        None
    } else {
        let off = cluster.operator().webhooks(Webhooks::Off).set("placement.enabled", "false");
        Some(off.set("placement.gateTimeout", "2s").start().await)
    };

    until_counted(&cluster, "web", 10, 0).await;
}

/// The API server evaluates the match conditions of the webhook before it calls it.
#[tokio::test(flavor = "multi_thread")]
async fn the_pod_of_a_job_is_not_reviewed() {
    let cluster = TestCluster::full().await;
    cluster.capacity("on-demand", 1, 20).await;
    let operator = quick(&cluster).start().await;
    let reviewed =
        || operator.metrics().sum("controller_runtime_webhook_requests_total", &[("webhook", "mutate/pods")]);
    cluster.deployment("web").annotate("spot-percentage", "0").replicas(2).create().await;
    cluster.wait_for_split("web", 0, 2).await;
    let before = reviewed();
    assert!(before > 1.5, "{before} reviews of two pods");

    cluster.kubectl("create job once --image=none");
    eventually("the pod of the Job exists", async || {
        let names = cluster.kubectl("get pods -l job-name=once -o name");
        if names.is_empty() { Err("not yet") } else { Ok(()) }
    })
    .await;

    assert!((reviewed() - before).abs() < 0.5);
}
