//! Nothing stays gated, whoever is away and whatever the API server refuses.

use std::time::Duration;

use perennial_tests::{TestCluster, eventually, eventually_within};
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

/// From now on the API server refuses (422) every such request for a pod, in this namespace, for which this does not hold.
async fn refuse_unless(cluster: &TestCluster, name: &str, operations: &[&str], holds: &str) {
    let namespace = cluster.workspace();
    let rule = json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": operations, "resources": ["pods"]});
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [rule]},
            "validations": [{"expression": holds, "reason": "Invalid"}],
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

#[tokio::test(flavor = "multi_thread")]
async fn a_class_that_the_api_server_refuses_is_given_up_and_told() {
    let (cluster, _) = shared().await;
    refuse_unless(&cluster, &format!("{}-never-spot", cluster.workspace()), &["CREATE", "UPDATE"], NEVER_SPOT).await;

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

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_is_freed_also_when_it_may_not_be_made_on_demand() {
    let cluster = roomy().await;
    let _doorman = doorman(&cluster, "5s").await;
    let owner = owner(&cluster).await;
    cluster.deployment("web").asks("spot-percentage", "70").replicas(2).create().await;
    cluster.wait_for_split("web", 1, 1).await;
    refuse_unless(&cluster, "never-chosen", &["UPDATE"], NEVER_CHOSEN).await;
    // The API server takes its time with a policy: the Lease has to be fresh from here on.
    owner.crash();
    cluster.scale("web", 6).await;

    until_all_run(&cluster, 6).await;

    let free = cluster.pods("web").await.iter().filter(|pod| class(pod).is_none()).count();
    assert!(free > 0, "at least one had been gated");
}

#[tokio::test(flavor = "multi_thread")]
async fn uninstalling_frees_what_is_gated() {
    let cluster = roomy().await;
    let doorman = doorman(&cluster, "10m").await;
    let owner = owner(&cluster).await;
    cluster.deployment("web").asks("spot-percentage", "70").replicas(2).create().await;
    cluster.wait_for_split("web", 1, 1).await;
    owner.crash();
    cluster.scale("web", 10).await;
    eventually("all pods are there", async || {
        let seen = cluster.pods("web").await.len();
        if seen == 10 { Ok(()) } else { Err(seen) }
    })
    .await;
    doorman.crash();
    assert!(cluster.pods("web").await.iter().any(is_gated), "something is gated");

    cluster.perennial("uninstall --yes").expect_success();

    until_all_run(&cluster, 10).await;
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
