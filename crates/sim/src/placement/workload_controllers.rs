//! Minimal controllers of Kubernetes: Deployments, ReplicaSets, StatefulSets, the
//! scheduler, the kubelets and the disruption controller. Each pass takes one step on every object.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use serde_json::{Value, json};

use perennial_testkit::prng::Prng;

use super::stateful_sets;
use crate::{
    actor::Actor,
    server::{
        authn::User,
        kinds::{DEPLOYMENTS, Kind, NODES, PDBS, PODS, REPLICA_SETS, STATEFUL_SETS},
        select::match_labels,
        store::{field, is_finished, text},
        world::World,
    },
};

pub const NAMESPACE: &str = "shop";
pub const CAPACITY: &str = "karpenter.sh/capacity-type";
const COST: &str = "controller.kubernetes.io/pod-deletion-cost";

/// Revision of a workload's template.
pub(super) const REVISION: &str = "/spec/template/metadata/labels/revision";

pub(super) type Object = Arc<Value>;

pub struct Controllers {
    world: World,
    pub(super) by: Actor,
    /// Current templates of StatefulSets, by UID.
    pub(super) templates: BTreeMap<String, Value>,
    prng: Prng,
    /// When a bound pod becomes Ready, and when a terminating pod is removed.
    due: BTreeMap<String, Duration>,
    /// Position in the log of the last pass.
    seen: u64,
}

impl Controllers {
    pub fn new(world: &World, prng: Prng) -> Self {
        let by = Actor::new(world, User::Controller);
        Self { world: world.clone(), by, templates: BTreeMap::new(), prng, due: BTreeMap::new(), seen: 0 }
    }

    pub async fn run(mut self) {
        loop {
            let pause = self.prng.millis(60, 300);
            tokio::time::sleep(pause).await;
            if self.is_needed() {
                self.pass().await;
            }
        }
    }

    /// Returns whether a relevant object changed since the last pass, or a timer is due.
    fn is_needed(&mut self) -> bool {
        let now = self.world.elapsed();
        let state = self.world.lock();
        let ours = [&NODES, &PODS, &DEPLOYMENTS, &REPLICA_SETS, &STATEFUL_SETS, &PDBS];
        let changed = state.store.between(self.seen, state.store.rv());
        let changed = changed.iter().any(|change| ours.iter().any(|kind| std::ptr::eq(*kind, change.kind)));
        self.seen = state.store.rv();
        let slack = Duration::from_secs(1);
        changed || self.due.values().any(|due| *due + slack >= now)
    }

    async fn pass(&mut self) {
        for deployment in self.all(&DEPLOYMENTS) {
            self.deployment(&deployment).await;
        }
        for set in self.all(&REPLICA_SETS) {
            self.replica_set(&set).await;
        }
        for set in self.all(&STATEFUL_SETS) {
            stateful_sets::step(self, &set).await;
        }
        for pod in self.all(&PODS) {
            self.pod(&pod).await;
        }
        for pdb in self.all(&PDBS) {
            self.disruptions(&pdb).await;
        }
    }

    fn all(&self, kind: &Kind) -> Vec<Object> {
        self.world.lock().store.all(kind, NAMESPACE).cloned().collect()
    }

    pub(super) fn owned(&self, kind: &Kind, uid: &str) -> Vec<Object> {
        self.all(kind).into_iter().filter(|object| text(object, "/metadata/ownerReferences/0/uid") == uid).collect()
    }

