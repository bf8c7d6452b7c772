//! StatefulSets: placed by ordinal, moved only on request, fallback through the webhook.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;

use super::sim::TICK;
use crate::placement::Class;
use crate::placement::admission::{IncomingPod, PodAdmission, PodOwner, Tolerations, admit};
use crate::placement::decide::decide;
use crate::placement::decision::{Action, PlacementDecision, RoomSearch};
use crate::placement::node_labels::{Choice, NodeLabels};
use crate::placement::slots::Split;
use crate::placement::spec::Spec;
use crate::placement::state::PlacementState;
use crate::placement::supply::Breaker;
use crate::placement::workload::{
    ClassNodes, ClusterNodes, Kind, NodeView, PendingWrites, PodView, Workload, WorkloadView,
};

/// A StatefulSet whose pods are admitted by the real decision.
struct Set {
    spec: Spec,
    start: u32,
    replicas: u32,
    pods: Vec<PodView>,
    state: Option<String>,
    now: Timestamp,
    /// Maximum number of pods of each class.
    spot: usize,
    on_demand: usize,
    /// Pods are created in order, each after the one before it is Ready.
    ordered: bool,
    /// Classes in which the volumes of ordinals exist.
    volumes: BTreeMap<u32, Class>,
    nodes: ClusterNodes,
    /// The room on existing nodes was reason for an eviction.
    room_used: bool,
    evictions: u32,
    deletes: u32,
    created: u32,
    last: PlacementDecision,
}

impl Set {
    fn new(spec: Spec, start: u32, replicas: u32) -> Self {
        let now = Timestamp::from_second(1_700_000_000).unwrap();
        Self {
            spec,
            start,
            replicas,
            pods: Vec::new(),
            state: None,
            now,
            spot: usize::MAX,
            on_demand: usize::MAX,
            ordered: false,
            volumes: BTreeMap::new(),
            nodes: ClusterNodes::default(),
            room_used: false,
            evictions: 0,
            deletes: 0,
            created: 0,
            last: PlacementDecision::default(),
        }
    }

    fn create(&mut self, ordinal: u32) {
        self.created += 1;
        let name = format!("db-{ordinal}");
        let incoming: IncomingPod = serde_json::from_value(serde_json::json!({"metadata": {"name": name}})).unwrap();
        let (state, _) = PlacementState::read(self.state.as_deref());
        let owner = PodOwner::StatefulSet { start: self.start, state: &state };
        let labels = NodeLabels::default();
        let PodAdmission::Patch { operations, .. } =
            admit(&incoming, &self.spec, owner, &labels, &Tolerations::default())
        else {
            panic!("not placed")
        };
        let class = Class::parse(operations[0]["value"]["perennial.dev/class"].as_str().unwrap());
        self.pods.push(PodView {
            uid: format!("{name}-{}", self.created),
            name,
            resource_version: "1".to_owned(),
            owner: "set".to_owned(),
            created: self.now,
            deleting: false,
            finished: false,
            gated: false,
            ready: false,
            choice: Choice::Only(class.unwrap()),
            class,
            slot: None,
            fallback: operations[0]["value"].get("perennial.dev/fallback").is_some(),
            cost: None,
            node: None,
            scheduled: None,
            unschedulable: None,
            node_affinity: None,
            ordinal: Some(ordinal),
            expected: false,
            protected: false,
            refused: None,
            volume_verdict: false,
            volume: None,
        });
    }

