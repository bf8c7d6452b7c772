//! The people and machines around the keeper: admins label nodes and delete them, kubelets register and report.

use std::{collections::BTreeMap, time::Duration};

use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::scene::Plan;
use crate::{
    client::Actor,
    dice::Dice,
    server::{
        authn::Who,
        kinds::{CONFIG_MAPS, NODES},
        world::World,
    },
};

pub const NAMESPACE: &str = "perennial-system";
/// Keys that are kept, the last one only for the same machine.
pub const KEYS: [&str; 3] = ["team", "example.com/tier", PROTECTED];
pub const PROTECTED: &str = "node-role.kubernetes.io/worker";
/// Keys that are not kept.
pub const FOREIGN: [&str; 2] = ["topology.kubernetes.io/zone", "feature.node.kubernetes.io/cpu"];
pub const MARK: &str = "perennial.dev/restored";

pub struct People {
    world: World,
    plan: Plan,
    pub dice: Dice,
    saved: BTreeMap<String, Value>,
}

impl People {
    pub fn new(world: &World, plan: &Plan, dice: Dice) -> Self {
        Self { world: world.clone(), plan: plan.clone(), dice, saved: BTreeMap::new() }
    }

    /// Until somebody does something: often at once, sometimes after a while.
    pub fn pause(&mut self) -> Duration {
        match self.dice.roll(10) {
            0..=3 => self.dice.millis(0, 40),
            4..=6 => self.dice.millis(20, 900),
            7..=8 => self.dice.millis(500, 6000),
            _ => self.dice.millis(3000, 20_000),
        }
    }

    pub fn present(&self) -> Vec<String> {
        let state = self.world.lock();
        state.store.all(&NODES, "").map(|node| crate::server::store::text(node, "/metadata/name").to_owned()).collect()
    }

    pub(super) fn node(&self, name: &str) -> Option<std::sync::Arc<Value>> {
        self.world.lock().store.get(&NODES, "", name).cloned()
    }

