//! The decision about a StatefulSet. The webhook places its pods by ordinal alone; what is left is
//! reporting, fallback and, if requested, moves.
//!
//! Never writes to pods. The slots that fall back are stored on the workload, where the webhook
//! reads them, before a pod is removed.

mod on_demand;

use std::collections::{HashMap, HashSet};

use super::Class;
use super::decide::{finish, read_state, report_notes, template_selects_capacity};
use super::decision::{Action, Counts, PlacementDecision};
use super::moves::{
    Blocked, candidate, may_disrupt, may_leave, may_move_to, no_candidate, record_move, record_probe, record_success,
    report_refused, surely_ready,
};
use super::node_labels::Choice;
use super::occupancy::{Occupant, count};
use super::slots::Split;
use super::spec::Strength;
use super::state::PlacementState;
use super::supply::on_demand::is_short;
use super::supply::report::{report, report_capacity};
use super::supply::shortage::{FALLS_BACK, delete, wrong_class};
use super::supply::{Breaker, SupplyObservation, Transition, Way, step};
use super::ungate::{UngateReason, ungate};
use super::volumes::{IN_OTHER_CLASS, follow_volumes};
use super::workload::Managed;

/// Returns the class of a slot and whether it is a fallback. The webhook and the decision both use
/// it.
pub(super) fn class_of(slot: u32, split: Split, state: &PlacementState) -> (Class, bool) {
    if let Some(class) = state.volume_slots.get(&slot) {
        return (*class, false);
    }
    let class = split.class(slot);
    if class == Class::OnDemand && is_short(state) && state.spot_slots.contains(&slot) {
        return (Class::Spot, false);
    }
    let falls_back = class == Class::Spot && state.breaker.is_open() && state.fallback_slots.contains(&slot);
    if falls_back { (Class::OnDemand, true) } else { (class, false) }
}

pub(super) fn decide(workload: &Managed<'_>, start: u32) -> PlacementDecision {
    let mut decision = PlacementDecision::default();
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
    decision.counts = counts(&occupants, workload, &before);
    if workload.view.template != Choice::Any {
        decision.actions.push(template_selects_capacity());
        return decision;
    }
    report_capacity(workload, &occupants.iter(), &mut decision);
    report_refused(workload, &mut decision);
    report_notes(workload, &mut decision);
    follow_volumes(workload, &occupants, &mut state, &mut decision);
    on_demand::handle_shortage(workload, &occupants, &mut state, &mut decision);
    let mut removals = handle_shortage(workload, &occupants, &mut state, &mut decision);
    if removals.is_empty() && workload.spec.move_stateful {
        removals.extend(repair(workload, &occupants, &before, &mut state, &mut decision));
    }
    let runs = |occupant: &Occupant<'_>| !occupant.gated && !occupant.unbound();
    let complete = count(occupants.iter()) == workload.view.replicas && occupants.iter().all(runs);
    if removals.is_empty() && complete && decision.counts.is_exact() {
        record_success(&mut state);
    }
    // The removals for a changed state belong to the next decision, which an own write does not
    // trigger.
    if removals.is_empty() && before != state {
        decision.revisit_at(workload.now);
    }
    finish(workload, &before, &state, removals, decision)
}

fn counts(occupants: &[Occupant<'_>], workload: &Managed<'_>, state: &PlacementState) -> Counts {
    let short = state.breaker.is_open();
    let by_volume = |slot: u32| state.volume_slots.get(&slot).copied();
    let is_excused = |occupant: &Occupant<'_>| {
        let on_spot = || occupant.is(Class::Spot) && state.on_demand.is_open();
        short && occupant.fallback || on_spot() && occupant.slot.is_some_and(|slot| state.spot_slots.contains(&slot))
    };
    let (split, replicas) = (workload.spec.split, workload.view.replicas);
    let of = |class| occupants.iter().filter(move |occupant| occupant.is(class));
    let misplaced = |occupant: &&Occupant<'_>| {
        let placed = occupant.class.zip(occupant.slot).filter(|_| !occupant.gated);
        let stray = occupant.is_stray() && workload.spec.strength == Strength::Required;
        stray || placed.is_some_and(|(class, slot)| by_volume(slot).unwrap_or_else(|| split.class(slot)) != class)
    };
    let unplaced = |class| occupants.iter().filter(move |occupant| workload.unplaced(occupant, class).is_some());
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
        unplaced_spot: count(unplaced(Class::Spot)),
        unplaced_on_demand: count(unplaced(Class::OnDemand)),
        drift: count(occupants.iter().filter(misplaced).filter(|occupant| !is_excused(occupant))),
    }
}

