//! The decision about a StatefulSet. The webhook places its pods by ordinal alone; what is left is
//! reporting, fallback and, if requested, moves.
//!
//! Never writes to pods. The slots that fall back are stored on the workload, where the webhook
//! reads them, before a pod is removed.

use super::Class;
use super::decide::{finish, read_state, report_notes, template_selects_capacity};
use super::decision::{Action, Counts, Decision};
use super::moves::{Blocked, candidate, may_disrupt, record_move, surely_ready};
use super::node_labels::Choice;
use super::occupancy::{Occupant, count};
use super::slots::Split;
use super::state::PlacementState;
use super::supply::shortage::{delete_stuck, report};
use super::supply::{Breaker, SupplyObservation, Transition, step};
use super::ungate::{UngateReason, ungate};
use super::workload::Managed;

/// Returns the class of a slot and whether it is a fallback. The webhook and the decision both use
/// it.
pub(super) fn class_of(slot: u32, split: Split, state: &PlacementState) -> (Class, bool) {
    let class = split.class(slot);
    let falls_back = class == Class::Spot && state.breaker.is_open() && state.fallback_slots.contains(&slot);
    if falls_back { (Class::OnDemand, true) } else { (class, false) }
}

pub(super) fn decide(workload: &Managed<'_>, start: u32) -> Decision {
    let mut decision = Decision::default();
    let before = read_state(workload, &mut decision);
    let mut state = before.clone();
    let owned = workload.pods.iter().filter(|pod| pod.owner == workload.view.uid);
    let occupants: Vec<Occupant<'_>> = owned
        .filter_map(|pod| {
            let slot = pod.ordinal?.checked_sub(start).filter(|slot| *slot < workload.view.replicas)?;
            let occupant = Occupant::new(pod, workload.pending, workload.spec.strength)?;
            Some(Occupant { slot: Some(slot), ..occupant })
        })
        .collect();
    for occupant in occupants.iter().filter(|occupant| occupant.gated) {
        let reason = UngateReason::Unmanaged;
        decision.actions.push(ungate(occupant.pod, reason, workload.spec.strength, workload.settings));
    }
    decision.counts = counts(&occupants, workload, before.breaker.is_open());
    if workload.view.template != Choice::Any {
        decision.actions.push(template_selects_capacity());
        return decision;
    }
    report_notes(workload, &mut decision);
    if workload.spec.paused {
        return decision;
    }
    let mut removals = handle_shortage(workload, &occupants, &mut state, &mut decision);
    if removals.is_empty() && workload.spec.move_stateful {
        removals.extend(repair(workload, &occupants, &before, &mut state, &mut decision));
    }
    // The removals for a changed state belong to the next decision, which an own write does not
    // trigger.
    if removals.is_empty() && before != state {
        decision.revisit_at(workload.now);
    }
    finish(workload, &before, &state, removals, decision)
}

fn counts(occupants: &[Occupant<'_>], workload: &Managed<'_>, short: bool) -> Counts {
    let (split, replicas) = (workload.spec.split, workload.view.replicas);
    let of = |class| occupants.iter().filter(move |occupant| occupant.is(class));
    let misplaced = |occupant: &&Occupant<'_>| {
        let placed = occupant.class.zip(occupant.slot).filter(|_| !occupant.gated);
        placed.is_some_and(|(class, slot)| split.class(slot) != class)
    };
    Counts {
        replicas,
        desired_spot: split.spot(replicas),
        desired_on_demand: split.on_demand(replicas),
        spot: count(of(Class::Spot)),
        on_demand: count(of(Class::OnDemand)),
        ready_on_demand: count(of(Class::OnDemand).filter(|occupant| occupant.pod.ready)),
        fallback: count(occupants.iter().filter(|occupant| occupant.fallback)),
        gated: count(occupants.iter().filter(|occupant| occupant.gated)),
        unknown: count(occupants.iter().filter(|occupant| !occupant.gated && occupant.class.is_none())),
        drift: count(occupants.iter().filter(misplaced).filter(|occupant| !(short && occupant.fallback))),
    }
}

