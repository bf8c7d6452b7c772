//! Checks the guarantees of placement from the log: exact at rest, no pod left gated, the floor
//! kept.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use serde_json::Value;

use super::Violation;
use crate::{
    history::Outcome,
    placement::workload_controllers::{CAPACITY, NAMESPACE, is_active, is_ready, number},
    server::{
        fault_plan::Counts,
        kinds::{DEPLOYMENTS, NODES, PODS, STATEFUL_SETS},
        store::{Change, What, text},
        world::State,
    },
};

/// Minimum time between two moves of a workload: the cooldown, less the rounding to whole seconds.
const COOLDOWN: Duration = Duration::from_secs(2);

/// Points of a history that the oracle checks.
#[derive(Clone, Debug)]
pub struct PlacementMarks {
    /// ResourceVersions at which everything was at rest.
    pub rests: Vec<u64>,
    /// Rollouts without faults, between two resourceVersions.
    pub rollouts: Vec<(u64, u64)>,
    pub rested: bool,
}

/// Returns how many of `n` replicas must be spot.
fn spot_of(n: i64, percentage: i64, floor: i64) -> i64 {
    (n * percentage / 100).min(n - floor).max(0)
}

/// The cluster as it was after a change.
#[derive(Default)]
struct Then {
    pods: BTreeMap<String, Arc<Value>>,
    nodes: BTreeMap<String, String>,
    workloads: BTreeMap<String, Arc<Value>>,
}

impl Then {
    fn take(&mut self, change: &Change) {
        let gone = change.what == What::Deleted;
        let name = change.name().to_owned();
        if std::ptr::eq(change.kind, &NODES) {
            let class = change.object["metadata"]["labels"].get(CAPACITY).and_then(Value::as_str).unwrap_or_default();
            if gone {
                drop(self.nodes.remove(&name));
            } else {
                drop(self.nodes.insert(name, class.to_owned()));
            }
            return;
        }
        if change.namespace() != NAMESPACE {
            return;
        }
        if std::ptr::eq(change.kind, &PODS) {
            if gone { drop(self.pods.remove(&name)) } else { drop(self.pods.insert(name, Arc::clone(&change.object))) }
        } else if std::ptr::eq(change.kind, &DEPLOYMENTS) || std::ptr::eq(change.kind, &STATEFUL_SETS) {
            self.workloads.insert(name, Arc::clone(&change.object));
        }
    }

    fn of(&self, app: &str) -> impl Iterator<Item = &Arc<Value>> {
        self.pods.values().filter(move |pod| text(pod, "/metadata/labels/app") == app && is_active(pod))
    }

    /// Class of its node, or else the class that it requests.
    fn class<'a>(&'a self, pod: &'a Value) -> &'a str {
        match self.nodes.get(text(pod, "/spec/nodeName")) {
            Some(class) => class,
            None => pod["spec"]["nodeSelector"].get(CAPACITY).and_then(Value::as_str).unwrap_or_default(),
        }
    }

    fn ready_on_demand(&self, app: &str) -> i64 {
        let ready = self.of(app).filter(|pod| is_ready(pod) && self.class(pod) == "on-demand");
        i64::try_from(ready.count()).unwrap_or_default()
    }
}

pub fn judge(state: &mut State, marks: &PlacementMarks) -> Outcome {
    let mut violations = Vec::new();
    let mut seen = Counts::default();
    let mut fail = |guarantee, what| violations.push(Violation { guarantee, what });
    let mut then = Then::default();
    let calm = marks.rests.first().copied().unwrap_or(u64::MAX);
    let mut moved: BTreeMap<String, Duration> = BTreeMap::new();
    for change in &state.store.log {
        if change.by.is_operator() && std::ptr::eq(change.kind, &PODS) {
            write(&then, change, &mut seen, &mut fail);
            if is_removal(change) && was_bound(change) {
                let app = text(&change.object, "/metadata/labels/app").to_owned();
                if change.rv > calm {
                    fail("G10", format!("{} was moved although nothing had disturbed {app}", change.name()));
                }
                if let Some(last) = moved.insert(app, change.at)
                    && change.at < last + COOLDOWN
                {
                    fail(
                        "G10",
                        format!("{} was moved {:?} after the last move", change.name(), change.at.saturating_sub(last)),
                    );
                }
            }
        }
        let floor_before = then.ready_on_demand("web");
        then.take(change);
        if marks.rollouts.iter().any(|(from, to)| *from < change.rv && change.rv <= *to) {
            // maxUnavailable may allow fewer.
            let allowed = then.workloads.get("web").map_or(0, |web| {
                number(web, "/spec/replicas") - number(web, "/spec/strategy/rollingUpdate/maxUnavailable")
            });
            let floor = floor_of(&then, "web").min(allowed);
            let now = then.ready_on_demand("web");
            if now < floor && floor_before >= floor {
                fail("G10", format!("{now} Ready on-demand pods of web in a rollout, fewer than {floor}"));
            }
        }
        if marks.rests.contains(&change.rv) {
            rest(&then, &mut seen, &mut fail);
        }
    }
    if !marks.rested {
        fail("G7", "placement never comes to rest".to_owned());
    }
    let told = state.journal.violations.drain(..).map(|(guarantee, what)| Violation { guarantee, what });
    let told: Vec<Violation> = told.collect();
    violations.extend(told);
    Outcome { violations, seen, ..Outcome::default() }
}

