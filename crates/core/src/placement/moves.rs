//! Moves of running pods by eviction: whether a pod may be evicted now, and which one.
//!
//! Owns every reason to wait. At most one eviction per decision, and none that reduces the Ready
//! on-demand pods below the floor.

use jiff::{SignedDuration, Timestamp};

use super::Class;
use super::decision::{Action, PlacementDecision, RoomSearch, WorkloadEvent};
use super::occupancy::{Group, Occupant, count};
use super::schedule::WindowState;
use super::spec::Strength;
use super::state::{LastMove, PlacementState};
use super::ungate::after;
use super::workload::{Managed, PodView};

const MAX_COOLDOWN: SignedDuration = SignedDuration::from_hours(1);
const PAUSED: &str = "moves are paused by annotation";
/// Retry interval of a move that is blocked by something that is not watched.
pub(super) const RETRY: SignedDuration = SignedDuration::from_secs(30);

/// Reason for which no pod may be evicted now.
#[derive(Debug, Clone)]
pub(super) struct Blocked {
    pub reason: String,
    pub until: Option<Timestamp>,
    pub event: Option<WorkloadEvent>,
    /// Room on a node of the class would be reason enough for the move.
    pub needs_room: bool,
}

/// Time for which room that was found on a node is reason enough to evict the last Ready replica.
const ROOM_FOR: SignedDuration = SignedDuration::from_secs(30);

impl Blocked {
    pub(super) fn new(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), until: None, event: None, needs_room: false }
    }

    pub(super) fn until(reason: impl Into<String>, until: Timestamp) -> Self {
        Self { until: Some(until), ..Self::new(reason) }
    }

    /// Returns the wait of a probe, which is retried in any case.
    pub(super) fn of_probe(self, workload: &Managed<'_>) -> Self {
        let until = self.until.unwrap_or_else(|| after(workload.now, RETRY));
        let reason = format!("spot was short and is not probed: {}", self.reason);
        Self { reason, until: Some(until), ..self }
    }

    /// Adds the wait to a decision.
    pub(super) fn wait(self, decision: &mut PlacementDecision) {
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
        return Err(Blocked::new(PAUSED));
    }
    if view.observed_generation < view.generation {
        return Err(Blocked::new("its controller has not observed the latest change yet"));
    }
    let total = view.replicas;
    if view.current != total || view.updated < view.updated_target {
        return Err(Blocked::new("it is scaling or rolling out"));
    }
    if view.available < total.saturating_sub(view.max_unavailable) {
        let reason = format!("only {} of {total} replicas are available", view.available);
        return Err(Blocked::new(reason));
    }
    may_exchange(workload, state)
}

/// Checks whether a running pod may be evicted now although the workload is not at rest, because
/// another pod of it waits for the capacity that becomes free.
pub(super) fn may_exchange(workload: &Managed<'_>, state: &PlacementState) -> Result<(), Blocked> {
    if !workload.view.kind.has_known_size() {
        return Err(Blocked::new(format!("the desired replicas of a {} are not known", workload.view.kind.as_str())));
    }
    if workload.spec.paused {
        return Err(Blocked::new(PAUSED));
    }
    if !workload.pending.removed.is_empty() {
        return Err(Blocked::new("the last eviction is still in progress"));
    }
    if let Some(WindowState::Closed { opens }) = workload.spec.window.as_ref().map(|window| window.state(workload.now))
    {
        let reason = "outside the disruption schedule";
        return Err(Blocked { until: opens, ..Blocked::new(reason) });
    }
    let stored = state.last_move.as_ref().map(|last| (last.at, last.stalled));
    let answered = workload.pending.evicted_at.map(|at| (at, stored.map_or(0, |(_, stalled)| stalled)));
    if let Some((at, stalled)) = stored.max(answered) {
        let over = after(at, cooldown(workload.settings.cooldown, stalled));
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
            Err(Blocked { event: Some(event), ..Blocked::new(reason) })
        }
    }
}

/// Time for which no pod is moved to a class after a pod was created without it because the API
/// server refused it. An eviction in this time would only be followed by the next refusal.
const REFUSED_FOR: SignedDuration = SignedDuration::from_mins(20);

/// Checks whether pods may be moved to a class: not soon after the API server refused it. The class
/// is tried again with the pods that are created anyway, and later with one move at a time.
pub(super) fn may_move_to(class: Class, workload: &Managed<'_>) -> Result<(), Blocked> {
    let refused = workload.pods.iter().filter(|pod| pod.occupies() && pod.refused == Some(class));
    let until = refused.map(|pod| after(pod.created, REFUSED_FOR)).max();
    match until.filter(|until| workload.now < *until) {
        Some(until) => Err(Blocked::until(format!("the API server refused class {class} for some of its pods"), until)),
        None => Ok(()),
    }
}

