//! The workload of keeper histories: admins label and delete nodes, kubelets register and report
//! status.

use std::{collections::BTreeMap, time::Duration};

use serde_json::{Value, json};
use tokio::task::JoinSet;

use perennial_core::keeper::keys::Key;
use perennial_testkit::prng::Prng;

use super::scenario::Plan;
use crate::{
    actor::Actor,
    server::{
        authn::User,
        kinds::{CONFIG_MAPS, KEEP_POLICIES, NODES},
        world::World,
    },
};

pub const NAMESPACE: &str = "perennial-system";
/// Keys that are kept, as records write them. Every history keeps the labels, the others are drawn.
pub const KEYS: [&str; 6] = ["team", "example.com/tier", PROTECTED, ANNOTATION, TAINT, CORDON];
/// The labels among the keys.
pub const LABELS: [&str; 3] = ["team", "example.com/tier", PROTECTED];
pub const ANNOTATION: &str = "annotation:example.com/owner";
pub const TAINT: &str = "taint:example.com/dedicated:NoSchedule";
pub const CORDON: &str = "cordon:";
pub const PROTECTED: &str = "node-role.kubernetes.io/worker";
/// Keys that are not kept.
pub const FOREIGN: [&str; 2] = ["topology.kubernetes.io/zone", "feature.node.kubernetes.io/cpu"];
pub const MARK: &str = "perennial.dev/restored";

pub struct NodeWorkload {
    world: World,
    plan: Plan,
    pub prng: Prng,
    saved: BTreeMap<String, Value>,
}

impl NodeWorkload {
    pub fn new(world: &World, plan: &Plan, prng: Prng) -> Self {
        Self { world: world.clone(), plan: plan.clone(), prng, saved: BTreeMap::new() }
    }

    /// Returns the pause before the next step.
    pub fn pause(&mut self) -> Duration {
        match self.prng.below(10) {
            0..=3 => self.prng.millis(0, 40),
            4..=6 => self.prng.millis(20, 900),
            7..=8 => self.prng.millis(500, 6000),
            _ => self.prng.millis(3000, 20_000),
        }
    }

    pub fn present(&self) -> Vec<String> {
        let state = self.world.lock();
        state.store.all(&NODES, "").map(|node| crate::server::store::text(node, "/metadata/name").to_owned()).collect()
    }

    pub(super) fn node(&self, name: &str) -> Option<std::sync::Arc<Value>> {
        self.world.lock().store.get(&NODES, "", name).cloned()
    }

    /// Starts a random step.
    pub fn act(&mut self, acts: &mut JoinSet<()>) {
        let name = self.prng.pick(&self.plan.names).clone();
        let (person, kubelet) = (Actor::new(&self.world, User::Person), Actor::new(&self.world, User::Kubelet));
        let Some(node) = self.node(&name) else {
            self.register(&name, acts);
            return;
        };
        match self.prng.below(20) {
            0..=8 => {
                let patch = self.labels(&name, &node);
                acts.spawn(async move { drop(person.patch(&NODES, "", &name, patch).await) });
            }
            9..=11 => {
                acts.spawn(async move { drop(person.delete(&NODES, "", Some(&name), Value::Null).await) });
            }
            12..=13 => {
                // Deleted and created at once: the kubelet retries until the name is free.
                let node = self.manifest(&name);
                let by = if self.prng.percent(60) { kubelet } else { person.clone() };
                let pause = self.prng.millis(0, 300);
                acts.spawn(async move {
                    drop(person.delete(&NODES, "", Some(&name), Value::Null).await);
                    tokio::time::sleep(pause).await;
                    drop(by.create(&NODES, "", node).await);
                });
            }
            14 => {
                let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": self.prng.number().to_string()}]}});
                acts.spawn(async move { drop(kubelet.patch_status(&NODES, "", &name, ready).await) });
            }
            15 => {
                let key = *self.prng.pick(&FOREIGN);
                let patch = json!({"metadata": {"labels": {key: format!("z{}", self.prng.below(3))}, "annotations": {"example.com/note": self.prng.below(9).to_string()}}});
                acts.spawn(async move { drop(person.patch(&NODES, "", &name, patch).await) });
            }
            16 if self.prng.percent(20) => {
                acts.spawn(async move { drop(person.delete(&NODES, "", None, Value::Null).await) });
            }
            17 if node["spec"].get("providerID").is_none() => {
                let patch = json!({"spec": {"providerID": provider(&name, hardware(&node))}});
                let cloud = Actor::new(&self.world, User::Controller);
                acts.spawn(async move { drop(cloud.patch(&NODES, "", &name, patch).await) });
            }
            18 if self.plan.beyond_limits => self.exceed_limits(name, &node, acts),
            _ => {
                let patch = self.labels(&name, &node);
                let again = self.labels(&name, &node);
                acts.spawn(async move {
                    drop(person.patch(&NODES, "", &name, patch).await);
                    drop(person.patch(&NODES, "", &name, again).await);
                });
            }
        }
    }

