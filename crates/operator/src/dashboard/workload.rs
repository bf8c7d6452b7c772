//! The workloads that ask for placement: how they stand, and one of them with its slots.

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

use super::{Dashboard, api::Problem};
use crate::placement::{
    cache::{key, key_of},
    reconcile::Placer,
};

/// All workloads are judged afresh at most so often.
const FRESH_FOR: Duration = Duration::from_secs(2);

/// One workload as a line of a list.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) key: String,
    /// `Exact`, `Drift`, `Fallback` or `Invalid`.
    pub(super) state: &'static str,
    /// Its replicas are where they are: none of them is moved because of its class.
    stays: bool,
    value: Value,
    counts: Option<[u32; 5]>,
}

impl Row {
    pub(super) fn to_json(&self) -> Value {
        self.value.clone()
    }
}

/// How all of them stood a moment ago.
#[derive(Debug, Default)]
pub(super) struct Kept(Option<(Instant, Arc<Vec<Row>>)>);

/// All of them together.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Sums {
    enabled: bool,
    /// All of them are known. Whoever may not read them never has that.
    synced: bool,
    all: usize,
    replicas: u32,
    spot: u32,
    on_demand: u32,
    drift: u32,
    fallback: u32,
    pub(super) states: BTreeMap<&'static str, usize>,
    /// How many of those in `Drift` stay as they are.
    #[serde(skip)]
    pub(super) staying: usize,
    /// The first of each state.
    #[serde(skip)]
    pub(super) keys: BTreeMap<&'static str, Vec<String>>,
}

/// Sorted by key.
pub(super) fn rows(dashboard: &Dashboard) -> Arc<Vec<Row>> {
    let mut kept = dashboard.kept_workloads();
    if let Some((at, rows)) = &kept.0
        && at.elapsed() < FRESH_FOR
    {
        return Arc::clone(rows);
    }
    let mut rows: Vec<Row> = Vec::new();
    if let Some(placer) = &dashboard.parts.placer {
        let cache = placer.cache();
        rows.extend(cache.keys().iter().filter_map(|key| row(&cache.observe(key)?)));
    }
    rows.sort_unstable_by(|a, b| a.key.cmp(&b.key));
    let rows = Arc::new(rows);
    kept.0 = Some((Instant::now(), Arc::clone(&rows)));
    rows
}

pub(super) fn sums(dashboard: &Dashboard) -> Sums {
    let rows = rows(dashboard);
    let placer = dashboard.parts.placer.as_ref();
    let synced = placer.is_some_and(|placer| placer.is_synced());
    let mut sums = Sums { enabled: placer.is_some(), synced, all: rows.len(), ..Sums::default() };
    for row in rows.iter() {
        *sums.states.entry(row.state).or_default() += 1;
        sums.staying += usize::from(row.state == "Drift" && row.stays);
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

/// None: it asks for nothing.
fn row(workload: &Workload) -> Option<Row> {
    let view = &workload.view;
    let (kind, namespace, name) = (view.kind.as_str().to_ascii_lowercase(), &view.namespace, &view.name);
    let key = key_of(view).to_string();
    Some(match &workload.spec {
        Ok(None) => return None,
        Ok(Some(spec)) => {
            let decision = decide(workload);
            let counts = decision.counts;
            let state = if workload.state().breaker.is_open() || counts.fallback > 0 {
                "Fallback"
            } else if counts.drift > 0 {
                "Drift"
            } else {
                "Exact"
            };
            let value = json!({
                "kind": kind, "namespace": namespace, "name": name, "state": state, "counts": counts,
                "why": why(workload, spec, &decision),
            });
            let sums = [counts.replicas, counts.spot, counts.on_demand, counts.drift, counts.fallback];
            Row { key, state, stays: stays(workload, spec).is_some(), value, counts: Some(sums) }
        }
        Err(problems) => {
            let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
            let value = json!({
                "kind": kind, "namespace": namespace, "name": name, "state": "Invalid", "counts": Value::Null,
                "replicas": view.replicas, "why": problems.join("; "),
            });
            Row { key, state: "Invalid", stays: true, value, counts: None }
        }
    })
}

/// The command that tells the story of a workload by its key, `kind/namespace/name`.
pub(super) fn explain_command(key: &str) -> String {
    let mut parts = key.splitn(3, '/');
    let (kind, namespace, name) = (parts.next(), parts.next(), parts.next());
    let (kind, namespace, name) = (kind.unwrap_or_default(), namespace.unwrap_or_default(), name.unwrap_or_default());
    format!("perennial explain {kind}/{name} -n {namespace}")
}

/// One workload with its slots.
pub(super) fn workload(dashboard: &Dashboard, kind: &str, namespace: &str, name: &str) -> Result<Value, Problem> {
    let Some(placer) = &dashboard.parts.placer else {
        return Err(Problem::NotThere("Placement is off.".to_owned()));
    };
    let key = key(kind, namespace, name);
    let missing = || Problem::NotThere(format!("There is no {kind} {name} in namespace {namespace} that is watched."));
    let workload = placer.cache().observe(&key).ok_or_else(missing)?;
    let Some(row) = row(&workload) else {
        return Err(Problem::NotThere(format!("{name} asks for nothing: its pods run where the scheduler puts them.")));
    };
    let mut value = row.to_json();
    value["commands"] = json!([
        {"what": "the whole story", "command": explain_command(&key)},
        {"what": "leave running pods where they are", "command":
            format!("kubectl annotate {kind} {name} -n {namespace} perennial.dev/paused=true")},
        {"what": "place all pods anew, at once", "command": format!("kubectl rollout restart {kind}/{name} -n {namespace}")},
    ]);
    let Some(spec) = workload.managed_spec() else { return Ok(value) };
    let decision = decide(&workload);
    let state = workload.state();
    let (slots, others) = slots(placer, &workload, spec);
    value["asked"] = json!({
        "percentage": spec.split.percentage(), "floor": spec.split.floor(), "paused": spec.paused,
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

/// One place of a workload, and who is in it.
#[derive(Debug, Serialize)]
struct Slot {
    #[serde(rename = "slot")]
    number: u32,
    wants: Class,
    /// The class of who is in it.
    has: Option<Class>,
    pod: Option<String>,
    node: Option<String>,
    ready: bool,
    gated: bool,
}

/// The places, and the pods that are in none of them.
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
        let place = place(workload, pod).and_then(|slot| slots.get_mut(usize::try_from(slot).ok()?));
        match place.filter(|place| place.pod.is_none()) {
            Some(place) => {
                place.has = has;
                place.pod = Some(pod.name.clone());
                place.node = node;
                place.ready = pod.ready;
                place.gated = pod.gated;
            }
            None => others.push(json!({
                "pod": pod.name, "node": node, "has": has, "ready": pod.ready, "gated": pod.gated,
            })),
        }
    }
    (slots, others)
}

fn place(workload: &Workload, pod: &PodView) -> Option<u32> {
    match workload.view.kind {
        Kind::Deployment => pod.slot,
        Kind::StatefulSet { start } => pod.ordinal.and_then(|ordinal| ordinal.checked_sub(start)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_names_the_workload_as_kubectl_does() {
        assert_eq!(explain_command("deployment/shop/web"), "perennial explain deployment/web -n shop");
    }
}
