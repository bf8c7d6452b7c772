//! StatefulSets: placed by ordinal, by the webhook alone.

use perennial_core::placement::slots::Split;
use perennial_harness::{TestCluster, eventually};
use serde_json::json;

use super::{class, shared};

/// Returns the class of each pod by ordinal.
async fn classes(cluster: &TestCluster, start: u32) -> Vec<Option<String>> {
    let mut all: Vec<(u32, Option<String>)> = Vec::new();
    for pod in cluster.pods("db").await {
        let name = pod.metadata.name.clone().unwrap();
        let ordinal: u32 = name.rsplit_once('-').unwrap().1.parse().unwrap();
        all.push((ordinal - start, class(&pod)));
    }
    all.sort();
    all.into_iter().map(|(_, class)| class).collect()
}

fn wanted(split: Split, replicas: u32) -> Vec<Option<String>> {
    (0..replicas).map(|slot| Some(split.class(slot).as_str().to_owned())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stateful_set_is_exact_by_ordinal_without_a_write() {
    let (cluster, _) = shared().await;
    let split = Split::new(60, 2);
    let db = cluster.stateful_set("db").annotate("spot-percentage", "60%").annotate("min-on-demand", "2").replicas(12);
    db.with(|object| object["spec"]["ordinals"] = json!({"start": 5})).create().await;

    cluster.wait_for_split("db", split.spot(12) as usize, split.on_demand(12) as usize).await;
    assert_eq!(classes(&cluster, 5).await, wanted(split, 12));

    for replicas in [4, 9] {
        cluster.kubectl(&format!("scale statefulset db --replicas={replicas}"));
        cluster.wait_for_split("db", split.spot(replicas) as usize, split.on_demand(replicas) as usize).await;
        assert_eq!(classes(&cluster, 5).await, wanted(split, replicas));
    }
    for pod in cluster.pods("db").await {
        let managers: Vec<String> =
            pod.metadata.managed_fields.into_iter().flatten().filter_map(|entry| entry.manager).collect();
        assert!(!managers.iter().any(|manager| manager == "perennial"), "written to: {managers:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_of_a_stateful_set_are_evicted_only_if_enabled() {
    let (cluster, operator) = shared().await;
    cluster.stateful_set("db").annotate("spot-percentage", "75").replicas(4).create().await;
    cluster.wait_for_split("db", 3, 1).await;

    cluster.kubectl("annotate statefulset db perennial.dev/spot-percentage=25 --overwrite");
    eventually("it is known to be wrong", async || {
        let message = cluster.perennial_all_namespaces("workloads -o json");
        let drift = serde_json::from_str::<serde_json::Value>(&message).unwrap();
        if drift.to_string().contains("\"drift\":2") { Ok(()) } else { Err(message) }
    })
    .await;
    // Fence: a later change has been processed.
    cluster.deployment("web").annotate("spot-percentage", "50").replicas(4).create().await;
    cluster.wait_for_split("web", 2, 2).await;
    cluster.annotate_deployment("web", "spot-percentage", "25").await;
    cluster.wait_for_split("web", 1, 3).await;
    assert_eq!(cluster.evictions(operator, "db"), 0);
    assert_eq!(cluster.pod_counts("db").await.spot, 3);

    cluster.kubectl("annotate statefulset db perennial.dev/move-statefulset-pods=true");
    cluster.wait_for_split("db", 1, 3).await;
    assert_eq!(classes(&cluster, 0).await, wanted(Split::new(25, 0), 4));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stateful_set_falls_back_as_well() {
    let cluster = TestCluster::shared().await;
    cluster.shared_operator().await;
    cluster.capacity("spot", 1, 2).await;
    cluster.capacity("on-demand", 1, 100).await;
    let db = cluster.stateful_set("db").annotate("spot-percentage", "80").annotate("fallback-after", "2s");
    db.replicas(5).create().await;

    cluster.wait_for_split("db", 2, 3).await;

    cluster.wait_for_workload_event("db", "SpotShortage").await;
}
