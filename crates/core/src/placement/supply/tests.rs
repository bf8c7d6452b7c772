//! The breaker, one transition at a time.

use super::*;

const AFTER: SignedDuration = SignedDuration::from_mins(5);

fn at(minutes: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + minutes * 60).unwrap()
}

fn calm() -> SupplyObservation {
    SupplyObservation {
        stuck: 0,
        unplaced: 0,
        last_bound: None,
        excess: 0,
        budget: 9,
        probe: Probe::None,
        way: Some(Way::Eviction),
        evidence: false,
        complete: false,
    }
}

fn short() -> SupplyObservation {
    SupplyObservation { stuck: 1, unplaced: 1, ..calm() }
}

fn run(breaker: Breaker, seen: SupplyObservation, minute: i64) -> (Breaker, Transition) {
    step(breaker, &seen, AFTER, at(minute))
}

#[test]
fn a_stuck_pod_opens_the_breaker_only_within_a_budget() {
    assert_eq!(run(Breaker::Closed, calm(), 0).1, Transition::Stay);
    assert_eq!(run(Breaker::Closed, SupplyObservation { budget: 0, ..short() }, 0).1, Transition::Stay);
    let (open, transition) = run(Breaker::Closed, short(), 0);
    assert_eq!((open, transition), (Breaker::Open { since: at(0), probe: at(5), attempt: 0 }, Transition::Opened));
}

#[test]
fn pauses_double_while_probes_fail() {
    let (mut breaker, _) = run(Breaker::Closed, short(), 0);
    let excess = SupplyObservation { excess: 3, ..calm() };
    let mut pauses = Vec::new();
    for _ in 0..7 {
        let Breaker::Open { since, probe, .. } = breaker else { panic!("{breaker:?}") };
        pauses.push(probe.duration_since(since).as_mins());
        let (probing, transition) = step(breaker, &excess, AFTER, probe);
        assert_eq!(transition, Transition::Probe);
        let failed = SupplyObservation { probe: Probe::Stuck, stuck: 1, unplaced: 1, way: None, ..excess };
        breaker = step(probing, &failed, AFTER, probe + AFTER).0;
    }
    assert_eq!(pauses, [5, 10, 20, 40, 80, 120, 120]);
}

#[test]
fn a_bound_probe_closes_the_breaker_and_an_early_relapse_continues_the_pauses() {
    let probing = Breaker::Probing { since: at(0), attempt: 2, evidence: false, stranded: false };
    let (wary, transition) = run(probing, SupplyObservation { probe: Probe::Bound, ..calm() }, 1);
    assert_eq!(transition, Transition::Closed);
    assert!(matches!(run(wary, short(), 10).0, Breaker::Open { attempt: 3, .. }));
    assert!(matches!(run(wary, short(), 90).0, Breaker::Open { attempt: 0, .. }));
}

/// The table of cases of an open breaker.
#[test]
fn an_open_breaker_takes_the_way_that_costs_least() {
    use Transition::{Closed, Probe, Stay, StillShort};
    let open = Breaker::Open { since: at(0), probe: at(5), attempt: 0 };
    let excess = SupplyObservation { excess: 3, way: None, ..calm() };
    let by = |way: Way| SupplyObservation { way: Some(way), ..excess };
    let evident = |way: Way| SupplyObservation { evidence: true, ..by(way) };
    for (name, seen, minute, expected) in [
        ("nothing can be sent", excess, 5, Stay),
        ("bound since", SupplyObservation { last_bound: Some(at(2)), ..excess }, 3, Closed),
        ("bound before", SupplyObservation { last_bound: Some(at(-2)), ..excess }, 3, Stay),
        ("bound, others wait", SupplyObservation { last_bound: Some(at(2)), unplaced: 1, ..excess }, 3, Stay),
        ("stranded in the other class", by(Way::Stranded), 1, Probe),
        ("unbound, not due", by(Way::Unbound), 4, Stay),
        ("unbound, due", by(Way::Unbound), 5, Probe),
        ("unbound, a new node", evident(Way::Unbound), 1, Probe),
        ("created, not due", by(Way::Created), 4, Stay),
        ("created, due", by(Way::Created), 5, Probe),
        ("created, a new node", evident(Way::Created), 1, Probe),
        ("evicted, not due", by(Way::Eviction), 4, Stay),
        ("evicted, due", by(Way::Eviction), 5, Probe),
        ("evicted, a new node", evident(Way::Eviction), 1, Probe),
        ("one already waits", SupplyObservation { unplaced: 1, ..evident(Way::Eviction) }, 5, Stay),
        ("stuck", SupplyObservation { stuck: 1, unplaced: 1, ..excess }, 5, StillShort),
        ("nothing outside its class", SupplyObservation { way: None, ..calm() }, 5, Closed),
    ] {
        assert_eq!(run(open, seen, minute).1, expected, "{name}");
    }
}

#[test]
fn a_probe_keeps_waiting_while_both_classes_are_short() {
    let probing = Breaker::Probing { since: at(0), attempt: 1, evidence: false, stranded: false };
    let stuck = SupplyObservation { probe: Probe::Stuck, stuck: 1, unplaced: 1, excess: 3, way: None, ..calm() };
    let both = SupplyObservation { way: Some(Way::Stranded), ..stuck };
    assert_eq!(run(probing, both, 60), (probing, Transition::Stay));
    assert_eq!(run(probing, stuck, 60).1, Transition::StillShort);
    assert_eq!(run(probing, SupplyObservation { probe: Probe::Bound, ..both }, 60).1, Transition::Closed);
}

/// A single pod alternates between two classes without capacity: that says nothing about the
/// cost of a later probe.
#[test]
fn a_probe_that_had_no_node_anyway_does_not_lengthen_the_pause() {
    let open = Breaker::Open { since: at(0), probe: at(5), attempt: 1 };
    let stranded = SupplyObservation { excess: 1, way: Some(Way::Stranded), ..calm() };
    let (probing, _) = run(open, stranded, 1);
    let stuck = SupplyObservation { probe: Probe::Stuck, stuck: 1, unplaced: 1, excess: 0, way: None, ..calm() };
    let (again, transition) = run(probing, stuck, 6);
    assert_eq!(
        (again, transition),
        (Breaker::Open { since: at(6), probe: at(16), attempt: 1 }, Transition::StillShort)
    );
}

#[test]
fn a_probe_without_a_replacement_is_given_up() {
    let probing = Breaker::Probing { since: at(0), attempt: 1, evidence: false, stranded: false };
    assert_eq!(run(probing, calm(), 9).1, Transition::Stay);
    assert_eq!(run(probing, calm(), 10).1, Transition::StillShort);
    assert_eq!(run(probing, SupplyObservation { probe: Probe::Waiting, ..calm() }, 10).1, Transition::Stay);
}