    /// Creates, changes, breaks or deletes a KeepPolicy. Each of them keeps what the configuration
    /// keeps.
    pub fn change_policy(&mut self, acts: &mut JoinSet<()>) {
        let person = Actor::new(&self.world, User::Person);
        let name = *self.prng.pick(&["first", "second"]);
        if self.prng.percent(25) {
            acts.spawn(async move { drop(person.delete(&KEEP_POLICIES, "", Some(name), Value::Null).await) });
            return;
        }
        let selector = match self.prng.below(4) {
            0 => json!({}),
            1 => json!({"matchExpressions": [{"key": LABELS[0], "operator": "Exists"}]}),
            2 => json!({"matchExpressions": [{"key": LABELS[1], "operator": "DoesNotExist"}]}),
            _ => json!({"matchLabels": {FOREIGN[0]: "z1"}}),
        };
        let keep = match self.prng.below(8) {
            0 => json!("not a list"),
            1..=4 => json!(["*"]),
            _ => json!(LABELS),
        };
        let mut spec = json!({"priority": self.prng.below(3), "nodeSelector": selector, "keep": keep});
        if self.plan.identities {
            spec["identity"] = json!(self.identity());
        }
        let policy = json!({
            "apiVersion": KEEP_POLICIES.api_version(), "kind": KEEP_POLICIES.kind,
            "metadata": {"name": name}, "spec": spec,
        });
        acts.spawn(async move {
            if person.create(&KEEP_POLICIES, "", policy).await.is_err() {
                let replaced = json!({"spec": {"nodeSelector": null}});
                drop(person.patch(&KEEP_POLICIES, "", name, replaced).await);
                drop(person.patch(&KEEP_POLICIES, "", name, json!({"spec": spec})).await);
            }
        });
    }

    /// Returns a field that identifies every node of the history, or `None` for the default.
    fn identity(&mut self) -> Option<&'static str> {
        let identities = [None, Some("name"), Some("systemUUID"), Some("machineID"), Some("providerID")];
        let usable = if self.plan.reports_machine_late { &identities[..4] } else { &identities };
        *self.prng.pick(usable)
    }

    fn register(&mut self, name: &str, acts: &mut JoinSet<()>) {
        let node = match self.saved.get(name) {
            Some(saved) if self.prng.percent(50) => saved.clone(),
            _ => self.manifest(name),
        };
        let who = if self.prng.percent(60) { User::Kubelet } else { User::Person };
        let by = Actor::new(&self.world, who);
        acts.spawn(async move { drop(by.create(&NODES, "", node).await) });
    }

    /// Returns a patch that sets, changes or removes one or two keys.
    fn labels(&mut self, name: &str, node: &Value) -> Value {
        let mut changes = BTreeMap::new();
        for _ in 0..=self.prng.below(2) {
            let key = *self.prng.pick(&self.plan.keys);
            let value = (!self.prng.percent(30)).then(|| self.value(name, key, hardware(node)));
            changes.insert(key, value);
        }
        patch_of(node, &changes)
    }

    /// Returns a value that contains its node and machine, so that the oracle recognizes a
    /// misplaced one.
    pub(super) fn value(&mut self, name: &str, key: &str, hardware: u8) -> String {
        if key == CORDON {
            return "true".to_owned();
        }
        let letter = ["a", "b", "c"][self.prng.below(3)];
        if key == PROTECTED { format!("{name}.m{hardware}.{letter}") } else { format!("{name}.{letter}") }
    }

    /// Returns the Node that a kubelet registers: sometimes with labels, sometimes on another
    /// machine.
    pub(super) fn manifest(&mut self, name: &str) -> Value {
        let hardware = if self.prng.percent(15) && !self.plan.identities { 2 } else { 1 };
        let mut labels = serde_json::Map::new();
        labels.insert("kubernetes.io/hostname".into(), json!(name));
        for key in &LABELS[..2] {
            if self.prng.percent(10) {
                labels.insert((*key).to_owned(), json!(self.value(name, key, hardware)));
            }
        }
        if self.prng.percent(30) {
            labels.insert(FOREIGN[0].into(), json!("z1"));
        }
        let later = self.plan.reports_machine_late && self.prng.percent(60);
        machine(name, hardware, &labels.into(), !later)
    }

    fn exceed_limits(&mut self, name: String, node: &Value, acts: &mut JoinSet<()>) {
        let person = Actor::new(&self.world, User::Person);
        let record = format!("node-{name}");
        match self.prng.below(4) {
            0 => {
                self.saved.insert(name, manifest_of(node));
            }
            1 => {
                acts.spawn(
                    async move { drop(person.delete(&CONFIG_MAPS, NAMESPACE, Some(&record), Value::Null).await) },
                );
            }
            _ => {
                let garbage = *self.prng.pick(&["", "{", "null", EVIL]);
                let patch = json!({"data": {"record.json": garbage}});
                acts.spawn(async move { drop(person.patch(&CONFIG_MAPS, NAMESPACE, &record, patch).await) });
            }
        }
    }

    /// Overwrites a record, and recreates its node.
    pub(super) async fn vandalise(&mut self, name: &str) {
        let person = Actor::new(&self.world, User::Person);
        let garbage = *self.prng.pick(&["{", EVIL, EVIL]);
        let patch = json!({"data": {"record.json": garbage}});
        drop(person.patch(&CONFIG_MAPS, NAMESPACE, &format!("node-{name}"), patch).await);
        tokio::time::sleep(self.prng.millis(0, 5000)).await;
        self.leave_and_return(name).await;
    }

    /// Deletes a node and creates it again without labels, on the same machine.
    pub async fn leave_and_return(&mut self, name: &str) {
        let Some(node) = self.node(name) else { return };
        let person = Actor::new(&self.world, User::Person);
        let kubelet = Actor::new(&self.world, User::Kubelet);
        drop(person.delete(&NODES, "", Some(name), Value::Null).await);
        tokio::time::sleep(self.prng.millis(100, 4000)).await;
        let whole = node["spec"].get("providerID").is_some();
        let back = machine(name, hardware(&node), &json!({"kubernetes.io/hostname": name}), whole);
        drop(kubelet.create(&NODES, "", back).await);
    }
}

