//! Spot capacity that runs out, stays short, returns, and flickers.

use jiff::SignedDuration;
use proptest::prelude::*;

use super::sim::Sim;
use crate::placement::Class;
use crate::placement::decision::Action;
use crate::placement::node_labels::Choice;
use crate::placement::slots::Split;
use crate::placement::spec::{FallbackBudget, Spec};
use crate::placement::state::{LastMove, PlacementState};
use crate::placement::supply::Breaker;
use crate::placement::workload::{NodeView, PdbView, PodView};

const HOUR: usize = 720;

fn sim(p: u8, m: u32, t: u32, seed: u64) -> Sim {
    Sim::new(Spec::new(Split::new(p, m)), t, seed)
}

fn breaker(sim: &Sim) -> Breaker {
    PlacementState::read(sim.state.as_deref()).0.breaker
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, ..ProptestConfig::default() })]

    #[test]
    fn pods_without_spot_capacity_run_on_demand_within_the_budget(
        p in 1u8..=100, m in 0u32..6, t in 1u32..40, budget in 0u32..40, room in 0usize..40, seed: u64,
    ) {
        let mut sim = sim(p, m, t, seed);
        sim.spec.fallback_budget = FallbackBudget::Count(budget);
        sim.spot_room = room;
        let (spot, on_demand) = (sim.spec.split.spot(t), sim.spec.split.on_demand(t));
        let lacking = spot.saturating_sub(u32::try_from(room).unwrap());
        let fallen = lacking.min(budget);
        // Before fallback-after nothing falls back.
        sim.run(55);
        prop_assert_eq!(sim.count(Class::OnDemand), on_demand);
        // Long after it, what may has fallen back; a probe may be out at any time.
        sim.run(HOUR);
        let run = sim.count(Class::OnDemand);
        prop_assert!(run == on_demand + fallen || run + 1 == on_demand + fallen, "{run} on-demand, {on_demand} + {fallen}");
        // Each fell once, and again after each probe that failed.
        prop_assert!(sim.deletes <= fallen + sim.evictions, "{} deletes for {fallen}", sim.deletes);
        for pod in sim.live().filter(|pod| pod.fallback) {
            prop_assert_eq!(sim.spec.split.class(pod.slot.unwrap()), Class::Spot);
        }
        prop_assert!(u32::try_from(sim.live().filter(|pod| pod.fallback).count()).unwrap() <= fallen);
    }

    #[test]
    fn a_long_shortage_costs_few_evictions_and_its_end_is_detected(p in 10u8..=100, m in 0u32..6, t in 2u32..30, seed: u64) {
        let mut sim = sim(p, m, t, seed);
        sim.spot_room = 0;
        sim.run(10 * HOUR);
        prop_assert!(sim.evictions <= 9, "{} evictions in ten hours", sim.evictions);
        prop_assert!(sim.available() + 1 >= t, "{} of {t} available", sim.available());
        sim.spot_room = usize::MAX;
        sim.run(3 * HOUR);
        sim.settle();
        sim.assert_exact();
        prop_assert!(sim.live().all(|pod| !pod.fallback));
        prop_assert!(!breaker(&sim).is_open());
        // Each fallback pod returned by one move.
        prop_assert!(sim.evictions <= 9 + sim.spec.split.spot(t));
    }

    #[test]
    fn flickering_capacity_does_not_move_pods_back_and_forth(seed: u64, period in 80usize..400) {
        let mut sim = sim(70, 2, 20, seed);
        sim.settle();
        for round in 0..(12 * HOUR / period) {
            // All spot nodes are deleted, then return empty.
            if round % 2 == 0 {
                sim.spot_room = 0;
                for pod in &mut sim.pods {
                    pod.deleting |= pod.node.is_some_and(|node| node.class == Some(Class::Spot));
                }
            } else {
                sim.spot_room = usize::MAX;
            }
            sim.run(period);
        }
        // Pauses reach two hours: some 11 returns to spot in twelve hours, of 14 pods each, however
        // often capacity flickers.
        prop_assert!(sim.evictions <= 11 * 14, "{} evictions in twelve hours", sim.evictions);
        sim.spot_room = usize::MAX;
        sim.run(5 * HOUR);
        sim.settle();
        sim.assert_exact();
    }

    #[test]
    fn scaling_in_removes_fallback_pods_first(p in 10u8..=100, m in 0u32..6, t in 4u32..40, room in 1usize..20, less in 1u32..30, seed: u64) {
        let mut sim = sim(p, m, t, seed);
        sim.spot_room = room;
        sim.run(120);
        prop_assume!(sim.available() == t);
        let spot = sim.count(Class::Spot);
        sim.replicas = t.saturating_sub(less);
        sim.world();
        prop_assert_eq!(sim.count(Class::Spot), spot.min(sim.spec.split.spot(sim.replicas)));
    }
}