/// Adds the Event about pods whose class was refused.
pub(super) fn report_refused(workload: &Managed<'_>, decision: &mut PlacementDecision) {
    for class in [Class::Spot, Class::OnDemand] {
        let refused = |pod: &&PodView| pod.occupies() && pod.refused == Some(class);
        let pods = count(workload.pods.iter().filter(refused));
        if pods > 0 {
            decision.actions.push(Action::Report(WorkloadEvent::lasting_warning(
                "PlacementRefused",
                format!(
                    "the API server refused class {class} for {pods} pods, which run without a class; the next move \
                     is tried after 20 minutes: change the policy that refuses them, or use `kubectl rollout restart` \
                     when it is changed"
                ),
            )));
        }
    }
}

/// Returns the cooldown after a move. It doubles while moves change nothing, so that replacements
/// in the wrong class (for example without the webhook) do not cause endless evictions.
fn cooldown(base: SignedDuration, stalled: u32) -> SignedDuration {
    base.checked_mul(1i32 << stalled.min(10)).unwrap_or(MAX_COOLDOWN).min(MAX_COOLDOWN.max(base))
}

/// Stores a move for the cooldown. A move whose eviction was refused proves nothing about the
/// effect of moves, so it does not lengthen the cooldown.
pub(super) fn record_move(state: &mut PlacementState, drift: u32, pod: &PodView, workload: &Managed<'_>) {
    let refused = |last: &LastMove| {
        let uid = last.pod.as_deref();
        workload.pods.iter().any(|pod| pod.occupies() && Some(pod.uid.as_str()) == uid)
    };
    let stalled = match &state.last_move {
        Some(last) if last.drift == 0 || drift < last.drift => 0,
        Some(last) if refused(last) => last.stalled,
        Some(last) => (last.stalled + 1).min(10),
        None => 0,
    };
    state.last_move = Some(LastMove { at: workload.now, drift, stalled, pod: Some(pod.uid.clone()) });
}

/// Stores a probe for the cooldown. The breaker has its own backoff for probes that fail.
pub(super) fn record_probe(state: &mut PlacementState, now: Timestamp) {
    state.last_move = Some(LastMove { at: now, drift: 0, stalled: 0, pod: None });
}

/// Notes that the moves so far had an effect: no replica is in the wrong class any more, or a class
/// that was short is back.
pub(super) fn record_success(state: &mut PlacementState) {
    if let Some(last) = &mut state.last_move {
        (last.drift, last.stalled) = (0, 0);
    }
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
/// on-demand pods below the floor, or if every pod refuses disruption.
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
    let floor = split.floor().of(workload.view.replicas).min(workload.view.replicas);
    let spare = class == Class::Spot || ready_on_demand > floor;
    let eligible = |occupant: &&Occupant<'_>| {
        occupant.is(class) && !occupant.pending && !occupant.pod.protected && (spare || !occupant.pod.ready)
    };
    occupants.filter(eligible).max_by_key(|occupant| {
        let leaving = occupant.pod.node.is_some_and(|node| node.leaving);
        let misplaced = occupant.slot.is_none_or(|slot| split.class(slot) != class);
        (!occupant.pod.ready, leaving, misplaced, occupant.slot, &occupant.pod.name)
    })
}

/// Checks that the move of a pod to a class leaves a Ready replica, or that a node of that class has
/// room for it.
pub(super) fn may_leave(
    workload: &Managed<'_>,
    pod: &PodView,
    towards: Class,
    decision: &mut PlacementDecision,
) -> Result<(), Blocked> {
    let found = workload.nodes.of(towards).room_found;
    if !pod.ready || workload.view.available > 1 || found.is_some_and(|at| workload.now < after(at, ROOM_FOR)) {
        return Ok(());
    }
    decision.room_search = Some(RoomSearch { class: towards, pod: pod.into(), again: true });
    let reason = format!("it is the only Ready replica, and no node that is {towards} is known to have room for it");
    Err(Blocked::until(reason, after(workload.now, RETRY)))
}

/// Returns the reason for which no pod can be selected for an eviction.
pub(super) fn no_candidate<'a, 's>(mut occupants: impl Iterator<Item = &'s Occupant<'a>>) -> Blocked
where
    'a: 's,
{
    Blocked::new(if occupants.any(|occupant| occupant.pod.protected) {
        "its pods forbid evictions (karpenter.sh/do-not-disrupt or safe-to-evict), or min-on-demand does"
    } else {
        "any eviction would go below min-on-demand"
    })
}