    /// Rolls out one step: as many new pods as maxSurge, as few old pods as maxUnavailable allow.
    async fn deployment(&mut self, deployment: &Value) {
        let (name, uid) = (text(deployment, "/metadata/name"), text(deployment, "/metadata/uid"));
        let wanted = number(deployment, "/spec/replicas");
        let revision = text(deployment, "/spec/template/metadata/labels/revision");
        let current = format!("{name}-{revision}");
        let sets = self.owned(&REPLICA_SETS, uid);
        if !sets.iter().any(|set| text(set, "/metadata/name") == current) {
            let object = json!({
                "metadata": {
                    "name": current,
                    "labels": {"app": name, "revision": revision},
                    "annotations": {"deployment.kubernetes.io/revision": (sets.len() + 1).to_string()},
                    "ownerReferences": [owner("Deployment", name, uid)],
                },
                "spec": {
                    "replicas": if sets.is_empty() { wanted } else { 0 },
                    "selector": {"matchLabels": {"app": name, "revision": revision}},
                    "template": deployment["spec"]["template"],
                },
            });
            drop(self.by.create(&REPLICA_SETS, NAMESPACE, object).await);
            return;
        }
        let spec = |set: &Object| number(set, "/spec/replicas");
        let available = |set: &Object| number(set, "/status/availableReplicas");
        let (new, old): (Vec<_>, Vec<_>) = sets.iter().partition(|set| text(set, "/metadata/name") == current);
        let Some(new) = new.first() else { return };
        let revisions = sets.iter().map(|set| text(set, "/metadata/annotations/deployment.kubernetes.io~1revision"));
        let newest = revisions.filter_map(|text| text.parse::<i64>().ok()).max().unwrap_or(1);
        let mine = text(new, "/metadata/annotations/deployment.kubernetes.io~1revision").parse::<i64>().unwrap_or(1);
        if mine < newest {
            // Rolled back: the former ReplicaSet is the newest one again.
            let patch =
                json!({"metadata": {"annotations": {"deployment.kubernetes.io/revision": (newest + 1).to_string()}}});
            drop(self.by.patch(&REPLICA_SETS, NAMESPACE, &current, patch).await);
        }
        let all: i64 = sets.iter().map(spec).sum();
        let old_pods: i64 = old.iter().map(|set| spec(set)).sum();
        let rolling = |limit: &str| number(deployment, &format!("/spec/strategy/rollingUpdate/{limit}"));
        let (surge, unavailable) = (rolling("maxSurge"), rolling("maxUnavailable").min(wanted));
        let mut scale = None;
        if old_pods == 0 {
            if spec(new) != wanted {
                scale = Some((current.clone(), wanted));
            }
        } else if spec(new) > wanted {
            scale = Some((current.clone(), wanted));
        } else if spec(new) < wanted && all < wanted + surge {
            scale = Some((current.clone(), spec(new) + (wanted + surge - all).min(wanted - spec(new))));
        } else {
            let ready: i64 = sets.iter().map(available).sum();
            let mut spare = ready - (wanted - unavailable);
            for set in &old {
                let unready = spec(set) - available(set);
                let less = (spare.max(0) + unready.max(0)).min(spec(set));
                if less > 0 && scale.is_none() {
                    scale = Some((text(set, "/metadata/name").to_owned(), spec(set) - less));
                    spare -= less;
                }
            }
        }
        if let Some((name, replicas)) = scale {
            drop(self.by.patch(&REPLICA_SETS, NAMESPACE, &name, json!({"spec": {"replicas": replicas}})).await);
        }
        let pods = |set: &Object| number(set, "/status/replicas");
        let status = json!({"status": {
            "observedGeneration": number(deployment, "/metadata/generation"),
            "replicas": sets.iter().map(pods).sum::<i64>(),
            "updatedReplicas": pods(new),
            "availableReplicas": sets.iter().map(available).sum::<i64>(),
        }});
        drop(self.by.patch_status(&DEPLOYMENTS, NAMESPACE, name, status).await);
    }