#[test]
fn while_spot_is_short_new_pods_do_not_wait_for_it() {
    let mut sim = sim(70, 3, 10, 1);
    sim.spot_room = 4;
    sim.run(100);
    assert!(breaker(&sim).is_open());
    sim.replicas = 20;
    sim.run(3);
    assert_eq!(sim.available(), 20);
    assert_eq!(sim.count(Class::Spot), 4);
    assert!(sim.live().filter(|pod| pod.fallback).all(|pod| pod.slot.unwrap() < 20));
}

#[test]
fn new_pods_beyond_the_budget_are_spot_and_wait() {
    let mut sim = sim(70, 3, 10, 1);
    sim.spec.fallback_budget = FallbackBudget::Count(3);
    sim.spot_room = 4;
    sim.run(100);
    assert_eq!((sim.count(Class::OnDemand), sim.available()), (6, 10));
    sim.replicas = 20;
    sim.run(3);
    // The quota of six and the budget of three.
    assert_eq!((sim.count(Class::OnDemand), sim.available()), (9, 13));
    assert_eq!(sim.count(Class::Spot), 11);
}

#[test]
fn pods_beyond_the_budget_are_not_deleted_repeatedly() {
    let mut sim = sim(70, 0, 10, 1);
    sim.spec.fallback_budget = FallbackBudget::Count(2);
    sim.spot_room = 0;
    sim.run(HOUR);
    assert_eq!((sim.deletes, sim.evictions), (2, 0));
    assert_eq!(sim.available(), 5);
}

#[test]
fn a_paused_workload_falls_back_and_evicts_nothing() {
    let mut sim = sim(70, 3, 10, 1);
    sim.spec.paused = true;
    sim.spot_room = 0;
    sim.run(HOUR);
    assert_eq!((sim.available(), sim.evictions), (10, 0));
}

#[test]
fn without_a_budget_pods_wait_and_the_shortage_is_reported() {
    let mut sim = sim(70, 3, 10, 1);
    sim.spec.fallback_budget = FallbackBudget::Count(0);
    sim.spot_room = 0;
    sim.run(120);
    assert_eq!(sim.deletes, 0);
    let reported = |action: &Action| matches!(action, Action::Report(event) if event.reason == "SpotShortage");
    assert!(sim.last.actions.iter().any(reported));
}

#[test]
fn replacements_after_a_mass_interruption_come_a_few_at_a_time_and_the_floor_first() {
    let mut sim = sim(80, 4, 100, 1);
    sim.settle();
    // Half of the nodes go; their pods are still terminating when the replacements are created.
    let doomed: Vec<_> = sim.pods.iter().take(60).cloned().collect();
    for pod in &mut sim.pods[..60] {
        pod.deleting = true;
    }
    sim.spot_room = 0;
    sim.world();
    let mut doomed: Vec<_> = doomed.into_iter().map(|pod| PodView { deleting: true, ..pod }).collect();
    let present = sim.pods.len();
    sim.pods.extend(doomed.clone());
    let held = |sim: &Sim| sim.decide().actions.iter().any(|action| matches!(action, Action::Hold { .. }));
    assert!(!held(&sim), "deleted pods, as in a scale-in, cause no hold");
    sim.pods.truncate(present);
    for node in doomed.iter_mut().filter_map(|pod| pod.node.as_mut()) {
        node.leaving = true;
    }
    sim.pods.extend(doomed);
    let decision = sim.decide();
    let placed: Vec<Class> = decision
        .actions
        .iter()
        .filter_map(|action| match action {
            Action::Place { class, .. } => Some(*class),
            _ => None,
        })
        .collect();
    let spot = placed.iter().filter(|class| **class == Class::Spot).count();
    assert_eq!(spot, 8, "a tenth of the spot replicas");
    assert!(placed.iter().skip_while(|class| **class == Class::OnDemand).all(|class| *class == Class::Spot));
    assert!(held(&sim));
    // The hold ends at the gate timeout.
    sim.now += sim.settings.gate_timeout;
    assert!(!held(&sim));
}

