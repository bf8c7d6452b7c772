//! Shortage of on-demand capacity of a StatefulSet, where `on-demand-fallback: spot` allows it: the
//! pods of on-demand slots beyond the floor are created on spot until on-demand capacity is back.
//!
//! Running pods return only if they may be moved, others when they are next created.

use std::cmp::Reverse;
use std::collections::HashMap;

use crate::placement::Class;
use crate::placement::decision::PlacementDecision;
use crate::placement::occupancy::{Occupant, count};
use crate::placement::state::PlacementState;
use crate::placement::supply::Way;
use crate::placement::supply::on_demand::{OnSpot, is_short};
use crate::placement::workload::Managed;

/// Advances the breaker of on-demand and chooses the slots that run on spot.
pub(super) fn handle_shortage(
    workload: &Managed<'_>,
    occupants: &[Occupant<'_>],
    state: &mut PlacementState,
    decision: &mut PlacementDecision,
) {
    let (split, replicas) = (workload.spec.split, workload.view.replicas);
    let by_volume = state.volume_slots.clone();
    let is_on_demand =
        |slot: u32| slot < replicas && split.class(slot) == Class::OnDemand && !by_volume.contains_key(&slot);
    state.spot_slots.retain(|slot| is_on_demand(*slot));
    let by_slot: HashMap<u32, &Occupant<'_>> =
        occupants.iter().filter_map(|occupant| Some((occupant.slot?, occupant))).collect();
    // A slot without a running pod tries on-demand again at no cost.
    let is_free = |slot: &&u32| by_slot.get(*slot).is_none_or(|occupant| occupant.unbound());
    let free = count(state.spot_slots.iter().filter(is_free));
    let moves = workload.spec.move_stateful;
    let all = u32::try_from(state.spot_slots.len()).unwrap_or(u32::MAX);
    let excess = if moves { all } else { free };
    let way = if free > 0 { Some(Way::Created) } else { moves.then_some(Way::Eviction) };
    let judged = occupants.iter().filter(|occupant| occupant.slot.is_none_or(|slot| !by_volume.contains_key(&slot)));
    workload.advance_on_demand(&judged, OnSpot { excess, way }, state, decision);
    if !state.on_demand.is_open() {
        state.spot_slots.clear();
    }
    if !is_short(state) {
        return;
    }
    // Any on-demand slots fill the floor: those whose pods run there, and then the lowest ones.
    let runs = |slot: u32, class: Class| by_slot.get(&slot).is_some_and(|one| one.is(class) && !one.unbound());
    let mut slots: Vec<u32> =
        (0..replicas).filter(|slot| is_on_demand(*slot) && !runs(*slot, Class::OnDemand)).collect();
    slots.sort_by_key(|slot| (!runs(*slot, Class::Spot), Reverse(*slot)));
    slots.truncate(usize::try_from(workload.on_demand_budget(replicas)).unwrap_or(usize::MAX));
    slots.sort_unstable();
    state.spot_slots = slots;
}
