//! Checks each single write of the operator.

use std::{collections::BTreeMap, time::Duration};

use perennial_core::keeper::keys::Key;
use serde_json::Value;

use super::{Marks, Violation, observed};
use crate::{
    keeper::{
        node_workload::{CORDON, KEYS, MARK, NAMESPACE, PROTECTED, hardware},
        scenario::Plan,
    },
    server::{
        kinds::{CONFIG_MAPS, EVENTS, KEEP_POLICIES, LEASES, NODES},
        store::{Admission, Change, What, text},
        world::State,
    },
};

const RECORD_LIMIT: usize = 900 * 1024;
const GATE: &str = "perennial.dev/restoring";

pub(super) fn judge(state: &State, plan: &Plan, marks: &Marks, violations: &mut Vec<Violation>) {
    let mut fail = |guarantee, what| violations.push(Violation { guarantee, what });
    let mut quarantined: BTreeMap<String, String> = BTreeMap::new();
    for change in &state.store.log {
        if std::ptr::eq(change.kind, &NODES) {
            foreign(change, &mut fail);
        }
        if std::ptr::eq(change.kind, &CONFIG_MAPS) && change.namespace() == NAMESPACE {
            quarantine(change, &mut quarantined, &mut fail);
        }
        if change.by.is_operator() {
            conditional(change, &mut fail);
            if has_new_finalizers(change) {
                fail("G8", format!("we put a finalizer on {} {}", change.kind.kind, change.name()));
            }
        }
    }
    for name in quarantined.keys() {
        let node = name.trim_start_matches("node-");
        let told = state.store.log.iter().any(|change| {
            std::ptr::eq(change.kind, &EVENTS)
                && text(&change.object, "/reason") == "RecordInvalid"
                && text(&change.object, "/involvedObject/name") == node
        });
        let there = state.store.get(&NODES, "", node).is_some();
        if there && !told && marks.rested {
            fail("G5", format!("no Event reports that the record of {node} is invalid"));
        }
    }
    bounded(state, plan, &mut fail);
}

/// G3, G4 and G5: writes to nodes.
fn foreign(change: &Change, fail: &mut impl FnMut(&'static str, String)) {
    let before = match (&change.admission, &change.before) {
        (Admission::Create { came, .. }, _) => came,
        (_, Some(before)) if change.by.is_operator() && change.what == What::Modified => before,
        _ => return,
    };
    let name = change.name();
    if strip(before) != strip(&change.object) {
        fail(
            "G3",
            format!("we changed more of {name} than is ours: {} became {}", strip(before), strip(&change.object)),
        );
    }
    for key in KEYS {
        let (was, is) = (observed::label(before, key), observed::label(&change.object, key));
        let Some(given) = is.filter(|is| was.as_ref() != Some(is)) else { continue };
        if given == "evil" {
            fail("G5", format!("{name} was given {key}={given} from a record that cannot be trusted"));
        } else if key != CORDON && !given.starts_with(&format!("{name}.")) {
            fail("G4", format!("{name} was given {key}={given}, which belongs to another node"));
        } else if key == PROTECTED && !given.contains(&format!(".m{}.", hardware(&change.object))) {
            fail("G4", format!("{name} was given {key}={given}, which belongs to another machine"));
        }
    }
}

/// Returns a node without the fields that the operator may write and those of the API server.
fn strip(node: &Value) -> Value {
    let mut rest = node.clone();
    for field in ["apiVersion", "kind"] {
        rest.as_object_mut().map(|fields| fields.remove(field));
    }
    if let Some(metadata) = rest["metadata"].as_object_mut() {
        for field in ["uid", "resourceVersion", "creationTimestamp"] {
            metadata.remove(field);
        }
        if let Some(labels) = metadata.get_mut("labels").and_then(Value::as_object_mut) {
            labels.retain(|key, _| !is_kept(&Key::label(key)));
        }
        if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
            annotations.retain(|key, _| key != MARK && !is_kept(&Key::Annotation(key.clone())));
        }
        metadata.retain(|_, value| !value.is_null() && value.as_object().is_none_or(|map| !map.is_empty()));
    }
    if let Some(taints) = rest["spec"]["taints"].as_array_mut() {
        let key = |taint: &Value| Key::Taint { key: text(taint, "/key").into(), effect: text(taint, "/effect").into() };
        taints.retain(|taint| taint["key"] != GATE && !is_kept(&key(taint)));
    }
    if let Some(spec) = rest["spec"].as_object_mut() {
        spec.remove("unschedulable");
        spec.retain(|_, value| !value.is_null() && value.as_array().is_none_or(|list| !list.is_empty()));
    }
    rest
}

