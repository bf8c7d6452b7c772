//! The only decision about a workload: everything to be done now, in order, with reasons.
//!
//! Owns the order of the steps; each step is a module. One pass, linear in the pods except for
//! sorting them. A decision that is made after the effect of another one finds nothing to do.

use super::decision::{Action, Counts, PlacementDecision, WorkloadEvent};
use super::moves::{give_way, record_success, repair, report_refused};
use super::node_labels::Choice;
use super::occupancy::{Group, count};
use super::spec::{AnnotationProblem, Strength};
use super::state::PlacementState;
use super::supply::on_demand;
use super::supply::probe::probe_stage;
use super::supply::report::report_capacity;
use super::supply::shortage::{allowance, handle_shortage};
use super::ungate::{UngateReason, ungate};
use super::workload::{Kind, Managed, PodView, Workload};
use super::{Class, assign, pod_patch, relabel, stateful};

/// Decides about one workload.
pub fn decide(workload: &Workload) -> PlacementDecision {
    match &workload.spec {
        Ok(Some(spec)) => {
            let managed = Managed::new(workload, spec);
            match managed.view.kind {
                Kind::Deployment | Kind::ReplicaSet | Kind::Other { .. } => by_counts(&managed),
                Kind::StatefulSet { start } => stateful::decide(&managed, start),
            }
        }
        Ok(None) => unmanaged(workload, &[]),
        Err(problems) => unmanaged(workload, problems),
    }
}

/// Ungates the pods of a workload that does not request placement or whose annotations are invalid.
fn unmanaged(workload: &Workload, problems: &[AnnotationProblem]) -> PlacementDecision {
    let mut decision = PlacementDecision::default();
    decision.counts.replicas = workload.view.replicas;
    if !problems.is_empty() {
        let all: Vec<String> = problems.iter().map(ToString::to_string).collect();
        let message = format!("not managed because its annotations are invalid: {}", all.join("; "));
        decision.actions.push(Action::Report(WorkloadEvent::lasting_warning("InvalidPlacement", message)));
    }
    let gated = workload.pods.iter().filter(|pod| pod.gated && pod.occupies());
    let ungated = gated.map(|pod| ungate(pod, UngateReason::Unmanaged, Strength::Required, &workload.settings));
    decision.actions.extend(ungated);
    decision.actions.extend(workload.pods.iter().filter(|pod| is_held_back(workload, pod)).map(|pod| Action::Delete {
        pod: pod.into(),
        reason: "the workload is not managed, and the pod waits in a class: its replacement has none".to_owned(),
    }));
    decision
}

/// Returns whether only the class that Perennial wrote keeps a pod of an unmanaged workload from
/// being scheduled.
fn is_held_back(workload: &Workload, pod: &PodView) -> bool {
    let ours = pod.class.is_some() && pod.choice.class() == pod.class && workload.view.template == Choice::Any;
    let waits = !pod.gated && pod.node.is_none() && pod.unschedulable.is_some();
    ours && waits && pod.occupies() && !workload.pending.removed.contains(&pod.uid)
}

/// Decides about a workload whose pods are interchangeable: the class of a pod depends on counts.
fn by_counts(workload: &Managed<'_>) -> PlacementDecision {
    let mut decision = PlacementDecision::default();
    let before = read_state(workload, &mut decision);
    let mut state = before.clone();
    let mut groups = Group::all(workload.replica_sets, workload.pods, workload.pending, workload.spec.strength);
    decision.counts = counts(&groups, workload, &before);
    report(workload, &groups, &mut decision);

    let placeable = workload.view.template == Choice::Any;
    let mut removals = Vec::new();
    if placeable {
        removals.extend(on_demand::handle_shortage(workload, &mut groups, &mut state, &mut decision));
        removals.extend(handle_shortage(workload, &mut groups, &mut state, &mut decision));
    }
    let mut probe = probe_stage(workload, &groups, &state, &mut decision);
    let busy: Vec<bool> = groups.iter().map(|group| !group.occupants.is_empty()).collect();
    for (index, group) in groups.iter_mut().enumerate() {
        let rollout = busy.iter().enumerate().any(|(other, busy)| *busy && other != index);
        let mut allowance = allowance(workload, group, &state, probe);
        assign::assign(group, workload, &mut allowance, rollout, &mut decision);
        probe = allowance.probe;
    }
    if placeable {
        for group in &mut groups {
            relabel::relabel(group, workload, state.breaker.is_open(), &mut decision);
        }
        if removals.is_empty() {
            removals.extend(give_way(&groups, workload, &mut state, &mut decision));
        }
        if removals.is_empty() {
            removals.extend(repair(&groups, workload, &mut state, &mut decision));
        }
    }
    // Counted after the steps above: their effect must not be reason for another save.
    if groups.iter().all(Group::is_running) && counts(&groups, workload, &state).is_exact() {
        record_success(&mut state);
    }
    finish(workload, &before, &state, removals, decision)
}