/// Returns the manifest of a node as saved to a file.
pub(super) fn manifest_of(node: &Value) -> Value {
    let mut saved = node.clone();
    if let Some(metadata) = saved["metadata"].as_object_mut() {
        for field in ["uid", "resourceVersion", "creationTimestamp"] {
            metadata.remove(field);
        }
        if let Some(labels) = metadata.get_mut("labels").and_then(Value::as_object_mut) {
            labels.remove(PROTECTED);
        }
    }
    saved
}

/// A forged record. Its labels must never reach a node.
pub const EVIL: &str = r#"{"version":1,"sequence":99,"node":{"name":"n1","uid":"x","resourceVersion":"1","mark":""},"labels":{"team":"evil","node-role.kubernetes.io/worker":"evil"},"capturedAt":"2026-01-01T00:00:00Z","checksum":"00000000000000000000000000000000"}"#;

/// Returns the patch that gives a node these values. Taints are a list, which is sent whole, as
/// `kubectl taint` does.
fn patch_of(node: &Value, changes: &BTreeMap<&'static str, Option<String>>) -> Value {
    let mut patch = json!({"metadata": {}});
    for (key, value) in changes {
        match Key::parse(key) {
            Key::Label(key) => patch["metadata"]["labels"][key] = json!(value),
            Key::Annotation(key) => patch["metadata"]["annotations"][key] = json!(value),
            Key::Taint { key, effect } => {
                let mut taints = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
                taints.retain(|taint| taint["key"] != key || taint["effect"] != effect);
                taints.extend(value.iter().map(|value| json!({"key": key, "value": value, "effect": effect})));
                patch["spec"]["taints"] = json!(taints);
                patch["metadata"]["resourceVersion"] = node["metadata"]["resourceVersion"].clone();
            }
            Key::Cordon => patch["spec"]["unschedulable"] = json!(value.as_ref().map(|_| true)),
        }
    }
    patch
}

fn provider(name: &str, hardware: u8) -> String {
    format!("sim:///{name}/{hardware}")
}

fn machine(name: &str, hardware: u8, labels: &Value, whole: bool) -> Value {
    let mut node = json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": {},
        "status": {"nodeInfo": {"machineID": format!("{name}-m{hardware}"), "systemUUID": format!("{name}-s{hardware}")}},
    });
    if whole {
        node["spec"]["providerID"] = json!(provider(name, hardware));
    }
    node
}

/// Returns which of the two machines of its name a node runs on.
pub fn hardware(node: &Value) -> u8 {
    let id = crate::server::store::text(node, "/status/nodeInfo/machineID");
    if id.ends_with("-m2") { 2 } else { 1 }
}
