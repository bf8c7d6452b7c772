//! Convergence: after any disturbance the split is exact, with the fewest possible moves, and no
//! more writes follow.

use proptest::prelude::*;

use perennial_testkit::prng::Prng;

use super::sim::Sim;
use crate::placement::Class;
use crate::placement::decision::Action;
use crate::placement::slots::Split;
use crate::placement::spec::Spec;
use crate::placement::state::{LastMove, PlacementState};

fn sim(p: u8, m: u32, t: u32, seed: u64) -> Sim {
    Sim::new(Spec::new(Split::new(p, m)), t, seed)
}

fn only_relabels(action: &Action) -> bool {
    matches!(action, Action::Relabel { .. } | Action::Hold { .. } | Action::Wait { .. } | Action::Report(_))
}

/// Scales to each size and expects an exact split.
fn scale_through(sim: &mut Sim, stops: Vec<u32>) {
    for stop in stops {
        sim.replicas = stop;
        sim.settle();
        sim.assert_exact();
    }
}

/// Returns the slots of all pods, in order.
fn slots(sim: &Sim) -> Vec<u32> {
    let mut slots: Vec<u32> = sim.live().map(|pod| pod.slot.unwrap()).collect();
    slots.sort_unstable();
    slots
}

/// The last replica is placed after a move: that the move succeeded is saved once it runs, not in a
/// decision that only follows the placement.
#[test]
fn a_placement_is_not_followed_by_a_save_of_its_own() {
    let mut sim = sim(0, 2, 3, 1);
    sim.settle();
    let last_move = Some(LastMove { at: sim.now, drift: 2, stalled: 1, pod: None });
    sim.state = Some(PlacementState { last_move, ..PlacementState::default() }.to_annotation());
    sim.pods[0].deleting = true;
    sim.world();
    let decision = sim.decide();
    assert!(decision.actions.iter().any(|action| matches!(action, Action::Place { .. })), "{:?}", decision.actions);
    for action in &decision.actions {
        sim.execute(action);
    }
    assert!(sim.decide().actions.iter().all(only_relabels));
    sim.settle();
    let LastMove { drift, stalled, .. } = PlacementState::read(sim.state.as_deref()).0.last_move.unwrap();
    assert_eq!((drift, stalled), (0, 0));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn a_new_workload_is_exact_with_one_write_for_each_pod(p in 0u8..=100, m in 0u32..8, t in 0u32..120, seed: u64) {
        let mut sim = sim(p, m, t, seed);
        sim.settle();
        sim.assert_exact();
        prop_assert_eq!(sim.writes, t);
        prop_assert_eq!(sim.evictions, 0);
        prop_assert_eq!(slots(&sim), (0..t).collect::<Vec<_>>());
    }

    #[test]
    fn scaling_is_exact_at_every_stop_without_evictions(p in 0u8..=100, m in 0u32..8, stops in prop::collection::vec(0u32..80, 1..8), seed: u64) {
        let mut sim = sim(p, m, stops[0], seed);
        scale_through(&mut sim, stops);
        prop_assert_eq!(sim.evictions, 0);
    }

    #[test]
    fn pods_placed_in_their_create_request_are_exact(
        p in 0u8..=100, m in 0u32..8, stops in prop::collection::vec(0u32..80, 1..8), seed: u64, direct in 1u32..=100, refused in 0u32..50,
    ) {
        let mut sim = sim(p, m, stops[0], seed);
        (sim.direct, sim.refused) = (direct, refused);
        scale_through(&mut sim, stops);
        prop_assert_eq!(sim.evictions, 0);
    }

    #[test]
    fn a_workload_whose_owner_admits_every_pod_costs_no_write(p in 0u8..=100, m in 0u32..8, t in 0u32..120, seed: u64) {
        let mut sim = sim(p, m, t, seed);
        sim.direct = 100;
        sim.settle();
        sim.assert_exact();
        prop_assert_eq!(sim.writes, 0);
        prop_assert_eq!(slots(&sim), (0..t).collect::<Vec<_>>());
    }

    #[test]
    fn scaling_in_is_exact_at_once(p in 0u8..=100, m in 0u32..8, t in 1u32..60, seed: u64) {
        let mut sim = sim(p, m, t, seed);
        sim.settle();
        for smaller in (0..t).rev() {
            sim.replicas = smaller;
            sim.world();
            sim.assert_exact();
        }
    }

    #[test]
    fn a_changed_annotation_moves_exactly_the_difference(
        p in 0u8..=100, m in 0u32..8, q in 0u8..=100, k in 0u32..8, t in 0u32..40, seed: u64,
    ) {
        let mut sim = sim(p, m, t, seed);
        sim.settle();
        sim.spec = Spec::new(Split::new(q, k));
        let difference = sim.count(Class::Spot).abs_diff(sim.spec.split.spot(t));
        sim.settle();
        sim.assert_exact();
        prop_assert_eq!(sim.evictions, difference);
        prop_assert!(sim.decide().is_quiet());
    }

    #[test]
    fn a_surplus_is_what_scale_in_removes_first(p in 0u8..=100, q in 0u8..=100, m in 0u32..4, t in 2u32..40, less in 1u32..40, seed: u64) {
        let mut sim = sim(p, m, t, seed);
        sim.settle();
        sim.spec = Spec { paused: true, ..Spec::new(Split::new(q, m)) };
        sim.run(3);
        let (spot, on_demand) = (sim.count(Class::Spot), sim.count(Class::OnDemand));
        sim.replicas = t.saturating_sub(less);
        sim.world();
        // The nearest split that removing pods can reach.
        let (n, wanted) = (sim.replicas, sim.spec.split.spot(sim.replicas));
        let best = wanted.clamp(n.saturating_sub(on_demand), spot.min(n));
        prop_assert_eq!(sim.count(Class::Spot), best);
    }

    #[test]
    fn after_any_disturbance_the_split_is_exact_and_writes_stop(
        p in 0u8..=100, m in 0u32..6, t in 1u32..40, seed: u64, surge in 1u32..6, unavailable in 0u32..3,
        trouble in prop::collection::vec((0u8..8, 0u32..40, 1usize..12), 1..8),
    ) {
        let mut sim = sim(p, m, t, seed);
        (sim.max_surge, sim.max_unavailable) = (surge, unavailable);
        (sim.missed, sim.cut, sim.stale) = (15, 25, 15);
        (sim.direct, sim.refused) = (u32::try_from(seed % 3 * 40).unwrap(), 20);
        let mut prng = Prng::new(seed ^ 1);
        for (kind, amount, ticks) in trouble {
            match kind {
                0 => sim.rollout(),
                1 => sim.undo(),
                2 => sim.spec.split = Split::new(u8::try_from(amount * 2).unwrap(), m),
                3 => for pod in &mut sim.pods {
                    pod.deleting |= prng.percent(30);
                },
                4 => for pod in &mut sim.pods {
                    pod.ready &= prng.percent(60);
                },
                5 => for pod in &mut sim.pods {
                    if prng.percent(30) {
                        (pod.slot, pod.cost) = (None, None);
                    }
                },
                _ => sim.replicas = amount,
            }
            sim.run(ticks);
        }
        (sim.missed, sim.cut, sim.stale) = (0, 0, 0);
        // The cooldown after moves without effect may be long; it has its own test.
        sim.run(40);
        sim.state = None;
        sim.settle();
        sim.assert_exact();
        let before = (sim.evictions, sim.writes);
        sim.run(30);
        prop_assert_eq!((sim.evictions, sim.writes), before, "no writes without a change");
        for smaller in (0..sim.replicas).rev() {
            sim.replicas = smaller;
            sim.world();
            sim.assert_exact();
        }
    }

    #[test]
    fn a_decision_finds_nothing_to_do_after_its_own_effect(p in 0u8..=100, m in 0u32..6, q in 0u8..=100, t in 0u32..40, ticks in 0usize..20, seed: u64) {
        let mut sim = sim(p, m, t, seed);
        (sim.missed, sim.cut) = (20, 20);
        sim.run(ticks);
        sim.spec.split = Split::new(q, m);
        sim.world();
        let decision = sim.decide();
        // The watch lags behind. Placing may complete a ReplicaSet, which is then relabelled once.
        let mut lagging = sim.clone();
        lagging.execute_unseen(&decision);
        let unseen = lagging.decide();
        prop_assert!(unseen.actions.iter().all(only_relabels), "{:?} after {:?}", unseen.actions, decision.actions);
        // The watch is up to date.
        for action in &decision.actions {
            sim.execute(action);
        }
        let again = sim.decide();
        prop_assert!(again.actions.iter().all(only_relabels), "{:?} after {:?}", again.actions, decision.actions);
        for action in &again.actions {
            sim.execute(action);
        }
        let third = sim.decide();
        prop_assert!(third.is_quiet(), "{:?} after {:?}", third.actions, again.actions);
    }

    #[test]
    fn a_rollout_never_leaves_fewer_ready_on_demand_than_the_floor(
        p in 0u8..=100, m in 0u32..6, t in 1u32..40, seed: u64, surge in 1u32..12, unavailable in 0u32..8, slow in 1i64..40,
    ) {
        let mut sim = sim(p, m, t, seed);
        (sim.max_surge, sim.max_unavailable) = (surge, unavailable.min(t.saturating_sub(1)));
        sim.settle();
        sim.start_ticks.insert(Class::OnDemand, slow);
        sim.rollout();
        // maxUnavailable allows the Deployment itself to remove pods, down to the floor of a small
        // workload.
        let floor = m.min(t - sim.max_unavailable);
        for _ in 0..400 {
            sim.tick();
            let ready = sim.ready_on_demand();
            prop_assert!(ready >= floor, "{ready} Ready on-demand, floor {floor}");
        }
        sim.settle();
        sim.assert_exact();
        prop_assert_eq!(sim.evictions, 0);
    }
}