/// Three of seven spot replicas run on-demand.
fn in_fallback() -> Sim {
    let mut sim = sim(70, 3, 10, 1);
    sim.spot_room = 4;
    sim.run(100);
    assert!(matches!(breaker(&sim), Breaker::Open { .. }) && sim.live().filter(|pod| pod.fallback).count() == 3);
    sim
}

#[test]
fn an_overdue_probe_that_is_blocked_is_retried_later() {
    let mut sim = in_fallback();
    let Breaker::Open { probe, .. } = breaker(&sim) else { panic!() };
    assert_eq!(sim.decide().revisit, Some(probe));

    sim.pdbs = vec![PdbView { name: "web".to_owned(), disruptions_allowed: 0 }];
    sim.now = probe + SignedDuration::from_mins(1);
    let decision = sim.decide();

    assert!(decision.is_quiet(), "{:?}", decision.actions);
    assert_eq!(decision.revisit, Some(sim.now + SignedDuration::from_secs(30)));
}

/// Creation times come from the API server's clock, the start of a probe from ours; ten seconds of
/// difference are tolerated.
#[test]
fn a_probe_is_recognised_when_our_clock_is_ahead() {
    let found = |seconds: i64| {
        let mut sim = in_fallback();
        let since = sim.now;
        let state = PlacementState {
            breaker: Breaker::Probing { since, attempt: 0, evidence: false, stranded: false },
            ..PlacementState::default()
        };
        sim.state = Some(state.to_annotation());
        let sent = sim.pods.iter_mut().find(|pod| pod.fallback).unwrap();
        (sent.created, sent.scheduled) = (since - SignedDuration::from_secs(seconds), Some(since));
        (sent.choice, sent.class, sent.fallback) = (Choice::Only(Class::Spot), Some(Class::Spot), false);
        sent.node = Some(NodeView { class: Some(Class::Spot), leaving: false });
        sim.decide()
            .actions
            .iter()
            .any(|action| matches!(action, Action::Save { state, .. } if matches!(state.breaker, Breaker::Wary { .. })))
    };
    assert!(found(0) && found(10));
    assert!(!found(20), "that pod existed before the probe");
}

/// Each failed probe lengthens the pause until the next one, not the cooldown of moves.
#[test]
fn failed_probes_do_not_lengthen_the_cooldown_of_moves() {
    let mut sim = sim(70, 2, 10, 1);
    sim.spot_room = 0;
    for _ in 0..10 * HOUR {
        sim.tick();
        let stalled = PlacementState::read(sim.state.as_deref()).0.last_move.map_or(0, |last| last.stalled);
        assert_eq!(stalled, 0);
    }
    assert!(sim.evictions > 2, "{} probes", sim.evictions);
}

#[test]
fn the_end_of_a_shortage_ends_a_long_cooldown() {
    let mut sim = in_fallback();
    let (mut state, _) = PlacementState::read(sim.state.as_deref());
    state.breaker = Breaker::Probing { since: sim.now, attempt: 3, evidence: false, stranded: false };
    state.last_move = Some(LastMove { at: sim.now, drift: 3, stalled: 6, pod: None });
    sim.state = Some(state.to_annotation());
    sim.spot_room = usize::MAX;
    let sent = sim.pods.iter_mut().find(|pod| pod.fallback).unwrap();
    (sent.created, sent.scheduled) = (sim.now, Some(sim.now));
    (sent.choice, sent.class, sent.fallback) = (Choice::Only(Class::Spot), Some(Class::Spot), false);
    sent.node = Some(NodeView { class: Some(Class::Spot), leaving: false });
    sim.run(30);
    sim.assert_exact();
}

