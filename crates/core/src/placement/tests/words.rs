//! Why a workload is as it is, in one sentence.

use super::sim::Sim;
use crate::placement::action::{Counts, Plan};
use crate::placement::explain::why;
use crate::placement::fallback::State;
use crate::placement::slots::Split;
use crate::placement::spec::Spec;
use crate::placement::view::{Kind, WorkloadView};

fn told(sim: &Sim) -> String {
    why(&sim.workload(), &sim.spec, &sim.look(), sim.now)
}

#[test]
fn nothing_is_left_without_a_reason_while_spot_is_short() {
    let mut sim = Sim::new(Spec::new(Split::new(70, 3)), 10, 1);
    sim.calm();
    assert_eq!(told(&sim), "as asked for");

    sim.replicas = 20;
    sim.spot_room = 9;
    sim.run(61);
    while !State::read(sim.state.as_deref()).0.breaker.is_open() {
        sim.tick();
    }
    sim.run(6);

    let counts = sim.last.counts;
    assert_eq!((counts.spot, counts.on_demand, counts.fallback), (9, 11, 5));
    assert_eq!(counts.drift, 0, "what spot has no room for is where it should be");
    let said = told(&sim);
    assert!(said.starts_with("spot has been short for 30s: 5 run on-demand, tried again in 4m"), "{said}");
}

#[test]
fn fallback_pods_are_in_the_wrong_class_once_spot_is_back() {
    let mut sim = Sim::new(Spec::new(Split::new(70, 3)), 10, 1);
    sim.spot_room = 4;
    sim.run(100);
    assert_eq!((sim.last.counts.fallback, sim.last.counts.drift), (3, 0));
    sim.state = None;
    let counts = sim.look().counts;
    assert_eq!((counts.fallback, counts.drift), (3, 3));
}

fn standing(kind: Kind, change: impl FnOnce(&mut Spec, &mut Counts)) -> String {
    let sim = Sim::new(Spec::new(Split::new(50, 0)), 4, 1);
    let mut spec = sim.spec.clone();
    let mut counts =
        Counts { replicas: 4, desired_spot: 2, desired_on_demand: 2, spot: 2, on_demand: 2, ..Counts::default() };
    change(&mut spec, &mut counts);
    why(&WorkloadView { kind, ..sim.workload() }, &spec, &Plan { counts, ..Plan::default() }, sim.now)
}

#[test]
fn what_is_not_as_asked_for_always_has_a_reason() {
    let set = Kind::StatefulSet { start: 0 };
    assert_eq!(standing(set, |_, _| ()), "as asked for");
    let said = standing(Kind::Deployment, |spec, counts| (spec.paused, counts.drift) = (true, 1));
    assert!(said.contains("paused by annotation"), "{said}");
    let said = standing(set, |_, counts| counts.drift = 2);
    assert!(said.starts_with("2 in the wrong class") && said.contains("move-statefulset-pods"), "{said}");
    let said = standing(Kind::Deployment, |_, counts| counts.drift = 2);
    assert!(said.contains("rolling out"), "{said}");
    let said = standing(Kind::Deployment, |_, counts| (counts.gated, counts.spot) = (1, 1));
    assert!(said.contains("about to be placed"), "{said}");
    let said = standing(Kind::Deployment, |_, counts| counts.spot = 1);
    assert_eq!(said, "1 of 4 replicas are not there yet");
    let said = standing(Kind::Deployment, |_, counts| counts.spot = 3);
    assert_eq!(said, "1 more than 4 replicas are still there");
}
