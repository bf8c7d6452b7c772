//! Breaks a rule of the operator from outside: rewrites its requests, the objects and watch events
//! that it receives, its admission reviews, or the settings that it is started with.
//!
//! Every function here does nothing in a history without a broken rule. Only requests of operators
//! are rewritten.

mod admission;
mod records;
mod shortages;

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use perennial_core::{
    config::{Merge, Patterns, Settings},
    keeper::{
        keys::digest,
        mark::{MARK, Mark},
        record::Record,
    },
    placement::STATE,
};
use serde_json::{Value, json};

pub use self::admission::{created, pod_admitted, review};
use crate::{
    broken_rule::BrokenRule,
    keeper::node_workload::NAMESPACE,
    oracle::observed,
    server::{
        api::{ApiRequest, ApiResponse},
        authn::User,
        kinds::{CONFIG_MAPS, DEPLOYMENTS, Kind, NODES, PDBS, PODS, STATEFUL_SETS},
        response::{self, ApiError},
        store::text,
        world::World,
    },
};

const GATE: &str = "perennial.dev/restoring";
const SPOT_PERCENTAGE: &str = "perennial.dev/spot-percentage";
const MIN_ON_DEMAND: &str = "perennial.dev/min-on-demand";
/// Interval at which a delayed deletion is checked for a successor.
const SUCCESSOR_LEAD: Duration = Duration::from_millis(1500);

/// State of a broken rule, per operator process.
#[derive(Default)]
pub struct Memory {
    /// Nodes as the watch delivered them last.
    delivered: BTreeMap<(usize, String), Arc<Value>>,
    /// Events of pods to deliver in addition to those of the store.
    pub pod_events: BTreeMap<usize, VecDeque<Value>>,
}

/// Rewrites the settings that an operator is started with. The oracles keep the original ones.
pub fn settings(world: &World, settings: &Settings) -> Settings {
    let mut settings = settings.clone();
    match world.broken() {
        Some(BrokenRule::ProtectedToAnyone) => settings.keeper.protected = Patterns::default(),
        Some(BrokenRule::KeepForeignKeys) => settings.keeper.drop = Patterns::default(),
        Some(BrokenRule::RecordWins) => settings.keeper.merge = Merge::Overwrite,
        Some(BrokenRule::NoBudget) => (settings.controller.qps, settings.controller.burst) = (100_000, 100_000),
        Some(BrokenRule::CollectAtOnce) => settings.keeper.retention = Duration::ZERO,
        Some(BrokenRule::NoHold) => settings.placement.hold_timeout = Duration::ZERO,
        Some(BrokenRule::MoveAtOnce) => settings.placement.cooldown = Duration::ZERO,
        _ => {}
    }
    settings
}

/// Rewrites a request before the API server processes it. Some: the request is answered like this
/// instead.
pub fn request(world: &World, asked: &mut ApiRequest) -> Option<Result<ApiResponse, ApiError>> {
    let rule = world.broken().filter(|_| asked.who.is_operator())?;
    let kind = asked.target.kind;
    if is(kind, &NODES) && !asked.is_write() && rule == BrokenRule::TrustTheCache {
        return cached(world, asked);
    }
    if is(kind, &CONFIG_MAPS) && matches!(asked.method.as_str(), "PUT" | "POST") {
        return records::write(world, rule, asked);
    }
    if asked.method == http::Method::DELETE && is(kind, &PODS) {
        return shortages::delete(world, rule, asked);
    }
    if asked.method != http::Method::PATCH {
        return None;
    }
    let unconditional = rule == BrokenRule::UnconditionalPatch && is(kind, &NODES)
        || rule == BrokenRule::UnconditionalPlacement && is(kind, &PODS);
    if unconditional && let Some(metadata) = asked.body["metadata"].as_object_mut() {
        metadata.remove("resourceVersion");
    }
    if rule == BrokenRule::MarkWithoutVersion
        && is(kind, &NODES)
        && let Some(annotations) = asked.body["metadata"].get_mut("annotations")
    {
        forget_version(annotations);
    }
    if rule == BrokenRule::KeepTaint && is(kind, &NODES) {
        keep_taint(world, asked);
    }
    None
}

