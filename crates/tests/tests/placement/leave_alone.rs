//! What is not ours, or cannot be understood, is left alone.

use perennial_tests::eventually;
use rstest::rstest;
use serde_json::json;

use super::{quick, roomy};

#[rstest]
#[case("spot-percentage", "abc")]
#[case("spot-percentage", "140")]
#[case("disruption-schedule", "61 * * * *")]
#[tokio::test(flavor = "multi_thread")]
async fn a_bad_annotation_is_an_event_and_nothing_else(#[case] annotation: &str, #[case] value: &str) {
    let cluster = roomy().await;
    let _operator = quick(&cluster).start().await;
    cluster.deployment("bad").asks("spot-percentage", "50").asks(annotation, value).replicas(3).create().await;

    let said = cluster.wait_for_workload_event("bad", "InvalidPlacement").await;

    assert!(said.contains(annotation) && said.contains(value), "{said}");
    let bound = async || {
        let seen = cluster.placed("bad").await;
        if seen.spot + seen.on_demand == 3 { Ok(()) } else { Err(seen.to_string()) }
    };
    eventually("its pods run somewhere", bound).await;
    let pods = cluster.pods("bad").await;
    assert!(pods.iter().all(|pod| pod.spec.as_ref().unwrap().node_selector.is_none()));
    let explained = cluster.about_workloads("explain deploy/bad");
    assert!(explained.contains("left alone") && explained.contains(value), "{explained}");
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_that_choose_for_themselves_are_counted_and_left_alone() {
    let cluster = roomy().await;
    let _operator = quick(&cluster).start().await;
    let web = cluster.deployment("web").asks("spot-percentage", "50").replicas(4);
    web.with(|object| {
        object["spec"]["template"]["spec"]["nodeSelector"] = json!({"karpenter.sh/capacity-type": "spot"});
    })
    .create()
    .await;

    cluster.wait_for_workload_event("web", "ChoosesCapacityItself").await;

    cluster.wait_for_split("web", 4, 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_without_a_managed_owner_pass_untouched() {
    let cluster = roomy().await;
    let _operator = quick(&cluster).start().await;
    cluster.deployment("plain").replicas(3).create().await;
    cluster.kubectl("run alone --image=none --labels=app=alone");
    cluster.deployment("web").asks("spot-percentage", "50").replicas(2).create().await;

    cluster.wait_for_split("web", 1, 1).await;

    for app in ["plain", "alone"] {
        for pod in cluster.pods(app).await {
            let labels = pod.metadata.labels.unwrap_or_default();
            assert!(!labels.contains_key("perennial.dev/managed"), "{labels:?}");
            assert!(pod.spec.unwrap().scheduling_gates.is_none());
        }
    }
}