    async fn replica_set(&mut self, set: &Value) {
        let (name, uid) = (text(set, "/metadata/name"), text(set, "/metadata/uid"));
        let wanted = number(set, "/spec/replicas");
        let mut active: Vec<Object> = self.owned(&PODS, uid).into_iter().filter(|pod| is_active(pod)).collect();
        let count = i64::try_from(active.len()).unwrap_or(i64::MAX);
        if count < wanted {
            let mut pods = Vec::new();
            for _ in count..wanted {
                let by = self.by.clone();
                let pod = pod(set, "ReplicaSet", None);
                pods.push(async move { by.create(&PODS, NAMESPACE, pod).await });
            }
            drop(futures::future::join_all(pods).await);
        } else if count > wanted {
            active.sort_by_key(|pod| rank(pod));
            for pod in &active[..usize::try_from(count - wanted).unwrap_or(0)] {
                let exactly = json!({"preconditions": {"uid": text(pod, "/metadata/uid")}});
                drop(self.by.delete(&PODS, NAMESPACE, Some(text(pod, "/metadata/name")), exactly).await);
            }
        }
        self.report(&REPLICA_SETS, set, name, uid).await;
    }

    pub(super) async fn report(&self, kind: &'static Kind, set: &Value, name: &str, uid: &str) {
        let active: Vec<Object> = self.owned(&PODS, uid).into_iter().filter(|pod| is_active(pod)).collect();
        let ready = active.iter().filter(|pod| is_ready(pod)).count();
        let revision = text(set, REVISION);
        let updated = active.iter().filter(|pod| text(pod, "/metadata/labels/revision") == revision).count();
        let status = json!({"status": {
            "observedGeneration": number(set, "/metadata/generation"),
            "replicas": active.len(),
            "updatedReplicas": updated,
            "readyReplicas": ready,
            "availableReplicas": ready,
        }});
        drop(self.by.patch_status(kind, NAMESPACE, name, status).await);
    }

    /// The scheduler and the kubelet of one pod.
    async fn pod(&mut self, pod: &Value) {
        let (name, uid) = (text(pod, "/metadata/name"), text(pod, "/metadata/uid").to_owned());
        let now = self.world.elapsed();
        let node = text(pod, "/spec/nodeName");
        let deleting = pod["metadata"].get("deletionTimestamp").is_some();
        if !node.is_empty() && self.by.get(&NODES, "", node).is_none() {
            // The node of the pod was deleted: so is the pod.
            drop(self.by.delete(&PODS, NAMESPACE, Some(name), json!({"gracePeriodSeconds": 0})).await);
            return;
        }
        if deleting {
            let lasts = self.prng.millis(200, 4000);
            let end = *self.due.entry(format!("end {uid}")).or_insert(now + lasts);
            if now >= end {
                let exactly = json!({"gracePeriodSeconds": 0, "preconditions": {"uid": uid}});
                drop(self.by.delete(&PODS, NAMESPACE, Some(name), exactly).await);
            }
            return;
        }
        if node.is_empty() {
            if pod["spec"]["schedulingGates"].as_array().is_none_or(Vec::is_empty) {
                self.schedule(pod, name).await;
            }
            return;
        }
        if !is_ready(pod) {
            let lasts = self.prng.millis(300, 5000);
            let ready = *self.due.entry(format!("ready {uid}")).or_insert(now + lasts);
            if now >= ready {
                let mut scheduled = json!({"type": "PodScheduled", "status": "True"});
                if let Some(known) = field(pod, "/status/conditions/0").filter(|known| known["status"] == "True") {
                    scheduled = known.clone();
                }
                let ready = json!({"type": "Ready", "status": "True"});
                let status = json!({"status": {"phase": "Running", "conditions": [scheduled, ready]}});
                drop(self.by.patch_status(&PODS, NAMESPACE, name, status).await);
            }
        }
    }