/// Rewrites the response to a request.
pub fn response(
    world: &World,
    asked: &ApiRequest,
    answer: Result<ApiResponse, ApiError>,
) -> Result<ApiResponse, ApiError> {
    let Some(rule) = world.broken().filter(|_| asked.who.is_operator()) else { return answer };
    let kind = asked.target.kind;
    match answer {
        // Not a conflict any more: the webhook does not decide again.
        Err(refusal) if rule == BrokenRule::NoRetryInDelete && refusal.code == 409 && is(kind, &CONFIG_MAPS) => {
            Err(response::internal("etcdserver: request timed out"))
        }
        Err(refusal) if rule == BrokenRule::RefusalIsSuccess && refusal.code == 403 && is(kind, &CONFIG_MAPS) => {
            Ok(ApiResponse { code: 200, body: Arc::new(asked.body.clone()) })
        }
        Err(refusal) => Err(refusal),
        Ok(mut answer) => {
            let body = Arc::make_mut(&mut answer.body);
            match body.get_mut("items").and_then(Value::as_array_mut) {
                Some(items) => {
                    for item in items {
                        object(world, asked.who, kind, item);
                    }
                }
                None => object(world, asked.who, kind, body),
            }
            Ok(answer)
        }
    }
}

/// Rewrites a watch event. False: it is not delivered.
pub fn event(world: &World, asked: &ApiRequest, event: &mut Value) -> bool {
    let Some(rule) = world.broken().filter(|_| asked.who.is_operator()) else { return true };
    let deleted = event["type"] == "DELETED";
    if deleted && rule == BrokenRule::ForgetLastStates && is(asked.target.kind, &NODES) {
        return false;
    }
    if matches!(event["type"].as_str(), Some("ADDED" | "MODIFIED" | "DELETED")) {
        object(world, asked.who, asked.target.kind, &mut event["object"]);
    }
    true
}

/// Whether an operator looks for restores of etcd.
pub fn observes_history(world: &World) -> bool {
    world.broken() != Some(BrokenRule::IgnoreRestore)
}

/// How long the delivery of an event is delayed.
pub fn delay(world: &World, asked: &ApiRequest, event: &Value) -> Option<Duration> {
    let applies = world.broken() == Some(BrokenRule::SuccessorFirst) && asked.who.is_operator();
    (applies && is(asked.target.kind, &NODES) && event["type"] == "DELETED").then_some(SUCCESSOR_LEAD)
}

/// How much longer the delivery of a delayed event takes: as long as the successor of the node
/// exists.
pub fn delay_again(world: &World, event: &Value) -> Option<Duration> {
    let name = text(event, "/object/metadata/name");
    world.lock().store.get(&NODES, "", name).is_some().then_some(SUCCESSOR_LEAD)
}

/// Rewrites an object that an operator receives.
fn object(world: &World, who: User, kind: &'static Kind, object: &mut Value) {
    let (Some(rule), User::Operator(id)) = (world.broken(), who) else { return };
    if is(kind, &NODES) {
        node(world, rule, object);
        shortages::node(rule, object);
        if rule == BrokenRule::TrustTheCache {
            let name = text(object, "/metadata/name").to_owned();
            world.lock().tampering.delivered.insert((id, name), Arc::new(object.clone()));
        }
    } else if is(kind, &CONFIG_MAPS) {
        records::read(rule, object);
    } else if is(kind, &PODS) && rule == BrokenRule::CountTerminating {
        if let Some(metadata) = object["metadata"].as_object_mut() {
            metadata.remove("deletionTimestamp");
        }
    } else if is(kind, &DEPLOYMENTS) || is(kind, &STATEFUL_SETS) {
        workload(rule, object);
        shortages::workload(rule, object);
    } else if is(kind, &PDBS) && rule == BrokenRule::MoveAtOnce && object["status"].is_object() {
        object["status"]["disruptionsAllowed"] = json!(1);
    }
}

