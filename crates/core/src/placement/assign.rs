//! Assignment of class and slot to gated pods, and of the places that future pods get in their
//! create request.
//!
//! Never touches a pod that is already placed.

use super::decision::{Action, PlacementDecision, WorkloadEvent};
use super::hold::{Hold, SpotHold};
use super::node_labels::Choice;
use super::occupancy::{FreeSlots, Group, Occupant, count};
use super::slots::{Floor, Split};
use super::supply::{FallbackAllowance, SpotPod};
use super::ungate::{UngateReason, after, ungate};
use super::workload::{EXPECTED_FOR, Managed, Place};
use super::{Class, FALLBACK, pod_patch};

/// Maximum number of open places in one decision; later decisions add more.
const MAX_OPEN: u32 = 1_024;

/// Places the gated pods of one ReplicaSet: class by counts, the lowest free slot of that class,
/// oldest pod first. On-demand pods come first in the decision, so that the floor is filled before
/// anything else. Updates the occupants accordingly.
pub(super) fn assign(
    group: &mut Group<'_>,
    workload: &Managed<'_>,
    allowance: &mut FallbackAllowance,
    rollout: bool,
    decision: &mut PlacementDecision,
) {
    let split = workload.spec.split;
    let n = group.n();
    let gated = group.gated();
    let mut filled = count(group.occupants.iter()) - gated;
    let open = n.saturating_sub(filled + gated).min(MAX_OPEN);
    if gated == 0 && open == 0 {
        // Revokes the places of earlier decisions, which may be filled by now.
        decision.open.insert(group.set.uid.clone(), Vec::new());
        return;
    }
    let (mut spots, mut on_demands) = (group.count(Class::Spot), group.count(Class::OnDemand));
    let mut free = FreeSlots::new(split, group.occupants.len() + 1 + usize::try_from(open).unwrap_or_default());
    for slot in group.occupants.iter().filter(|occupant| !occupant.gated).filter_map(|occupant| occupant.slot) {
        free.take(slot);
    }
    let mut hold = SpotHold::new(group, workload, rollout);
    let expected = group.occupants.iter().filter(|occupant| occupant.pod.expected);
    let expected_until = expected.map(|occupant| after(occupant.pod.created, EXPECTED_FOR)).min();
    let gates_all =
        allowance.short || allowance.on_demand_short || hold.may_hold() || workload.view.template != Choice::Any;
    let open = if gates_all { 0 } else { open };
    let (mut first, mut then) = (Vec::new(), Vec::new());

    let mut gated: Vec<&mut Occupant<'_>> = group.occupants.iter_mut().filter(|occupant| occupant.gated).collect();
    gated.sort_by(|a, b| (a.pod.created, &a.pod.name).cmp(&(b.pod.created, &b.pod.name)));
    for occupant in gated {
        let pod = occupant.pod;
        if pod.choice != Choice::Any {
            occupant.gated = false;
            spots += u32::from(occupant.class == Some(Class::Spot));
            on_demands += u32::from(occupant.class == Some(Class::OnDemand));
            first.push(ungate(pod, UngateReason::Refused, workload.spec.strength, workload.settings));
            continue;
        }
        // Every slot is filled, one of them by an expected pod whose create may have been refused.
        // This pod gets that slot if the expected one does not appear.
        if let Some(expected_until) = expected_until.filter(|_| filled >= n) {
            let until = expected_until.min(after(pod.created, workload.settings.gate_timeout));
            if workload.now < until {
                decision.revisit_at(until);
                let reason = "its slot is reserved for a pod that has not appeared yet".to_owned();
                then.push(Action::Hold { pod: pod.into(), slot: n.saturating_sub(1), until, reason });
                continue;
            }
        }
        filled += 1;
        let wanted = split.next(spots, on_demands);
        let quota_left = on_demands < split.on_demand(n);
        let may_wait = workload.now < after(pod.created, workload.settings.gate_timeout);
        let spot_pod = (wanted == Class::Spot).then(|| allowance.take(quota_left, may_wait));
        let falls_back = spot_pod == Some(SpotPod::FallsBack);
        // Above the floor, a pod runs on spot while on-demand is short.
        let tries_spot = wanted == Class::OnDemand
            && allowance.on_demand_short
            && on_demands >= split.floor().of(n)
            && spots < split.spot(n) + workload.on_demand_budget(n);
        let class = if falls_back || tries_spot { wanted.other() } else { wanted };
        // A fallback pod takes an on-demand slot while there is one, then the highest spot slot. A
        // pod that tries spot takes the highest on-demand slot.
        let high = match wanted {
            Class::Spot if falls_back && !quota_left => free.highest(Class::Spot, split.spot(n)),
            Class::OnDemand if tries_spot => free.highest(Class::OnDemand, split.on_demand(n)),
            Class::Spot | Class::OnDemand => None,
        };
        // If a pod of the other class has the last slot of this class, the pod takes a slot of the
        // other class. Relabelling exchanges them once the ReplicaSet is settled.
        let own = high.or_else(|| free.lowest(class));
        let Some(slot) = own.or_else(|| free.lowest(class.other())) else { continue };
        let fallback = falls_back && high.is_some();
        match class {
            Class::Spot => spots += 1,
            Class::OnDemand => on_demands += 1,
        }
        let reason_to_wait = match (class, spot_pod) {
            (Class::OnDemand, _) => None,
            (Class::Spot, Some(SpotPod::AwaitsProbe)) => Some(Hold::for_probe(workload.settings.gate_timeout)),
            (Class::Spot, _) => hold.next(),
        };
        if let Some(Hold { reason, limit }) = reason_to_wait {
            let until = after(pod.created, limit);
            if workload.now < until {
                decision.revisit_at(until);
                then.push(Action::Hold { pod: pod.into(), slot, until, reason });
                continue;
            }
        }
        if class == Class::Spot {
            hold.release_one();
            allowance.sent();
        }
        occupant.gated = false;
        (occupant.class, occupant.slot, occupant.fallback, occupant.pending) =
            (Some(class), Some(slot), fallback, true);
        let selection = workload.settings.labels.select(class, workload.spec.strength, pod.node_affinity.as_ref());
        let patch = pod_patch::place(pod, Place { class, slot }, fallback, selection);
        let reason = reason(class, slot, fallback, falls_back);
        let place = Action::Place { pod: pod.into(), class, slot, fallback, patch, reason };
        if class == Class::OnDemand { first.push(place) } else { then.push(place) }
    }
    if then.iter().any(|action| matches!(action, Action::Place { .. })) && hold.timed_out(group, workload.now) {
        then.push(hold_timed_out(split.floor()));
    }
    decision.actions.append(&mut first);
    decision.actions.append(&mut then);

    let places = (0..open).map_while(|_| next_place(split, (&mut spots, &mut on_demands), &mut free));
    decision.open.insert(group.set.uid.clone(), places.collect());
}

/// Returns the place of the next pod, and counts it.
fn next_place(split: Split, (spots, on_demands): (&mut u32, &mut u32), free: &mut FreeSlots) -> Option<Place> {
    let class = split.next(*spots, *on_demands);
    match class {
        Class::Spot => *spots += 1,
        Class::OnDemand => *on_demands += 1,
    }
    free.lowest(class).map(|slot| Place { class, slot })
}

fn hold_timed_out(floor: Floor) -> Action {
    let message =
        format!("spot pods of the rollout were started although fewer than {floor} of its on-demand pods are Ready");
    WorkloadEvent::warning("HoldTimedOut", message)
}

fn reason(class: Class, slot: u32, fallback: bool, falls_back: bool) -> String {
    match (fallback, falls_back) {
        (true, _) => format!("slot {slot} is spot, but spot capacity is short: on-demand, marked {FALLBACK}"),
        (false, true) => format!("slot {slot} is on-demand, filled early because spot capacity is short"),
        (false, false) => format!("slot {slot} is {class}"),
    }
}
