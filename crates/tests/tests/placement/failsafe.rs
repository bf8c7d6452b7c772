//! No pod stays gated, whichever replica is down and whatever the API server refuses.

use std::time::Duration;

use perennial_harness::{Fault, TestCluster, eventually, eventually_within};
use rstest::rstest;
use serde_json::json;

use super::{
    class, is_gated,
    owners::{owner, webhook_only},
    quick, roomy, shared,
};

async fn until_all_run(cluster: &TestCluster, count: usize) {
    eventually_within(Duration::from_mins(2), format!("{count} pods run, and none is gated"), async || {
        let seen = cluster.pod_counts("web").await;
        if seen.waiting == 0 && seen.spot + seen.on_demand == count { Ok(()) } else { Err(seen.to_string()) }
    })
    .await;
}

/// From now on the API server refuses requests for pods in this namespace that do not match:
/// `Invalid` with 422, like its own validation, `Forbidden` with 403, like many webhooks.
async fn refuse_unless(cluster: &TestCluster, name: &str, operations: &[&str], holds: &str, reason: &str) {
    let namespace = cluster.workspace();
    let rule = json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": operations, "resources": ["pods"]});
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [rule]},
            "validations": [{"expression": holds, "reason": reason}],
        },
    });
    let here = json!({"matchLabels": {"kubernetes.io/metadata.name": namespace}});
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": name},
        "spec": {
            "policyName": name,
            "validationActions": ["Deny"],
            "matchResources": {"namespaceSelector": here},
        },
    });
    for object in [policy, binding] {
        cluster.try_kubectl_with("create", &object.to_string()).expect_success();
    }
    let probe = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "probe"}, "spec": {
        "schedulingGates": [{"name": "test/closed"}], "containers": [{"name": "main", "image": "none"}]}});
    cluster.try_kubectl_with("create", &probe.to_string()).expect_success();
    let patch = |class: &str| json!({"spec": {"nodeSelector": {"karpenter.sh/capacity-type": class}}}).to_string();
    eventually("the policy is in force", async || {
        let is_refused =
            |class| !cluster.try_kubectl(&format!("patch pod probe --dry-run=server -p {}", patch(class))).success;
        if is_refused("spot") || is_refused("on-demand") { Ok(()) } else { Err("not yet") }
    })
    .await;
    cluster.kubectl("delete pod probe --force");
}

const NEVER_SPOT: &str = "!has(object.spec.nodeSelector) \
     || !('karpenter.sh/capacity-type' in object.spec.nodeSelector) \
     || object.spec.nodeSelector['karpenter.sh/capacity-type'] != 'spot'";
const NEVER_CHOSEN: &str =
    "!has(object.spec.nodeSelector) || !('karpenter.sh/capacity-type' in object.spec.nodeSelector)";

/// From now on the API server refuses spot pods in this namespace.
pub(super) async fn refuse_never_spot(cluster: &TestCluster, name: &str) {
    let name = format!("{}-{name}", cluster.workspace());
    refuse_unless(cluster, &name, &["CREATE", "UPDATE"], NEVER_SPOT, "Forbidden").await;
}

/// From now on the API server refuses on-demand pods in this namespace.
pub(super) async fn refuse_never_on_demand(cluster: &TestCluster, name: &str) {
    let name = format!("{}-{name}", cluster.workspace());
    let never = NEVER_SPOT.replace("'spot'", "'on-demand'");
    refuse_unless(cluster, &name, &["CREATE", "UPDATE"], &never, "Forbidden").await;
}

