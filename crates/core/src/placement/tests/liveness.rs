//! Liveness: if capacity for the exact split exists and nothing forbids it, the split is reached,
//! whatever the shortages of either class before.

use jiff::SignedDuration;
use proptest::prelude::*;
use rstest::rstest;

use perennial_testkit::prng::Prng;

use super::sim::Sim;
use crate::placement::Class;
use crate::placement::decide::decide;
use crate::placement::decision::{Action, PlacementDecision};
use crate::placement::explain::{explain, headline, why};
use crate::placement::node_labels::Choice;
use crate::placement::schedule::{Schedule, Window};
use crate::placement::slots::Split;
use crate::placement::spec::{FallbackBudget, Spec};
use crate::placement::state::{LastMove, PlacementState};
use crate::placement::supply::Breaker;
use crate::placement::workload::{ClassNodes, NodeView, PdbView, Workload};

const AFTER: SignedDuration = SignedDuration::from_secs(20);

fn sim(p: u8, m: u32, t: u32, seed: u64) -> Sim {
    Sim::new(Spec { fallback_after: AFTER, ..Spec::new(Split::new(p, m)) }, t, seed)
}

/// Every spot node is gone, with its pods.
fn lose_spot(sim: &mut Sim) {
    sim.spot_room = 0;
    for pod in &mut sim.pods {
        pod.deleting |= pod.node.is_some_and(|node| node.class == Some(Class::Spot));
    }
}

/// A new spot node appears.
fn spot_returns(sim: &mut Sim) {
    sim.spot_room = usize::MAX;
    sim.nodes.spot = ClassNodes { total: 1, usable_since: Some(sim.now), room_found: None };
}

fn running(sim: &Sim, class: Class) -> usize {
    sim.live().filter(|pod| pod.node.is_some_and(|node| node.class == Some(class))).count()
}

fn reported(decision: &PlacementDecision, reason: &str) -> Option<String> {
    decision.actions.iter().find_map(|action| match action {
        Action::Report(event) if event.reason == reason => Some(event.message.clone()),
        _ => None,
    })
}

/// 70% of ten replicas on spot, at least three on-demand; spot is lost and on-demand has no room
/// for the fallback.
fn both_short() -> Sim {
    let mut sim = sim(70, 3, 10, 1);
    sim.settle();
    sim.on_demand_room = 3;
    lose_spot(&mut sim);
    sim.run(60);
    assert_eq!((running(&sim, Class::Spot), running(&sim, Class::OnDemand)), (0, 3));
    sim
}

#[rstest]
#[case::with_evidence(true)]
#[case::without_evidence(false)]
fn spot_that_is_back_is_used_at_once_although_on_demand_is_full(#[case] evidence: bool) {
    let mut sim = both_short();
    if evidence {
        spot_returns(&mut sim);
    } else {
        sim.spot_room = usize::MAX;
    }
    sim.run(4);
    assert_eq!((running(&sim, Class::Spot), running(&sim, Class::OnDemand)), (7, 3));
    assert_eq!(sim.evictions, 0);
}

#[test]
fn on_demand_that_is_back_is_used_although_one_pod_waits_for_spot() {
    let mut sim = both_short();
    sim.on_demand_room = 10;
    let all_run = (0..15).any(|_| {
        sim.tick();
        running(&sim, Class::OnDemand) == 10
    });
    assert!(all_run);
    assert!(reported(&sim.last, "OnDemandShortage").is_none());
}

#[test]
fn a_shortage_of_on_demand_is_reported() {
    let sim = both_short();
    assert!(reported(&sim.last, "OnDemandShortage").is_some(), "{:?}", sim.last.actions);
    assert!(sim.last.counts.unplaced_on_demand > 0);
}

#[rstest]
#[case::percentage(Split::new(0, 3), 0)]
#[case::floor(Split::new(70, 8), 0)]
#[case::before_the_fallback(Split::new(0, 0), 1)]
fn pods_beyond_a_lowered_quota_are_on_demand_at_once(#[case] split: Split, #[case] early: u8) {
    let mut sim = sim(70, 3, 10, 1);
    sim.settle();
    if early == 1 {
        sim.spec.fallback_after = SignedDuration::from_hours(1);
    } else {
        sim.spec.fallback_budget = crate::placement::spec::FallbackBudget::Count(0);
    }
    lose_spot(&mut sim);
    sim.run(20);
    assert_eq!(running(&sim, Class::OnDemand), 3);
    sim.spec.split = split;
    sim.run(4);
    assert_eq!(running(&sim, Class::OnDemand), usize::try_from(split.on_demand(10)).unwrap());
}

