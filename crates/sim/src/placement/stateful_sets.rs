//! The StatefulSet controller: pods by ordinal, in order or in parallel, and rolling updates down to
//! a partition.

use serde_json::{Value, json};

use super::workload_controllers::{Controllers, NAMESPACE, Object, REVISION, is_active, is_ready, number, pod};
use crate::server::{
    kinds::{PODS, STATEFUL_SETS},
    store::text,
};

/// Takes one step. A StatefulSet without `podManagementPolicy` is Parallel here.
pub(super) async fn step(controllers: &mut Controllers, set: &Value) {
    let (name, uid) = (text(set, "/metadata/name"), text(set, "/metadata/uid"));
    let pods = controllers.owned(&PODS, uid);
    if fill(controllers, set, &pods).await && remove(controllers, set, &pods).await {
        update(controllers, set, &pods).await;
    }
    controllers.report(&STATEFUL_SETS, set, name, uid).await;
}

fn is_ordered(set: &Value) -> bool {
    text(set, "/spec/podManagementPolicy") == "OrderedReady"
}

fn partition(set: &Value) -> i64 {
    number(set, "/spec/updateStrategy/rollingUpdate/partition")
}

fn at<'a>(set: &Value, pods: &'a [Object], ordinal: i64) -> Option<&'a Object> {
    let called = format!("{}-{ordinal}", text(set, "/metadata/name"));
    pods.iter().find(|pod| text(pod, "/metadata/name") == called)
}

/// Creates missing pods. Returns whether the next step may follow.
async fn fill(controllers: &mut Controllers, set: &Value, pods: &[Object]) -> bool {
    for ordinal in 0..number(set, "/spec/replicas") {
        let known = at(set, pods, ordinal);
        if known.is_none() {
            let revised = template(controllers, set, ordinal);
            let called = format!("{}-{ordinal}", text(set, "/metadata/name"));
            let object = pod(&revised, "StatefulSet", Some(&called));
            drop(controllers.by.create(&PODS, NAMESPACE, object).await);
        }
        if is_ordered(set) && !known.is_some_and(|pod| is_active(pod) && is_ready(pod)) {
            return false;
        }
    }
    true
}

/// Returns the StatefulSet with the template that a pod is created from: below the partition, the
/// current one.
fn template(controllers: &mut Controllers, set: &Value, ordinal: i64) -> Value {
    let uid = text(set, "/metadata/uid").to_owned();
    let current = controllers.templates.entry(uid).or_insert_with(|| set["spec"]["template"].clone());
    let mut set = set.clone();
    if ordinal < partition(&set) {
        set["spec"]["template"] = current.clone();
    }
    set
}

/// Removes pods beyond the replicas.
async fn remove(controllers: &Controllers, set: &Value, pods: &[Object]) -> bool {
    let wanted = number(set, "/spec/replicas");
    let ordinal = |pod: &Object| text(pod, "/metadata/name").rsplit('-').next().and_then(|text| text.parse().ok());
    let mut beyond: Vec<(i64, &Object)> = pods.iter().filter_map(|pod| Some((ordinal(pod)?, pod))).collect();
    beyond.retain(|(ordinal, _)| *ordinal >= wanted);
    if is_ordered(set) {
        beyond.sort_by_key(|(ordinal, _)| std::cmp::Reverse(*ordinal));
        beyond.truncate(1);
    }
    for (_, pod) in beyond.iter().filter(|(_, pod)| is_active(pod)) {
        drop(controllers.by.delete(&PODS, NAMESPACE, Some(text(pod, "/metadata/name")), Value::Null).await);
    }
    beyond.is_empty()
}

/// Replaces the pod with the highest ordinal that has another revision, once the pods above it are
/// Ready.
async fn update(controllers: &mut Controllers, set: &Value, pods: &[Object]) {
    for ordinal in (partition(set)..number(set, "/spec/replicas")).rev() {
        let Some(pod) = at(set, pods, ordinal).filter(|pod| is_active(pod)) else { return };
        if text(pod, "/metadata/labels/revision") != text(set, REVISION) {
            let exactly = json!({"preconditions": {"uid": text(pod, "/metadata/uid")}});
            drop(controllers.by.delete(&PODS, NAMESPACE, Some(text(pod, "/metadata/name")), exactly).await);
            return;
        }
        if !is_ready(pod) {
            return;
        }
    }
    if partition(set) == 0 {
        controllers.templates.insert(text(set, "/metadata/uid").to_owned(), set["spec"]["template"].clone());
    }
}