fn split(workload: &Value) -> (i64, i64) {
    let read = |key: &str| {
        let text = workload["metadata"]["annotations"].get(key).and_then(Value::as_str);
        text.and_then(|text| text.parse().ok()).unwrap_or_default()
    };
    (read("perennial.dev/spot-percentage"), read("perennial.dev/min-on-demand"))
}

fn floor_of(then: &Then, app: &str) -> i64 {
    let Some(workload) = then.workloads.get(app) else { return 0 };
    split(workload).1.min(number(workload, "/spec/replicas"))
}

/// Checks the number of spot replicas at rest.
fn rest(then: &Then, seen: &mut Counts, fail: &mut impl FnMut(&'static str, String)) {
    for (name, workload) in &then.workloads {
        let (percentage, floor) = split(workload);
        let wanted = number(workload, "/spec/replicas");
        let pods: Vec<&Arc<Value>> = then.of(name).collect();
        let gated = pods.iter().filter(|pod| pod["spec"]["schedulingGates"].as_array().is_some_and(|g| !g.is_empty()));
        if gated.count() > 0 {
            fail("G8", format!("pods of {name} are still gated"));
            continue;
        }
        let count = i64::try_from(pods.len()).unwrap_or_default();
        let spot = pods.iter().filter(|pod| then.class(pod) == "spot").count();
        let spot = i64::try_from(spot).unwrap_or_default();
        let exact = spot_of(wanted, percentage, floor);
        if count != wanted || spot != exact {
            let what = format!(
                "{name} has {spot} spot of {count} pods, and should have {exact} of {wanted} ({percentage}%, floor {floor})"
            );
            fail("G10", what);
        } else {
            seen.add("workloads exact at rest");
        }
    }
}

fn is_removal(change: &Change) -> bool {
    let active = change.before.as_ref().is_some_and(|before| is_active(before));
    change.what == What::Deleted || active && !is_active(&change.object)
}

/// A pod without a node costs no availability: its replacement is not a move.
fn was_bound(change: &Change) -> bool {
    change.before.as_ref().is_some_and(|before| !text(before, "/spec/nodeName").is_empty())
}

/// Checks a write of the operator to a pod.
fn write(then: &Then, change: &Change, seen: &mut Counts, fail: &mut impl FnMut(&'static str, String)) {
    let gates = |pod: &Value| pod["spec"]["schedulingGates"].as_array().map_or(0, Vec::len);
    let Some(before) = &change.before else { return };
    if is_removal(change) {
        seen.add(if was_bound(change) { "pods moved" } else { "unbound pods replaced" });
        if !change.on.uid {
            fail("G6", format!("pod {} was removed without a uid precondition", change.name()));
        }
        let app = text(before, "/metadata/labels/app");
        let floor = floor_of(then, app);
        let left = then.ready_on_demand(app) - 1;
        if is_ready(before) && then.class(before) == "on-demand" && left < floor {
            fail(
                "G10",
                format!("we moved {} and left {left} Ready on-demand pods of {app}, fewer than {floor}", change.name()),
            );
        }
        return;
    }
    let frees = gates(before) > gates(&change.object);
    if frees {
        let placed = change.object["metadata"]["annotations"].get("perennial.dev/slot").is_some();
        seen.add(if placed { "pods placed" } else { "pods freed without a slot" });
    } else {
        seen.add("pods relabelled or taken in");
    }
    if !change.on.rv && (frees || !change.on.uid) {
        fail("G6", format!("pod {} was written without a precondition", change.name()));
    }
}
