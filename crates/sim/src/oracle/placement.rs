//! Checks the guarantees of placement from the log: exact at rest, no pod left gated, the floor
//! kept.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use perennial_core::placement::{STATE, state::PlacementState};
use serde_json::Value;

use super::Violation;
use crate::{
    history::Outcome,
    placement::workload_controllers::{CAPACITY, NAMESPACE, is_active, is_ready, number, room},
    server::{
        fault_plan::Counts,
        kinds::{DEPLOYMENTS, NODES, PODS, STATEFUL_SETS},
        store::{Change, What, is_finished, text},
        world::State,
    },
};

/// Minimum time between two moves of a workload: the cooldown, less the rounding to whole seconds.
const COOLDOWN: Duration = Duration::from_secs(2);

/// Time for which a cache may be stale.
const STALE: Duration = Duration::from_secs(45);

/// Points of a history that the oracle checks.
#[derive(Clone, Debug, Default)]
pub struct PlacementMarks {
    /// ResourceVersions at which everything was at rest.
    pub rests: Vec<u64>,
    /// Rollouts without faults, between two resourceVersions.
    pub rollouts: Vec<(u64, u64)>,
    pub rested: bool,
    /// Goals that had to be reached in time.
    pub bounds: Vec<Bound>,
}

/// State of the workloads that must be reached while capacity for it exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// Every replica is Ready on a node.
    Running,
    /// Every replica is Ready, in its class. StatefulSets only if their pods may be moved.
    Exact { moves_stateful: bool },
}

impl Goal {
    /// Returns the time for which the goal must hold. While spot is short, a probe may evict one of
    /// several running pods, so that all of them run only for a while.
    pub fn holds(self) -> Duration {
        match self {
            Self::Running => Duration::ZERO,
            Self::Exact { .. } => Duration::from_secs(45),
        }
    }
}

/// A goal that had to be reached before a resourceVersion.
#[derive(Clone, Copy, Debug)]
pub struct Bound {
    pub rv: u64,
    pub goal: Goal,
    /// Event from which on the time counts.
    pub since: &'static str,
    pub within: Duration,
}

/// Returns how many of `n` replicas must be spot.
fn spot_of(n: i64, percentage: i64, floor: i64) -> i64 {
    (n * percentage / 100).min(n - floor).max(0)
}

/// Returns how many replicas of a workload must be spot.
pub fn target(workload: &Value) -> i64 {
    let (percentage, floor) = split(workload);
    spot_of(number(workload, "/spec/replicas"), percentage, floor)
}

/// Returns the reasons for which a goal is not reached now.
pub fn unmet_now(state: &State, goal: Goal) -> Vec<String> {
    let mut now = Then::default();
    for node in state.store.all(&NODES, "") {
        now.nodes.insert(text(node, "/metadata/name").to_owned(), Arc::clone(node));
    }
    for pod in state.store.all(&PODS, NAMESPACE) {
        now.pods.insert(text(pod, "/metadata/name").to_owned(), Arc::clone(pod));
    }
    let workloads = [&DEPLOYMENTS, &STATEFUL_SETS].into_iter().flat_map(|kind| state.store.all(kind, NAMESPACE));
    for workload in workloads {
        now.workloads.insert(text(workload, "/metadata/name").to_owned(), Arc::clone(workload));
    }
    now.unmet(goal)
}

fn class_of_node(node: &Value) -> &str {
    node["metadata"]["labels"].get(CAPACITY).and_then(Value::as_str).unwrap_or_default()
}

/// The cluster as it was after a change.
#[derive(Default)]
struct Then {
    pods: BTreeMap<String, Arc<Value>>,
    nodes: BTreeMap<String, Arc<Value>>,
    workloads: BTreeMap<String, Arc<Value>>,
    /// When the requested split of a workload last changed.
    respecified: BTreeMap<String, Duration>,
    /// When a workload last had more than one Ready pod.
    several_ready: BTreeMap<String, Duration>,
    /// When a class last had room for another pod.
    roomy: BTreeMap<&'static str, Duration>,
}

