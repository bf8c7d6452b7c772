//! Readers of exports, backups and the objects of other tools, as entries to import.
//!
//! # Guarantees
//! Any text results in entries and refusals, never a panic. An entry is accepted or refused as a
//! whole, with its location and the reason. Objects of an unknown format are counted and ignored.

mod config_map;
mod csv;
pub mod decide;
pub mod export;
mod json_labels;
mod plain;

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::Deserialize as _;
use serde_json::{Map, Value};

use super::{
    keys::{Kept, Key, TRUE, Taint},
    machine::Machine,
    record::Record,
};
use crate::config::names::{
    TAINT_EFFECTS, is_annotation_key, is_dns_subdomain, is_label_key, is_label_value, is_taint_effect,
};

/// Known formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Format {
    /// The output of `perennial export`.
    Export,
    /// A record's ConfigMap, as kubectl prints it.
    Record,
    /// A ConfigMap named after the node, with `-SLASH-` or `---SLASH---` for the slashes of its
    /// keys.
    SlashKeys,
    /// A ConfigMap `node-labels-<node>` with `state.json`.
    StateJson,
    /// A ConfigMap `node-labels-<hash of the node's name>` with `preserved_labels_json`.
    PreservedLabels,
    /// A custom resource `NodeLabelState`.
    NodeLabelState,
    /// Nodes, as `kubectl get nodes -o yaml` prints them.
    Node,
    /// A map from nodes to labels, or a list of nodes with labels.
    Plain,
    /// Comma-separated values.
    Csv,
    /// A ConfigMap with labels as JSON, read only on request: any ConfigMap might be one.
    JsonLabels,
}

impl Format {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Export => "export",
            Self::Record => "record",
            Self::SlashKeys => "configmap with slashes replaced",
            Self::StateJson => "configmap with state.json",
            Self::PreservedLabels => "configmap with preserved_labels_json",
            Self::NodeLabelState => "NodeLabelState",
            Self::Node => "node",
            Self::Plain => "plain map",
            Self::Csv => "csv",
            Self::JsonLabels => "configmap with JSON labels",
        }
    }
}

/// The keys to import for one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportEntry {
    pub node: String,
    pub kept: Kept,
    /// The machine that it was captured from, if known.
    pub machine: Option<Machine>,
    pub captured_at: Option<Timestamp>,
    /// A complete record with its history.
    pub record: Option<Box<Record>>,
    pub hold: bool,
    pub format: Format,
    /// Location of the entry.
    pub origin: String,
}

/// An entry that is not imported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    pub origin: String,
    pub why: String,
}

/// The result of reading files and objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImportInput {
    pub entries: Vec<ImportEntry>,
    pub refused: Vec<Refused>,
    /// Number of objects of an unknown format.
    pub unknown: usize,
}

impl ImportInput {
    fn take(&mut self, origin: &str, read: Result<ImportEntry, String>) {
        match read {
            Ok(entry) => self.entries.push(entry),
            Err(why) => self.refused.push(Refused { origin: origin.to_owned(), why }),
        }
    }

    /// Refuses all entries of a node that appears more than once with different content. Of equal
    /// entries the first is kept.
    pub fn settle(&mut self) {
        let mut first: BTreeMap<String, usize> = BTreeMap::new();
        let mut torn: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        let mut gone: BTreeSet<usize> = BTreeSet::new();
        for (place, entry) in self.entries.iter().enumerate() {
            // Records of two identities may contain the same node name.
            let subject = entry.record.as_ref().map_or_else(|| entry.node.clone(), |record| record.name().0);
            let Some(earlier) = first.get(&subject).copied() else {
                first.insert(subject, place);
                continue;
            };
            gone.insert(place);
            if self.entries[earlier].kept != entry.kept {
                torn.entry(entry.node.clone()).or_insert_with(|| vec![earlier]).push(place);
            }
        }
        for (node, places) in torn {
            for place in places {
                gone.insert(place);
                let origin = self.entries[place].origin.clone();
                let why = format!("node {node} is listed more than once, with different labels");
                self.refused.push(Refused { origin, why });
            }
        }
        let mut place = 0;
        self.entries.retain(|_| {
            place += 1;
            !gone.contains(&(place - 1))
        });
    }
}

/// Reads a file. `known` contains the names of nodes, for formats that identify a node by a hash of
/// its name.
pub fn read_text(text: &str, file: &str, known: &BTreeSet<String>) -> ImportInput {
    let mut found = ImportInput::default();
    if csv::is_csv(text) {
        csv::read(text, file, &mut found);
    } else {
        read_documents(text, file, known, &mut found);
    }
    if found.entries.is_empty() && found.refused.is_empty() && !is_empty_export(text) {
        let why = match found.unknown {
            0 => "it contains no nodes, records or labels of nodes".to_owned(),
            unknown => format!("none of its {unknown} object(s) has a known format"),
        };
        found.refused.push(Refused { origin: file.to_owned(), why });
    }
    found
}

