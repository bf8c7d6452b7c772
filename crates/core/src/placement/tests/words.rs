//! The one sentence that explains a workload.

use super::sim::Sim;
use crate::placement::decision::{Counts, PlacementDecision};
use crate::placement::explain::why;
use crate::placement::slots::Split;
use crate::placement::spec::Spec;
use crate::placement::state::PlacementState;
use crate::placement::workload::{Kind, Workload, WorkloadView};

fn explained(sim: &Sim) -> String {
    why(&sim.workload(), &sim.spec, &sim.decide())
}

#[test]
fn every_deviation_has_a_reason_while_spot_is_short() {
    let mut sim = Sim::new(Spec::new(Split::new(70, 3)), 10, 1);
    sim.settle();
    assert_eq!(explained(&sim), "as requested");

    sim.replicas = 20;
    sim.spot_room = 9;
    sim.run(61);
    while !PlacementState::read(sim.state.as_deref()).0.breaker.is_open() {
        sim.tick();
    }
    sim.run(6);

    let counts = sim.last.counts;
    assert_eq!((counts.spot, counts.on_demand, counts.fallback), (9, 11, 5));
    assert_eq!(counts.drift, 0, "fallback pods are not drift while spot is short");
    let text = explained(&sim);
    assert!(text.starts_with("spot has been short for 30s: 5 run on-demand, next probe in 4m"), "{text}");
}

#[test]
fn fallback_pods_are_in_the_wrong_class_once_spot_is_back() {
    let mut sim = Sim::new(Spec::new(Split::new(70, 3)), 10, 1);
    sim.spot_room = 4;
    sim.run(100);
    assert_eq!((sim.last.counts.fallback, sim.last.counts.drift), (3, 0));
    sim.state = None;
    let counts = sim.decide().counts;
    assert_eq!((counts.fallback, counts.drift), (3, 3));
}

fn at_rest(kind: Kind, change: impl FnOnce(&mut Spec, &mut Counts)) -> String {
    let sim = Sim::new(Spec::new(Split::new(50, 0)), 4, 1);
    let mut spec = sim.spec.clone();
    let mut counts =
        Counts { replicas: 4, desired_spot: 2, desired_on_demand: 2, spot: 2, on_demand: 2, ..Counts::default() };
    change(&mut spec, &mut counts);
    let view = WorkloadView { kind, ..sim.view() };
    let workload = Workload { view, ..sim.workload() };
    why(&workload, &spec, &PlacementDecision { counts, ..PlacementDecision::default() })
}

#[test]
fn every_deviation_from_the_request_has_a_reason() {
    let set = Kind::StatefulSet { start: 0 };
    let other = Kind::Other { api_version: "example.com/v1".into(), kind: "Fleet".into() };
    assert_eq!(at_rest(set.clone(), |_, _| ()), "as requested");
    let text = at_rest(Kind::Deployment, |spec, counts| (spec.paused, counts.drift) = (true, 1));
    assert!(text.contains("paused by annotation"), "{text}");
    let text = at_rest(set, |_, counts| counts.drift = 2);
    assert!(text.starts_with("2 in the wrong class") && text.contains("move-statefulset-pods"), "{text}");
    let text = at_rest(Kind::Deployment, |_, counts| counts.drift = 2);
    assert!(text.contains("rolling out"), "{text}");
    let text = at_rest(other, |_, counts| counts.drift = 2);
    assert!(text.contains("desired replicas are not known"), "{text}");
    let text = at_rest(Kind::Deployment, |_, counts| (counts.gated, counts.spot) = (1, 1));
    assert!(text.contains("about to be placed"), "{text}");
    let text = at_rest(Kind::Deployment, |_, counts| counts.spot = 1);
    assert_eq!(text, "1 of 4 replicas do not exist yet");
    let text = at_rest(Kind::Deployment, |_, counts| counts.spot = 3);
    assert_eq!(text, "1 replicas more than 4 still exist");
}
