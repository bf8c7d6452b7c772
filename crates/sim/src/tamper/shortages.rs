//! Breaks rules about shortages of capacity.

use std::sync::Arc;

use perennial_core::placement::{STATE, state::PlacementState, supply::Breaker};
use serde_json::{Value, json};

use crate::{
    broken_rule::BrokenRule,
    placement::workload_controllers::number,
    server::{
        api::{ApiRequest, ApiResponse},
        kinds::{DEPLOYMENTS, PODS, STATEFUL_SETS},
        response::ApiError,
        store::text,
        world::World,
    },
};

/// Answers the delete of a pod without a node as if it had been done, where a rule forbids it.
pub(super) fn delete(world: &World, rule: BrokenRule, asked: &ApiRequest) -> Option<Result<ApiResponse, ApiError>> {
    let name = asked.target.name.as_deref()?;
    let (namespace, state) = (asked.target.namespace.as_str(), world.lock());
    let pod = state.store.get(&PODS, namespace, name).filter(|pod| text(pod, "/spec/nodeName").is_empty())?;
    let app = text(pod, "/metadata/labels/app");
    let workload = [&DEPLOYMENTS, &STATEFUL_SETS].into_iter().find_map(|kind| state.store.get(kind, namespace, app))?;
    let has = |annotation: &str| workload["metadata"]["annotations"].get(annotation);
    let stays = match rule {
        BrokenRule::UnboundStays => true,
        BrokenRule::PausedStopsAll => has("perennial.dev/paused").is_some_and(|paused| paused == "true"),
        BrokenRule::KeepClassOfUnmanaged => has("perennial.dev/spot-percentage").is_none(),
        _ => false,
    };
    stays.then(|| Ok(ApiResponse { code: 200, body: Arc::clone(pod) }))
}

/// Rewrites a workload that an operator receives.
pub(super) fn workload(rule: BrokenRule, workload: &mut Value) {
    match rule {
        BrokenRule::NoFallback => workload["metadata"]["annotations"]["perennial.dev/fallback-budget"] = json!("0"),
        BrokenRule::NoWayBack => {
            let known = workload["metadata"]["annotations"].get(STATE).and_then(Value::as_str);
            let Some(known) = known else { return };
            let (mut state, _) = PlacementState::read(Some(known));
            if let Breaker::Open { probe, .. } = &mut state.breaker {
                *probe = jiff::Timestamp::MAX;
                workload["metadata"]["annotations"][STATE] = json!(state.to_annotation());
            }
        }
        BrokenRule::LastReplicaIsSpare if workload["status"].is_object() => {
            workload["status"]["availableReplicas"] = json!(number(workload, "/spec/replicas") + 1);
        }
        BrokenRule::CooldownOnlyGrows => {
            let known = workload["metadata"]["annotations"].get(STATE).and_then(Value::as_str);
            let mut state = PlacementState::read(known).0;
            if let Some(last) = &mut state.last_move {
                last.stalled = 10;
                workload["metadata"]["annotations"][STATE] = json!(state.to_annotation());
            }
        }
        _ => {}
    }
}

/// Rewrites a node that an operator receives: it never accepts pods, so that it is no evidence.
pub(super) fn node(rule: BrokenRule, node: &mut Value) {
    if rule == BrokenRule::NoWayBack {
        node["spec"]["taints"] = json!([{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]);
    }
}