    /// Somebody does something; it takes as long as it takes.
    pub fn act(&mut self, acts: &mut JoinSet<()>) {
        let name = self.dice.pick(&self.plan.names).clone();
        let (person, kubelet) = (Actor::new(&self.world, Who::Person), Actor::new(&self.world, Who::Kubelet));
        let Some(node) = self.node(&name) else {
            self.register(&name, acts);
            return;
        };
        match self.dice.roll(20) {
            0..=8 => {
                let patch = self.labels(&name, &node);
                acts.spawn(async move { drop(person.patch(&NODES, "", &name, patch).await) });
            }
            9..=11 => {
                acts.spawn(async move { drop(person.delete(&NODES, "", Some(&name), Value::Null).await) });
            }
            12..=13 => {
                // Gone and back at once; the kubelet tries until the name is free.
                let node = self.manifest(&name);
                let by = if self.dice.percent(60) { kubelet } else { person.clone() };
                let pause = self.dice.millis(0, 300);
                acts.spawn(async move {
                    drop(person.delete(&NODES, "", Some(&name), Value::Null).await);
                    tokio::time::sleep(pause).await;
                    drop(by.create(&NODES, "", node).await);
                });
            }
            14 => {
                let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": self.dice.number().to_string()}]}});
                acts.spawn(async move { drop(kubelet.patch_status(&NODES, "", &name, ready).await) });
            }
            15 => {
                let key = *self.dice.pick(&FOREIGN);
                let patch = json!({"metadata": {"labels": {key: format!("z{}", self.dice.roll(3))}, "annotations": {"example.com/note": self.dice.roll(9).to_string()}}});
                acts.spawn(async move { drop(person.patch(&NODES, "", &name, patch).await) });
            }
            16 if self.dice.percent(20) => {
                acts.spawn(async move { drop(person.delete(&NODES, "", None, Value::Null).await) });
            }
            17 if node["spec"].get("providerID").is_none() => {
                let patch = json!({"spec": {"providerID": provider(&name, hardware(&node))}});
                let cloud = Actor::new(&self.world, Who::Controller);
                acts.spawn(async move { drop(cloud.patch(&NODES, "", &name, patch).await) });
            }
            18 if self.plan.rude => self.be_rude(name, &node, acts),
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

    fn register(&mut self, name: &str, acts: &mut JoinSet<()>) {
        let node = match self.saved.get(name) {
            Some(saved) if self.dice.percent(50) => saved.clone(),
            _ => self.manifest(name),
        };
        let who = if self.dice.percent(60) { Who::Kubelet } else { Who::Person };
        let by = Actor::new(&self.world, who);
        acts.spawn(async move { drop(by.create(&NODES, "", node).await) });
    }

    /// One or two keys set, changed or removed.
    fn labels(&mut self, name: &str, node: &Value) -> Value {
        let mut labels = serde_json::Map::new();
        for _ in 0..=self.dice.roll(2) {
            let key = *self.dice.pick(&KEYS);
            let value = if self.dice.percent(30) { Value::Null } else { json!(self.value(name, key, hardware(node))) };
            labels.insert(key.to_owned(), value);
        }
        json!({"metadata": {"labels": labels}})
    }

    /// A value says whose it is, so that it is known wherever it turns up.
    pub(super) fn value(&mut self, name: &str, key: &str, hardware: u8) -> String {
        let letter = ["a", "b", "c"][self.dice.roll(3)];
        if key == PROTECTED { format!("{name}.m{hardware}.{letter}") } else { format!("{name}.{letter}") }
    }

    /// What a kubelet registers with: sometimes with labels of its own, sometimes on another machine.
    pub(super) fn manifest(&mut self, name: &str) -> Value {
        let hardware = if self.dice.percent(15) { 2 } else { 1 };
        let mut labels = serde_json::Map::new();
        labels.insert("kubernetes.io/hostname".into(), json!(name));
        for key in &KEYS[..2] {
            if self.dice.percent(10) {
                labels.insert((*key).to_owned(), json!(self.value(name, key, hardware)));
            }
        }
        if self.dice.percent(30) {
            labels.insert(FOREIGN[0].into(), json!("z1"));
        }
        let later = self.plan.says_later && self.dice.percent(60);
        machine(name, hardware, &labels.into(), !later)
    }

    fn be_rude(&mut self, name: String, node: &Value, acts: &mut JoinSet<()>) {
        let person = Actor::new(&self.world, Who::Person);
        let record = format!("node-{name}");
        match self.dice.roll(4) {
            0 => {
                self.saved.insert(name, manifest_of(node));
            }
            1 => {
                acts.spawn(
                    async move { drop(person.delete(&CONFIG_MAPS, NAMESPACE, Some(&record), Value::Null).await) },
                );
            }
            _ => {
                let garbage = *self.dice.pick(&["", "{", "null", EVIL]);
                let patch = json!({"data": {"record.json": garbage}});
                acts.spawn(async move { drop(person.patch(&CONFIG_MAPS, NAMESPACE, &record, patch).await) });
            }
        }
    }

    /// Somebody writes over a record; then its node returns.
    pub(super) async fn vandalise(&mut self, name: &str) {
        let person = Actor::new(&self.world, Who::Person);
        let garbage = *self.dice.pick(&["{", EVIL, EVIL]);
        let patch = json!({"data": {"record.json": garbage}});
        drop(person.patch(&CONFIG_MAPS, NAMESPACE, &format!("node-{name}"), patch).await);
        tokio::time::sleep(self.dice.millis(0, 5000)).await;
        self.leave_and_return(name).await;
    }

    /// A node is deleted and comes back bare, as the same machine.
    pub async fn leave_and_return(&mut self, name: &str) {
        let Some(node) = self.node(name) else { return };
        let person = Actor::new(&self.world, Who::Person);
        let kubelet = Actor::new(&self.world, Who::Kubelet);
        drop(person.delete(&NODES, "", Some(name), Value::Null).await);
        tokio::time::sleep(self.dice.millis(100, 4000)).await;
        let whole = node["spec"].get("providerID").is_some();
        let back = machine(name, hardware(&node), &json!({"kubernetes.io/hostname": name}), whole);
        drop(kubelet.create(&NODES, "", back).await);
    }
}

/// What somebody gets who saves a node to register it again later.
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

/// A record that was written by hand: what it says must not become true.
pub const EVIL: &str = r#"{"version":1,"sequence":99,"node":{"name":"n1","uid":"x","resourceVersion":"1","mark":""},"labels":{"team":"evil","node-role.kubernetes.io/worker":"evil"},"capturedAt":"2026-01-01T00:00:00Z","checksum":"00000000000000000000000000000000"}"#;

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

/// Which of the two machines of its name a node is.
pub fn hardware(node: &Value) -> u8 {
    let id = crate::server::store::text(node, "/status/nodeInfo/machineID");
    if id.ends_with("-m2") { 2 } else { 1 }
}
