//! Workloads with placement annotations, and one of them with its slots.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use perennial_core::placement::{
    Class,
    decide::decide,
    explain::{MAX_DRAWN, explain, sentence, stays, why},
    spec::Spec,
    workload::{Kind, PodView, Workload},
};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{Dashboard, api::ApiError};
use crate::{
    inspect::states::WorkloadState,
    placement::{
        cache::{key, key_of},
        reconcile::Placer,
    },
};

/// Minimum time between two evaluations of all workloads.
const FRESH_FOR: Duration = Duration::from_secs(2);

/// One workload in the list.
#[derive(Debug)]
pub(super) struct WorkloadRow {
    pub(super) key: String,
    pub(super) state: WorkloadState,
    /// Replicas in the wrong class are not moved.
    stays: bool,
    value: Value,
    counts: Option<[u32; 5]>,
}

impl WorkloadRow {
    pub(super) fn to_json(&self) -> Value {
        self.value.clone()
    }
}

/// Rows of the last evaluation.
#[derive(Debug, Default)]
pub(super) struct CachedWorkloads(Option<(Instant, Arc<Vec<WorkloadRow>>)>);

/// Totals over all workloads.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Sums {
    enabled: bool,
    /// All workloads are cached. Stays false without permission to read them.
    synced: bool,
    all: usize,
    replicas: u32,
    spot: u32,
    on_demand: u32,
    drift: u32,
    fallback: u32,
    pub(super) states: BTreeMap<WorkloadState, usize>,
    /// Number of workloads in `Drift` whose replicas are not moved.
    #[serde(skip)]
    pub(super) staying: usize,
    /// First keys in each state.
    #[serde(skip)]
    pub(super) keys: BTreeMap<WorkloadState, Vec<String>>,
}

/// Returns all workloads, sorted by key.
pub(super) fn rows(dashboard: &Dashboard) -> Arc<Vec<WorkloadRow>> {
    let mut cache = dashboard.cached_workloads();
    if let Some((at, rows)) = &cache.0
        && at.elapsed() < FRESH_FOR
    {
        return Arc::clone(rows);
    }
    let mut rows: Vec<WorkloadRow> = Vec::new();
    if let Some(placer) = &dashboard.parts.placer {
        let cache = placer.cache();
        rows.extend(cache.keys().iter().filter_map(|key| row(&cache.observe(key)?)));
    }
    rows.sort_unstable_by(|a, b| a.key.cmp(&b.key));
    let rows = Arc::new(rows);
    cache.0 = Some((Instant::now(), Arc::clone(&rows)));
    rows
}

pub(super) fn sums(dashboard: &Dashboard) -> Sums {
    let rows = rows(dashboard);
    let placer = dashboard.parts.placer.as_ref();
    let synced = placer.is_some_and(|placer| placer.is_synced());
    let mut sums = Sums { enabled: placer.is_some(), synced, all: rows.len(), ..Sums::default() };
    for row in rows.iter() {
        *sums.states.entry(row.state).or_default() += 1;
        sums.staying += usize::from(row.state == WorkloadState::Drift && row.stays);
        let named = sums.keys.entry(row.state).or_default();
        if named.len() < 10 {
            named.push(row.key.clone());
        }
        let [replicas, spot, on_demand, drift, fallback] = row.counts.unwrap_or_default();
        sums.replicas += replicas;
        sums.spot += spot;
        sums.on_demand += on_demand;
        sums.drift += drift;
        sums.fallback += fallback;
    }
    sums
}

/// Returns `None` for a workload without placement annotations.
fn row(workload: &Workload) -> Option<WorkloadRow> {
    let view = &workload.view;
    let (kind, namespace, name) = (view.kind.as_str().to_ascii_lowercase(), &view.namespace, &view.name);
    let key = key_of(view).to_string();
    Some(match &workload.spec {
        Ok(None) => return None,
        Ok(Some(spec)) => {
            let decision = decide(workload);
            let counts = decision.counts;
            let state = if workload.state().breaker.is_open() || counts.fallback > 0 {
                WorkloadState::Fallback
            } else if counts.drift > 0 {
                WorkloadState::Drift
            } else {
                WorkloadState::Exact
            };
            let value = json!({
                "kind": kind, "namespace": namespace, "name": name, "state": state, "counts": counts,
                "why": why(workload, spec, &decision),
            });
            let sums = [counts.replicas, counts.spot, counts.on_demand, counts.drift, counts.fallback];
            WorkloadRow { key, state, stays: stays(workload, spec).is_some(), value, counts: Some(sums) }
        }
        Err(problems) => {
            let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
            let value = json!({
                "kind": kind, "namespace": namespace, "name": name, "state": WorkloadState::Invalid, "counts": Value::Null,
                "replicas": view.replicas, "why": problems.join("; "),
            });
            WorkloadRow { key, state: WorkloadState::Invalid, stays: true, value, counts: None }
        }
    })
}

