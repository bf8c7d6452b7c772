//! Calls webhooks: one replica of the operator for each review, with a timeout. The request
//! continues whatever the result is (failurePolicy Ignore).

use std::{sync::Arc, time::Duration};

use perennial::admission::configuration::{MUTATE_NODES, MUTATE_PODS, VALIDATE_NODES};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    api::ApiRequest,
    kinds::{Kind, NODES, PODS},
    patch,
    store::{text, version},
    world::{Hook, NodeRead, State, World},
};
use crate::tamper;

/// `timeoutSeconds` of the webhooks.
pub const TIMEOUT: Duration = Duration::from_secs(2);
/// A webhook that took longer than this may have given up on its work.
const SURELY_DONE: Duration = Duration::from_secs(1);
/// Time in which a process whose first reads failed has read the policies.
const KNOWS_POLICIES: Duration = Duration::from_secs(10);

/// Returns the object as the mutating webhook patched it, and whether the webhook answered.
pub async fn on_create(world: &World, asked: &ApiRequest, mut object: Value) -> (Value, bool) {
    let kind = asked.target.kind;
    let (path, on) = {
        let registered = world.lock().registered;
        match kind {
            kind if std::ptr::eq(kind, &NODES) => (MUTATE_NODES, registered.node_create),
            kind if std::ptr::eq(kind, &PODS) => (MUTATE_PODS, registered.pods),
            _ => return (object, false),
        }
    };
    if !on {
        return (object, false);
    }
    let review = review(asked, "CREATE", Some(&object), None);
    let Some((id, answer, _)) = call(world, path, review).await else { return (object, false) };
    let mut operations = patch_of(&answer);
    if std::ptr::eq(kind, &NODES) {
        tamper::created(world, &object, &mut operations);
    }
    let before = object.clone();
    if let Err(why) = patch::json(&mut object, &operations) {
        world.lock().violation("G8", format!("the patch of a webhook does not apply: {why}"));
        return (before, true);
    }
    let seen = if std::ptr::eq(kind, &NODES) { "node creates admitted" } else { "pod creates admitted" };
    if std::ptr::eq(kind, &PODS) && !operations.is_empty() {
        tamper::pod_admitted(world, id, &asked.target.namespace, &object);
    }
    world.lock().seen.add(seen);
    (object, true)
}

/// Returns whether the validating webhook processed this very state without a fault.
pub async fn on_delete(world: &World, asked: &ApiRequest, object: &Arc<Value>) -> bool {
    let is_registered = world.lock().registered.node_delete;
    if !std::ptr::eq(asked.target.kind, &NODES) || !is_registered {
        return false;
    }
    let review = review(asked, "DELETE", None, Some(object));
    match call(world, VALIDATE_NODES, review).await {
        Some((_, answer, sure)) => {
            let mut state = world.lock();
            if answer["response"]["allowed"] != true {
                state.violation("G8", format!("the delete of {} was refused", text(object, "/metadata/name")));
            }
            state.seen.add("node deletes admitted");
            sure
        }
        None => false,
    }
}

fn review(asked: &ApiRequest, operation: &str, object: Option<&Value>, old: Option<&Arc<Value>>) -> Value {
    let Kind { group, version, plural, .. } = asked.target.kind;
    // Deletes of a collection have no name.
    let name = asked.target.name.as_deref();
    json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "review",
            "operation": operation,
            "name": name,
            "namespace": Some(&asked.target.namespace).filter(|namespace| !namespace.is_empty()),
            "dryRun": false,
            "userInfo": {"username": asked.who.to_string(), "groups": asked.who.groups()},
            "resource": {"group": group, "version": version, "resource": plural},
            "object": object,
            "oldObject": old.map(|old| (**old).clone()),
        },
    })
}