/// Evicts a surplus on-demand pod of one ReplicaSet while an on-demand pod of another one waits for
/// the capacity that becomes free: a rollout without room to surge would wait forever.
pub(super) fn give_way(
    groups: &[Group<'_>],
    workload: &Managed<'_>,
    state: &mut PlacementState,
    decision: &mut PlacementDecision,
) -> Option<Action> {
    let (split, class) = (workload.spec.split, Class::OnDemand);
    let surplus = |group: &&Group<'_>| group.surplus(class, split) > 0;
    // While spot is short, the probe is the pod that gives way.
    let waits = |group: &Group<'_>| group.occupants.iter().any(|occupant| workload.stuck(occupant, class));
    let over = groups.iter().find(surplus).filter(|_| !state.breaker.is_open())?;
    if !groups.iter().filter(|group| !surplus(group)).any(waits) {
        return None;
    }
    if let Err(blocked) = workload.may_give_way(state, false) {
        blocked.wait(decision);
        return None;
    }
    let ready = surely_ready(groups.iter().flat_map(|group| &group.occupants), workload);
    let running = over.occupants.iter().filter(|occupant| !occupant.unbound());
    let Some(occupant) = candidate(running, class, ready, workload) else {
        no_candidate(over.occupants.iter()).wait(decision);
        return None;
    };
    let drift = over.surplus(class, split);
    record_move(state, drift, occupant.pod, workload);
    decision.revisit_at(after(workload.now, cooldown(workload.settings.cooldown, 0)));
    let reason = format!("{drift} replicas too many on {class}, and the rollout waits for {class} capacity");
    Some(Action::Evict { pod: occupant.pod.into(), reason })
}

/// Evicts at most one pod towards the exact split. Only for a workload with one active ReplicaSet.
pub(super) fn repair(
    groups: &[Group<'_>],
    workload: &Managed<'_>,
    state: &mut PlacementState,
    decision: &mut PlacementDecision,
) -> Option<Action> {
    let mut active = groups.iter().filter(|group| group.n() > 0 || !group.occupants.is_empty());
    let (Some(group), None) = (active.next(), active.next()) else { return None };
    let split = workload.spec.split;
    let surplus = [Class::Spot, Class::OnDemand].into_iter().find(|class| group.surplus(*class, split) > 0);
    let stray = count(group.occupants.iter().filter(|occupant| occupant.is_stray()));
    let (drift, towards) = match surplus {
        Some(class) => (group.surplus(class, split), class.other()),
        None if stray > 0 && workload.spec.strength == Strength::Required => {
            (stray, split.next(group.count(Class::Spot), group.count(Class::OnDemand)))
        }
        None => return None,
    };
    if towards == Class::Spot && state.breaker.is_open()
        || surplus == Some(Class::Spot) && workload.excuses(group, state)
    {
        return None;
    }
    if let Err(blocked) = may_move_to(towards, workload) {
        blocked.wait(decision);
        return None;
    }
    // Pods on nodes of neither class run: they are not moved to a class that has no node.
    if surplus.is_none() && workload.nodes.of(towards).total == 0 {
        Blocked::new(format!("no node is {towards}")).wait(decision);
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
    let found = if let Some(class) = surplus {
        let ready = surely_ready(group.occupants.iter(), workload);
        candidate(group.occupants.iter(), class, ready, workload)
    } else {
        let strays = group.occupants.iter().filter(|occupant| occupant.is_stray() && !occupant.pending);
        let strays = strays.filter(|occupant| !occupant.pod.protected);
        strays.max_by_key(|occupant| (!occupant.pod.ready, occupant.slot, &occupant.pod.name))
    };
    let Some(occupant) = found else {
        no_candidate(group.occupants.iter()).wait(decision);
        return None;
    };
    if let Err(blocked) = may_leave(workload, occupant.pod, towards, decision) {
        blocked.wait(decision);
        return None;
    }
    if drift > (group.n() / 5).max(10) {
        decision.actions.push(WorkloadEvent::normal(
            "ManyMoves",
            format!("{drift} replicas must move, one at a time; `kubectl rollout restart` is faster"),
        ));
    }
    record_move(state, drift, occupant.pod, workload);
    decision.revisit_at(after(workload.now, cooldown(workload.settings.cooldown, 0)));
    let reason = match surplus {
        Some(class) => format!("{drift} replicas too many on {class}, moving one to {towards}"),
        None => format!("{drift} replicas on nodes of neither class, moving one to {towards}"),
    };
    Some(Action::Evict { pod: occupant.pod.into(), reason })
}