impl Then {
    fn take(&mut self, change: &Change) {
        // Room counts until the change that fills it.
        for class in ["spot", "on-demand"] {
            if self.has_room(class) {
                self.roomy.insert(class, change.at);
            }
        }
        let gone = change.what == What::Deleted;
        let name = change.name().to_owned();
        if std::ptr::eq(change.kind, &NODES) {
            if gone {
                drop(self.nodes.remove(&name));
            } else {
                drop(self.nodes.insert(name, Arc::clone(&change.object)));
            }
            return;
        }
        if change.namespace() != NAMESPACE {
            return;
        }
        if std::ptr::eq(change.kind, &PODS) {
            if gone { drop(self.pods.remove(&name)) } else { drop(self.pods.insert(name, Arc::clone(&change.object))) }
        } else if std::ptr::eq(change.kind, &DEPLOYMENTS) || std::ptr::eq(change.kind, &STATEFUL_SETS) {
            let annotations = |workload: &Value| split(workload);
            if self.workloads.get(&name).is_some_and(|known| annotations(known) != annotations(&change.object)) {
                self.respecified.insert(name.clone(), change.at);
            }
            self.workloads.insert(name, Arc::clone(&change.object));
        }
        if std::ptr::eq(change.kind, &PODS) {
            let app = text(&change.object, "/metadata/labels/app").to_owned();
            if self.of(&app).filter(|pod| is_ready(pod)).count() > 1 {
                self.several_ready.insert(app, change.at);
            }
        }
    }

    /// Returns the reasons for which a goal is not reached.
    fn unmet(&self, goal: Goal) -> Vec<String> {
        let unmet = self.workloads.iter().filter_map(|(name, workload)| {
            let pods: Vec<&Arc<Value>> = self.of(name).collect();
            let count = |class: &str| pods.iter().filter(|pod| self.class(pod) == class).count();
            let unbound = pods.iter().filter(|pod| text(pod, "/spec/nodeName").is_empty()).count();
            let ready = pods.iter().filter(|pod| is_ready(pod)).count();
            let wanted = usize::try_from(number(workload, "/spec/replicas")).unwrap_or_default();
            let is_set = workload["spec"].get("serviceName").is_some() || name == "db";
            let judged = match goal {
                Goal::Running => false,
                Goal::Exact { moves_stateful } => moves_stateful || !is_set,
            };
            let (spot, exact) = (count("spot"), usize::try_from(target(workload)).unwrap_or_default());
            let on_demand = count("on-demand");
            let is_exact = !judged || spot == exact && on_demand == wanted - exact;
            let met = pods.len() == wanted && ready == wanted && unbound == 0 && is_exact;
            (!met).then(|| {
                format!(
                    "{name} has {spot} spot and {on_demand} on-demand of {} pods, {ready} Ready and {unbound} without \
                     a node; it should have {exact} spot of {wanted}",
                    pods.len()
                )
            })
        });
        unmet.collect()
    }

    /// Returns whether the annotations of a workload changed so recently that an operator with a
    /// stale cache may not have observed it.
    fn is_respecified(&self, app: &str, now: Duration) -> bool {
        self.respecified.get(app).is_some_and(|at| now < *at + STALE)
    }

    /// Returns whether a pod is the only Ready replica, and its eviction is not justified by room
    /// in the class that it is moved to.
    fn is_last_without_room(&self, pod: &Value, now: Duration) -> bool {
        let app = text(pod, "/metadata/labels/app");
        let recently = self.several_ready.get(app).is_some_and(|at| now < *at + STALE);
        let others = recently || self.of(app).filter(|pod| is_ready(pod)).count() > 1;
        let roomy = |class: &str| self.has_room(class) || self.roomy.get(class).is_some_and(|at| now < *at + STALE);
        let justified = match self.class(pod) {
            "spot" => roomy("on-demand"),
            "on-demand" => roomy("spot"),
            _ => roomy("spot") || roomy("on-demand"),
        };
        is_ready(pod) && !others && !justified
    }