/// Returns the command that explains a workload with the key `kind/namespace/name`.
pub(super) fn explain_command(key: &str) -> String {
    let mut parts = key.splitn(3, '/');
    let (kind, namespace, name) = (parts.next(), parts.next(), parts.next());
    let (kind, namespace, name) = (kind.unwrap_or_default(), namespace.unwrap_or_default(), name.unwrap_or_default());
    format!("perennial explain {kind}/{name} -n {namespace}")
}

/// Returns one workload with its slots.
pub(super) fn workload(dashboard: &Dashboard, kind: &str, namespace: &str, name: &str) -> Result<Value, ApiError> {
    let Some(placer) = &dashboard.parts.placer else {
        return Err(ApiError::NotFound("Placement is disabled.".to_owned()));
    };
    let key = key(kind, namespace, name);
    let missing = || ApiError::NotFound(format!("There is no {kind} {name} in namespace {namespace}."));
    let workload = placer.cache().observe(&key).ok_or_else(missing)?;
    let Some(row) = row(&workload) else {
        return Err(ApiError::NotFound(format!(
            "{name} has no placement annotations: its pods run where the scheduler puts them."
        )));
    };
    let mut value = row.to_json();
    value["commands"] = json!([
        {"what": "explain the placement", "command": explain_command(&key)},
        {"what": "pause moves", "command":
            format!("kubectl annotate {kind} {name} -n {namespace} perennial.dev/paused=true")},
        {"what": "replace all pods now", "command": format!("kubectl rollout restart {kind}/{name} -n {namespace}")},
    ]);
    let Some(spec) = workload.managed_spec() else { return Ok(value) };
    let decision = decide(&workload);
    let state = workload.state();
    let (slots, others) = slots(placer, &workload, spec);
    value["asked"] = json!({
        "percentage": spec.split.percentage(), "floor": spec.split.floor().to_string(), "paused": spec.paused,
        "fallbackAfter": spec.fallback_after.to_string(), "strength": spec.strength,
    });
    value["lines"] = json!(explain(&workload, spec, &decision));
    value["doing"] = json!(decision.actions.iter().filter_map(sentence).collect::<Vec<_>>());
    value["breaker"] = json!(state.breaker);
    value["moved"] = json!(state.last_move);
    value["slots"] = json!(slots);
    value["others"] = json!(others);
    Ok(value)
}

/// One slot of a workload, and its pod.
#[derive(Debug, Serialize)]
struct Slot {
    #[serde(rename = "slot")]
    number: u32,
    wants: Class,
    /// Class of the pod.
    has: Option<Class>,
    pod: Option<String>,
    node: Option<String>,
    ready: bool,
    gated: bool,
}

/// Returns the slots, and the pods without a slot.
fn slots(placer: &Placer, workload: &Workload, spec: &Spec) -> (Vec<Slot>, Vec<Value>) {
    let mut slots: Vec<Slot> = (0..workload.view.replicas.min(MAX_DRAWN))
        .map(|number| Slot {
            number,
            wants: spec.split.class(number),
            has: None,
            pod: None,
            node: None,
            ready: false,
            gated: false,
        })
        .collect();
    let mut others = Vec::new();
    for pod in workload.pods.iter().filter(|pod| pod.occupies()) {
        let node = placer.cache().node_of(&pod.uid);
        let has = pod.counts_as(spec.strength);
        let slot = slot_of(workload, pod).and_then(|slot| slots.get_mut(usize::try_from(slot).ok()?));
        match slot.filter(|slot| slot.pod.is_none()) {
            Some(slot) => {
                slot.has = has;
                slot.pod = Some(pod.name.clone());
                slot.node = node;
                slot.ready = pod.ready;
                slot.gated = pod.gated;
            }
            None => others.push(json!({
                "pod": pod.name, "node": node, "has": has, "ready": pod.ready, "gated": pod.gated,
            })),
        }
    }
    (slots, others)
}

fn slot_of(workload: &Workload, pod: &PodView) -> Option<u32> {
    match workload.view.kind {
        Kind::Deployment | Kind::ReplicaSet | Kind::Other { .. } => pod.slot,
        Kind::StatefulSet { start } => pod.ordinal.and_then(|ordinal| ordinal.checked_sub(start)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn explain_command_uses_kubectl_notation() {
        assert_eq!(explain_command("deployment/shop/web"), "perennial explain deployment/web -n shop");
    }
}