/// Calls one replica. Returns its number, the answer, and whether no fault hit it.
async fn call(world: &World, path: &'static str, mut review: Value) -> Option<(usize, Value, bool)> {
    let start = Instant::now();
    let (hook, way, answer_lost) = {
        let mut state = world.lock();
        let hook = choose(&mut state)?;
        let (unreachable, lost) = (state.fault_rates.hook_unreachable, state.fault_rates.hook_lost);
        if !hook.alive || state.prng.per_mille(unreachable) {
            state.faults.add("webhook unreachable");
            return None;
        }
        let mut way = state.prng.millis(1, 5);
        let slow = state.fault_rates.hook_slow;
        if state.prng.per_mille(slow) {
            way = state.prng.millis(300, 6000);
            state.faults.add("webhook slow");
        }
        let answer_lost = state.prng.per_mille(lost);
        if answer_lost {
            state.faults.add("webhook's answer lost");
        }
        (hook, way, answer_lost)
    };
    let id = hook.id;
    let faults = faults_of(world, id);
    note_look(world, id, &review);
    tamper::review(world, &mut review);
    let asked = tokio::spawn(ask(world.clone(), hook, path, way, serde_json::to_vec(&review).unwrap_or_default()));
    let answer = tokio::time::timeout(TIMEOUT, asked).await.ok()?.ok()??;
    if answer_lost {
        return None;
    }
    // A new process whose first reads failed does not know the policies yet, and fails open.
    let starts = faults > 0 && age_of(world, id) < KNOWS_POLICIES;
    let sure = faults_of(world, id) == faults && start.elapsed() < SURELY_DONE && !starts;
    Some((id, serde_json::from_slice(&answer).ok()?, sure))
}

/// Sends the review. Continues after the API server has timed out.
async fn ask(world: World, hook: Hook, path: &'static str, way: Duration, review: Vec<u8>) -> Option<Vec<u8>> {
    let Hook { id, call, .. } = hook;
    tokio::time::sleep(way).await;
    let cut = world.lock().cut_off.get(&id).copied();
    if let Some(until) = cut.filter(|until| *until > Instant::now()) {
        tokio::time::sleep_until(until).await;
    }
    let alive = world.lock().hooks.iter().any(|hook| hook.id == id && hook.alive);
    if alive { call(path, review).await } else { None }
}

fn choose(state: &mut State) -> Option<Hook> {
    if state.hooks.is_empty() {
        return None;
    }
    let count = state.hooks.len();
    let at = state.prng.below(count);
    Some(state.hooks[at].clone())
}

fn faults_of(world: &World, id: usize) -> usize {
    let state = world.lock();
    let cut = state.cut_off.get(&id).is_some_and(|until| *until > Instant::now());
    state.journal.faults.get(&id).map_or(0, Vec::len) + usize::from(cut)
}

/// Returns for how long an operator has run.
fn age_of(world: &World, id: usize) -> Duration {
    let now = world.elapsed();
    world.lock().journal.lives.get(&id).map_or(now, |(start, _)| now.saturating_sub(*start))
}

fn note_look(world: &World, id: usize, review: &Value) {
    let old = &review["request"]["oldObject"];
    if old.is_object() {
        let (who, at) = (super::authn::User::Operator(id), world.elapsed());
        let look = NodeRead { who, at, node: text(old, "/metadata/name").to_owned(), rv: version(old) };
        world.lock().journal.node_reads.push(look);
    }
}

fn patch_of(answer: &Value) -> Vec<Value> {
    let encoded = text(answer, "/response/patch");
    let decoded = decode(encoded);
    serde_json::from_slice(&decoded).unwrap_or_default()
}

/// Decodes base64.
fn decode(text: &str) -> Vec<u8> {
    const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let value = |c: u8| LETTERS.iter().position(|letter| *letter == c).and_then(|at| u32::try_from(at).ok());
    let mut bytes = Vec::new();
    let (mut bits, mut held) = (0u32, 0);
    for letter in text.bytes().filter_map(value) {
        bits = (bits << 6) | letter;
        held += 6;
        if held >= 8 {
            held -= 8;
            bytes.extend(u8::try_from((bits >> held) & 0xff));
        }
    }
    bytes
}