    fn tick(&mut self) {
        self.now += TICK;
        self.pods.retain(PodView::occupies);
        for ordinal in self.start..self.start + self.replicas {
            if self.pods.iter().all(|pod| pod.ordinal != Some(ordinal)) {
                self.create(ordinal);
            }
            if self.ordered && self.pods.iter().any(|pod| pod.ordinal == Some(ordinal) && !pod.ready) {
                break;
            }
        }
        self.pods.retain(|pod| pod.ordinal.unwrap() < self.start + self.replicas);
        for index in 0..self.pods.len() {
            let class = self.pods[index].choice.class();
            let used = self.pods.iter().filter(|pod| pod.node.is_some_and(|node| node.class == class)).count();
            let room = if class == Some(Class::Spot) { self.spot } else { self.on_demand };
            let elsewhere = self.volumes.get(&self.pods[index].ordinal.unwrap()).is_some_and(|own| Some(*own) != class);
            let pod = &mut self.pods[index];
            pod.volume_verdict = elsewhere;
            pod.ready = pod.node.is_some();
            if pod.node.is_none() && used < room && !elsewhere {
                (pod.node, pod.scheduled, pod.unschedulable) =
                    (Some(NodeView { class, leaving: false }), Some(self.now), None);
            } else if pod.node.is_none() {
                pod.unschedulable.get_or_insert(self.now);
            }
        }
        self.last = self.decide();
        while !self.last.volume_checks.is_empty() {
            for checked in std::mem::take(&mut self.last.volume_checks) {
                let pod = self.pods.iter_mut().find(|pod| pod.uid == checked.uid).unwrap();
                pod.volume =
                    Some(self.volumes.get(&pod.ordinal.unwrap()).map_or(Choice::Any, |own| Choice::Only(*own)));
            }
            self.last = self.decide();
        }
        if let Some(search) = self.last.room_search.clone() {
            self.find_room(&search);
            self.last = self.decide();
        }
        for action in self.last.actions.clone() {
            match action {
                Action::Save { state, .. } => self.state = Some(state.to_annotation()),
                Action::Evict { pod, .. } | Action::Delete { pod, .. } => {
                    let target = self.pods.iter_mut().find(|p| p.uid == pod.uid).unwrap();
                    target.deleting = true;
                    if target.node.is_some() { self.evictions += 1 } else { self.deletes += 1 }
                }
                Action::Hold { .. } | Action::Wait { .. } | Action::Report(_) => {}
                other => panic!("a StatefulSet's pods are never written to: {other:?}"),
            }
        }
    }

    /// Searches for room as the operator does.
    fn find_room(&mut self, search: &RoomSearch) {
        let (nodes, room) = match search.class {
            Class::Spot => (&mut self.nodes.spot, self.spot),
            Class::OnDemand => (&mut self.nodes.on_demand, self.on_demand),
        };
        let there = |pod: &&PodView| pod.node.is_some_and(|node| node.class == Some(search.class));
        let found = self.pods.iter().filter(there).count() < room;
        nodes.room_found = (found && (search.again || !self.room_used)).then_some(self.now);
        self.room_used = found && (self.room_used || nodes.room_found.is_some());
    }

    fn decide(&self) -> PlacementDecision {
        self.decide_with(PendingWrites::default())
    }

    fn decide_with(&self, pending: PendingWrites) -> PlacementDecision {
        let ready = u32::try_from(self.pods.iter().filter(|pod| pod.ready).count()).unwrap();
        let view = WorkloadView {
            kind: Kind::StatefulSet { start: self.start },
            namespace: "shop".to_owned(),
            name: "db".to_owned(),
            resource_version: "1".to_owned(),
            uid: "set".to_owned(),
            generation: 1,
            observed_generation: 1,
            replicas: self.replicas,
            current: self.replicas,
            updated: self.replicas,
            available: ready,
            updated_target: self.replicas,
            max_unavailable: 0,
            template: Choice::Any,
            state: self.state.clone(),
        };
        decide(&Workload {
            view,
            spec: Ok(Some(self.spec.clone())),
            replica_sets: Vec::new(),
            pods: self.pods.clone(),
            pdbs: Vec::new(),
            pending,
            nodes: self.nodes,
            settings: Arc::default(),
            now: self.now,
        })
    }

    fn run(&mut self, ticks: usize) {
        for _ in 0..ticks {
            self.tick();
        }
    }

