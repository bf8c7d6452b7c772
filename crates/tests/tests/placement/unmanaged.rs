//! Workloads that are not managed or not valid are left alone.

use perennial_harness::eventually;
use rstest::rstest;
use serde_json::json;

use super::{class, is_gated, shared};

#[rstest]
#[case("spot-percentage", "abc")]
#[case("spot-percentage", "140")]
#[case("spot-percentage", "-1")]
#[case("spot-percentage", "70.5%")]
#[case("min-on-demand", "-1")]
#[case("fallback-after", "soon")]
#[case("disruption-schedule", "61 * * * *")]
#[tokio::test(flavor = "multi_thread")]
async fn a_bad_annotation_is_an_event_and_nothing_else(#[case] annotation: &str, #[case] value: &str) {
    let (cluster, _) = shared().await;
    cluster.deployment("bad").annotate("spot-percentage", "50").annotate(annotation, value).replicas(3).create().await;

    let message = cluster.wait_for_workload_event("bad", "InvalidPlacement").await;

    assert!(message.contains(annotation) && message.contains(value), "{message}");
    let bound = async || {
        let seen = cluster.pod_counts("bad").await;
        if seen.spot + seen.on_demand == 3 { Ok(()) } else { Err(seen.to_string()) }
    };
    eventually("its pods run somewhere", bound).await;
    assert!(cluster.pods("bad").await.iter().all(|pod| class(pod).is_none()));
    let explained = cluster.perennial_all_namespaces("explain deploy/bad");
    assert!(explained.contains("not managed") && explained.contains(value), "{explained}");
}

/// Each attempt to fix a bad value is reported.
#[tokio::test(flavor = "multi_thread")]
async fn every_bad_value_is_reported_in_turn() {
    let (cluster, _) = shared().await;
    cluster.deployment("bad").annotate("spot-percentage", "abc").replicas(0).create().await;
    for value in ["abc", "140", "-1", "70.5%"] {
        cluster.annotate_deployment("bad", "spot-percentage", value).await;
        eventually(format!("an Event about {value}"), async || {
            let message = cluster.kubectl(
                "get events -o jsonpath={.items[?(@.reason==\"InvalidPlacement\")].message} --field-selector=involvedObject.name=bad",
            );
            if message.contains(&format!("\"{value}\"")) { Ok(()) } else { Err(message) }
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_that_choose_for_themselves_are_counted_and_left_alone() {
    let (cluster, _) = shared().await;
    let web = cluster.deployment("web").annotate("spot-percentage", "50").replicas(4);
    web.with(|object| {
        object["spec"]["template"]["spec"]["nodeSelector"]["karpenter.sh/capacity-type"] = json!("spot");
    })
    .create()
    .await;

    cluster.wait_for_workload_event("web", "ChoosesCapacityItself").await;

    cluster.wait_for_split("web", 4, 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_without_a_managed_owner_pass_untouched() {
    let (cluster, _) = shared().await;
    cluster.deployment("plain").replicas(3).create().await;
    cluster.kubectl("run alone --image=none --labels=app=alone");
    cluster.kubectl("create job task --image=none");
    let set = cluster.deployment("daemon").annotate("spot-percentage", "50").with(|object| {
        object["kind"] = json!("DaemonSet");
        object["spec"].as_object_mut().unwrap().remove("replicas");
    });
    cluster.try_kubectl_with("create", &set.text()).expect_success();
    cluster.deployment("web").annotate("spot-percentage", "50").replicas(2).create().await;

    cluster.wait_for_split("web", 1, 1).await;

    for selector in ["app=plain", "app=alone", "app=daemon", "job-name=task"] {
        let pods = eventually(format!("pods of {selector}"), async || {
            let pods = cluster.pods_with(selector).await;
            if pods.is_empty() { Err("none") } else { Ok(pods) }
        })
        .await;
        for pod in pods {
            let labels = pod.metadata.labels.clone().unwrap_or_default();
            assert!(!labels.contains_key("perennial.dev/managed"), "{labels:?}");
            assert!(!is_gated(&pod) && class(&pod).is_none());
        }
    }
}