/// Returns the current state: the last own write if the cache does not contain it yet, else the
/// annotation.
pub(super) fn read_state(workload: &Managed<'_>, decision: &mut PlacementDecision) -> PlacementState {
    if let Some(state) = &workload.pending.state {
        return state.clone();
    }
    let (state, readable) = PlacementState::read(workload.view.state.as_deref());
    if !readable {
        decision.actions.push(Action::Report(WorkloadEvent::lasting_warning(
            "StateUnreadable",
            "its annotation perennial.dev/placement-state is unreadable; starting with an empty state",
        )));
    }
    state
}

/// Appends the changed state and, after it, the removals that depend on it.
pub(super) fn finish(
    workload: &Managed<'_>,
    before: &PlacementState,
    state: &PlacementState,
    removals: Vec<Action>,
    mut decision: PlacementDecision,
) -> PlacementDecision {
    if before != state {
        let moved_at = |state: &PlacementState| state.last_move.as_ref().map(|last| last.at);
        let same = before.breaker == state.breaker && before.on_demand == state.on_demand;
        let reason = match (same, moved_at(before) == moved_at(state)) {
            _ if before.volume_slots != state.volume_slots => "the volumes of its pods decide their class",
            (false, _) => "the breaker of a class changed",
            (true, false) => "a move started a cooldown",
            (true, true) => "every replica is in its class",
        };
        decision.actions.push(pod_patch::save(workload.view, state, reason));
    }
    decision.actions.extend(removals);
    decision
}

fn counts(groups: &[Group<'_>], workload: &Managed<'_>, state: &PlacementState) -> Counts {
    let (split, replicas) = (workload.spec.split, workload.view.replicas);
    let mut counts = Counts {
        replicas,
        desired_spot: split.spot(replicas),
        desired_on_demand: split.on_demand(replicas),
        ..Counts::default()
    };
    for group in groups {
        counts.spot += group.count(Class::Spot);
        counts.on_demand += group.count(Class::OnDemand);
        counts.ready_on_demand += group.ready(Class::OnDemand);
        counts.gated += group.gated();
        let fallback = count(group.occupants.iter().filter(|occupant| occupant.fallback));
        counts.fallback += fallback;
        counts.unknown += count(group.occupants.iter().filter(|occupant| !occupant.gated && occupant.class.is_none()));
        let unplaced = |class| group.occupants.iter().filter(move |o| workload.unplaced(o, class).is_some());
        counts.unplaced_spot += count(unplaced(Class::Spot));
        counts.unplaced_on_demand += count(unplaced(Class::OnDemand));
        if workload.spec.strength == Strength::Required {
            counts.drift += count(group.occupants.iter().filter(|occupant| occupant.is_stray()));
        }
        let excused = if state.breaker.is_open() { fallback } else { 0 };
        let beyond = group.surplus(Class::OnDemand, split).saturating_sub(excused);
        let on_spot = if workload.excuses(group, state) { 0 } else { group.surplus(Class::Spot, split) };
        counts.drift += on_spot + beyond;
    }
    counts
}

/// Adds the Events about lasting conditions of a Deployment.
fn report(workload: &Managed<'_>, groups: &[Group<'_>], decision: &mut PlacementDecision) {
    if workload.view.template != Choice::Any {
        decision.actions.push(template_selects_capacity());
    }
    let occupants = || groups.iter().flat_map(|group| &group.occupants);
    if occupants().any(|occupant| !occupant.pending && occupant.pod.foreign_cost()) {
        decision.actions.push(Action::Report(WorkloadEvent::lasting_warning(
            "ForeignDeletionCost",
            "another writer sets pod-deletion-cost on its pods, so scale-in is not exact; stop that writer",
        )));
    }
    report_capacity(workload, &occupants(), decision);
    report_refused(workload, decision);
    if workload.view.replicas > 0 {
        report_notes(workload, decision);
    }
}

pub(super) fn report_notes(workload: &Managed<'_>, decision: &mut PlacementDecision) {
    for note in workload.spec.notes(workload.view.replicas) {
        decision.actions.push(WorkloadEvent::lasting_note("PlacementNote", note));
    }
}

pub(super) fn template_selects_capacity() -> Action {
    Action::Report(WorkloadEvent::lasting_warning(
        "ChoosesCapacityItself",
        "its pod template selects or excludes a capacity type: its pods are counted but not placed",
    ))
}
