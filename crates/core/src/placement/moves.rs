//! Moves of running pods by eviction: whether a pod may be evicted now, and which one.
//!
//! Owns every reason to wait. At most one eviction per decision, and none that reduces the Ready
//! on-demand pods below the floor.

use jiff::{SignedDuration, Timestamp};

use super::Class;
use super::decision::{Action, Decision, WorkloadEvent};
use super::occupancy::{Group, Occupant, count};
use super::schedule::WindowState;
use super::state::{LastMove, PlacementState};
use super::ungate::after;
use super::workload::Managed;

const MAX_COOLDOWN: SignedDuration = SignedDuration::from_hours(1);
/// Retry interval of a move that is blocked by something that is not watched.
pub(super) const RETRY: SignedDuration = SignedDuration::from_secs(30);

/// Reason for which no pod may be evicted now.
#[derive(Debug, Clone)]
pub(super) struct Blocked {
    pub reason: String,
    pub until: Option<Timestamp>,
    pub event: Option<WorkloadEvent>,
}

impl Blocked {
    pub(super) fn new(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), until: None, event: None }
    }

    fn until(reason: impl Into<String>, until: Timestamp) -> Self {
        Self { reason: reason.into(), until: Some(until), event: None }
    }

    /// Adds the wait to a decision.
    pub(super) fn wait(self, decision: &mut Decision) {
        if let Some(until) = self.until {
            decision.revisit_at(until);
        }
        decision.actions.extend(self.event.map(Action::Report));
        decision.actions.push(Action::Wait { until: self.until, reason: self.reason });
    }
}

/// Checks whether a running pod of this workload may be evicted now.
pub(super) fn may_disrupt(workload: &Managed<'_>, state: &PlacementState) -> Result<(), Blocked> {
    let view = workload.view;
    if workload.spec.paused {
        return Err(Blocked::new("moves are paused by annotation"));
    }
    if view.observed_generation < view.generation {
        return Err(Blocked::new("its controller has not observed the latest change yet"));
    }
    let total = view.replicas;
    if view.current != total || view.updated != total {
        return Err(Blocked::new("it is scaling or rolling out"));
    }
    if view.available < total.saturating_sub(view.max_unavailable) {
        let reason = format!("only {} of {total} replicas are available", view.available);
        return Err(Blocked::new(reason));
    }
    if !workload.pending.removed.is_empty() {
        return Err(Blocked::new("the last eviction is still in progress"));
    }
    if let Some(WindowState::Closed { opens }) = workload.spec.window.as_ref().map(|window| window.state(workload.now))
    {
        let reason = "outside the disruption schedule";
        return Err(Blocked { reason: reason.to_owned(), until: opens, event: None });
    }
    if let Some(last) = state.last_move {
        let over = after(last.at, cooldown(workload.settings.cooldown, last.stalled));
        if workload.now < over {
            return Err(Blocked::until("cooling down after the last move", over));
        }
    }
    match workload.pdbs {
        [] => Ok(()),
        [pdb] if pdb.disruptions_allowed > 0 => Ok(()),
        [pdb] => {
            let reason = format!("PodDisruptionBudget {} allows no disruption now", pdb.name);
            Err(Blocked::until(reason, after(workload.now, RETRY)))
        }
        several => {
            let names: Vec<&str> = several.iter().map(|pdb| pdb.name.as_str()).collect();
            let reason = format!(
                "several PodDisruptionBudgets select its pods ({}), so none can be evicted; keep one of them",
                names.join(", ")
            );
            let event = WorkloadEvent::lasting_warning("SeveralBudgets", reason.clone());
            Err(Blocked { reason, until: None, event: Some(event) })
        }
    }
}

/// Returns the cooldown after a move. It doubles while moves change nothing, so that replacements
/// in the wrong class (for example without the webhook) do not cause endless evictions.
fn cooldown(base: SignedDuration, stalled: u32) -> SignedDuration {
    base.checked_mul(1i32 << stalled.min(10)).unwrap_or(MAX_COOLDOWN).min(MAX_COOLDOWN.max(base))
}