#[test]
fn the_last_ready_replica_is_never_evicted_for_a_probe() {
    let mut sim = sim(100, 0, 1, 1);
    sim.spot_room = 0;
    sim.run(20);
    assert_eq!(running(&sim, Class::OnDemand), 1);
    for _ in 0..2_000 {
        sim.tick();
        assert_eq!(sim.available(), 1);
    }
    assert_eq!(sim.evictions, 0);
    // A node of the class is evidence enough for a move.
    spot_returns(&mut sim);
    sim.run(10);
    sim.assert_exact();
    assert_eq!(sim.evictions, 1);
}

/// Room on a node that was full is evidence long before a probe is due.
#[rstest]
#[case::single(1)]
#[case::several(6)]
fn room_on_an_existing_node_ends_a_long_pause(#[case] replicas: u32) {
    let mut sim = sim(100, 0, replicas, 1);
    (sim.spot_room, sim.nodes.spot.total) = (0, 1);
    sim.run(10);
    let mut state = PlacementState::read(sim.state.as_deref()).0;
    let Breaker::Open { probe, .. } = &mut state.breaker else { panic!() };
    *probe = sim.now + SignedDuration::from_hours(2);
    sim.state = Some(state.to_annotation());
    sim.run(100);
    assert_eq!(sim.evictions, 0);
    sim.spot_room = usize::MAX;
    sim.run(100);
    sim.assert_exact();
}

/// Requests are not all that the scheduler considers: room that a probe could not use is no reason
/// for another one before it is due.
#[test]
fn room_that_a_probe_could_not_use_is_no_evidence_again() {
    let mut sim = sim(100, 0, 6, 1);
    (sim.spot_room, sim.nodes.spot.total) = (0, 1);
    sim.run(10);
    for _ in 0..720 {
        sim.spot_room = usize::MAX;
        sim.operate();
        sim.spot_room = 0;
        sim.world();
    }
    assert!(sim.evictions < 8, "{} evictions in an hour", sim.evictions);
}

/// The move of the only Ready replica needs a node with room, also where no shortage is known.
#[rstest]
#[case::to_spot(0, 100)]
#[case::to_on_demand(100, 0)]
fn the_last_ready_replica_moves_only_to_a_node_with_room(#[case] from: u8, #[case] to: u8) {
    let mut sim = sim(from, 0, 1, 1);
    sim.settle();
    sim.spec.split = Split::new(to, 0);
    let class = if to == 0 { Class::OnDemand } else { Class::Spot };
    let room = |sim: &mut Sim, room: usize| match class {
        Class::Spot => sim.spot_room = room,
        Class::OnDemand => sim.on_demand_room = room,
    };
    room(&mut sim, 0);
    sim.run(1_000);
    assert_eq!((sim.available(), sim.evictions), (1, 0));
    assert!(why(&sim.workload(), &sim.spec, &sim.last).contains("the only Ready replica"));
    room(&mut sim, 1);
    sim.run(10);
    sim.assert_exact();
}

/// Room that becomes free on an existing node is evidence too, so the operator searches for it.
#[test]
fn a_probe_that_the_workload_cannot_spare_a_pod_for_needs_room() {
    let mut sim = sim(100, 0, 1, 1);
    sim.spot_room = 0;
    sim.run(10);
    assert_eq!(sim.decide().room_search, None, "the class has no node");
    sim.nodes.spot.total = 1;
    let search = |sim: &Sim| sim.decide().room_search.map(|search| (search.class, search.pod.uid, search.again));
    assert_eq!(search(&sim), Some((Class::Spot, sim.pods[0].uid.clone(), false)));
    let Breaker::Open { probe, .. } = PlacementState::read(sim.state.as_deref()).0.breaker else { panic!() };
    sim.now = probe;
    assert_eq!(search(&sim), Some((Class::Spot, sim.pods[0].uid.clone(), true)), "a probe is due");

    spot_returns(&mut sim);
    let decision = sim.decide();
    let evicted = decision.evicted_on_evidence(&PlacementState::default());
    assert_eq!(evicted.map(|pod| &pod.uid), Some(&sim.pods[0].uid), "{:?}", decision.actions);
}

#[rstest]
#[case::one_at_a_time(0, 1)]
#[case::by_default(2, 3)]
#[case::all_at_once(0, 10)]
fn a_rollout_in_a_shortage_ends_and_its_pods_are_the_probe(#[case] max_unavailable: u32, #[case] max_surge: u32) {
    let mut sim = sim(70, 3, 10, 1);
    (sim.max_unavailable, sim.max_surge) = (max_unavailable, max_surge);
    sim.settle();
    lose_spot(&mut sim);
    sim.run(60);
    assert_eq!(running(&sim, Class::OnDemand), 10);
    sim.pdbs = vec![PdbView { name: "strict".to_owned(), disruptions_allowed: 0 }];
    let evictions = sim.evictions;
    spot_returns(&mut sim);
    sim.run(40);
    assert_eq!(running(&sim, Class::Spot), 0, "the budget allows no move");
    sim.rollout();
    sim.run(60);
    sim.assert_exact();
    assert_eq!(sim.evictions, evictions);
}