    async fn schedule(&mut self, pod: &Value, name: &str) {
        let wanted = pod["spec"]["nodeSelector"].as_object().cloned().unwrap_or_default();
        let (nodes, pods): (Vec<Object>, Vec<Object>) = {
            let state = self.world.lock();
            (state.store.all(&NODES, "").cloned().collect(), state.store.all(&PODS, NAMESPACE).cloned().collect())
        };
        let fits = |node: &&Object| {
            let name = text(node, "/metadata/name");
            let used = pods.iter().filter(|pod| text(pod, "/spec/nodeName") == name && !is_finished(pod)).count();
            let has_room = room(node).is_none_or(|room| used < room);
            has_room && wanted.iter().all(|(key, value)| node["metadata"]["labels"].get(key) == Some(value))
        };
        let nodes: Vec<&Object> = nodes.iter().filter(fits).collect();
        let before = field(pod, "/status/conditions/0").filter(|condition| condition["status"] == "False");
        if nodes.is_empty() {
            let since = before.map_or(&pod["metadata"]["creationTimestamp"], |before| &before["lastTransitionTime"]);
            let waits = json!({"status": {"conditions": [{
                "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "lastTransitionTime": since,
            }]}});
            drop(self.by.patch_status(&PODS, NAMESPACE, name, waits).await);
            return;
        }
        let node = text(nodes[self.prng.below(nodes.len())], "/metadata/name").to_owned();
        let is_finite = nodes.iter().any(|node| room(node).is_some());
        drop(self.by.patch(&PODS, NAMESPACE, name, json!({"spec": {"nodeName": node}})).await);
        if is_finite {
            let at = self.world.now().as_second();
            let at = jiff::Timestamp::from_second(at).unwrap_or_default();
            let bound = json!({"status": {"conditions": [
                {"type": "PodScheduled", "status": "True", "lastTransitionTime": at},
            ]}});
            drop(self.by.patch_status(&PODS, NAMESPACE, name, bound).await);
        }
    }

    async fn disruptions(&self, pdb: &Value) {
        let meant = |pod: &Object| match_labels(&pdb["spec"]["selector"], &pod["metadata"]["labels"]);
        let pods: Vec<Object> = self.all(&PODS).into_iter().filter(|pod| is_active(pod) && meant(pod)).collect();
        let ready = i64::try_from(pods.iter().filter(|pod| is_ready(pod)).count()).unwrap_or_default();
        let most = number(pdb, "/spec/maxUnavailable");
        let expected = i64::try_from(pods.len()).unwrap_or_default();
        let allowed = (ready - (expected - most)).max(0);
        let status = json!({"status": {"disruptionsAllowed": allowed}});
        drop(self.by.patch_status(&PDBS, NAMESPACE, text(pdb, "/metadata/name"), status).await);
    }
}

fn owner(kind: &str, name: &str, uid: &str) -> Value {
    json!({"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": uid, "controller": true})
}

pub(super) fn pod(set: &Value, kind: &str, name: Option<&str>) -> Value {
    let (owner_name, uid) = (text(set, "/metadata/name"), text(set, "/metadata/uid"));
    let mut pod = json!({
        "metadata": {
            "labels": set["spec"]["template"]["metadata"]["labels"],
            "ownerReferences": [owner(kind, owner_name, uid)],
        },
        "spec": set["spec"]["template"]["spec"],
    });
    match name {
        Some(name) => pod["metadata"]["name"] = json!(name),
        None => pod["metadata"]["generateName"] = json!(format!("{owner_name}-")),
    }
    pod
}

/// Number of pods for which a node has room. None: any.
pub fn room(node: &Value) -> Option<usize> {
    text(node, "/status/allocatable/pods").parse().ok()
}

pub fn number(object: &Value, pointer: &str) -> i64 {
    field(object, pointer).and_then(Value::as_i64).unwrap_or_default()
}

pub fn is_active(pod: &Value) -> bool {
    pod["metadata"].get("deletionTimestamp").is_none() && !is_finished(pod)
}

pub fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

/// The order in which a ReplicaSet removes pods: unassigned, pending and unready ones first, then
/// the cheapest.
fn rank(pod: &Value) -> (bool, bool, bool, i64, std::cmp::Reverse<String>) {
    let assigned = !text(pod, "/spec/nodeName").is_empty();
    let running = text(pod, "/status/phase") == "Running";
    let cost = pod["metadata"]["annotations"].get(COST).and_then(Value::as_str).and_then(|text| text.parse().ok());
    let created = text(pod, "/metadata/creationTimestamp").to_owned();
    (assigned, running, is_ready(pod), cost.unwrap_or(0), std::cmp::Reverse(created))
}