/// Whether a text is the export of a cluster without records.
fn is_empty_export(text: &str) -> bool {
    documents(text)
        .is_ok_and(|all| matches!(&*all, [one] if one.get("kind").and_then(Value::as_str) == Some(export::KIND)))
}

fn read_documents(text: &str, file: &str, known: &BTreeSet<String>, found: &mut ImportInput) {
    match documents(text) {
        Ok(documents) => {
            for (number, document) in documents.iter().enumerate() {
                let origin =
                    if documents.len() == 1 { file.to_owned() } else { format!("{file}, document {}", number + 1) };
                read_value(document, &origin, None, known, found);
            }
        }
        Err(why) => found.refused.push(Refused { origin: file.to_owned(), why }),
    }
}

/// Reads a file whose ConfigMaps contain labels as JSON.
pub fn read_json_labels(text: &str, file: &str) -> ImportInput {
    let mut found = ImportInput::default();
    match documents(text) {
        Ok(documents) => {
            for document in &documents {
                read_json_object(document, file, &mut found);
            }
        }
        Err(why) => found.refused.push(Refused { origin: file.to_owned(), why }),
    }
    if found.entries.is_empty() && found.refused.is_empty() {
        let why = "it contains no ConfigMap with labels as JSON".to_owned();
        found.refused.push(Refused { origin: file.to_owned(), why });
    }
    found
}

/// Reads an object whose ConfigMaps contain labels as JSON. Other objects are counted.
pub fn read_json_object(object: &Value, origin: &str, found: &mut ImportInput) {
    let Some(map) = object.as_object() else {
        found.unknown += usize::from(!object.is_null());
        return;
    };
    let items = map.get("items").and_then(Value::as_array);
    match (map.get("kind").and_then(Value::as_str), items) {
        (Some(kind), Some(items)) if kind.ends_with("List") => {
            for item in items {
                read_json_object(item, origin, found);
            }
        }
        (Some("ConfigMap"), _) => json_labels::read(map, &place(origin, "ConfigMap", map), found),
        _ => found.unknown += 1,
    }
}

fn documents(text: &str) -> Result<Vec<Value>, String> {
    if let Ok(value) = serde_json::from_str::<Value>(text) {
        return Ok(vec![value]);
    }
    // Depth and alias expansion are limited, the size is not: a backup of a large cluster is a
    // large file.
    let size = text.len().saturating_mul(4).saturating_add(64);
    let budget =
        serde_saphyr::budget! { max_events: size, max_nodes: size, max_documents: size, max_total_scalar_bytes: size };
    let options = serde_saphyr::options! { budget: budget, with_snippet: false };
    serde_saphyr::from_multiple_with_options::<Value>(text, options)
        .map_err(|error| format!("neither JSON, YAML nor CSV: {error}"))
}

/// Reads an object of the cluster, or of a file.
pub fn read_object(object: &Value, known: &BTreeSet<String>, found: &mut ImportInput) {
    read_value(object, "", None, known, found);
}

fn read_value(value: &Value, origin: &str, kind: Option<&str>, known: &BTreeSet<String>, found: &mut ImportInput) {
    let Some(map) = value.as_object() else {
        match value {
            Value::Array(_) => plain::read(value, origin, found),
            Value::Null => {}
            _ => found.unknown += 1,
        }
        return;
    };
    let kind = map.get("kind").and_then(Value::as_str).or(kind);
    if let (Some(list), Some(items)) =
        (kind.and_then(|kind| kind.strip_suffix("List")), map.get("items").and_then(Value::as_array))
    {
        let inner = if list.is_empty() { None } else { Some(list) };
        for (number, item) in items.iter().enumerate() {
            read_value(item, &format!("{origin}, item {}", number + 1), inner, known, found);
        }
        return;
    }
    match kind {
        Some(export::KIND) => export::read(map, origin, found),
        Some("ConfigMap") => config_map::read(map, &place(origin, "ConfigMap", map), known, found),
        Some("Node") => {
            let origin = place(origin, "Node", map);
            found.take(&origin, node(map, &origin));
        }
        Some("NodeLabelState") => {
            let origin = place(origin, "NodeLabelState", map);
            found.take(&origin, label_state(map, &origin));
        }
        Some(_) => found.unknown += 1,
        None => plain::read(value, origin, found),
    }
}

