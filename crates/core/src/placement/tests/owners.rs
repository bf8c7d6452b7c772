//! Controllers whose desired replicas are not known, and classes that the API server refuses.

use jiff::SignedDuration;

use super::sim::Sim;
use crate::placement::Class;
use crate::placement::decide::decide;
use crate::placement::decision::{Action, PlacementDecision};
use crate::placement::slots::Split;
use crate::placement::spec::Spec;
use crate::placement::workload::{Kind, Workload};

/// Returns the workload as if a controller of another kind owned its pods.
fn of_another_kind(sim: &Sim) -> Workload {
    let mut workload = sim.workload();
    let live = u32::try_from(sim.live().count()).unwrap();
    workload.view.kind = Kind::Other { api_version: "example.com/v1".into(), kind: "Fleet".into() };
    workload.view.replicas = live;
    workload.replica_sets.retain(|set| set.newest);
    workload.replica_sets[0].replicas = live;
    workload
}

fn reports(decision: &PlacementDecision, reason: &str) -> bool {
    decision.actions.iter().any(|action| matches!(action, Action::Report(event) if event.reason == reason))
}

#[test]
fn gated_pods_of_any_controller_are_placed_by_counts() {
    let mut sim = Sim::new(Spec::new(Split::new(70, 3)), 10, 1);
    sim.deployment_controller();
    sim.replica_set_controller();
    let decision = decide(&of_another_kind(&sim));
    let placed = |wanted: Class| {
        decision.actions.iter().filter(|a| matches!(a, Action::Place { class, .. } if *class == wanted)).count()
    };
    assert_eq!((placed(Class::Spot), placed(Class::OnDemand)), (7, 3));
}

#[test]
fn pods_are_not_moved_where_the_desired_replicas_are_unknown() {
    let mut sim = Sim::new(Spec::new(Split::new(50, 0)), 10, 1);
    sim.run(30);
    sim.spec.split = Split::new(100, 0);
    assert!(sim.decide().evicts(), "a Deployment moves them");
    let decision = decide(&of_another_kind(&sim));
    assert!(!decision.evicts(), "{:?}", decision.actions);
    assert_eq!(decision.counts.drift, 5);
}

/// An eviction would be followed by the same refusal.
#[test]
fn no_pod_is_moved_to_a_class_that_the_api_server_has_just_refused() {
    let mut sim = Sim::new(Spec::new(Split::new(50, 0)), 4, 1);
    sim.run(30);
    sim.spec.split = Split::new(100, 0);
    let on_demand = sim.pods.iter().position(|pod| pod.class == Some(Class::OnDemand) && pod.occupies()).unwrap();

    sim.pods[on_demand].refused = Some(Class::OnDemand);
    assert!(sim.decide().evicts(), "spot is not refused");
    sim.pods[on_demand].refused = Some(Class::Spot);
    let decision = sim.decide();
    assert!(!decision.evicts() && reports(&decision, "PlacementRefused"), "{:?}", decision.actions);
    let created = sim.pods[on_demand].created;
    sim.pods[on_demand].created = sim.now - SignedDuration::from_mins(20);
    assert!(sim.decide().evicts(), "the policy may have changed since");
    sim.pods[on_demand].created = created;
    sim.pods[on_demand].deleting = true;
    assert!(!reports(&sim.decide(), "PlacementRefused"), "its replacement tries the class again");
}
