//! Moving running pods by eviction: whether one may be moved at all now, and which.
//!
//! Owns every reason to wait. Never more than one eviction in a pass, and none that takes a Ready on-demand pod below the floor.

use jiff::{SignedDuration, Timestamp};

use super::Class;
use super::action::{Action, Event, Plan};
use super::cron::WindowState;
use super::fallback::{Moved, State};
use super::occupancy::{Group, Seat, count};
use super::rebalance::Input;
use super::release::after;
use super::view::OwnWrite;

const LONGEST_COOLDOWN: SignedDuration = SignedDuration::from_hours(1);
/// What cannot be done now, and nothing that is watched may end, is tried again after this.
pub(super) const RETRY: SignedDuration = SignedDuration::from_secs(30);

/// Why nothing may be evicted now.
#[derive(Debug, Clone)]
pub(super) struct Blocked {
    pub reason: String,
    pub until: Option<Timestamp>,
    pub tell: Option<Event>,
}

impl Blocked {
    pub(super) fn new(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), until: None, tell: None }
    }

    fn until(reason: impl Into<String>, until: Timestamp) -> Self {
        Self { reason: reason.into(), until: Some(until), tell: None }
    }

    pub(super) fn wait(self, plan: &mut Plan) {
        if let Some(until) = self.until {
            plan.by(until);
        }
        plan.actions.extend(self.tell.map(Action::Tell));
        plan.actions.push(Action::Wait { until: self.until, reason: self.reason });
    }
}

/// Whether a running pod of this workload may be evicted now.
pub(super) fn may_disrupt(input: &Input<'_>, state: &State) -> Result<(), Blocked> {
    let workload = input.workload;
    if input.spec.paused {
        return Err(Blocked::new("moves are paused by annotation"));
    }
    if workload.observed_generation < workload.generation {
        return Err(Blocked::new("its controller has not seen the latest change yet"));
    }
    let total = workload.replicas;
    if workload.current != total || workload.updated != total {
        return Err(Blocked::new("it is scaling or rolling out"));
    }
    if workload.available < total.saturating_sub(workload.max_unavailable) {
        let reason = format!("only {} of {total} replicas are available", workload.available);
        return Err(Blocked::new(reason));
    }
    if input.own.pods.values().any(|write| *write == OwnWrite::Removed) {
        return Err(Blocked::new("the last eviction is still under way"));
    }
    if let Some(WindowState::Closed { opens }) = input.spec.window.as_ref().map(|window| window.state(input.now)) {
        let reason = "outside the disruption schedule";
        return Err(Blocked { reason: reason.to_owned(), until: opens, tell: None });
    }
    if let Some(moved) = state.moved {
        let over = after(moved.at, cooldown(input.settings.cooldown, moved.stalled));
        if input.now < over {
            return Err(Blocked::until("cooling down after the last move", over));
        }
    }
    match input.pdbs {
        [] => Ok(()),
        [pdb] if pdb.disruptions_allowed > 0 => Ok(()),
        [pdb] => {
            let reason = format!("PodDisruptionBudget {} allows no disruption now", pdb.name);
            Err(Blocked::until(reason, after(input.now, RETRY)))
        }
        several => {
            let names: Vec<&str> = several.iter().map(|pdb| pdb.name.as_str()).collect();
            let reason =
                format!("its pods have several PodDisruptionBudgets ({}): none can be evicted", names.join(", "));
            let tell = Event::grievance("SeveralBudgets", reason.clone());
            Err(Blocked { reason, until: None, tell: Some(tell) })
        }
    }
}

/// Doubles while moves change nothing, so that a replacement that does not come back in the right class (webhook off, say) does
/// not become an endless row of evictions.
fn cooldown(base: SignedDuration, stalled: u32) -> SignedDuration {
    base.checked_mul(1i32 << stalled.min(10)).unwrap_or(LONGEST_COOLDOWN).min(LONGEST_COOLDOWN.max(base))
}

pub(super) fn note(state: &mut State, drift: u32, now: Timestamp) {
    let stalled = state.moved.filter(|last| drift >= last.drift).map_or(0, |last| (last.stalled + 1).min(10));
    state.moved = Some(Moved { at: now, drift, stalled });
}

/// How many on-demand pods are Ready for sure. Where fewer replicas are available than pods are shown Ready, what is shown of the pods is
/// old, and those that are not Ready any more may all be on-demand.
pub(super) fn surely_ready<'a, 's>(seats: impl Iterator<Item = &'s Seat<'a>> + Clone, input: &Input<'_>) -> u32
where
    'a: 's,
{
    let ready = seats.filter(|seat| seat.pod.ready);
    let gone = count(ready.clone()).saturating_sub(input.workload.available);
    count(ready.filter(|seat| seat.is(Class::OnDemand))).saturating_sub(gone)
}

/// Which pod of a class to give up: unready first, then on a node that leaves anyway, then in a slot of the other class, then the
/// highest slot. None if that would take a Ready on-demand pod below the floor.
pub(super) fn candidate<'a, 's>(
    seats: impl Iterator<Item = &'s Seat<'a>>,
    class: Class,
    ready_on_demand: u32,
    input: &Input<'_>,
) -> Option<&'s Seat<'a>>
where
    'a: 's,
{
    let split = input.spec.split;
    let floor = split.floor().min(input.workload.replicas);
    let spare = class == Class::Spot || ready_on_demand > floor;
    seats.filter(|seat| seat.is(class) && !seat.unseen && (spare || !seat.pod.ready)).max_by_key(|seat| {
        let leaving = seat.pod.node.is_some_and(|node| node.leaving);
        let astray = seat.slot.is_none_or(|slot| split.class(slot) != class);
        (!seat.pod.ready, leaving, astray, seat.slot, &seat.pod.name)
    })
}

/// At most one eviction towards the exact split. Only for a workload with one ReplicaSet at work.
pub(super) fn repair(groups: &[Group<'_>], input: &Input<'_>, state: &mut State, plan: &mut Plan) -> Option<Action> {
    let mut active = groups.iter().filter(|group| group.n() > 0 || !group.seats.is_empty());
    let (Some(group), None) = (active.next(), active.next()) else { return None };
    let split = input.spec.split;
    let class = [Class::Spot, Class::OnDemand].into_iter().find(|class| group.surplus(*class, split) > 0)?;
    let drift = group.surplus(class, split);
    let towards = class.other();
    if towards == Class::Spot && state.breaker.is_open() {
        return None;
    }
    if !group.settled() {
        Blocked::new("it is scaling or rolling out").wait(plan);
        return None;
    }
    if group.seats.iter().any(|seat| seat.is(towards) && seat.unbound()) {
        Blocked::new(format!("a pod that belongs on {towards} has no node yet")).wait(plan);
        return None;
    }
    if let Err(blocked) = may_disrupt(input, state) {
        blocked.wait(plan);
        return None;
    }
    let ready = surely_ready(group.seats.iter(), input);
    let Some(seat) = candidate(group.seats.iter(), class, ready, input) else {
        Blocked::new("no pod can be given up without going below min-on-demand").wait(plan);
        return None;
    };
    if drift > (group.n() / 5).max(10) {
        plan.actions.push(Event::normal(
            "ManyMoves",
            format!("{drift} replicas have to move, one at a time; `kubectl rollout restart` is faster"),
        ));
    }
    note(state, drift, input.now);
    plan.by(after(input.now, cooldown(input.settings.cooldown, 0)));
    let reason = format!("{drift} too many on {class}: this one moves to {towards}");
    Some(Action::Evict { pod: seat.pod.into(), reason })
}
