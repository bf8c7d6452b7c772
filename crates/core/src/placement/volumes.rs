//! Slots of a StatefulSet that are placed by their volume: it exists on nodes of one class only, so
//! that the pod can run nowhere else.
//!
//! The operator reads the volumes of a pod when they may matter: the scheduler found no node because
//! of a volume, the pod is about to be evicted, or its slot was placed by its volume before. The
//! class is stored on the workload, where the webhook reads it.

use super::decision::{PlacementDecision, WorkloadEvent};
use super::node_labels::Choice;
use super::occupancy::{Occupant, count};
use super::spec::Strength;
use super::state::PlacementState;
use super::workload::Managed;

pub(super) const IN_OTHER_CLASS: &str = "its volume exists in the other class only: its replacement runs there";

/// Updates the slots that are placed by their volume, and adds the pods whose volumes must be read.
pub(super) fn follow_volumes(
    workload: &Managed<'_>,
    occupants: &[Occupant<'_>],
    state: &mut PlacementState,
    decision: &mut PlacementDecision,
) {
    let replicas = workload.view.replicas;
    state.volume_slots.retain(|slot, _| *slot < replicas && workload.spec.strength == Strength::Required);
    if workload.spec.strength != Strength::Required {
        return;
    }
    for occupant in occupants {
        let Some(slot) = occupant.slot else { continue };
        match occupant.pod.volume {
            Some(Choice::Only(class)) => {
                state.volume_slots.insert(slot, class);
            }
            // The volume was replaced, or its class cannot be told.
            Some(Choice::Any | Choice::Neither) => {
                state.volume_slots.remove(&slot);
            }
            None => {
                let is_verdict = occupant.unbound() && occupant.pod.volume_verdict;
                if is_verdict || state.volume_slots.contains_key(&slot) {
                    decision.volume_checks.push(occupant.pod.into());
                }
            }
        }
    }
    let elsewhere = state.volume_slots.iter().filter(|(slot, class)| workload.spec.split.class(**slot) != **class);
    let elsewhere = count(elsewhere);
    if elsewhere > 0 {
        decision.actions.push(WorkloadEvent::lasting_note(
            "PlacedByVolume",
            format!("{elsewhere} pods run in the class in which their volumes exist, not in that of their slots"),
        ));
    }
}