fn handle_shortage(
    workload: &Managed<'_>,
    occupants: &[Occupant<'_>],
    state: &mut PlacementState,
    decision: &mut Decision,
) -> Vec<Action> {
    state.fallback_slots.retain(|slot| *slot < workload.view.replicas);
    // Without permission to move pods there is no probe: fallback slots try spot again when their
    // pods are next created.
    let excess =
        if workload.spec.move_stateful { u32::try_from(state.fallback_slots.len()).unwrap_or(u32::MAX) } else { 0 };
    let observed = workload.observe(occupants.iter(), state.breaker, decision);
    let observed = SupplyObservation { excess, may_disrupt: may_disrupt(workload, state).is_ok(), ..observed };
    let (breaker, transition) = step(state.breaker, &observed, workload.spec.fallback_after, workload.now);
    state.breaker = breaker;
    report(transition, &observed, decision);
    match transition {
        Transition::Closed => state.fallback_slots.clear(),
        // The webhook must read the new state first. The next decision evicts the pod, whose slot
        // is then in the wrong class.
        Transition::Probe => {
            state.fallback_slots.sort_unstable();
            state.fallback_slots.pop();
        }
        Transition::Stay | Transition::Opened | Transition::StillShort => {}
    }
    if let Breaker::Open { probe, .. } = breaker {
        decision.revisit_at(workload.probe_at(probe));
    }
    if !breaker.is_open() {
        return Vec::new();
    }
    let cached = workload.view.state();
    let mut removals = Vec::new();
    for occupant in occupants.iter().filter(|occupant| !occupant.pending && workload.stuck(occupant)) {
        let Some(slot) = occupant.slot else { continue };
        if class_of(slot, workload.spec.split, &cached).1 && state.fallback_slots.contains(&slot) {
            removals.push(delete_stuck(occupant));
        } else if !state.fallback_slots.contains(&slot)
            && state.fallback_slots.len() < usize::try_from(observed.budget).unwrap_or(usize::MAX)
        {
            state.fallback_slots.push(slot);
        }
    }
    state.fallback_slots.sort_unstable();
    removals
}

fn repair(
    workload: &Managed<'_>,
    occupants: &[Occupant<'_>],
    before: &PlacementState,
    state: &mut PlacementState,
    decision: &mut Decision,
) -> Option<Action> {
    if before.breaker != state.breaker || before.fallback_slots != state.fallback_slots {
        return None;
    }
    let probing = matches!(state.breaker, Breaker::Probing { .. });
    let misplaced: Vec<&Occupant<'_>> = occupants
        .iter()
        .filter(|occupant| !occupant.gated)
        .filter(|occupant| match (occupant.slot, occupant.class) {
            (Some(slot), Some(class)) => {
                let wanted = class_of(slot, workload.spec.split, state).0;
                wanted != class && (wanted == Class::OnDemand || probing || !state.breaker.is_open())
            }
            _ => false,
        })
        .collect();
    let drift = count(misplaced.iter());
    if drift == 0 {
        return None;
    }
    if let Err(blocked) = may_disrupt(workload, state) {
        blocked.wait(decision);
        return None;
    }
    let ready = surely_ready(occupants.iter(), workload);
    // Moves towards on-demand come first, because the floor needs them.
    let found = [Class::Spot, Class::OnDemand]
        .into_iter()
        .find_map(|class| candidate(misplaced.iter().copied(), class, ready, workload));
    let Some(occupant) = found else {
        Blocked::new("any eviction would go below min-on-demand").wait(decision);
        return None;
    };
    record_move(state, drift, workload.now);
    let reason = format!("slot {} is in the wrong class, as {drift} in total", occupant.slot.unwrap_or_default());
    Some(Action::Evict { pod: occupant.pod.into(), reason })
}
