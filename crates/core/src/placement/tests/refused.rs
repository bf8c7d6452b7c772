//! A class that a policy refuses: its pods run without a class, and no pod is evicted for it.

use jiff::SignedDuration;
use rstest::rstest;

use super::sim::Sim;
use crate::placement::Class;
use crate::placement::explain::{explain, why};
use crate::placement::slots::Split;
use crate::placement::spec::Spec;

/// Spot pods are refused. Pods without a class run on-demand.
fn refused(direct: u32) -> Sim {
    let mut sim = Sim::new(Spec::new(Split::new(50, 0)), 6, 1);
    (sim.policy, sim.spot_room, sim.direct) = (Some(Class::Spot), 0, direct);
    sim.run(20);
    assert_eq!((sim.count(Class::OnDemand), sim.available()), (6, 6));
    sim
}

#[rstest]
#[case::gated(0)]
#[case::in_the_create_request(50)]
fn no_pod_is_evicted_towards_a_class_that_a_policy_refuses(#[case] direct: u32) {
    let mut sim = refused(direct);
    sim.policy = Some(Class::Spot);
    sim.run(1_000);
    assert_eq!((sim.evictions, sim.available()), (0, 6));
    let (workload, decision) = (sim.workload(), sim.decide());
    assert!(why(&workload, &sim.spec, &decision).contains("class spot was refused by a policy"));
    assert!(explain(&workload, &sim.spec, &decision).join("\n").contains("refused by a policy"));
    // A day has at most a few attempts.
    sim.run(24 * 3600 / 5);
    assert!((1..=4).contains(&sim.evictions), "{}", sim.evictions);
}

#[test]
fn new_pods_do_not_ask_for_a_class_that_was_just_refused() {
    let mut sim = refused(0);
    let refusals = sim.refusals;
    sim.replicas = 12;
    sim.run(10);
    assert_eq!((sim.available(), sim.refusals), (12, refusals));
    // Later a pod that is created anyway tries the class.
    sim.now += SignedDuration::from_mins(6);
    sim.replicas = 14;
    sim.run(10);
    assert!(sim.available() == 14 && sim.refusals > refusals);
}

#[test]
fn pods_move_once_a_pod_of_the_class_is_accepted_again() {
    let mut sim = refused(0);
    (sim.policy, sim.spot_room) = (None, usize::MAX);
    sim.now += SignedDuration::from_mins(6);
    sim.replicas = 8;
    sim.settle();
    sim.assert_exact();
}
