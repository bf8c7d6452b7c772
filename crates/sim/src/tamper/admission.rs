//! Rewrites admission reviews and the patches that answer them.

use perennial_core::keeper::{
    keys::Key,
    mark::{MARK, Mark},
};
use serde_json::{Value, json};

use super::record_of;
use crate::{
    broken_rule::BrokenRule,
    server::{authn::User, store::text, world::World},
};

const MARK_PATH: &str = "/metadata/annotations/perennial.dev~1restored";

/// Rewrites the review that an operator receives.
pub fn review(world: &World, review: &mut Value) {
    let Some(rule) = world.broken() else { return };
    let request = &mut review["request"];
    if rule == BrokenRule::EverythingRides {
        let who = User::Person;
        request["userInfo"] = json!({"username": who.to_string(), "groups": who.groups()});
    }
    if rule == BrokenRule::BelieveIncomingMark {
        believe_mark(&mut request["object"]);
    }
    if request["resource"]["resource"] == "nodes" {
        for object in ["object", "oldObject"] {
            if request[object].is_object() {
                super::node(world, rule, &mut request[object]);
            }
        }
    }
}

/// Hides the labels that the mark of a manifest lists as given: they are not decided by its author.
fn believe_mark(node: &mut Value) {
    let Some(mark) = Mark::parse(text(node, MARK_PATH)) else { return };
    if let Some(labels) = node["metadata"]["labels"].as_object_mut() {
        labels.retain(|key, value| mark.given.get(&Key::label(key)).map(String::as_str) != value.as_str());
    }
}

/// Rewrites the patch for the create of a node.
pub fn created(world: &World, node: &Value, operations: &mut [Value]) {
    if world.broken() != Some(BrokenRule::PartialIsComplete) {
        return;
    }
    let name = text(node, "/metadata/name");
    for operation in operations {
        let value = if operation["path"] == MARK_PATH {
            operation.get_mut("value")
        } else {
            operation.get_mut("value").and_then(|value| value.get_mut(MARK))
        };
        if let Some(value) = value {
            complete(world, name, value);
        }
    }
}

/// Lists the keys that were left out as given.
fn complete(world: &World, name: &str, value: &mut Value) {
    let mark = value.as_str().and_then(Mark::parse);
    let (Some(mut mark), Some(record)) = (mark, record_of(world, name)) else { return };
    let left_out: Vec<_> = record.kept.into_iter().filter(|(key, _)| !mark.covers(key)).collect();
    mark.given.extend(left_out);
    mark.withheld.clear();
    mark.complete = true;
    *value = json!(mark.render());
}

/// A pod was given its place in its create. Where such pods are forgotten, its operator is shown a
/// pod in that place that is gone at once.
pub fn pod_admitted(world: &World, operator: usize, namespace: &str, pod: &Value) {
    if world.broken() != Some(BrokenRule::ForgetExpected) {
        return;
    }
    let mut state = world.lock();
    let mut pod = pod.clone();
    let rv = state.store.rv();
    pod["metadata"]["namespace"] = json!(namespace);
    pod["metadata"]["uid"] = json!(format!("forgotten-{rv}"));
    pod["metadata"]["resourceVersion"] = json!(rv.to_string());
    pod["metadata"]["creationTimestamp"] = json!(world.now());
    let events = state.tampering.pod_events.entry(operator).or_default();
    events.extend(["ADDED", "DELETED"].map(|kind| json!({"type": kind, "object": pod})));
    drop(state);
    world.changed().notify_waiters();
}
