//! Admission: a pod is gated only by a replica that can remove the gate.

use std::time::Duration;

use kube::runtime::watcher::Event;
use perennial_core::{
    admission_review::{AdmissionRequest, AdmissionResponse},
    config::Settings,
    placement::GATE,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{managed_label, owner};
use crate::{
    keeper::node::Node,
    placement::{
        apply::PlacementClient,
        cache::{MANAGED, Watched},
        objects::{Deployment, Namespace, Pod, PodDisruptionBudget, ReplicaSet, StatefulSet},
        reconcile::{Placer, PlacerParts},
        settings::Configured,
    },
    runtime::{
        budget::Budget,
        client::{Listeners, over},
        clock::Clock,
        error_category::Category,
        events::Events,
        health::Health,
        jitter::Jitter,
        metrics::Metrics,
        ownership::Ownership,
    },
};

/// Builds a placer that decides and has read every list except pods. It sends no requests.
fn placer() -> Placer {
    placer_with(&Health::new())
}

fn placer_with(health: &Health) -> Placer {
    let (metrics, clock) = (Metrics::new(), Clock::system());
    let listeners = Listeners { metrics: metrics.clone(), budget: None, clock: None, health: None };
    let client = over(axum::Router::new(), "default", listeners);
    let cluster = PlacementClient::new(client.clone(), Budget::unlimited());
    let placer = Placer::from_parts(PlacerParts {
        configured: Configured::new(&Settings::default()).unwrap(),
        cluster: cluster.clone(),
        admission: cluster,
        admission_deadline: Duration::from_secs(1),
        events: Events::new(client, clock.clone(), true).0,
        clock,
        jitter: Jitter::seeded(1),
        metrics,
        ownership: Ownership::all(1),
        health: health.clone(),
        decides: true,
        dry_run: false,
        backoff: (Duration::from_millis(100), Duration::from_mins(1)),
    });
    list::<Namespace>(&placer, &[json!({"metadata": {"name": "shop"}})]);
    list::<Deployment>(&placer, &[deployment()]);
    list::<ReplicaSet>(&placer, &[replica_set()]);
    list::<StatefulSet>(&placer, &[]);
    list::<PodDisruptionBudget>(&placer, &[]);
    list::<Node>(&placer, &[]);
    placer
}

fn list<K: Watched + DeserializeOwned>(placer: &Placer, objects: &[Value]) {
    placer.on::<K>(Event::Init);
    for object in objects {
        placer.on(Event::InitApply(K::deserialize(object.clone()).unwrap()));
    }
    placer.on::<K>(Event::InitDone);
}

fn deployment() -> Value {
    json!({
        "metadata": {"namespace": "shop", "name": "web", "uid": "d", "resourceVersion": "1",
                     "annotations": {"perennial.dev/spot-percentage": "70"}},
        "spec": {"replicas": 10, "selector": {"matchLabels": {"app": "web"}}},
    })
}

fn controlled_by(kind: &str, name: &str, uid: &str) -> Value {
    json!([{"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": uid, "controller": true}])
}

fn replica_set() -> Value {
    json!({
        "metadata": {"namespace": "shop", "name": "r1", "uid": "r1", "resourceVersion": "2",
                     "ownerReferences": controlled_by("Deployment", "web", "d")},
        "spec": {"replicas": 10},
    })
}

async fn admit(placer: &Placer) -> AdmissionResponse {
    let pod = json!({"metadata": {"generateName": "web-", "ownerReferences": controlled_by("ReplicaSet", "r1", "r1")},
                     "spec": {"containers": []}});
    let request =
        AdmissionRequest { namespace: Some("shop".to_owned()), object: Some(pod), ..AdmissionRequest::default() };
    placer.admit_pod(request).await
}

fn is_gated(answer: &AdmissionResponse) -> bool {
    answer.patch.iter().any(|operation| operation["value"][0]["name"] == GATE)
}

fn is_on_demand(answer: &AdmissionResponse) -> bool {
    answer.patch.iter().any(|operation| operation["value"]["karpenter.sh/capacity-type"] == "on-demand")
}

#[tokio::test]
async fn a_replica_that_cannot_watch_pods_gates_none() {
    let placer = placer();
    let answer = admit(&placer).await;
    assert!(!is_gated(&answer) && is_on_demand(&answer), "{answer:?}");

    list::<Pod>(&placer, &[]);
    assert!(is_gated(&admit(&placer).await));
}

#[tokio::test]
async fn a_replica_that_can_no_longer_watch_gates_none() {
    let health = Health::new();
    let placer = placer_with(&health);
    list::<Pod>(&placer, &[]);
    health.read("pods");
    assert!(is_gated(&admit(&placer).await));

    for _ in 0..3 {
        health.unread("pods", Category::Forbidden);
    }
    let answer = admit(&placer).await;
    assert!(!is_gated(&answer) && is_on_demand(&answer), "{answer:?}");

    health.read("pods");
    assert!(is_gated(&admit(&placer).await));
}

/// Another replica owns the workload, and its writes are refused.
#[tokio::test]
async fn a_workload_with_a_pod_that_stays_gated_gets_no_more_gated_pods() {
    let placer = placer();
    let gated = |age: i64| {
        let created = jiff::Timestamp::now() - jiff::SignedDuration::from_secs(age);
        json!({"metadata": {"namespace": "shop", "name": "web-1", "uid": "p1", "resourceVersion": age.to_string(),
                            "creationTimestamp": created.to_string(), "labels": {MANAGED: "true"},
                            "ownerReferences": controlled_by("ReplicaSet", "r1", "r1")},
               "spec": {"containers": [], "schedulingGates": [{"name": GATE}]}})
    };
    // A hold may last for five minutes, and any replica ungates the pod half a minute later.
    list::<Pod>(&placer, &[gated(320)]);
    assert!(is_gated(&admit(&placer).await));

    list::<Pod>(&placer, &[gated(350)]);
    let answer = admit(&placer).await;
    assert!(!is_gated(&answer) && is_on_demand(&answer), "{answer:?}");
}

#[tokio::test]
async fn a_stopping_replica_gates_none() {
    let placer = placer();
    list::<Pod>(&placer, &[]);
    assert!(is_gated(&admit(&placer).await));

    placer.close();

    let answer = admit(&placer).await;
    assert!(!is_gated(&answer) && is_on_demand(&answer), "{answer:?}");
}

#[test]
fn pods_of_jobs_and_daemon_sets_have_no_managed_owner() {
    let pod = |kind: &str, version: &str| {
        let above = json!({"apiVersion": version, "kind": kind, "name": "web", "uid": "u", "controller": true});
        json!({"metadata": {"ownerReferences": [above]}})
    };
    assert!(owner(&pod("ReplicaSet", "apps/v1")).is_some());
    assert!(owner(&pod("StatefulSet", "apps/v1")).is_some());
    assert!(owner(&pod("DaemonSet", "apps/v1")).is_none());
    assert!(owner(&pod("Job", "batch/v1")).is_none());
    assert!(owner(&pod("StatefulSet", "apps.kruise.io/v1beta1")).is_some());
    assert!(owner(&pod("CloneSet", "apps.kruise.io/v1alpha1")).is_some());
    assert!(owner(&json!({"metadata": {}})).is_none());
}

#[test]
fn the_label_is_added_once_and_keeps_other_labels() {
    let with = |labels: Value| json!({"metadata": {"labels": labels}});
    assert_eq!(managed_label(&with(json!({"app": "web"}))).unwrap()["path"], "/metadata/labels/perennial.dev~1managed");
    assert!(managed_label(&with(json!({MANAGED: "true"}))).is_none());
    assert_eq!(managed_label(&json!({"metadata": {}})).unwrap()["path"], "/metadata/labels");
}
