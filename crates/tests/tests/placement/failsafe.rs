//! Nothing stays gated, whoever is away and whatever the API server refuses.

use std::time::Duration;

use perennial_harness::{Fault, TestCluster, eventually, eventually_within};
use rstest::rstest;
use serde_json::json;

use super::{
    class, is_gated,
    owners::{doorman, owner},
    quick, roomy, shared,
};

async fn until_all_run(cluster: &TestCluster, count: usize) {
    eventually_within(Duration::from_mins(2), format!("{count} pods run, and none is gated"), async || {
        let seen = cluster.placed("web").await;
        if seen.waiting == 0 && seen.spot + seen.on_demand == count { Ok(()) } else { Err(seen.to_string()) }
    })
    .await;
}

/// From now on the API server refuses every such request for a pod, in this namespace, for which this does not hold: `Invalid` is a 422,
/// as its own validation has it, `Forbidden` a 403, as many a webhook has it.
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
    let spot = json!({"spec": {"nodeSelector": {"karpenter.sh/capacity-type": "spot"}}}).to_string();
    eventually("the policy is in force", async || {
        let answer = cluster.try_kubectl(&format!("patch pod probe --dry-run=server -p {spot}"));
        if answer.success { Err("not yet") } else { Ok(()) }
    })
    .await;
    cluster.kubectl("delete pod probe --force");
}

const NEVER_SPOT: &str = "!has(object.spec.nodeSelector) \
     || !('karpenter.sh/capacity-type' in object.spec.nodeSelector) \
     || object.spec.nodeSelector['karpenter.sh/capacity-type'] != 'spot'";
const NEVER_CHOSEN: &str =
    "!has(object.spec.nodeSelector) || !('karpenter.sh/capacity-type' in object.spec.nodeSelector)";

#[rstest]
#[case("Invalid")]
#[case("Forbidden")]
#[tokio::test(flavor = "multi_thread")]
async fn a_class_that_the_api_server_refuses_is_given_up_and_told(#[case] reason: &str) {
    let (cluster, _) = shared().await;
    let name = format!("{}-never-spot", cluster.workspace());
    refuse_unless(&cluster, &name, &["CREATE", "UPDATE"], NEVER_SPOT, reason).await;

    cluster.deployment("web").asks("spot-percentage", "50").replicas(4).create().await;

    cluster.wait_for_workload_event("web", "PlacementRefused").await;
    until_all_run(&cluster, 4).await;
    // Those that should be on spot go as they are; one may wait in vain for a pod that was refused, and then be on-demand.
    let classes: Vec<Option<String>> = cluster.pods("web").await.iter().map(class).collect();
    assert!(classes.contains(&None) && !classes.contains(&Some("spot".to_owned())), "{classes:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn gated_pods_of_a_lost_owner_are_freed_by_any_replica() {
    let cluster = roomy().await;
    let _doorman = doorman(&cluster, "5s").await;
    let owner = owner(&cluster).await;
    cluster.deployment("web").asks("spot-percentage", "70").replicas(2).create().await;
    cluster.wait_for_split("web", 1, 1).await;

    owner.crash();
    // Its Lease is fresh for a moment longer: these are gated, and nobody comes.
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
async fn a_pod_is_freed_also_when_it_may_not_be_made_on_demand(#[case] reason: &str) {
    let cluster = roomy().await;
    let _doorman = doorman(&cluster, "5s").await;
    let owner = owner(&cluster).await;
    cluster.deployment("web").asks("spot-percentage", "70").replicas(2).create().await;
    cluster.wait_for_split("web", 1, 1).await;
    refuse_unless(&cluster, "never-chosen", &["UPDATE"], NEVER_CHOSEN, reason).await;
    // The API server takes its time with a policy: the Lease has to be fresh from here on.
    owner.crash();
    cluster.scale("web", 6).await;

    until_all_run(&cluster, 6).await;

    let free = cluster.pods("web").await.iter().filter(|pod| class(pod).is_none()).count();
    assert!(free > 0, "at least one had been gated");
}

/// Ten pods each of a workload that demands its class and of one that wishes for it; of both some are gated, and nobody is there any more.
async fn left_behind(cluster: &TestCluster) {
    let doorman = doorman(cluster, "10m").await;
    let owner = owner(cluster).await;
    cluster.deployment("web").asks("spot-percentage", "70").replicas(2).create().await;
    let soft = cluster.deployment("soft").asks("spot-percentage", "70").asks("selection", "preferred");
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
    doorman.crash();
    for app in ["soft", "web"] {
        assert!(cluster.pods(app).await.iter().any(is_gated), "something of {app} is gated");
    }
}

/// All run; those that were gated on-demand, where that is a demand.
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
async fn uninstalling_frees_what_is_gated() {
    let cluster = roomy().await;
    left_behind(&cluster).await;

    cluster.perennial("uninstall --yes").expect_success();

    until_none_is_left_behind(&cluster).await;
}

#[rstest]
#[case("placement.enabled", "false")]
#[case("controller.roles", "capture,restore")]
#[tokio::test(flavor = "multi_thread")]
async fn an_operator_that_places_nothing_frees_what_was_gated_before(#[case] key: &str, #[case] value: &str) {
    let cluster = roomy().await;
    left_behind(&cluster).await;

    let builder = cluster.operator().set(key, value).set("placement.gateTimeout", "5s");
    let _operator = builder.set("placement.holdTimeout", "5s").start().await;

    until_none_is_left_behind(&cluster).await;
}

/// Others change nodes and pods too, and take some away.
#[tokio::test(flavor = "multi_thread")]
async fn uninstalling_goes_on_past_what_changed_or_went_meanwhile() {
    let cluster = TestCluster::whole().await;
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
    proxy.weather(move |asked| {
        let due = faults.iter().position(|(resource, _)| asked.verb == "patch" && asked.resource == *resource)?;
        Some(Fault::Answered(faults.remove(due).1, None))
    });

    let said = cluster.perennial_through(&proxy, "uninstall --yes").expect_success();

    assert_eq!(proxy.faults().values().sum::<u64>(), 4, "{said}");
    assert!(said.contains("from 3 node(s)") && said.contains("from 3 pod(s)"), "{said}");
    assert!(!cluster.kubectl("get nodes -o jsonpath={.items[*].spec.taints[*].key}").contains("perennial.dev"));
    assert!(!cluster.pods_with("perennial.dev/managed=true").await.iter().any(is_gated));
}

/// A webhook that has gone without a word is in nobody's way.
#[tokio::test(flavor = "multi_thread")]
async fn pods_are_made_while_everyone_is_away_and_mended_later() {
    let cluster = roomy().await;
    let operator = quick(&cluster).start().await;
    cluster.deployment("web").asks("spot-percentage", "70").replicas(4).create().await;
    cluster.wait_for_split("web", 2, 2).await;

    operator.crash();
    cluster.scale("web", 10).await;
    until_all_run(&cluster, 10).await;

    let _operator = quick(&cluster).start().await;
    cluster.wait_for_split("web", 7, 3).await;
}