#[test]
fn a_rollout_without_surplus_budget_ends_while_spot_is_short() {
    let mut sim = sim(100, 0, 6, 1);
    sim.spot_room = 0;
    sim.run(60);
    assert_eq!(running(&sim, Class::OnDemand), 6);
    (sim.max_surge, sim.max_unavailable) = (1, 0);
    sim.rollout();
    sim.run(120);
    let newest = sim.sets.last().unwrap().uid.clone();
    assert_eq!((sim.owned(&newest), sim.available()), (6, 6));
}

#[test]
fn a_blocked_probe_names_the_budget_and_no_time_in_the_past() {
    let mut sim = sim(70, 3, 10, 1);
    sim.settle();
    lose_spot(&mut sim);
    sim.run(60);
    sim.pdbs = vec![PdbView { name: "strict".to_owned(), disruptions_allowed: 0 }];
    let Breaker::Open { probe, .. } = PlacementState::read(sim.state.as_deref()).0.breaker else { panic!() };
    sim.now = probe + SignedDuration::from_mins(3);
    let (workload, decision) = (sim.workload(), sim.decide());
    assert!(why(&workload, &sim.spec, &decision).contains("PodDisruptionBudget strict"));
    let text = explain(&workload, &sim.spec, &decision).join("\n");
    assert!(text.contains("PodDisruptionBudget strict") && !text.contains(&probe.to_string()), "{text}");
    assert!(decision.revisit.unwrap() > sim.now);
}

#[test]
fn pods_that_only_their_class_holds_back_are_replaced_when_the_annotations_are_removed() {
    let mut sim = sim(70, 3, 10, 1);
    sim.settle();
    sim.spec.fallback_after = SignedDuration::from_hours(1);
    lose_spot(&mut sim);
    sim.run(10);
    let deleted = |decision: &PlacementDecision| {
        decision.actions.iter().filter(|action| matches!(action, Action::Delete { .. })).count()
    };
    let unmanaged = Workload { spec: Ok(None), ..sim.workload() };
    assert_eq!(deleted(&decide(&unmanaged)), 7);
    // A class that the template selects itself is not ours.
    let mut own = unmanaged.clone();
    own.view.template = Choice::Only(Class::Spot);
    assert_eq!(deleted(&decide(&own)), 0);
}

/// Ten replicas on nodes of neither class.
fn strays() -> Sim {
    let mut sim = sim(70, 3, 10, 1);
    sim.settle();
    for pod in &mut sim.pods {
        (pod.choice, pod.class, pod.slot, pod.cost) = (Choice::Any, None, None, None);
        pod.node = Some(NodeView { class: None, leaving: false });
    }
    sim
}

#[test]
fn replicas_on_nodes_of_neither_class_are_counted_and_leave_first() {
    let mut sim = strays();
    let decision = sim.decide();
    assert_eq!((decision.counts.unknown, decision.counts.drift), (10, 10));
    assert!(!headline(&decision.counts).contains("running as requested"));
    sim.run(2);
    assert_eq!(sim.evictions, 0, "no node of a class is known");
    sim.replicas = 20;
    sim.run(4);
    assert_eq!((sim.count(Class::Spot), sim.count(Class::OnDemand)), (7, 3));
    sim.replicas = 10;
    sim.run(3);
    sim.assert_exact();
}

#[test]
fn replicas_on_nodes_of_neither_class_are_moved_where_the_classes_exist() {
    let mut sim = strays();
    sim.nodes.spot.total = 1;
    sim.nodes.on_demand.total = 1;
    sim.settle();
    sim.assert_exact();
    assert_eq!(sim.evictions, 10);
}

#[test]
fn a_class_without_nodes_is_named() {
    let mut sim = sim(70, 3, 10, 1);
    (sim.spot_room, sim.on_demand_room, sim.nodes.other) = (0, 0, 4);
    sim.run(3);
    let decision = sim.decide();
    let message = reported(&decision, "NoNodesOfClass").unwrap();
    assert!(message.contains("no node is spot") && message.contains("karpenter.sh/capacity-type=spot"), "{message}");
    assert_ne!(why(&sim.workload(), &sim.spec, &decision), "as requested");
    assert!(!headline(&decision.counts).contains("running as requested"));
}