#[rstest]
#[case("Invalid")]
#[case("Forbidden")]
#[tokio::test(flavor = "multi_thread")]
async fn a_class_that_the_api_server_refuses_is_dropped_and_reported(#[case] reason: &str) {
    let (cluster, _) = shared().await;
    let name = format!("{}-never-spot", cluster.workspace());
    refuse_unless(&cluster, &name, &["CREATE", "UPDATE"], NEVER_SPOT, reason).await;

    cluster.deployment("web").annotate("spot-percentage", "50").replicas(4).create().await;

    cluster.wait_for_workload_event("web", "PlacementRefused").await;
    until_all_run(&cluster, 4).await;
    // Spot pods are released unchanged; one may wait for the slot of a refused pod and then be
    // on-demand.
    let classes: Vec<Option<String>> = cluster.pods("web").await.iter().map(class).collect();
    assert!(classes.contains(&None) && !classes.contains(&Some("spot".to_owned())), "{classes:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn gated_pods_of_a_lost_owner_are_released_by_any_replica() {
    let cluster = roomy().await;
    let _doorman = webhook_only(&cluster, "5s").await;
    let owner = owner(&cluster).await;
    cluster.deployment("web").annotate("spot-percentage", "70").replicas(2).create().await;
    cluster.wait_for_split("web", 1, 1).await;

    owner.crash();
    // The Lease is still valid for a moment: these pods are gated, and the owner is gone.
    cluster.scale("web", 10).await;
    eventually("some are gated", async || {
        let gated = cluster.pods("web").await.iter().filter(|pod| is_gated(pod)).count();
        if gated > 0 { Ok(()) } else { Err("none") }
    })
    .await;

    until_all_run(&cluster, 10).await;
}

#[rstest]
#[case("Invalid")]
#[case("Forbidden")]
#[tokio::test(flavor = "multi_thread")]
async fn a_pod_is_released_even_if_on_demand_is_refused(#[case] reason: &str) {
    let cluster = roomy().await;
    let _doorman = webhook_only(&cluster, "5s").await;
    let owner = owner(&cluster).await;
    cluster.deployment("web").annotate("spot-percentage", "70").replicas(2).create().await;
    cluster.wait_for_split("web", 1, 1).await;
    refuse_unless(&cluster, "never-chosen", &["UPDATE"], NEVER_CHOSEN, reason).await;
    // A policy takes effect after a while: the Lease must be fresh from here on.
    owner.crash();
    cluster.scale("web", 6).await;

    until_all_run(&cluster, 6).await;

    let free = cluster.pods("web").await.iter().filter(|pod| class(pod).is_none()).count();
    assert!(free > 0, "at least one had been gated");
}

/// Creates ten pods each of a `required` and a `preferred` workload; some of both are gated when
/// the operator is gone.
async fn left_behind(cluster: &TestCluster) {
    let webhook_only = webhook_only(cluster, "10m").await;
    let owner = owner(cluster).await;
    cluster.deployment("web").annotate("spot-percentage", "70").replicas(2).create().await;
    let soft = cluster.deployment("soft").annotate("spot-percentage", "70").annotate("selection", "preferred");
    soft.replicas(2).create().await;
    cluster.wait_for_split("web", 1, 1).await;
    eventually("those that wish run as well", async || {
        let gated = cluster.pods("soft").await.iter().filter(|pod| is_gated(pod)).count();
        if gated == 0 { Ok(()) } else { Err(gated) }
    })
    .await;
    owner.crash();
    cluster.scale("soft", 10).await;
    cluster.scale("web", 10).await;
    for app in ["soft", "web"] {
        eventually("all pods are there", async || {
            let seen = cluster.pods(app).await.len();
            if seen == 10 { Ok(()) } else { Err(seen) }
        })
        .await;
    }
    webhook_only.crash();
    for app in ["soft", "web"] {
        assert!(cluster.pods(app).await.iter().any(is_gated), "something of {app} is gated");
    }
}

/// Waits until all pods run; gated pods of the `required` workload on-demand.
async fn until_none_is_left_behind(cluster: &TestCluster) {
    until_all_run(cluster, 10).await;
    assert!(cluster.pods("web").await.iter().all(|pod| class(pod).is_some()));
    eventually("those that wish run as well", async || {
        let pods = cluster.pods("soft").await;
        let gated = pods.iter().filter(|pod| is_gated(pod)).count();
        assert!(pods.iter().all(|pod| class(pod).is_none()), "a wish became a demand");
        if gated == 0 { Ok(()) } else { Err(gated) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn uninstall_releases_gated_nodes_and_pods() {
    let cluster = roomy().await;
    left_behind(&cluster).await;

    cluster.perennial("uninstall --yes").expect_success();

    until_none_is_left_behind(&cluster).await;
}

#[rstest]
#[case("placement.enabled", "false")]
#[case("controller.roles", "capture,restore")]
#[tokio::test(flavor = "multi_thread")]
async fn an_operator_without_placement_releases_gated_pods(#[case] key: &str, #[case] value: &str) {
    let cluster = roomy().await;
    left_behind(&cluster).await;

    let builder = cluster.operator().set(key, value).set("placement.gateTimeout", "5s");
    let _operator = builder.set("placement.holdTimeout", "5s").start().await;

    until_none_is_left_behind(&cluster).await;
}

/// Other clients change and delete nodes and pods at the same time.
#[tokio::test(flavor = "multi_thread")]
async fn uninstall_tolerates_concurrent_changes_and_deletes() {
    let cluster = TestCluster::full().await;
    for number in 0..3 {
        cluster.node(&format!("waits-{number}")).taint("perennial.dev/restoring", "", "NoSchedule").create().await;
        let pod = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": format!("waits-{number}"), "labels": {"perennial.dev/managed": "true"}},
            "spec": {"schedulingGates": [{"name": "perennial.dev/placement"}],
                     "containers": [{"name": "main", "image": "none"}]}});
        eventually("a pod is created", async || {
            let answer = cluster.try_kubectl_with("create", &pod.to_string());
            if answer.success { Ok(()) } else { Err(answer.stderr) }
        })
        .await;
    }
    let proxy = cluster.fault_proxy().await;
    let mut faults = [("nodes", 409), ("nodes", 404), ("pods", 404), ("pods", 409)].to_vec();
    proxy.inject(move |asked| {
        let due = faults.iter().position(|(resource, _)| asked.verb == "patch" && asked.resource == *resource)?;
        Some(Fault::Answered(faults.remove(due).1, None))
    });

    let message = cluster.perennial_through(&proxy, "uninstall --yes").expect_success();

    assert_eq!(proxy.faults().values().sum::<u64>(), 4, "{message}");
    assert!(message.contains("from 3 node(s)") && message.contains("from 3 pod(s)"), "{message}");
    assert!(!cluster.kubectl("get nodes -o jsonpath={.items[*].spec.taints[*].key}").contains("perennial.dev"));
    assert!(!cluster.pods_with("perennial.dev/managed=true").await.iter().any(is_gated));
}

/// A webhook server that is gone does not block pods.
#[tokio::test(flavor = "multi_thread")]
async fn pods_are_created_while_all_replicas_are_down_and_corrected_later() {
    let cluster = roomy().await;
    let operator = quick(&cluster).start().await;
    cluster.deployment("web").annotate("spot-percentage", "70").replicas(4).create().await;
    cluster.wait_for_split("web", 2, 2).await;

    operator.crash();
    cluster.scale("web", 10).await;
    until_all_run(&cluster, 10).await;

    let _operator = quick(&cluster).start().await;
    cluster.wait_for_split("web", 7, 3).await;
}