/// Stores a move for the cooldown.
pub(super) fn record_move(state: &mut PlacementState, drift: u32, now: Timestamp) {
    let stalled = state.last_move.filter(|last| drift >= last.drift).map_or(0, |last| (last.stalled + 1).min(10));
    state.last_move = Some(LastMove { at: now, drift, stalled });
}

/// Returns a lower bound of the Ready on-demand pods. If fewer replicas are available than cached
/// pods are Ready, the cache is stale, and the pods that are no longer Ready may all be on-demand.
pub(super) fn surely_ready<'a, 's>(
    occupants: impl Iterator<Item = &'s Occupant<'a>> + Clone,
    workload: &Managed<'_>,
) -> u32
where
    'a: 's,
{
    let ready = occupants.filter(|occupant| occupant.pod.ready);
    let stale = count(ready.clone()).saturating_sub(workload.view.available);
    count(ready.filter(|occupant| occupant.is(Class::OnDemand))).saturating_sub(stale)
}

/// Selects the pod of a class to evict: unready first, then on a leaving node, then in a slot of
/// the other class, then the highest slot. Returns None if the eviction would reduce the Ready
/// on-demand pods below the floor.
pub(super) fn candidate<'a, 's>(
    occupants: impl Iterator<Item = &'s Occupant<'a>>,
    class: Class,
    ready_on_demand: u32,
    workload: &Managed<'_>,
) -> Option<&'s Occupant<'a>>
where
    'a: 's,
{
    let split = workload.spec.split;
    let floor = split.floor().min(workload.view.replicas);
    let spare = class == Class::Spot || ready_on_demand > floor;
    let eligible = |occupant: &&Occupant<'_>| occupant.is(class) && !occupant.pending && (spare || !occupant.pod.ready);
    occupants.filter(eligible).max_by_key(|occupant| {
        let leaving = occupant.pod.node.is_some_and(|node| node.leaving);
        let misplaced = occupant.slot.is_none_or(|slot| split.class(slot) != class);
        (!occupant.pod.ready, leaving, misplaced, occupant.slot, &occupant.pod.name)
    })
}

/// Evicts at most one pod towards the exact split. Only for a workload with one active ReplicaSet.
pub(super) fn repair(
    groups: &[Group<'_>],
    workload: &Managed<'_>,
    state: &mut PlacementState,
    decision: &mut Decision,
) -> Option<Action> {
    let mut active = groups.iter().filter(|group| group.n() > 0 || !group.occupants.is_empty());
    let (Some(group), None) = (active.next(), active.next()) else { return None };
    let split = workload.spec.split;
    let class = [Class::Spot, Class::OnDemand].into_iter().find(|class| group.surplus(*class, split) > 0)?;
    let drift = group.surplus(class, split);
    let towards = class.other();
    if towards == Class::Spot && state.breaker.is_open() {
        return None;
    }
    if !group.settled() {
        Blocked::new("it is scaling or rolling out").wait(decision);
        return None;
    }
    if group.occupants.iter().any(|occupant| occupant.is(towards) && occupant.unbound()) {
        Blocked::new(format!("a {towards} pod is not scheduled yet")).wait(decision);
        return None;
    }
    if let Err(blocked) = may_disrupt(workload, state) {
        blocked.wait(decision);
        return None;
    }
    let ready = surely_ready(group.occupants.iter(), workload);
    let Some(occupant) = candidate(group.occupants.iter(), class, ready, workload) else {
        Blocked::new("any eviction would go below min-on-demand").wait(decision);
        return None;
    };
    if drift > (group.n() / 5).max(10) {
        decision.actions.push(WorkloadEvent::normal(
            "ManyMoves",
            format!("{drift} replicas must move, one at a time; `kubectl rollout restart` is faster"),
        ));
    }
    record_move(state, drift, workload.now);
    decision.revisit_at(after(workload.now, cooldown(workload.settings.cooldown, 0)));
    let reason = format!("{drift} replicas too many on {class}, moving one to {towards}");
    Some(Action::Evict { pod: occupant.pod.into(), reason })
}