#[test]
fn successful_moves_do_not_lengthen_the_cooldown() {
    let mut sim = sim(50, 0, 4, 1);
    sim.settle();
    for round in 0..9 {
        sim.spec.split = Split::new(if round % 2 == 0 { 25 } else { 50 }, 0);
        sim.settle();
        sim.assert_exact();
        let LastMove { stalled, drift, .. } = PlacementState::read(sim.state.as_deref()).0.last_move.unwrap();
        assert_eq!((stalled, drift), (0, 0), "round {round}");
    }
    assert_eq!(sim.evictions, 9);
}

/// One random disturbance.
fn disturb(sim: &mut Sim, prng: &mut Prng) {
    match prng.below(15) {
        0..=2 => lose_spot(sim),
        3 => sim.spot_room = prng.below(8),
        4 => spot_returns(sim),
        5 => sim.on_demand_room = prng.below(8),
        6 => {
            sim.spec.split = Split::new([0, 30, 70, 100][prng.below(4)], sim.spec.split.floor().of(0));
        }
        7 => sim.spec.split = Split::new(sim.spec.split.percentage(), u32::try_from(prng.below(5)).unwrap()),
        8 => sim.spec.paused = !sim.spec.paused,
        9 => {
            let allowed = u32::try_from(prng.below(2)).unwrap();
            sim.pdbs = vec![PdbView { name: "web".to_owned(), disruptions_allowed: allowed }];
        }
        10 => {
            let schedule = Schedule::parse("0 2 * * *").unwrap();
            sim.spec.window = Some(Window { schedule, duration: SignedDuration::from_hours(1) });
        }
        11 => sim.spec.fallback_budget = FallbackBudget::Count(u32::try_from(prng.below(6)).unwrap()),
        12 => {
            // A new node that is full at once.
            sim.spot_room = running(sim, Class::Spot);
            sim.nodes.spot = ClassNodes { total: 1, usable_since: Some(sim.now), room_found: None };
        }
        13 => sim.rollout(),
        _ => sim.replicas = 1 + u32::try_from(prng.below(12)).unwrap(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    /// Shortages of both classes, changed requests, rollouts, budgets, windows and pauses in any
    /// order; then nothing forbids moves, and there is room for exactly the split.
    #[test]
    fn the_split_is_reached_once_capacity_exists(p in 0u8..=100, m in 0u32..5, t in 1u32..12, seed: u64, steps in 1usize..8, rolls: bool) {
        let mut sim = sim(p, m, t, seed);
        let mut prng = Prng::new(seed ^ 0x5eed);
        sim.run(4);
        for _ in 0..steps {
            disturb(&mut sim, &mut prng);
            let ticks = prng.below(60);
            sim.run(ticks);
        }
        if rolls {
            sim.rollout();
            sim.max_unavailable = 1;
        }
        sim.spec.paused = false;
        sim.spec.window = None;
        sim.pdbs.clear();
        let rolls = rolls || sim.live().any(|pod| !sim.sets.iter().any(|set| set.newest && set.uid == pod.owner));
        let (spot, on_demand) = (sim.spec.split.spot(sim.replicas), sim.spec.split.on_demand(sim.replicas));
        // A rollout needs room for both ReplicaSets.
        let spare = if rolls { usize::try_from(sim.replicas).unwrap() } else { 1 };
        sim.spot_room = usize::try_from(spot).unwrap() + spare;
        sim.on_demand_room = usize::try_from(on_demand).unwrap() + spare;
        // The operator searches for room on existing nodes: a single replica moves as well.
        (sim.nodes.spot.total, sim.nodes.on_demand.total) = (1, 1);
        sim.settle();
        sim.assert_exact();
    }

    /// A lasting shortage of both classes: deletions are bounded, and running pods are not touched.
    #[test]
    fn a_lasting_shortage_of_both_classes_is_quiet(p in 50u8..=100, t in 2u32..12, seed: u64) {
        let mut sim = sim(p, 0, t, seed);
        (sim.spot_room, sim.on_demand_room) = (0, 1);
        sim.run(720);
        // One hour has 180 periods of fallback-after; at most one pod alternates.
        prop_assert!(sim.deletes <= t + 180, "{} deletes", sim.deletes);
        prop_assert_eq!(sim.evictions, 0);
    }
}

/// A rollout with room for one more pod, after more replicas were requested on spot: on-demand is
/// full of pods that no longer belong there.
#[test]
fn surplus_on_demand_pods_give_way_to_a_rollout_that_waits_for_room() {
    let mut sim = sim(0, 0, 10, 1);
    sim.settle();
    (sim.on_demand_room, sim.max_surge, sim.max_unavailable) = (10, 1, 0);
    sim.spec.split = Split::new(70, 3);
    sim.rollout();
    sim.run(600);
    assert_eq!((running(&sim, Class::Spot), running(&sim, Class::OnDemand)), (7, 3), "{:?}", sim.last.actions);
    assert_eq!(sim.live().count(), 10);
}