fn handle_shortage(
    workload: &Managed<'_>,
    occupants: &[Occupant<'_>],
    state: &mut PlacementState,
    decision: &mut PlacementDecision,
) -> Vec<Action> {
    let split = workload.spec.split;
    let by_volume = state.volume_slots.clone();
    state.fallback_slots.retain(|slot| {
        *slot < workload.view.replicas && split.class(*slot) == Class::Spot && !by_volume.contains_key(slot)
    });
    // A pod that can run in one class only proves nothing about the capacity for others.
    let judged = occupants.iter().filter(|occupant| occupant.slot.is_none_or(|slot| !by_volume.contains_key(&slot)));
    let observed = workload.observe(&judged, state.breaker, decision);
    let found = find_probe(workload, occupants, state, observed.evidence);
    // Without permission to move pods, running fallback pods stay: their slots try spot again when
    // their pods are next created.
    let fallen = |occupant: &&Occupant<'_>| occupant.slot.is_some_and(|slot| state.fallback_slots.contains(&slot));
    let unbound = count(occupants.iter().filter(fallen).filter(|occupant| occupant.unbound()));
    let all = u32::try_from(state.fallback_slots.len()).unwrap_or(u32::MAX);
    let excess = if workload.spec.move_stateful { all } else { unbound };
    let way = found.as_ref().ok().map(|(way, _)| *way);
    let observed = SupplyObservation { excess, way, ..observed };
    let (breaker, transition) = step(state.breaker, &observed, workload.spec.fallback_after, workload.now);
    if let (Breaker::Open { probe, .. }, Err(Some(blocked))) = (breaker, &found)
        && probe <= workload.now
    {
        blocked.clone().of_probe(workload).wait(decision);
    }
    decision.search_room(workload.room_search(breaker, &observed, &found, occupants.iter()), workload.now);
    state.breaker = breaker;
    report(Class::Spot, transition, &observed, decision);
    match (transition, found) {
        (Transition::Closed, _) => {
            state.fallback_slots.clear();
            record_success(state);
        }
        // The webhook must read the new state first. The next decision removes the pod, whose slot
        // is then in the wrong class.
        (Transition::Probe, Ok((_, slot))) => state.fallback_slots.retain(|fallen| *fallen != slot),
        _ => {}
    }
    if let Breaker::Open { probe, .. } = breaker {
        decision.revisit_at(workload.probe_at(probe));
    }
    if breaker.is_open() {
        extend_fallback(workload, occupants, state);
    }
    misplaced_unbound(workload, occupants, state)
}

/// Adds every spot slot without a running spot pod to the fallback slots, up to the budget: the
/// next pod of such a slot does not have to find out again that spot is short.
fn extend_fallback(workload: &Managed<'_>, occupants: &[Occupant<'_>], state: &mut PlacementState) {
    let (split, replicas) = (workload.spec.split, workload.view.replicas);
    let by_slot: HashMap<u32, &Occupant<'_>> =
        occupants.iter().filter_map(|occupant| Some((occupant.slot?, occupant))).collect();
    let runs_on_spot = |slot: &u32| by_slot.get(slot).is_some_and(|o| o.is(Class::Spot) && !o.unbound());
    let known: HashSet<u32> = state.fallback_slots.iter().copied().collect();
    let mut outside: Vec<u32> = (0..replicas)
        .filter(|slot| split.class(*slot) == Class::Spot && !state.volume_slots.contains_key(slot))
        .filter(|slot| !runs_on_spot(slot) && !known.contains(slot))
        .collect();
    // One of them is the probe: the slot whose pod waits for spot, else the one whose pod is about
    // to be moved there.
    if let Breaker::Probing { .. } = state.breaker {
        let rank = |slot: &u32| match by_slot.get(slot) {
            Some(occupant) if occupant.is(Class::Spot) => 0,
            Some(_) => 1,
            None => 2,
        };
        outside.sort_by_key(|slot| (rank(slot), *slot));
        outside = outside.split_off(usize::from(!outside.is_empty()));
    }
    let room = usize::try_from(workload.budget(replicas)).unwrap_or(usize::MAX);
    outside.truncate(room.saturating_sub(state.fallback_slots.len()));
    state.fallback_slots.extend(outside);
    state.fallback_slots.sort_unstable();
}