/// Returns the location of an object for messages.
fn place(origin: &str, kind: &str, object: &Map<String, Value>) -> String {
    let metadata = object.get("metadata");
    let text = |key: &str| metadata.and_then(|metadata| metadata.get(key)).and_then(Value::as_str).unwrap_or_default();
    let name = match text("namespace") {
        "" => text("name").to_owned(),
        namespace => format!("{namespace}/{}", text("name")),
    };
    let file = origin.split(", item").next().unwrap_or_default();
    if file.is_empty() { format!("{kind} {name}") } else { format!("{file}, {kind} {name}") }
}

fn entry(node: &str, kept: Kept, format: Format, origin: &str) -> Result<ImportEntry, String> {
    if !is_dns_subdomain(node) {
        return Err(format!("{node:?} is not a node's name"));
    }
    check_keys(&kept)?;
    Ok(ImportEntry {
        node: node.to_owned(),
        kept,
        machine: None,
        captured_at: None,
        record: None,
        hold: false,
        format,
        origin: origin.to_owned(),
    })
}

/// Refuses keys and values that the API server would refuse on a node.
fn check_keys(kept: &Kept) -> Result<(), String> {
    for (key, value) in kept {
        let (name, is_key, sound) = match key {
            Key::Label(name) | Key::Taint { key: name, .. } => (name, is_label_key(name), is_label_value(value)),
            Key::Annotation(name) => (name, is_annotation_key(name), true),
            Key::Cordon => continue,
        };
        if !is_key {
            return Err(format!("{name:?} is not a key"));
        }
        if !sound {
            return Err(format!("{value:?} of {name} is not a value"));
        }
        if let Key::Taint { effect, .. } = key
            && !is_taint_effect(effect)
        {
            let effects = TAINT_EFFECTS.join(", ");
            return Err(format!("{effect:?} is not the effect of a taint: expected one of {effects} for {name}"));
        }
    }
    Ok(())
}

/// Reads labels from a map whose values must be strings.
fn labels(value: &Value) -> Result<Kept, String> {
    let map = value.as_object().ok_or("its labels are not a map")?;
    map.iter()
        .map(|(key, value)| {
            let text = value.as_str().ok_or_else(|| format!("the value of {key} is not text: put it in quotes"))?;
            Ok((Key::Label(key.clone()), text.to_owned()))
        })
        .collect()
}

fn time(value: Option<&Value>) -> Option<Timestamp> {
    value?.as_str()?.parse().ok()
}

fn label_state(object: &Map<String, Value>, origin: &str) -> Result<ImportEntry, String> {
    let spec = object.get("spec").ok_or("it has no spec")?;
    let named = spec.get("nodeName").or_else(|| object.get("metadata")?.get("name")).and_then(Value::as_str);
    let kept = labels(spec.get("labels").ok_or("it has no spec.labels")?)?;
    let mut entry = entry(named.ok_or("it does not name its node")?, kept, Format::NodeLabelState, origin)?;
    entry.captured_at = time(spec.get("capturedAt").or_else(|| spec.get("lastUpdated")));
    Ok(entry)
}

/// Reads everything that could be kept of a node. The policy selects from it later.
fn node(object: &Map<String, Value>, origin: &str) -> Result<ImportEntry, String> {
    let object = Value::Object(object.clone());
    let name = object.pointer("/metadata/name").and_then(Value::as_str).ok_or("it has no name")?;
    let mut kept = match object.pointer("/metadata/labels") {
        Some(found) if !found.is_null() => labels(found)?,
        _ => Kept::new(),
    };
    if let Some(annotations) = object.pointer("/metadata/annotations").and_then(Value::as_object) {
        for (key, value) in annotations {
            let text = value.as_str().ok_or_else(|| format!("the annotation {key} is not text"))?;
            kept.insert(Key::Annotation(key.clone()), text.to_owned());
        }
    }
    if let Some(taints) = object.pointer("/spec/taints").filter(|taints| !taints.is_null()) {
        let taints =
            Vec::<Taint>::deserialize(taints).map_err(|error| format!("its taints cannot be read: {error}"))?;
        for Taint { key, value, effect, .. } in taints {
            let taint = Key::Taint { key, effect };
            if kept.contains_key(&taint) {
                return Err(format!("{taint} is listed twice"));
            }
            kept.insert(taint, value);
        }
    }
    if object.pointer("/spec/unschedulable") == Some(&Value::Bool(true)) {
        kept.insert(Key::Cordon, TRUE.to_owned());
    }
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    let mut entry = entry(name, kept, Format::Node, origin)?;
    entry.machine = Some(Machine {
        provider_id: text("/spec/providerID"),
        system_uuid: text("/status/nodeInfo/systemUUID"),
        machine_id: text("/status/nodeInfo/machineID"),
    });
    Ok(entry)
}

#[cfg(test)]
mod tests;
