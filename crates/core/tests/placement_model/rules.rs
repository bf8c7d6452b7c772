//! The bridge to the real rules: compact states go in, [`decide`] decides, compact decisions come
//! out. Nothing is decided here; a mutation alters the input or the output.

use std::{cell::RefCell, sync::Arc};

use jiff::{SignedDuration, Timestamp};
use perennial_core::placement::{
    Class, DELETION_COST,
    decide::decide,
    decision::Action,
    node_labels::Choice,
    slots::Split,
    spec::Spec,
    state::{LastMove, PlacementState},
    workload::{
        self, ClassNodes, ClusterNodes, Kind, NodeView, PendingWrites, Place, PlacementSettings, PodView,
        ReplicaSetView, WorkloadView,
    },
};
use perennial_testkit::state_hash::FastMap;

use super::{
    config::Config,
    mutation::Mutation,
    world::{ANY, Expected, NO_SLOT, ON_DEMAND, Pod, Pods, SPOT, State, Workload},
};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Decision {
    /// A pod gets its class and slot and loses its gate.
    Place {
        uid: u8,
        class: u8,
        slot: u8,
        costs: bool,
    },
    /// A pod loses its gate without a class, or with on-demand.
    Free {
        uid: u8,
        class: u8,
    },
    Relabel {
        uid: u8,
        slot: u8,
        costs: bool,
    },
    Evict {
        uid: u8,
    },
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Plan {
    pub(crate) decisions: Vec<Decision>,
    /// The next places, and their ReplicaSets.
    pub(crate) open: [(u8, u8, u8); 2],
    pub(crate) said: [bool; 2],
}

/// Input of a decision.
type Seen = (Pods, Workload, [Expected; 2]);

pub(crate) struct Rules {
    pub(crate) config: Config,
    pub(crate) mutation: Mutation,
    settings: Arc<PlacementSettings>,
    memo: RefCell<FastMap<Seen, Plan>>,
}

const LONG_AGO: SignedDuration = SignedDuration::from_hours(-24);

impl Rules {
    pub(crate) fn new(config: Config, mutation: Mutation) -> Self {
        Self { config, mutation, settings: Arc::default(), memo: RefCell::default() }
    }

    pub(crate) fn split(&self, workload: &Workload) -> Split {
        Split::new(self.config.percentages[workload.percentage as usize], self.config.floor.into())
    }

    pub(crate) fn floor(&self, workload: &Workload) -> u8 {
        self.config.floor.min(workload.replicas)
    }

    /// Returns the decision for the observed state.
    pub(crate) fn look(&self, state: &State) -> Plan {
        let key = (state.seen_pods, state.seen_workload, state.expected);
        if let Some(known) = self.memo.borrow().get(&key) {
            return known.clone();
        }
        let plan = self.decide(&key.0, &key.1, &key.2);
        self.memo.borrow_mut().insert(key, plan.clone());
        plan
    }

    fn decide(&self, pods: &Pods, workload: &Workload, expected: &[Expected; 2]) -> Plan {
        let now = Timestamp::UNIX_EPOCH + SignedDuration::from_hours(48);
        let there = pods.iter().filter(|pod| pod.uid != 0);
        let evicted = there.clone().filter(|pod| pod.evicted && !pod.deleting);
        let pending =
            PendingWrites { removed: evicted.map(|pod| uid_text(pod.uid)).collect(), ..PendingWrites::default() };
        let mut views: Vec<PodView> = there.map(|pod| pod_view(pod, now)).collect();
        views.extend(expected.iter().filter(|expected| expected.on).map(|expected| expected_view(expected, now)));
        let mut sets: Vec<ReplicaSetView> = (0..2).map(|set| set_view(workload, set)).collect();
        let mut view = self.workload_view(workload, now);
        self.mutation.blur(&mut view, &mut sets, &mut views);
        let answer = decide(&workload::Workload {
            view,
            spec: Ok(Some(Spec::new(self.split(workload)))),
            replica_sets: sets,
            pods: views,
            pdbs: Vec::new(),
            pending,
            nodes: roomy(now),
            settings: Arc::clone(&self.settings),
            now,
        });
        let decisions = answer.actions.iter().filter_map(decision).filter_map(|it| self.mutation.distort(it));
        let decisions = decisions.collect();
        let said = ["r0", "r1"].map(|set| answer.open.get(set).is_some_and(|open| self.mutation.reports(open.len())));
        let named = answer.open.iter().flat_map(|(set, places)| places.iter().map(move |place| (set, place)));
        let mut open = [(0, 0, 0); 2];
        for (at, (set, place)) in open.iter_mut().zip(named) {
            *at = (u8::from(set == "r1"), compact_class(place.class), place.slot as u8);
        }
        Plan { decisions, open, said }
    }

    fn workload_view(&self, workload: &Workload, now: Timestamp) -> WorkloadView {
        let at = if workload.cooling { now } else { now + LONG_AGO };
        let state = PlacementState {
            last_move: Some(LastMove { at, drift: 0, stalled: 0, pod: None }),
            ..PlacementState::default()
        };
        let [current, updated, available] = workload.status.map(u32::from);
        WorkloadView {
            kind: Kind::Deployment,
            namespace: "shop".to_owned(),
            name: "web".to_owned(),
            resource_version: "1".to_owned(),
            uid: "web".to_owned(),
            generation: 2,
            observed_generation: if workload.seen { 2 } else { 1 },
            replicas: workload.replicas.into(),
            current,
            updated,
            available,
            updated_target: workload.replicas.into(),
            max_unavailable: self.config.max_unavailable.into(),
            template: Choice::Any,
            state: Some(state.to_annotation()),
        }
    }
}

/// Nodes of both classes with room for any pod.
fn roomy(now: Timestamp) -> ClusterNodes {
    let nodes = ClassNodes { room_found: Some(now), ..ClassNodes::default() };
    ClusterNodes { spot: nodes, on_demand: nodes, other: 0 }
}

fn uid_text(uid: u8) -> String {
    format!("p{uid}")
}

fn set_text(set: u8) -> String {
    format!("r{set}")
}

fn real_class(class: u8) -> Option<Class> {
    [None, Some(Class::Spot), Some(Class::OnDemand)][class as usize]
}

pub(crate) fn compact_class(class: Class) -> u8 {
    if class == Class::Spot { SPOT } else { ON_DEMAND }
}

fn set_view(workload: &Workload, set: usize) -> ReplicaSetView {
    ReplicaSetView {
        uid: set_text(set as u8),
        replicas: workload.wanted[set].into(),
        newest: usize::from(workload.newest) == set,
        observed: workload.observed[set],
    }
}

fn pod_view(pod: &Pod, now: Timestamp) -> PodView {
    let slot = (pod.slot != NO_SLOT).then_some(u32::from(pod.slot));
    PodView {
        name: uid_text(pod.uid),
        uid: uid_text(pod.uid),
        resource_version: "1".to_owned(),
        owner: set_text(pod.set),
        // Timeouts are not modelled.
        created: now + SignedDuration::from_secs(i64::from(pod.uid) - 20),
        deleting: pod.deleting,
        finished: false,
        gated: pod.gated,
        ready: pod.ready,
        choice: real_class(pod.choice).map_or(Choice::Any, Choice::Only),
        class: real_class(pod.choice),
        slot,
        fallback: false,
        cost: slot.filter(|_| pod.costs).map(|slot| (-i64::from(slot)).to_string()),
        node: (pod.node != ANY).then(|| NodeView { class: real_class(pod.node), leaving: false }),
        scheduled: (pod.node != ANY).then_some(now),
        unschedulable: None,
        node_affinity: None,
        ordinal: None,
        expected: false,
        protected: false,
        refused: None,
        volume_verdict: false,
        volume: Some(Choice::Any),
    }
}

fn expected_view(expected: &Expected, now: Timestamp) -> PodView {
    let class = real_class(expected.class).unwrap_or(Class::OnDemand);
    PodView::expected(&set_text(expected.set), Place { class, slot: expected.slot.into() }, now)
}

fn decision(action: &Action) -> Option<Decision> {
    let uid = |text: &str| text.trim_start_matches('p').parse::<u8>().expect("a pod of the model");
    let costs = |patch: &serde_json::Value| patch["metadata"]["annotations"].get(DELETION_COST).is_some();
    Some(match action {
        Action::Place { pod, class, slot, patch, .. } => {
            let (class, slot) = (compact_class(*class), *slot as u8);
            Decision::Place { uid: uid(&pod.uid), class, slot, costs: costs(patch) }
        }
        Action::Ungate { pod, class, .. } => {
            Decision::Free { uid: uid(&pod.uid), class: class.map_or(ANY, compact_class) }
        }
        Action::Relabel { pod, slot, patch, .. } => {
            Decision::Relabel { uid: uid(&pod.uid), slot: *slot as u8, costs: costs(patch) }
        }
        Action::Evict { pod, .. } => Decision::Evict { uid: uid(&pod.uid) },
        Action::Delete { .. } => unreachable!("spot is never short here"),
        Action::Save { .. } | Action::Hold { .. } | Action::Wait { .. } | Action::Report(_) => return None,
    })
}
