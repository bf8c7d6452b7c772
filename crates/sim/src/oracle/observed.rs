//! Nodes and records as observed in the log, with the terms of the design: owner, settled, base.

use std::collections::BTreeMap;

use perennial_core::keeper::{
    hash::Digest,
    keys::{Kept, Key, digest},
    mark::Mark,
    record::{RECORD_KEY, RECOVERED_KEY, Record},
};
use serde_json::Value;

use crate::{
    keeper::node_workload::{KEYS, MARK, PROTECTED, hardware},
    server::store::{text, version},
};

/// Value of a kept key; `None` if the key is absent.
pub type Label = Option<String>;

/// Returns the value of a key of a node.
pub fn label(node: &Value, key: &str) -> Label {
    let text = |map: &Value, key: &str| map.get(key).and_then(Value::as_str).map(str::to_owned);
    match Key::parse(key) {
        Key::Label(key) => text(&node["metadata"]["labels"], &key),
        Key::Annotation(key) => text(&node["metadata"]["annotations"], &key),
        Key::Taint { key, effect } => {
            let taints = node["spec"]["taints"].as_array();
            let is_it = |taint: &&Value| taint["key"] == key && taint["effect"] == effect;
            let taint = taints.into_iter().flatten().find(is_it)?;
            Some(text(taint, "value").unwrap_or_default())
        }
        Key::Cordon => (node["spec"]["unschedulable"] == true).then(|| "true".to_owned()),
    }
}

/// One state of a node.
#[derive(Clone, Debug)]
pub struct Node {
    pub uid: String,
    pub rv: u64,
    /// The values of the kept keys.
    pub labels: BTreeMap<String, String>,
    mark_text: String,
    pub mark: Option<Mark>,
    pub hardware: u8,
    /// It reports its providerID.
    pub whole: bool,
}

impl Node {
    pub fn read(object: &Value) -> Self {
        let mark_text = object["metadata"]["annotations"].get(MARK).and_then(Value::as_str).unwrap_or_default();
        Self {
            uid: text(object, "/metadata/uid").to_owned(),
            rv: version(object),
            labels: KEYS.iter().filter_map(|key| Some(((*key).to_owned(), label(object, key)?))).collect(),
            mark: Mark::parse(mark_text),
            mark_text: mark_text.to_owned(),
            hardware: hardware(object),
            whole: object["spec"].get("providerID").is_some(),
        }
    }

    fn mark_digest(&self) -> String {
        if self.mark.is_some() { Digest::of([&self.mark_text]).to_string() } else { String::new() }
    }
}

/// Returns the record of a ConfigMap, if it is readable.
pub fn record(config_map: &Value) -> Option<Record> {
    let read = |key: &str| Record::decode(config_map["data"].get(key)?.as_str()?).ok();
    match (read(RECORD_KEY), read(RECOVERED_KEY)) {
        (Some(record), Some(recovered)) if recovered.sequence > record.sequence => Some(recovered),
        (Some(record), _) => Some(record),
        (None, recovered) => recovered,
    }
}

fn get(kept: &Kept, key: &str) -> Label {
    kept.get(&Key::parse(key)).cloned()
}

fn hardware_of(machine_id: &str) -> u8 {
    if machine_id.ends_with("-m2") { 2 } else { 1 }
}

/// Returns the value of a key that a record contains for a machine.
pub fn recorded(record: &Record, key: &str, hardware: u8) -> Label {
    let its = record.node.machine.machine_id.is_empty() || hardware_of(&record.node.machine.machine_id) == hardware;
    let held = get(&record.kept, key);
    if key != PROTECTED || its && held.is_some() {
        return held;
    }
    let others = record.withheld.iter().filter(|other| hardware_of(&other.machine.machine_id) == hardware);
    others.map(|other| Kept::from(other.content.clone())).find_map(|kept| get(&kept, key))
}

pub fn before(record: &Record, key: &str) -> Label {
    get(&record.before, key)
}

pub fn is_owner(node: &Node, record: &Record) -> bool {
    record.node.uid == node.uid && !record.folded && record.node.mark == node.mark_digest()
}

pub fn is_settled(node: &Node, record: Option<&Record>) -> bool {
    let Some(record) = record else { return true };
    let content = if record.folded && record.node.uid == node.uid { &record.before } else { &record.kept };
    let given = node.mark.as_ref().is_some_and(|mark| {
        let all = || mark.from == digest(content) && content.keys().all(|key| mark.covers(key));
        mark.complete && (mark.is_newer_than(record.node.resource_version) || all())
    });
    is_owner(node, record) || given
}

/// Returns whether this is the last value that node and record agreed on.
pub fn is_base(node: &Node, record: Option<&Record>, key: &str, value: &Label) -> bool {
    match record {
        Some(record) if is_owner(node, record) => get(&record.kept, key) == *value,
        _ => node
            .mark
            .as_ref()
            .map_or(value.is_none(), |mark| !mark.belongs_to_node(&Key::parse(key)) && get(&mark.given, key) == *value),
    }
}