    /// Returns whether a node of the class has room for another pod.
    fn has_room(&self, class: &str) -> bool {
        let mut nodes = self.nodes.iter().filter(|(_, node)| class_of_node(node) == class);
        nodes.any(|(name, node)| {
            let used =
                self.pods.values().filter(|pod| text(pod, "/spec/nodeName") == name && !is_finished(pod)).count();
            room(node).is_none_or(|room| used < room)
        })
    }

    fn of(&self, app: &str) -> impl Iterator<Item = &Arc<Value>> {
        self.pods.values().filter(move |pod| text(pod, "/metadata/labels/app") == app && is_active(pod))
    }

    /// Class of its node, or else the class that it requests.
    fn class<'a>(&'a self, pod: &'a Value) -> &'a str {
        match self.nodes.get(text(pod, "/spec/nodeName")) {
            Some(node) => class_of_node(node),
            None => pod["spec"]["nodeSelector"].get(CAPACITY).and_then(Value::as_str).unwrap_or_default(),
        }
    }

    fn ready_on_demand(&self, app: &str) -> i64 {
        let ready = self.of(app).filter(|pod| is_ready(pod) && self.class(pod) == "on-demand");
        i64::try_from(ready.count()).unwrap_or_default()
    }
}

/// Returns the UID of the pod whose move is saved by this change of a workload.
fn moved_pod(change: &Change) -> Option<String> {
    let annotations = &change.object["metadata"]["annotations"];
    PlacementState::read(annotations.get(STATE).and_then(Value::as_str)).0.last_move?.pod
}

pub fn judge(state: &mut State, marks: &PlacementMarks) -> Outcome {
    let mut violations = Vec::new();
    let mut seen = Counts::default();
    let mut fail = |guarantee, what| violations.push(Violation { guarantee, what });
    let mut then = Then::default();
    let calm = marks.rests.first().copied().unwrap_or(u64::MAX);
    let mut moved: BTreeMap<String, Duration> = BTreeMap::new();
    let mut decided: BTreeMap<String, Duration> = BTreeMap::new();
    for change in &state.store.log {
        if change.by.is_operator() && std::ptr::eq(change.kind, &PODS) {
            write(&then, change, &mut seen, &mut fail);
            if is_removal(change) && was_bound(change) {
                let app = text(&change.object, "/metadata/labels/app").to_owned();
                if change.rv > calm {
                    fail("G10", format!("{} was moved although nothing had disturbed {app}", change.name()));
                }
                // An eviction may be on its way for a long time: what counts is when it was decided.
                let at = decided.get(text(&change.object, "/metadata/uid")).copied().unwrap_or(change.at);
                if let Some(last) = moved.insert(app, at)
                    && at.abs_diff(last) < COOLDOWN
                {
                    fail("G10", format!("{} was moved {:?} after the last move", change.name(), at.abs_diff(last)));
                }
            }
        }
        if change.by.is_operator()
            && let Some(uid) = moved_pod(change)
        {
            decided.insert(uid, change.at);
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
        for bound in marks.bounds.iter().filter(|bound| bound.rv == change.rv) {
            let unmet = then.unmet(bound.goal);
            let since = format!("{:?} after \"{}\"", bound.within, bound.since);
            for what in &unmet {
                fail("G10", format!("{what}, {since}"));
            }
            seen.add(if unmet.is_empty() { "goals reached in time" } else { "goals missed" });
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
        if was_bound(change) && then.is_last_without_room(before, change.at) {
            fail("G10", format!("the last Ready replica of {app} was evicted without room for it: {}", change.name()));
        }
        let judged = is_ready(before) && then.class(before) == "on-demand" && !then.is_respecified(app, change.at);
        if judged && left < floor {
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