/// Removes pods that wait for a node in another class than that of their slot, once the webhook can
/// read the class of their replacements.
fn misplaced_unbound(workload: &Managed<'_>, occupants: &[Occupant<'_>], state: &PlacementState) -> Vec<Action> {
    let (split, cached) = (workload.spec.split, workload.view.state());
    let wrong = occupants.iter().filter_map(|occupant| {
        let (slot, class) = (occupant.slot?, occupant.class?);
        let (wanted, falls_back) = class_of(slot, split, state);
        workload.assigned(occupant, class).then_some(())?;
        let published = class_of(slot, split, &cached).0 == wanted;
        let reason = if falls_back {
            FALLS_BACK
        } else if state.volume_slots.contains_key(&slot) {
            IN_OTHER_CLASS
        } else {
            wrong_class(class)
        };
        (published && wanted != class).then(|| delete(occupant, reason))
    });
    wrong.collect()
}

/// Checks whether a running pod may be evicted as a probe.
fn may_probe(
    workload: &Managed<'_>,
    occupants: &[Occupant<'_>],
    state: &PlacementState,
    evidence: bool,
) -> Result<(), Blocked> {
    if occupants.iter().any(|occupant| workload.stuck(occupant, Class::OnDemand)) {
        workload.may_give_way(state, evidence)
    } else {
        workload.may_probe(state, evidence)
    }
}

/// Finds the slot whose probe costs least. The error is the reason for which a running pod may not
/// be evicted, if that is the only way.
fn find_probe(
    workload: &Managed<'_>,
    occupants: &[Occupant<'_>],
    state: &PlacementState,
    evidence: bool,
) -> Result<(Way, u32), Option<Blocked>> {
    if !state.breaker.is_open() || state.fallback_slots.is_empty() {
        return Err(None);
    }
    let fallen = |slot: &u32| state.fallback_slots.contains(slot);
    let unbound = occupants.iter().filter_map(|occupant| {
        let slot = occupant.slot.filter(fallen)?;
        workload.assigned(occupant, Class::OnDemand).then_some(())?;
        let stuck = workload.stuck(occupant, Class::OnDemand);
        Some((if stuck { Way::Stranded } else { Way::Unbound }, slot))
    });
    if let Some(found) = unbound.max() {
        return Ok(found);
    }
    let present: HashSet<u32> = occupants.iter().filter_map(|occupant| occupant.slot).collect();
    let created = state.fallback_slots.iter().find(|slot| !present.contains(slot)).map(|slot| (Way::Created, *slot));
    // While a pod waits for a node, a StatefulSet with ordered pods creates no other one.
    let waits = occupants.iter().any(|occupant| workload.stuck(occupant, Class::OnDemand));
    let evicted = match created {
        Some(created) if !waits => return Ok(created),
        _ if !workload.spec.move_stateful => Err(None),
        _ => may_probe(workload, occupants, state, evidence).map_err(Some).and_then(|()| {
            let movable = occupants.iter().filter(|occupant| !occupant.pod.protected && !occupant.pending);
            let slot = movable.filter_map(|occupant| occupant.slot.filter(fallen)).max();
            slot.map(|slot| (Way::Eviction, slot)).ok_or_else(|| Some(no_candidate(occupants.iter())))
        }),
    };
    evicted.or_else(|blocked| created.ok_or(blocked))
}

fn repair(
    workload: &Managed<'_>,
    occupants: &[Occupant<'_>],
    before: &PlacementState,
    state: &mut PlacementState,
    decision: &mut PlacementDecision,
) -> Option<Action> {
    let slots = |state: &PlacementState| (state.fallback_slots.clone(), state.spot_slots.clone());
    if before.breaker != state.breaker || before.on_demand != state.on_demand || slots(before) != slots(state) {
        return None;
    }
    let probing = matches!(state.breaker, Breaker::Probing { .. });
    let wanted = |slot: u32| class_of(slot, workload.spec.split, state).0;
    let mut open = [Class::Spot, Class::OnDemand].to_vec();
    open.retain(|class| match may_move_to(*class, workload) {
        Ok(()) => true,
        Err(blocked) => {
            decision.revisit_at(blocked.until.unwrap_or(workload.now));
            false
        }
    });
    let misplaced: Vec<&Occupant<'_>> = occupants
        .iter()
        .filter(|occupant| !occupant.gated)
        .filter(|occupant| occupant.slot.is_none_or(|slot| open.contains(&wanted(slot))))
        .filter(|occupant| match (occupant.slot.map(wanted), occupant.class) {
            // On-demand is short: a pod on spot keeps running there.
            (Some(Class::OnDemand), Some(Class::Spot)) => {
                !state.on_demand.is_open() || occupant.slot.is_none_or(|slot| !state.spot_slots.contains(&slot))
            }
            (Some(wanted), Some(class)) => {
                wanted != class && (wanted == Class::OnDemand || probing || !state.breaker.is_open())
            }
            (Some(wanted), None) => {
                let usable = wanted == Class::OnDemand || !state.breaker.is_open();
                workload.spec.strength == Strength::Required
                    && occupant.is_stray()
                    && usable
                    && workload.nodes.of(wanted).total > 0
            }
            (None, _) => false,
        })
        .collect();
    let drift = count(misplaced.iter());
    if drift == 0 {
        return None;
    }
    let evidence = workload.evidence(Class::Spot, state.breaker);
    let may = if probing { may_probe(workload, occupants, state, evidence) } else { may_disrupt(workload, state) };
    if let Err(blocked) = may {
        blocked.wait(decision);
        return None;
    }
    let ready = surely_ready(occupants.iter(), workload);
    // Moves towards on-demand come first, because the floor needs them.
    let found = [Class::Spot, Class::OnDemand]
        .into_iter()
        .find_map(|class| candidate(misplaced.iter().copied(), class, ready, workload));
    let stray = || {
        misplaced.iter().copied().find(|occupant| occupant.is_stray() && !occupant.pending && !occupant.pod.protected)
    };
    let Some(occupant) = found.or_else(stray) else {
        no_candidate(occupants.iter()).wait(decision);
        return None;
    };
    let towards = occupant.slot.map_or(Class::OnDemand, wanted);
    let allowed = if probing { Ok(()) } else { may_leave(workload, occupant.pod, towards, decision) };
    if let Err(blocked) = allowed {
        blocked.wait(decision);
        return None;
    }
    if occupant.pod.volume.is_none() {
        decision.volume_checks.push(occupant.pod.into());
    }
    if probing {
        record_probe(state, workload.now);
    } else {
        record_move(state, drift, occupant.pod, workload);
    }
    let reason = format!("slot {} is in the wrong class, as {drift} in total", occupant.slot.unwrap_or_default());
    Some(Action::Evict { pod: occupant.pod.into(), reason })
}
