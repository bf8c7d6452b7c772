//! Volumes that exist in one class only.

use perennial_core::placement::STATE;
use perennial_harness::{TestCluster, eventually};
use serde_json::{Value, json};

use super::{class, shared};

const CLASS: &str = "karpenter.sh/capacity-type";

/// Waits until the pods of `db` run, each in the class of its position in `wanted`.
async fn wait_for_classes(cluster: &TestCluster, wanted: &[&str]) {
    eventually(format!("the pods of db run in {wanted:?}"), async || {
        let pods = cluster.pods("db").await;
        let classes: Vec<String> = (0..wanted.len())
            .map(|ordinal| {
                let name = format!("db-{ordinal}");
                let pod = pods.iter().find(|pod| pod.metadata.name.as_deref() == Some(&name));
                let pod = pod.filter(|pod| pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some()));
                pod.and_then(class).unwrap_or_default()
            })
            .collect();
        if classes == wanted { Ok(()) } else { Err(format!("{classes:?}")) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_whose_volume_is_bound_to_one_class_is_placed_there() {
    let (cluster, _) = shared().await;
    let local = cluster
        .capacity_node("on-demand", 20, |node| {
            node["metadata"]["labels"]["kubernetes.io/hostname"] = node["metadata"]["name"].clone();
        })
        .await;
    // Slots 0 and 2 are on-demand, 1 and 3 spot.
    cluster.volume("db-0", Some((CLASS, "spot")));
    cluster.volume("db-1", Some(("kubernetes.io/hostname", &local)));
    cluster.volume("db-2", Some((CLASS, "on-demand")));
    cluster.volume("db-3", None);
    let db = cluster.stateful_set("db").annotate("spot-percentage", "50").annotate("move-statefulset-pods", "true");
    db.replicas(4).claims().create().await;

    wait_for_classes(&cluster, &["spot", "on-demand", "on-demand", "spot"]).await;

    let message = cluster.wait_for_workload_event("db", "PlacedByVolume").await;
    assert!(message.contains("pods run in the class in which their volumes exist"), "{message}");
    cluster.kubectl("delete pod db-0 db-1");
    wait_for_classes(&cluster, &["spot", "on-demand", "on-demand", "spot"]).await;
    // Moves respect volumes: the pod of slot 2 is on-demand in the end.
    cluster.kubectl("annotate statefulset db perennial.dev/spot-percentage=100 --overwrite");
    eventually("the volume of slot 2 was read", async || {
        let object: Value = serde_json::from_str(&cluster.kubectl("get statefulset db -o json")).unwrap();
        let state = object["metadata"]["annotations"][STATE].as_str().unwrap_or("{}").to_owned();
        let state: Value = serde_json::from_str(&state).unwrap();
        let wanted = json!({"0": "spot", "1": "on-demand", "2": "on-demand"});
        if state["volumes"] == wanted { Ok(()) } else { Err(state.to_string()) }
    })
    .await;
    wait_for_classes(&cluster, &["spot", "on-demand", "on-demand", "spot"]).await;
}