/// Another webhook selects spot for every pod: a replacement would wait in the same class.
#[test]
fn pods_that_wait_in_a_class_of_another_writer_are_not_replaced() {
    let mut sim = sim(0, 0, 4, 1);
    sim.spot_room = 0;
    sim.world();
    for pod in &mut sim.pods {
        (pod.choice, pod.gated, pod.class) = (Choice::Only(Class::Spot), false, Some(Class::OnDemand));
    }
    sim.run(HOUR);
    assert_eq!(sim.deletes, 0, "{:?}", sim.last.actions);
    // The same pods are replaced if the class is ours.
    for pod in &mut sim.pods {
        pod.class = Some(Class::Spot);
    }
    sim.run(3);
    assert_eq!((sim.deletes, sim.count(Class::OnDemand)), (4, 4));
}

/// On-demand is full as well, so that the on-demand pods of the new revision are stuck.
#[test]
fn a_rollout_does_not_wait_at_every_step_for_on_demand_pods_that_are_stuck() {
    let mut sim = sim(70, 3, 10, 1);
    sim.spec.fallback_after = SignedDuration::from_secs(20);
    sim.settle();
    (sim.on_demand_room, sim.max_surge, sim.max_unavailable) = (3, 2, 2);
    sim.rollout();
    // One fallback-after, then a step takes a few seconds.
    let newest = sim.sets.last().unwrap().uid.clone();
    let running = |sim: &Sim| sim.live().filter(|pod| pod.owner == newest && pod.ready).count();
    sim.run(30);
    assert!(running(&sim) >= 4, "{} of the new revision after 150 s", running(&sim));
    assert!(sim.ready_on_demand() >= 3);
}

/// Five on-demand slots of ten, a floor of two, and room for three.
fn on_demand_is_short(fallback: bool) -> Sim {
    let spec = Spec { on_demand_fallback: fallback, ..Spec::new(Split::new(50, 2)) };
    let mut sim = Sim::new(spec, 10, 1);
    sim.on_demand_room = 3;
    sim.run(100);
    sim
}

#[test]
fn on_demand_replicas_above_the_floor_run_on_spot_if_that_is_allowed() {
    let sim = on_demand_is_short(false);
    assert_eq!((sim.last.counts.spot, sim.last.counts.unplaced_on_demand), (5, 2), "they wait");

    let mut sim = on_demand_is_short(true);
    let counts = sim.last.counts;
    assert_eq!((counts.spot, counts.on_demand, counts.unplaced(), counts.drift), (7, 3, 0, 0), "{counts:?}");
    assert_eq!(sim.evictions, 0);

    // On-demand is back: pods return one at a time.
    sim.on_demand_room = usize::MAX;
    sim.run(200);
    assert_eq!((sim.last.counts.spot, sim.last.counts.on_demand), (5, 5));
}

/// Within the floor pods never run on spot.
#[test]
fn the_floor_waits_for_on_demand_capacity() {
    let spec = Spec { on_demand_fallback: true, ..Spec::new(Split::new(50, 4)) };
    let mut sim = Sim::new(spec, 10, 1);
    sim.on_demand_room = 3;
    sim.run(100);
    let counts = sim.last.counts;
    assert_eq!((counts.spot, counts.on_demand, counts.unplaced_on_demand), (6, 4, 1), "{counts:?}");
}

/// The permit of the shard ended between the write of the state and the eviction.
#[test]
fn a_probe_whose_eviction_was_not_sent_is_repeated() {
    let mut sim = sim(70, 3, 10, 1);
    sim.spot_room = 0;
    sim.run(100);
    let Breaker::Open { probe, .. } = breaker(&sim) else { panic!("{:?}", breaker(&sim)) };
    sim.now = probe;
    let decision = sim.decide();
    assert!(decision.evicts(), "{:?}", decision.actions);
    let save = decision.actions.iter().find(|action| matches!(action, Action::Save { .. })).unwrap();
    sim.execute(save);

    let next = sim.decide();
    assert!(next.is_quiet(), "{:?}", next.actions);
    let revisit = next.revisit.unwrap();
    assert!(revisit <= probe + SignedDuration::from_secs(30), "{revisit}");
    sim.now = revisit;
    let again = sim.decide();
    for action in &again.actions {
        sim.execute(action);
    }
    assert!(matches!(breaker(&sim), Breaker::Open { attempt: 0, .. }), "{:?}", breaker(&sim));
}
