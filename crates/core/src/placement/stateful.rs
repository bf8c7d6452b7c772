//! StatefulSets: the webhook places their pods by ordinal alone, so all that is left is to notice, to fall back and, where it was asked
//! for, to move.
//!
//! Owns the plan for a StatefulSet. Never writes to its pods. What the webhook has to know (the slots that fall back) is on the
//! workload before a pod is removed for it.

use super::Class;
use super::action::{Action, Counts, Event, Plan};
use super::fallback::{Breaker, Observed, State, Verdict, step};
use super::labels::Choice;
use super::moves::{Blocked, candidate, may_disrupt, note, surely_ready};
use super::occupancy::{Seat, count};
use super::rebalance::{Input, announce, delete, finish};
use super::release::{Why, free};
use super::slots::Split;

/// The class of a slot, spot shortage included. What the webhook asks, and the plan after it.
pub(super) fn class_of(slot: u32, split: Split, state: &State) -> (Class, bool) {
    let class = split.class(slot);
    let fallen = class == Class::Spot && state.breaker.is_open() && state.fallen.contains(&slot);
    if fallen { (Class::OnDemand, true) } else { (class, false) }
}

pub(super) fn plan(input: &Input<'_>, start: u32) -> Plan {
    let mut plan = Plan::default();
    let before = input.state(&mut plan);
    let mut state = before.clone();
    let owned = input.pods.iter().filter(|pod| pod.owner == input.workload.uid);
    let seats: Vec<Seat<'_>> = owned
        .filter_map(|pod| {
            let slot = pod.ordinal?.checked_sub(start).filter(|slot| *slot < input.workload.replicas)?;
            let seat = Seat::new(pod, input.own, input.spec.strength)?;
            Some(Seat { slot: Some(slot), ..seat })
        })
        .collect();
    for seat in seats.iter().filter(|seat| seat.gated) {
        plan.actions.push(free(seat.pod, Why::Unmanaged, input.spec.strength, input.settings));
    }
    plan.counts = counts(&seats, input, before.breaker.is_open());
    if input.workload.template != Choice::Any {
        let message = "its pod template selects or excludes a capacity type: its pods are counted and left alone";
        plan.actions.push(Action::Tell(Event::grievance("ChoosesCapacityItself", message)));
        return plan;
    }
    for text in input.spec.notes(input.workload.replicas) {
        plan.actions.push(Event::remark("PlacementNote", text));
    }
    if input.spec.paused {
        return plan;
    }
    let mut removals = shortage(input, &seats, &mut state, &mut plan);
    if removals.is_empty() && input.spec.move_stateful {
        removals.extend(repair(input, &seats, &before, &mut state, &mut plan));
    }
    // What is removed for it is the next look's, and our own write is no reason for one.
    if removals.is_empty() && before != state {
        plan.by(input.now);
    }
    finish(input, &before, &state, removals, plan)
}

fn counts(seats: &[Seat<'_>], input: &Input<'_>, short: bool) -> Counts {
    let (split, replicas) = (input.spec.split, input.workload.replicas);
    let of = |class| seats.iter().filter(move |seat| seat.is(class));
    let astray = |seat: &&Seat<'_>| matches!((seat.class, seat.slot), (Some(class), Some(slot)) if !seat.gated && split.class(slot) != class);
    Counts {
        replicas,
        desired_spot: split.spot(replicas),
        desired_on_demand: split.on_demand(replicas),
        spot: count(of(Class::Spot)),
        on_demand: count(of(Class::OnDemand)),
        ready_on_demand: count(of(Class::OnDemand).filter(|seat| seat.pod.ready)),
        fallback: count(seats.iter().filter(|seat| seat.fallback)),
        gated: count(seats.iter().filter(|seat| seat.gated)),
        unknown: count(seats.iter().filter(|seat| !seat.gated && seat.class.is_none())),
        drift: count(seats.iter().filter(astray).filter(|seat| !(short && seat.fallback))),
    }
}

fn shortage(input: &Input<'_>, seats: &[Seat<'_>], state: &mut State, plan: &mut Plan) -> Vec<Action> {
    state.fallen.retain(|slot| *slot < input.workload.replicas);
    // Without leave to move pods there is nothing to probe with: fallen slots simply try spot again when they are next created.
    let fallen = if input.spec.move_stateful { u32::try_from(state.fallen.len()).unwrap_or(u32::MAX) } else { 0 };
    let observed = input.observe(seats.iter(), state.breaker, plan);
    let observed = Observed { fallen, may_disrupt: may_disrupt(input, state).is_ok(), ..observed };
    let (breaker, verdict) = step(state.breaker, &observed, input.spec.fallback_after, input.now);
    state.breaker = breaker;
    announce(verdict, &observed, plan);
    match verdict {
        Verdict::Closed => state.fallen.clear(),
        // The webhook has to know first; the eviction is the next look's, as a slot that is in the wrong class.
        Verdict::Probe => {
            state.fallen.sort_unstable();
            state.fallen.pop();
        }
        Verdict::Stay | Verdict::Opened | Verdict::StillShort => {}
    }
    if let Breaker::Open { probe, .. } = breaker {
        plan.by(input.probe_at(probe));
    }
    if !breaker.is_open() {
        return Vec::new();
    }
    let (seen, _) = State::read(input.workload.state.as_deref());
    let mut removals = Vec::new();
    for seat in seats.iter().filter(|seat| !seat.unseen && input.stuck(seat)) {
        let Some(slot) = seat.slot else { continue };
        if class_of(slot, input.spec.split, &seen).1 && state.fallen.contains(&slot) {
            removals.push(delete(seat));
        } else if !state.fallen.contains(&slot)
            && state.fallen.len() < usize::try_from(observed.budget).unwrap_or(usize::MAX)
        {
            state.fallen.push(slot);
        }
    }
    state.fallen.sort_unstable();
    removals
}

fn repair(input: &Input<'_>, seats: &[Seat<'_>], before: &State, state: &mut State, plan: &mut Plan) -> Option<Action> {
    if before.breaker != state.breaker || before.fallen != state.fallen {
        return None;
    }
    let probing = matches!(state.breaker, Breaker::Probing { .. });
    let astray: Vec<&Seat<'_>> = seats
        .iter()
        .filter(|seat| !seat.gated)
        .filter(|seat| match (seat.slot, seat.class) {
            (Some(slot), Some(class)) => {
                let wanted = class_of(slot, input.spec.split, state).0;
                wanted != class && (wanted == Class::OnDemand || probing || !state.breaker.is_open())
            }
            _ => false,
        })
        .collect();
    let drift = count(astray.iter());
    if drift == 0 {
        return None;
    }
    if let Err(blocked) = may_disrupt(input, state) {
        blocked.wait(plan);
        return None;
    }
    let ready = surely_ready(seats.iter(), input);
    // Towards on-demand first: it is what the floor needs.
    let found = [Class::Spot, Class::OnDemand]
        .into_iter()
        .find_map(|class| candidate(astray.iter().copied(), class, ready, input));
    let Some(seat) = found else {
        Blocked::new("no pod can be given up without going below min-on-demand").wait(plan);
        return None;
    };
    note(state, drift, input.now);
    let reason = format!("slot {} is in the wrong class, one of {drift}", seat.slot.unwrap_or_default());
    Some(Action::Evict { pod: seat.pod.into(), reason })
}