    fn wrong(&self) -> u32 {
        let wrong =
            |pod: &&PodView| pod.choice.class() != Some(self.spec.split.class(pod.ordinal.unwrap() - self.start));
        u32::try_from(self.pods.iter().filter(wrong).count()).unwrap()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn every_size_is_exact_without_a_write(p in 0u8..=100, m in 0u32..8, start in 0u32..5, sizes in prop::collection::vec(0u32..60, 1..5)) {
        let mut set = Set::new(Spec::new(Split::new(p, m)), start, 0);
        for size in sizes {
            set.replicas = size;
            set.run(3);
            prop_assert_eq!(set.wrong(), 0);
            prop_assert!(set.last.is_quiet());
            prop_assert_eq!(set.last.counts.spot, set.spec.split.spot(size));
        }
    }

    #[test]
    fn pods_are_moved_only_on_request_and_only_those_in_the_wrong_class(p in 0u8..=100, q in 0u8..=100, m in 0u32..5, t in 1u32..25) {
        let mut set = Set::new(Spec::new(Split::new(p, m)), 0, t);
        set.run(3);
        set.spec.split = Split::new(q, m);
        let wrong = set.wrong();
        set.run(50);
        prop_assert_eq!(set.evictions, 0);
        prop_assert_eq!(set.last.counts.drift, wrong);
        set.spec.move_stateful = true;
        set.run(800);
        prop_assert_eq!((set.wrong(), set.evictions), (0, wrong));
    }

    #[test]
    fn a_shortage_is_bridged_by_fallback_and_ends(p in 10u8..=100, m in 0u32..5, t in 2u32..20, movable: bool) {
        let mut set = Set::new(Spec { move_stateful: movable, ..Spec::new(Split::new(p, m)) }, 0, t);
        let spot = set.spec.split.spot(t);
        set.spot = 0;
        set.run(75);
        prop_assert!(set.pods.iter().all(|pod| pod.ready));
        prop_assert_eq!(set.deletes, spot);
        set.run(3 * 720);
        prop_assert!(set.evictions <= 6, "{} evictions", set.evictions);
        set.spot = usize::MAX;
        set.run(4 * 720);
        prop_assert!(set.pods.iter().all(|pod| pod.ready));
        if movable {
            prop_assert_eq!(set.wrong(), 0);
        } else {
            prop_assert_eq!(set.evictions, 0);
            // New pods are spot again.
            set.pods.clear();
            set.run(3);
            prop_assert_eq!(set.wrong(), 0);
        }
    }
}

#[test]
fn a_ready_on_demand_pod_is_not_evicted_from_a_floor_that_is_just_met() {
    let mut set = Set::new(Spec { move_stateful: true, ..Spec::new(Split::new(50, 2)) }, 0, 4);
    set.run(3);
    // The slots of the floor are on spot, the others on-demand.
    for (pod, class) in set.pods.iter_mut().zip([Class::Spot, Class::Spot, Class::OnDemand, Class::OnDemand]) {
        (pod.choice, pod.class) = (Choice::Only(class), Some(class));
        pod.node = Some(NodeView { class: Some(class), leaving: false });
    }
    for _ in 0..60 {
        set.tick();
        let ready =
            set.pods.iter().filter(|p| p.occupies() && p.ready && p.choice.class() == Some(Class::OnDemand)).count();
        assert!(ready >= 2, "{ready} Ready on-demand");
    }
    assert_eq!((set.wrong(), set.evictions), (0, 4));
}

#[test]
fn a_pod_is_deleted_only_after_the_webhook_can_read_its_fallback_slot() {
    let mut set = Set::new(Spec::new(Split::new(50, 1)), 0, 4);
    set.spot = 0;
    set.run(60);
    set.now += set.spec.fallback_after;
    let first = set.decide();
    let Some(Action::Save { state, .. }) = first.actions.last() else { panic!("{:?}", first.actions) };
    assert_eq!(state.fallback_slots, [1, 3]);
    assert_eq!(first.revisit, Some(set.now), "an own write does not trigger the next decision");
    // Written, but not yet in the cache that the webhook uses.
    let pending = PendingWrites { state: Some(state.clone()), ..PendingWrites::default() };
    assert!(set.decide_with(pending).is_quiet());
    set.state = Some(state.to_annotation());
    let deletes = set.decide().actions.iter().filter(|action| matches!(action, Action::Delete { .. })).count();
    assert_eq!(deletes, 2);
}

#[test]
fn an_overdue_probe_that_is_blocked_is_retried_later() {
    let mut set = Set::new(Spec { move_stateful: true, ..Spec::new(Split::new(50, 1)) }, 0, 4);
    set.spot = 0;
    set.run(75);
    let (state, _) = PlacementState::read(set.state.as_deref());
    let Breaker::Open { probe, .. } = state.breaker else { panic!("{:?}", state.breaker) };

    set.now = probe + SignedDuration::from_mins(1);
    set.pods[0].ready = false;
    let decision = set.decide();

    assert!(decision.is_quiet(), "{:?}", decision.actions);
    assert_eq!(decision.revisit, Some(set.now + SignedDuration::from_secs(30)));
}

#[test]
fn the_eviction_for_a_probe_follows_the_state_at_once() {
    let mut set = Set::new(Spec { move_stateful: true, ..Spec::new(Split::new(50, 1)) }, 0, 4);
    set.spot = 0;
    set.run(75);
    let (state, _) = PlacementState::read(set.state.as_deref());
    let Breaker::Open { probe, .. } = state.breaker else { panic!("{:?}", state.breaker) };

    set.now = probe;
    let first = set.decide();
    let Some(Action::Save { state, .. }) = first.actions.last() else { panic!("{:?}", first.actions) };
    assert!(matches!(state.breaker, Breaker::Probing { .. }));
    assert_eq!(first.revisit, Some(set.now));

    set.state = Some(state.to_annotation());
    assert!(set.decide().actions.iter().any(|action| matches!(action, Action::Evict { .. })));
}

#[test]
fn ordered_pods_fall_back_after_one_wait() {
    let mut set = Set::new(Spec::new(Split::new(80, 0)), 0, 5);
    (set.ordered, set.spot) = (true, 0);
    // One fallback-after is 60 ticks; each of the pods needs three more.
    set.run(60 + 20);
    assert_eq!(set.pods.iter().filter(|pod| pod.ready).count(), 5);
    assert_eq!(set.deletes, 1);
    // A restart in the same shortage does not wait again.
    set.pods.clear();
    set.run(20);
    assert_eq!(set.pods.iter().filter(|pod| pod.ready).count(), 5);
}

#[test]
fn spot_that_is_back_is_used_by_ordered_pods_although_on_demand_is_full() {
    let mut set = Set::new(Spec { fallback_after: TICK * 4, ..Spec::new(Split::new(80, 0)) }, 0, 5);
    (set.ordered, set.spot, set.on_demand) = (true, 0, 1);
    set.run(100);
    assert_eq!(set.pods.iter().filter(|pod| pod.ready).count(), 1);
    set.spot = usize::MAX;
    set.run(20);
    assert_eq!((set.wrong(), set.pods.len()), (0, 5));
    assert!(set.pods.iter().all(|pod| pod.ready));
}

#[test]
fn pods_that_wait_in_the_wrong_class_are_replaced_at_once_without_permission_to_move() {
    let mut set = Set::new(Spec::new(Split::new(80, 0)), 0, 5);
    set.spot = 0;
    set.run(3);
    set.spec.split = Split::new(0, 0);
    set.run(3);
    assert!(set.wrong() == 0 && set.pods.iter().all(|pod| pod.ready));
}

#[test]
fn a_single_replica_is_never_evicted_for_a_blind_probe() {
    let mut set = Set::new(Spec { move_stateful: true, ..Spec::new(Split::new(100, 0)) }, 0, 1);
    set.spot = 0;
    set.run(75);
    set.run(3 * 720);
    assert_eq!(set.evictions, 0);
    set.spot = usize::MAX;
    set.nodes.spot = ClassNodes { total: 1, usable_since: Some(set.now), room_found: None };
    set.run(10);
    assert_eq!((set.wrong(), set.evictions), (0, 1));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    /// Shortages of both classes, then room for exactly the split.
    #[test]
    fn the_split_is_reached_once_capacity_exists(
        p in 0u8..=100, m in 0u32..4, t in 1u32..10, ordered: bool, rooms in prop::collection::vec((0usize..6, 0usize..6, 1usize..40), 1..6),
    ) {
        let mut set = Set::new(Spec { fallback_after: TICK * 4, move_stateful: true, ..Spec::new(Split::new(p, m)) }, 0, t);
        set.ordered = ordered;
        for (spot, on_demand, ticks) in rooms {
            (set.spot, set.on_demand) = (spot, on_demand);
            set.run(ticks);
        }
        set.spot = usize::try_from(set.spec.split.spot(t)).unwrap() + 1;
        set.on_demand = usize::try_from(set.spec.split.on_demand(t)).unwrap() + 1;
        // The longest pause between two probes, and some ticks for the last pod to start.
        set.run(2 * 720 + 20);
        prop_assert_eq!(set.wrong(), 0);
        prop_assert!(set.pods.len() == usize::try_from(t).unwrap() && set.pods.iter().all(|pod| pod.ready));
    }
}

/// Ordinal 7 waits for on-demand capacity that fallback pods take, so ordinal 8 is not created.
#[test]
fn a_fallback_pod_gives_way_while_an_ordered_set_waits_for_on_demand_capacity() {
    let mut set =
        Set::new(Spec { fallback_after: TICK * 4, move_stateful: true, ..Spec::new(Split::new(45, 0)) }, 0, 9);
    set.ordered = true;
    for (spot, on_demand, ticks) in [(1, 4, 15), (0, 0, 16), (5, 6, 300)] {
        (set.spot, set.on_demand) = (spot, on_demand);
        set.run(ticks);
    }
    assert_eq!((set.wrong(), set.pods.len()), (0, 9));
}

#[test]
fn a_pod_whose_volume_exists_in_one_class_is_placed_there() {
    let mut set = Set::new(Spec::new(Split::new(50, 0)), 0, 6);
    set.volumes = [(0, Class::Spot), (1, Class::OnDemand), (3, Class::Spot)].into();
    set.run(6);
    let classes: Vec<Option<Class>> = (0..6)
        .map(|ordinal| set.pods.iter().find(|pod| pod.ordinal == Some(ordinal) && pod.ready)?.choice.class())
        .collect();
    let (spot, on_demand) = (Some(Class::Spot), Some(Class::OnDemand));
    assert_eq!(classes, [spot, on_demand, on_demand, spot, on_demand, spot]);
    let state = PlacementState::read(set.state.as_deref()).0;
    assert!(!state.breaker.is_open() && set.last.counts.drift == 0, "{:?} {:?}", state.breaker, set.last.counts);
    assert_eq!((set.deletes, set.evictions), (2, 0));

    // A restart finds the class at once.
    set.pods.clear();
    set.run(3);
    assert!(set.pods.iter().all(|pod| pod.ready) && set.deletes == 2);
}

#[test]
fn a_pod_is_not_evicted_from_the_only_class_in_which_its_volume_exists() {
    let mut set = Set::new(Spec { move_stateful: true, ..Spec::new(Split::new(0, 0)) }, 0, 4);
    set.volumes = [(3, Class::OnDemand)].into();
    set.run(3);
    set.spec.split = Split::new(100, 0);
    set.run(100);
    let stays = set.pods.iter().find(|pod| pod.ordinal == Some(3)).unwrap();
    assert_eq!((stays.choice.class(), set.evictions, set.last.counts.drift), (Some(Class::OnDemand), 3, 0));
    assert!(set.last.is_quiet() && set.pods.iter().all(|pod| pod.ready));
}

/// The spot pods of a set fall back, that of a volume on spot cannot.
#[test]
fn a_pod_waits_for_the_class_of_its_volume_while_others_fall_back() {
    let mut set = Set::new(Spec { fallback_after: TICK * 4, ..Spec::new(Split::new(100, 0)) }, 0, 3);
    (set.spot, set.volumes) = (0, [(1, Class::Spot)].into());
    set.run(30);
    let ready: Vec<u32> = set.pods.iter().filter(|pod| pod.ready).filter_map(|pod| pod.ordinal).collect();
    assert_eq!(ready, [0, 2]);
    set.spot = 1;
    set.run(5);
    assert!(set.pods.iter().all(|pod| pod.ready), "{:?}", set.last.actions);
}

#[test]
fn a_slot_returns_to_its_class_when_its_volume_is_replaced() {
    let mut set = Set::new(Spec { move_stateful: true, ..Spec::new(Split::new(50, 0)) }, 0, 4);
    set.volumes = [(0, Class::Spot)].into();
    set.run(4);
    assert_eq!(set.wrong(), 1);
    set.volumes.clear();
    set.pods.clear();
    set.run(40);
    assert_eq!((set.wrong(), set.evictions), (0, 1));
}

/// Five on-demand slots of ten, a floor of two, and room for three.
fn on_demand_is_short(move_stateful: bool, ordered: bool) -> Set {
    let spec = Spec { on_demand_fallback: true, move_stateful, ..Spec::new(Split::new(50, 2)) };
    let mut set = Set::new(Spec { fallback_after: TICK * 4, ..spec }, 0, 10);
    (set.on_demand, set.ordered) = (3, ordered);
    // Ordered pods are created one after the other. On-demand is not tried again yet.
    set.run(if ordered { 27 } else { 14 });
    set
}

#[test]
fn on_demand_slots_above_the_floor_run_on_spot_if_that_is_allowed() {
    for (moves, ordered) in [(true, false), (true, true), (false, false), (false, true)] {
        let mut set = on_demand_is_short(moves, ordered);
        let counts = set.last.counts;
        assert_eq!((counts.spot, counts.on_demand, counts.unplaced(), counts.drift), (7, 3, 0, 0), "{counts:?}");
        assert_eq!(set.evictions, 0);

        // On-demand is back: pods return one at a time, or when they are next created.
        set.on_demand = usize::MAX;
        set.run(400);
        if !moves {
            assert_eq!(set.evictions, 0);
            set.pods.clear();
            set.run(60);
        }
        assert_eq!((set.wrong(), set.last.counts.spot, set.last.counts.on_demand), (0, 5, 5), "{moves} {ordered}");
    }
}

/// Within the floor, ordinals never run on spot.
#[test]
fn the_floor_of_a_set_waits_for_on_demand_capacity() {
    let spec = Spec { on_demand_fallback: true, fallback_after: TICK * 4, ..Spec::new(Split::new(50, 4)) };
    let mut set = Set::new(spec, 0, 10);
    set.on_demand = 3;
    set.run(100);
    let counts = set.last.counts;
    assert_eq!((counts.spot, counts.on_demand, counts.unplaced_on_demand), (6, 4, 1), "{counts:?}");
}

/// Slots 4, 6 and 8 took the room: they fill the floor, so that 0 and 1 may run on spot.
#[test]
fn any_on_demand_slots_fill_the_floor() {
    let mut set = on_demand_is_short(false, false);
    for pod in &mut set.pods {
        let class = if matches!(pod.ordinal, Some(4 | 6 | 8)) { Class::OnDemand } else { Class::Spot };
        let class = if matches!(pod.ordinal, Some(0 | 1)) { Class::OnDemand } else { class };
        (pod.choice, pod.class) = (Choice::Only(class), Some(class));
        let waits = matches!(pod.ordinal, Some(0 | 1));
        pod.node = (!waits).then_some(NodeView { class: Some(class), leaving: false });
        (pod.ready, pod.unschedulable) = (!waits, waits.then_some(set.now));
    }
    set.state = None;
    set.run(10);
    let counts = set.last.counts;
    assert_eq!((counts.spot, counts.on_demand, counts.unplaced(), set.evictions), (7, 3, 0, 0), "{counts:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    /// Shortages of both classes where pods may fall back in both directions, then room for the split.
    #[test]
    fn the_split_is_reached_after_fallback_in_both_directions(
        p in 0u8..=100, m in 0u32..4, t in 1u32..10, ordered: bool, rooms in prop::collection::vec((0usize..6, 0usize..6, 1usize..40), 1..6),
    ) {
        let spec = Spec { on_demand_fallback: true, move_stateful: true, ..Spec::new(Split::new(p, m)) };
        let mut set = Set::new(Spec { fallback_after: TICK * 4, ..spec }, 0, t);
        set.ordered = ordered;
        for (spot, on_demand, ticks) in rooms {
            (set.spot, set.on_demand) = (spot, on_demand);
            set.run(ticks);
        }
        set.spot = usize::try_from(set.spec.split.spot(t)).unwrap() + 1;
        set.on_demand = usize::try_from(set.spec.split.on_demand(t)).unwrap() + 1;
        set.run(2 * 720 + 20);
        prop_assert_eq!(set.wrong(), 0);
        prop_assert!(set.pods.len() == usize::try_from(t).unwrap() && set.pods.iter().all(|pod| pod.ready));
    }
}
