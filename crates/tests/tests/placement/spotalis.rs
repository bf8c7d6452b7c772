//! Workloads as they are labelled and annotated for Spotalis.

use serde_json::json;

use super::{quick, roomy};

#[tokio::test(flavor = "multi_thread")]
async fn labels_and_annotations_of_spotalis_work_as_they_are() {
    let cluster = roomy().await;
    let builder = quick(&cluster).set("placement.annotationPrefixes", "perennial.dev,spotalis.io");
    let _operator = builder.set("controller.leaderElection.namespace", "default").start().await;
    let labelled = |name: &str, enabled: &str, annotations: serde_json::Value| {
        let enabled = enabled.to_owned();
        cluster.deployment(name).replicas(10).with(move |object| {
            object["metadata"]["labels"] = json!({"spotalis.io/enabled": enabled});
            object["metadata"]["annotations"] = annotations;
        })
    };

    labelled("defaults", "true", json!({})).create().await;
    labelled("floor", "true", json!({"spotalis.io/min-on-demand": "4"})).create().await;
    labelled("both", "true", json!({"spotalis.io/spot-percentage": "50", "spotalis.io/min-on-demand": "2"}))
        .create()
        .await;
    cluster.wait_for_split("defaults", 7, 3).await;
    cluster.wait_for_split("floor", 6, 4).await;
    cluster.wait_for_split("both", 5, 5).await;

    // The namespace enables the workloads in it that do not opt out.
    cluster.kubectl("label namespace default spotalis.io/enabled=true");
    labelled("out", "false", json!({"spotalis.io/spot-percentage": "50"})).create().await;
    cluster.deployment("inherits").replicas(10).create().await;
    cluster.wait_for_split("inherits", 7, 3).await;
    let pods = cluster.pods("out").await;
    assert!(!pods.is_empty() && pods.iter().all(|pod| super::class(pod).is_none()));
}