/// Returns whether some history keeps this key.
fn is_kept(key: &Key) -> bool {
    KEYS.contains(&key.to_string().as_str())
}

/// G6, and the size of records (G9).
fn conditional(change: &Change, fail: &mut impl FnMut(&'static str, String)) {
    let free = [&EVENTS, &LEASES, &KEEP_POLICIES].iter().any(|kind| std::ptr::eq(change.kind, *kind));
    let node = std::ptr::eq(change.kind, &NODES);
    if !free && (!change.on.rv || node && !change.on.uid) {
        fail("G6", format!("{:?} of {} {} was not conditional", change.what, change.kind.kind, change.name()));
    }
    if !std::ptr::eq(change.kind, &CONFIG_MAPS) {
        return;
    }
    let data = change.object["data"].as_object().into_iter().flatten();
    if let Some((key, _)) = data.into_iter().find(|(_, value)| value.as_str().map_or(0, str::len) > RECORD_LIMIT) {
        fail("G9", format!("{key} of {} is larger than a record may be", change.name()));
    }
    let (Some(before), What::Modified) = (&change.before, change.what) else { return };
    if before["data"] == change.object["data"] {
        return;
    }
    // A write that contains several last states has one sequence for each.
    if let (Some(was), Some(is)) = (observed::record(before), observed::record(&change.object))
        && is.sequence <= was.sequence
    {
        fail("G6", format!("the sequence of {} went from {} to {}", change.name(), was.sequence, is.sequence));
    }
}

/// G5: unreadable bytes are never changed.
fn quarantine(change: &Change, bad: &mut BTreeMap<String, String>, fail: &mut impl FnMut(&'static str, String)) {
    let bytes = text(&change.object, "/data/record.json").to_owned();
    let name = change.name().to_owned();
    if !change.by.is_operator() {
        bad.remove(&name);
        if change.what != What::Deleted && perennial_core::keeper::record::Record::decode(&bytes).is_err() {
            bad.insert(name, bytes);
        }
        return;
    }
    let Some(kept) = bad.get(&name) else { return };
    if change.what == What::Deleted || bytes != *kept {
        fail("G5", format!("the bytes of the bad record {name} were not kept"));
    }
}

fn has_new_finalizers(change: &Change) -> bool {
    let count = |object: &Value| object["metadata"]["finalizers"].as_array().map_or(0, Vec::len);
    count(&change.object) > change.before.as_ref().map_or(0, |before| count(before))
}

/// G9: the rate limit. Admission is not rate limited, so this is checked only without webhooks.
fn bounded(state: &State, plan: &Plan, fail: &mut impl FnMut(&'static str, String)) {
    let registered = plan.registered;
    if registered.node_create || registered.node_delete || registered.pods {
        return;
    }
    let (qps, burst) = (plan.settings.controller.qps, plan.settings.controller.burst);
    for (id, times) in &state.journal.requests {
        for window in [1u32, 10] {
            let most = usize::try_from(qps * window + burst).unwrap_or(usize::MAX) + 1;
            let mut from = 0;
            for (at, time) in times.iter().enumerate() {
                while times[from] + Duration::from_secs(window.into()) < *time {
                    from += 1;
                }
                if at - from + 1 > most {
                    fail("G9", format!("operator-{id} sent {} requests in {window} s", at - from + 1));
                    return;
                }
            }
        }
    }
}
