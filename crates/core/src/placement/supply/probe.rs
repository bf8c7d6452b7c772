//! The probe of a Deployment: the pod that costs least, and its stage.

use super::shortage::{TRIES_SPOT, delete, sent_since};
use super::{Breaker, ProbeStage, Way};
use crate::placement::Class;
use crate::placement::decision::{Action, PlacementDecision};
use crate::placement::hold::SpotHold;
use crate::placement::moves::{Blocked, candidate, no_candidate, surely_ready};
use crate::placement::node_labels::Choice;
use crate::placement::occupancy::{Group, Occupant, count};
use crate::placement::spec::Strength;
use crate::placement::state::PlacementState;
use crate::placement::workload::Managed;

/// A pod that can be the probe.
pub(super) struct ProbePod {
    pub way: Way,
    /// The UID and removal of an existing pod. None: the next pod that is placed.
    pub pod: Option<(String, Action)>,
}

/// Finds the probe that costs least. The error is the reason for which a running pod may not be
/// evicted, if that is the only way.
pub(super) fn find_probe(
    workload: &Managed<'_>,
    groups: &[Group<'_>],
    state: &PlacementState,
    evidence: bool,
) -> Result<ProbePod, Option<Blocked>> {
    let split = workload.spec.split;
    if !state.breaker.is_open() || workload.spec.strength != Strength::Required {
        return Err(None);
    }
    let over = |group: &&Group<'_>| group.surplus(Class::OnDemand, split) > 0;
    let fallen = groups.iter().filter(over).flat_map(|group| &group.occupants);
    let fallen = fallen.filter(|occupant| workload.assigned(occupant, Class::OnDemand));
    let unbound = fallen.max_by_key(|occupant| (workload.stuck(occupant, Class::OnDemand), occupant.slot));
    if let Some(occupant) = unbound {
        let way = if workload.stuck(occupant, Class::OnDemand) { Way::Stranded } else { Way::Unbound };
        let pod = Some((occupant.pod.uid.clone(), delete(occupant, TRIES_SPOT)));
        return Ok(ProbePod { way, pod });
    }
    if gated_spot_pods(workload, groups).any(|pods| pods == GatedSpotPods::Free) {
        return Ok(ProbePod { way: Way::Created, pod: None });
    }
    let all = || groups.iter().flat_map(|group| &group.occupants);
    let Some(fallen) = groups.iter().find(over) else { return Err(None) };
    if all().any(|occupant| workload.stuck(occupant, Class::OnDemand)) {
        workload.may_give_way(state, evidence).map_err(Some)?;
    } else {
        let active = groups.iter().filter(|group| group.n() > 0 || !group.occupants.is_empty());
        if count(active) != 1 || !fallen.settled() {
            return Err(None);
        }
        workload.may_probe(state, evidence).map_err(Some)?;
    }
    let ready = surely_ready(all(), workload);
    let Some(occupant) = candidate(fallen.occupants.iter(), Class::OnDemand, ready, workload) else {
        return Err(Some(no_candidate(fallen.occupants.iter())));
    };
    let reason = "probing whether spot capacity is back".to_owned();
    let action = Action::Evict { pod: occupant.pod.into(), reason };
    Ok(ProbePod { way: Way::Eviction, pod: Some((occupant.pod.uid.clone(), action)) })
}

/// Permission to place the gated spot pods of a ReplicaSet now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GatedSpotPods {
    Free,
    Held,
}

/// Returns a value for each ReplicaSet that has gated pods and spot slots for them.
fn gated_spot_pods(workload: &Managed<'_>, groups: &[Group<'_>]) -> impl Iterator<Item = GatedSpotPods> {
    let rollout = count(groups.iter().filter(|group| !group.occupants.is_empty())) > 1;
    let wants_spot = move |group: &&Group<'_>| {
        let gated = group.occupants.iter().any(|occupant| occupant.gated && occupant.pod.choice == Choice::Any);
        gated && group.count(Class::Spot) < workload.spec.split.spot(group.n())
    };
    groups.iter().filter(wants_spot).map(move |group| match SpotHold::new(group, workload, rollout).next() {
        Some(_) => GatedSpotPods::Held,
        None => GatedSpotPods::Free,
    })
}

/// Returns the stage of a Deployment's probe.
pub(in crate::placement) fn probe_stage(
    workload: &Managed<'_>,
    groups: &[Group<'_>],
    state: &PlacementState,
    decision: &mut PlacementDecision,
) -> ProbeStage {
    match state.breaker {
        Breaker::Probing { since, .. } => {
            let all = groups.iter().flat_map(|group| &group.occupants);
            let mut sent = all.filter(|occupant| sent_since(occupant, since)).peekable();
            let untried = |occupant: &Occupant<'_>| occupant.unbound() && occupant.pod.unschedulable.is_none();
            match (sent.peek().is_some(), sent.any(untried)) {
                (false, _) => ProbeStage::Due,
                (true, true) => ProbeStage::Untried,
                (true, false) => ProbeStage::None,
            }
        }
        Breaker::Open { probe, .. } => {
            decision.revisit_at(workload.probe_at(probe));
            let may_probe = probe <= workload.now || workload.evidence(Class::Spot, state.breaker);
            let mut all = groups.iter().flat_map(|group| &group.occupants);
            let waits = all.any(|occupant| workload.unplaced(occupant, Class::Spot).is_some());
            let held = gated_spot_pods(workload, groups).any(|pods| pods == GatedSpotPods::Held);
            if may_probe && !waits && held { ProbeStage::Held } else { ProbeStage::None }
        }
        Breaker::Closed | Breaker::Wary { .. } => ProbeStage::None,
    }
}