/// Rewrites a node that an operator receives.
fn node(world: &World, rule: BrokenRule, node: &mut Value) {
    match rule {
        BrokenRule::IgnoreMark => {
            if let Some(annotations) = node["metadata"]["annotations"].as_object_mut() {
                annotations.remove(MARK);
            }
        }
        BrokenRule::CaptureUnsettled => {
            let Some(record) = record_of(world, text(node, "/metadata/name")) else { return };
            let marked = text(node, "/metadata/annotations/perennial.dev~1restored");
            let settled = Mark::parse(marked).is_some_and(|mark| mark.complete);
            if !settled && record.node.uid != text(node, "/metadata/uid") {
                let mark =
                    Mark { from: digest(&record.kept), complete: true, given: record.kept.clone(), ..Mark::default() };
                node["metadata"]["annotations"][MARK] = json!(mark.render());
            }
        }
        _ => {}
    }
}

/// Rewrites a Deployment or StatefulSet that an operator receives.
fn workload(rule: BrokenRule, workload: &mut Value) {
    match rule {
        BrokenRule::EverySecondIsSpot => {
            workload["metadata"]["annotations"][SPOT_PERCENTAGE] = json!("50");
            workload["metadata"]["annotations"][MIN_ON_DEMAND] = json!("0");
        }
        BrokenRule::MoveAtOnce if workload["status"].is_object() => {
            let (generation, replicas) =
                (workload["metadata"]["generation"].clone(), workload["spec"]["replicas"].clone());
            workload["status"]["observedGeneration"] = generation;
            for count in ["replicas", "updatedReplicas", "currentReplicas", "readyReplicas", "availableReplicas"] {
                workload["status"][count] = replicas.clone();
            }
            if let Some(annotations) = workload["metadata"]["annotations"].as_object_mut() {
                annotations.remove(STATE);
            }
        }
        _ => {}
    }
}

/// Answers the read of a node with the object that the watch delivered last.
fn cached(world: &World, asked: &ApiRequest) -> Option<Result<ApiResponse, ApiError>> {
    let (User::Operator(id), Some(name)) = (asked.who, asked.target.name.clone()) else { return None };
    let body = world.lock().tampering.delivered.get(&(id, name)).cloned()?;
    Some(Ok(ApiResponse { code: 200, body }))
}

/// Removes the version from the mark among these annotations.
fn forget_version(annotations: &mut Value) {
    let Some(mark) = annotations.get_mut(MARK) else { return };
    if let Some(parsed) = mark.as_str().and_then(Mark::parse) {
        *mark = json!(Mark { version: 0, ..parsed }.render());
    }
}

/// Puts the gate taint of the stored node back into a patch that removes it.
fn keep_taint(world: &World, asked: &mut ApiRequest) {
    let Some(name) = asked.target.name.as_deref() else { return };
    let node = world.lock().store.get(&NODES, "", name).cloned();
    let stored = node.as_ref().and_then(|node| node["spec"]["taints"].as_array()).into_iter().flatten();
    let gate = stored.into_iter().find(|taint| taint["key"] == GATE).cloned();
    let Some(gate) = gate else { return };
    match asked.body["spec"].get_mut("taints") {
        Some(Value::Array(taints)) => taints.push(gate),
        Some(taints) => *taints = json!([gate]),
        None => {}
    }
}

/// The readable record of a node in the store.
fn record_of(world: &World, node: &str) -> Option<Record> {
    let name = format!("node-{node}");
    let config_map = world.lock().store.get(&CONFIG_MAPS, NAMESPACE, &name).cloned()?;
    observed::record(&config_map)
}

fn is(kind: &Kind, other: &Kind) -> bool {
    std::ptr::eq(kind, other)
}
