//! The short story of a history: every change of nodes and records, and what happened to operators,
//! in plain words.

use std::{collections::BTreeSet, time::Duration};

use serde_json::Value;

use crate::{
    keeper::node_workload::{KEYS, MARK, NAMESPACE, hardware},
    oracle::{
        Violation,
        observed::{label, record},
    },
    server::{
        kinds::{CONFIG_MAPS, DEPLOYMENTS, Kind, NODES, PODS, REPLICA_SETS, STATEFUL_SETS},
        store::{Admission, Change, What, text},
        world::State,
    },
};

/// Maximum number of lines. The first ones are left out.
const LINES: usize = 60;

/// Kinds of placement histories.
static OTHERS: [&Kind; 4] = [&DEPLOYMENTS, &STATEFUL_SETS, &REPLICA_SETS, &PODS];

/// Tells what happened to the nodes that violations are about, or to all if they name none.
///
/// `notes` are the lines of the log that are no requests.
pub fn tell(state: &State, notes: &[String], violations: &[Violation]) -> Vec<String> {
    let names: BTreeSet<&str> = state.store.log.iter().filter(|change| is_node(change)).map(Change::name).collect();
    let is_word = |what: &str, name: &str| what.split(|c: char| !c.is_alphanumeric()).any(|word| word == name);
    let is_named = |name: &&&str| violations.iter().any(|violation| is_word(&violation.what, name));
    let chosen: BTreeSet<&str> = names.iter().filter(is_named).copied().collect();
    let is_told = |name: &str| chosen.is_empty() || chosen.contains(name);

    let mut lines: Vec<(Duration, String)> = Vec::new();
    for change in &state.store.log {
        let line = if is_node(change) && is_told(change.name()) {
            node(change)
        } else if is_record(change) && is_told(&subject(change)) {
            stored(change)
        } else if OTHERS.iter().any(|kind| std::ptr::eq(*kind, change.kind)) {
            other(change)
        } else {
            continue;
        };
        lines.push((change.at, format!("{:>9.3} {line}", change.at.as_secs_f64())));
    }
    // The first note is the configuration.
    for note in notes.iter().skip(1) {
        let at = note.trim_start().split(' ').next().and_then(|at| at.parse().ok()).unwrap_or_default();
        lines.push((Duration::from_secs_f64(at), note.clone()));
    }
    lines.sort_by_key(|(at, _)| *at);
    let left_out = lines.len().saturating_sub(LINES);
    let told = lines.into_iter().skip(left_out).map(|(_, line)| line);
    let omission = (left_out > 0).then(|| format!("    ({left_out} earlier events)"));
    omission.into_iter().chain(told).collect()
}

/// Returns the name of the node that a change of a node or of a record belongs to.
pub fn subject(change: &Change) -> String {
    let name = change.name();
    if is_record(change) && !name.starts_with("node-") {
        return record(&change.object).map(|record| record.node.name).unwrap_or_default();
    }
    name.trim_start_matches("node-").to_owned()
}

fn is_node(change: &Change) -> bool {
    std::ptr::eq(change.kind, &NODES)
}

fn is_record(change: &Change) -> bool {
    std::ptr::eq(change.kind, &CONFIG_MAPS) && change.namespace() == NAMESPACE
}

/// Tells of a pod or a workload.
fn other(change: &Change) -> String {
    let verb = match change.what {
        What::Added => "creates",
        What::Modified => "changes",
        What::Deleted => "deletes",
    };
    let place = text(&change.object, "/spec/nodeName");
    let place = if place.is_empty() { String::new() } else { format!(" on {place}") };
    let phase = text(&change.object, "/status/phase");
    let phase = if phase.is_empty() { String::new() } else { format!(", {phase}") };
    format!("{} {verb} {} {}{place}{phase}", change.by, change.kind.kind, change.name())
}

fn node(change: &Change) -> String {
    let (who, name, object) = (change.by, change.name(), &change.object);
    match change.what {
        What::Added => {
            let given = match &change.admission {
                Admission::Create { came, .. } => changes(came, object),
                _ => String::new(),
            };
            let given = if given.is_empty() { given } else { format!("; admission adds {given}") };
            let came = match &change.admission {
                Admission::Create { came, .. } => values(came),
                _ => values(object),
            };
            format!("{who} creates {name} ({}, machine {}): {came}{given}", change.uid(), hardware(object))
        }
        What::Modified => {
            let before = change.before.as_deref().unwrap_or(&Value::Null);
            let mark = |object: &Value| object["metadata"]["annotations"].get(MARK).cloned();
            let marked = if mark(before) == mark(object) { "" } else { " and its mark" };
            let changed = changes(before, object);
            let changed = if changed.is_empty() { "nothing kept".to_owned() } else { changed };
            format!("{who} changes {changed}{marked} of {name} (version {})", change.rv)
        }
        What::Deleted => {
            let looked = matches!(change.admission, Admission::Delete { looked: true });
            let seen = if looked { "admission processed it" } else { "admission did not process it" };
            format!("{who} deletes {name} ({}): {}; {seen}", change.uid(), values(object))
        }
    }
}

fn stored(change: &Change) -> String {
    let (who, name) = (change.by, change.name());
    if change.what == What::Deleted {
        return format!("{who} deletes record {name}");
    }
    let Some(record) = record(&change.object) else { return format!("{who} writes record {name}: unreadable") };
    let kept: Vec<String> = record.kept.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let (origin, folded) = (&record.node, if record.folded { ", folded" } else { "" });
    let version = origin.resource_version;
    format!(
        "{who} writes record {name} number {} (from {} at version {version}{folded}): {}",
        record.sequence,
        origin.uid,
        shown(&kept)
    )
}

fn values(node: &Value) -> String {
    let values: Vec<String> =
        KEYS.iter().filter_map(|key| label(node, key).map(|value| format!("{key}={value}"))).collect();
    shown(&values)
}

fn changes(before: &Value, after: &Value) -> String {
    let change = |key: &&str| {
        let (was, is) = (label(before, key), label(after, key));
        let text = |label: &Option<String>| label.clone().unwrap_or_else(|| "-".to_owned());
        (was != is).then(|| format!("{key}: {} -> {}", text(&was), text(&is)))
    };
    KEYS.iter().filter_map(change).collect::<Vec<_>>().join(", ")
}

fn shown(values: &[String]) -> String {
    if values.is_empty() { "nothing kept".to_owned() } else { values.join(", ") }
}
