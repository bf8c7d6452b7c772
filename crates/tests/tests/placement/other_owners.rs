//! Owners of pods other than Deployments and StatefulSets: bare ReplicaSets, ReplicaSets of another
//! controller, and controllers that create pods themselves.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use perennial_harness::{TestCluster, eventually};
use rstest::rstest;
use serde_json::{Value, json};

use super::{annotation, shared};

const COST: &str = "controller.kubernetes.io/pod-deletion-cost";

/// Returns a ReplicaSet with 70% spot and a minimum of 3 on-demand, annotated at this path.
fn replica_set(cluster: &TestCluster, name: &str, annotated: &str) -> Value {
    let settings = json!({"perennial.dev/spot-percentage": "70", "perennial.dev/min-on-demand": "3"});
    let mut object: Value = serde_json::from_str(&cluster.deployment(name).replicas(10).text()).unwrap();
    object["kind"] = json!("ReplicaSet");
    object.pointer_mut(annotated).unwrap()["annotations"] = settings;
    object
}

#[rstest]
#[case("/metadata")]
#[case("/spec/template/metadata")]
#[tokio::test(flavor = "multi_thread")]
async fn a_bare_replica_set_is_exact_at_every_size(#[case] annotated: &str) {
    let (cluster, operator) = shared().await;
    let set = replica_set(&cluster, "bare", annotated);
    cluster.try_kubectl_with("create", &set.to_string()).expect_success();

    cluster.wait_for_split("bare", 7, 3).await;
    cluster.kubectl("scale rs bare --replicas=20");
    cluster.wait_for_split("bare", 14, 6).await;
    cluster.kubectl("scale rs bare --replicas=4");
    cluster.wait_for_split("bare", 1, 3).await;
    assert_eq!(cluster.evictions(operator, "bare"), 0);

    // Its desired replicas are known, so that its pods are moved.
    cluster.kubectl("annotate rs bare --overwrite perennial.dev/min-on-demand=4");
    cluster.wait_for_split("bare", 0, 4).await;
    let explained = cluster.perennial_all_namespaces("explain rs/bare");
    assert!(explained.contains("4 on-demand"), "{explained}");
}

/// Creates a kind of controller that only this test knows, and one object of it. Returns the owner
/// reference of its pods.
async fn fleet(cluster: &TestCluster) -> Value {
    let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    let crd = json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "fleets.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"plural": "fleets", "singular": "fleet", "kind": "Fleet", "listKind": "FleetList"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": schema}],
        },
    });
    cluster.try_kubectl_with("create", &crd.to_string()).expect_success();
    let object = json!({"apiVersion": "example.com/v1", "kind": "Fleet", "metadata": {"name": "fleet"}});
    eventually("the kind is served", async || {
        let answer = cluster.try_kubectl_with("create", &object.to_string());
        if answer.success { Ok(()) } else { Err(answer.stderr) }
    })
    .await;
    let uid = cluster.kubectl("get fleets.example.com fleet -o jsonpath={.metadata.uid}");
    json!([{"apiVersion": "example.com/v1", "kind": "Fleet", "name": "fleet", "uid": uid.trim(), "controller": true}])
}

/// Waits until the pods of an app have the slots from 0 to `count`.
async fn wait_for_slots(cluster: &TestCluster, app: &str, count: u32) {
    let wanted: BTreeSet<String> = (0..count).map(|slot| slot.to_string()).collect();
    eventually(format!("{app} has the slots 0 to {count}"), async || {
        let pods = cluster.pods(app).await;
        let slots: BTreeSet<String> = pods.iter().filter_map(|pod| annotation(pod, "perennial.dev/slot")).collect();
        if slots == wanted { Ok(()) } else { Err(format!("{slots:?}")) }
    })
    .await;
}

/// The test is the controller: it creates pods from a template, and removes those with the lowest
/// cost first. The operator does not read its desired replicas.
#[tokio::test(flavor = "multi_thread")]
async fn pods_of_any_controller_are_placed_by_counts_and_never_moved() {
    let (cluster, operator) = shared().await;
    let owner = fleet(&cluster).await;
    let mut set = replica_set(&cluster, "owned", "/spec/template/metadata");
    set["metadata"]["ownerReferences"] = owner.clone();
    cluster.try_kubectl_with("create", &set.to_string()).expect_success();
    let template = replica_set(&cluster, "fleet", "/spec/template/metadata")["spec"]["template"].clone();
    let api: Api<Pod> = Api::default_namespaced(cluster.client());
    let create = async |count: usize| {
        let mut pod = template.clone();
        pod["metadata"]["generateName"] = json!("fleet-");
        pod["metadata"]["ownerReferences"] = owner.clone();
        let pod: Pod = serde_json::from_value(pod).unwrap();
        for _ in 0..count {
            api.create(&PostParams::default(), &pod).await.unwrap();
        }
    };

    create(10).await;
    cluster.wait_for_split("fleet", 7, 3).await;
    create(10).await;
    cluster.wait_for_split("fleet", 14, 6).await;
    wait_for_slots(&cluster, "fleet", 20).await;

    let mut pods = cluster.pods("fleet").await;
    pods.sort_by_key(|pod| annotation(pod, COST).unwrap().parse::<i64>().unwrap());
    for pod in &pods[..16] {
        api.delete(pod.metadata.name.as_deref().unwrap(), &DeleteParams::default()).await.unwrap();
    }
    cluster.wait_for_split("fleet", 1, 3).await;
    cluster.wait_for_split("owned", 7, 3).await;
    assert_eq!(cluster.evictions(operator, "fleet"), 0);
    let listed = cluster.perennial_all_namespaces("workloads");
    assert!(listed.contains("fleet/fleet") && listed.contains("replicaset/owned"), "{listed}");
}
