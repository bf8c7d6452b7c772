//! Admission: a pod is gated only by those who can come back for it.

use std::{sync::Mutex, time::Duration};

use kube::runtime::watcher::Event;
use perennial_core::{
    admission_review::{AdmissionRequest, AdmissionResponse},
    config::Settings,
    placement::GATE,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{
    apply::Cluster,
    controller::{Placer, RETRY},
    objects::{Deployment, Namespace, Pod, PodDisruptionBudget, ReplicaSet, StatefulSet},
    observe::Observed,
    settings::Configured,
};
use crate::{
    keeper::node::Node,
    runtime::{
        budget::Budget,
        client::{Listeners, over},
        clock::Clock,
        events::Events,
        jitter::Jitter,
        metrics::Metrics,
        ownership::Ownership,
        reconciler::Reconciler,
        reporter::Reporter,
    },
};

/// One that decides, and has read everything but pods. Of an API server it needs nothing.
fn placer() -> Placer {
    let (metrics, clock) = (Metrics::new(), Clock::system());
    let listeners = Listeners { metrics: metrics.clone(), budget: None, clock: None };
    let client = over(axum::Router::new(), "default", listeners);
    let cluster = Cluster::new(client.clone(), Budget::unlimited());
    let events = Events::new(client, clock.clone()).0;
    let placer = Placer {
        configured: Configured::new(&Settings::default()).unwrap(),
        cluster: cluster.clone(),
        admission: cluster,
        admission_deadline: Duration::from_secs(1),
        reporter: Reporter::new(metrics.clone(), events.clone()),
        reconciler: Reconciler::new("placement", RETRY, Ownership::all(1), Jitter::seeded(1), metrics.clone()),
        events,
        clock,
        jitter: Jitter::seeded(1),
        metrics,
        ownership: Ownership::all(1),
        decides: true,
        dry_run: false,
        state: Mutex::default(),
    };
    list::<Namespace>(&placer, &[json!({"metadata": {"name": "shop"}})]);
    list::<Deployment>(&placer, &[deployment()]);
    list::<ReplicaSet>(&placer, &[replica_set()]);
    list::<StatefulSet>(&placer, &[]);
    list::<PodDisruptionBudget>(&placer, &[]);
    list::<Node>(&placer, &[]);
    placer
}

fn list<K: Observed + DeserializeOwned>(placer: &Placer, objects: &[Value]) {
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
async fn who_cannot_watch_pods_gates_none() {
    let placer = placer();
    let answer = admit(&placer).await;
    assert!(!is_gated(&answer) && is_on_demand(&answer), "{answer:?}");

    list::<Pod>(&placer, &[]);
    assert!(is_gated(&admit(&placer).await));
}

#[tokio::test]
async fn who_stops_gates_none_any_more() {
    let placer = placer();
    list::<Pod>(&placer, &[]);
    assert!(is_gated(&admit(&placer).await));

    placer.reconciler.close();

    let answer = admit(&placer).await;
    assert!(!is_gated(&answer) && is_on_demand(&answer), "{answer:?}");
}
