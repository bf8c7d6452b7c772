//! One look at one workload: everything that is to be done, in order, with reasons.
//!
//! Owns the order of the steps; each step is a module of its own. One pass, linear in the pods but for sorting them. The plan is such that
//! a second look after its effect finds nothing to do.

use jiff::Timestamp;

use super::Class;
use super::action::{Action, Counts, Event, Plan, save};
use super::fallback::{Breaker, Observed, Probe, State, Supply, Verdict, step};
use super::labels::Choice;
use super::moves::{RETRY, candidate, may_disrupt, note, repair, surely_ready};
use super::occupancy::{Group, Seat, count};
use super::release::after;
use super::spec::{Spec, Strength};
use super::view::{Kind, OwnWrites, PdbView, PodView, ReplicaSetView, Settings, WorkloadView};
use super::{assign, relabel, stateful};
use crate::CLOCK_TOLERANCE;

/// What a look at a workload needs. Pods of other owners are ignored.
#[derive(Debug, Clone, Copy)]
pub struct Input<'a> {
    pub settings: &'a Settings,
    pub spec: &'a Spec,
    pub workload: &'a WorkloadView,
    pub replica_sets: &'a [ReplicaSetView],
    pub pods: &'a [PodView],
    pub own: &'a OwnWrites,
    pub pdbs: &'a [PdbView],
    pub now: Timestamp,
}

impl Input<'_> {
    /// The state that counts: our own last write, if it is not seen yet.
    pub(super) fn state(&self, plan: &mut Plan) -> State {
        if let Some(state) = &self.own.state {
            return state.clone();
        }
        let (state, readable) = State::read(self.workload.state.as_deref());
        if !readable {
            plan.actions.push(Action::Tell(Event::grievance(
                "StateUnreadable",
                "the state kept in its annotation cannot be read: starting anew",
            )));
        }
        state
    }

    pub(super) fn budget(&self) -> u32 {
        self.spec.fallback_budget.of(self.spec.split.spot(self.workload.replicas))
    }

    /// A spot pod that the scheduler has found no place for, since when. A mere wish is never why a pod finds no place.
    pub(super) fn unplaced(&self, seat: &Seat<'_>) -> Option<Timestamp> {
        let waits = self.spec.strength == Strength::Required && seat.is(Class::Spot) && seat.unbound();
        seat.pod.unschedulable.filter(|_| waits)
    }

    pub(super) fn stuck(&self, seat: &Seat<'_>) -> bool {
        self.unplaced(seat).is_some_and(|since| after(since, self.spec.fallback_after) <= self.now)
    }

    /// When to think of the probe: at its time, or, where that has passed and it was not possible, in a while. What it waits for
    /// may be nothing that is watched.
    pub(super) fn probe_at(&self, probe: Timestamp) -> Timestamp {
        if probe > self.now { probe } else { after(self.now, RETRY) }
    }

    /// The pods that the breaker has to look at, as numbers.
    pub(super) fn observe<'a, 's>(
        &self,
        seats: impl Iterator<Item = &'s Seat<'a>> + Clone,
        breaker: Breaker,
        plan: &mut Plan,
    ) -> Observed
    where
        'a: 's,
    {
        for since in seats.clone().filter_map(|seat| self.unplaced(seat)) {
            let due = after(since, self.spec.fallback_after);
            if due > self.now {
                plan.by(due);
            }
        }
        let probe = match breaker {
            Breaker::Probing { since, .. } => {
                let sent = seats.clone().filter(|seat| sent_since(seat, since));
                sent.map(|seat| match (seat.unbound(), self.stuck(seat)) {
                    (false, _) => Probe::Bound,
                    (true, true) => Probe::Stuck,
                    (true, false) => Probe::Waiting,
                })
                // One that found a place is proof enough; else hope lasts as long as one still waits.
                .max_by_key(|probe| match probe {
                    Probe::Bound => 3,
                    Probe::Waiting => 2,
                    Probe::Stuck => 1,
                    Probe::None => 0,
                })
                .unwrap_or(Probe::None)
            }
            _ => Probe::None,
        };
        let spot_bound = seats.clone().filter(|seat| seat.is(Class::Spot) && !seat.unbound());
        Observed {
            stuck: count(seats.clone().filter(|seat| self.stuck(seat))),
            unplaced: count(seats.filter(|seat| self.unplaced(seat).is_some())),
            last_bound: spot_bound.filter_map(|seat| seat.pod.scheduled).max(),
            fallen: 0,
            budget: self.budget(),
            probe,
            may_disrupt: false,
        }
    }
}

/// A spot pod that was made since then. When a pod was made is told by the API server's clock, since when by ours.
fn sent_since(seat: &Seat<'_>, since: Timestamp) -> bool {
    seat.is(Class::Spot) && after(seat.pod.created, CLOCK_TOLERANCE).as_second() >= since.as_second()
}

/// Looks at one workload.
pub fn plan(input: &Input<'_>) -> Plan {
    match input.workload.kind {
        Kind::Deployment => deployment(input),
        Kind::StatefulSet { start } => stateful::plan(input, start),
    }
}

fn deployment(input: &Input<'_>) -> Plan {
    let mut plan = Plan::default();
    let before = input.state(&mut plan);
    let mut state = before.clone();
    let mut groups = Group::all(input.replica_sets, input.pods, input.own, input.spec.strength);
    plan.counts = counts(&groups, input, before.breaker.is_open());
    tell(input, &groups, &mut plan);

    let ours = input.workload.template == Choice::Any;
    let mut removals =
        if ours && !input.spec.paused { shortage(input, &mut groups, &mut state, &mut plan) } else { Vec::new() };
    let mut supply = supply(input, &groups, &state, &mut plan);
    let busy: Vec<bool> = groups.iter().map(|group| !group.seats.is_empty()).collect();
    for (index, group) in groups.iter_mut().enumerate() {
        let rollout = busy.iter().enumerate().any(|(other, busy)| *busy && other != index);
        assign::assign(group, input, &mut supply, rollout, &mut plan);
    }
    if ours {
        for group in &mut groups {
            relabel::settle(group, input, state.breaker.is_open(), &mut plan);
        }
        if removals.is_empty() {
            removals.extend(repair(&groups, input, &mut state, &mut plan));
        }
    }
    finish(input, &before, &state, removals, plan)
}

/// What removes pods comes last, and after the state that it rests on.
pub(super) fn finish(input: &Input<'_>, before: &State, state: &State, removals: Vec<Action>, mut plan: Plan) -> Plan {
    if before != state {
        let reason = if before.breaker == state.breaker { "to keep the cooldown" } else { "the breaker changed" };
        plan.actions.push(save(input.workload, state, reason));
    }
    plan.actions.extend(removals);
    plan
}

fn counts(groups: &[Group<'_>], input: &Input<'_>, short: bool) -> Counts {
    let (split, replicas) = (input.spec.split, input.workload.replicas);
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
        let fallback = count(group.seats.iter().filter(|seat| seat.fallback));
        counts.fallback += fallback;
        counts.unknown += count(group.seats.iter().filter(|seat| !seat.gated && seat.class.is_none()));
        let excused = if short { fallback } else { 0 };
        let beyond = group.surplus(Class::OnDemand, split).saturating_sub(excused);
        counts.drift += group.surplus(Class::Spot, split) + beyond;
    }
    counts
}

fn tell(input: &Input<'_>, groups: &[Group<'_>], plan: &mut Plan) {
    if input.workload.template != Choice::Any {
        plan.actions.push(Action::Tell(Event::grievance(
            "ChoosesCapacityItself",
            "its pod template selects or excludes a capacity type: its pods are counted and left alone",
        )));
    }
    if groups.iter().flat_map(|group| &group.seats).any(|seat| !seat.unseen && seat.pod.foreign_cost()) {
        plan.actions.push(Action::Tell(Event::grievance(
            "ForeignDeletionCost",
            "another writer sets pod-deletion-cost on its pods: it is left as it is, and scale-in is not exact",
        )));
    }
    if input.workload.replicas > 0 {
        for note in input.spec.notes(input.workload.replicas) {
            plan.actions.push(Event::remark("PlacementNote", note));
        }
    }
}

/// The breaker's turn: its next state, and the pods that it takes away (which leave their seats at once).
fn shortage(input: &Input<'_>, groups: &mut [Group<'_>], state: &mut State, plan: &mut Plan) -> Vec<Action> {
    let split = input.spec.split;
    let fallen: u32 = groups.iter().map(|group| group.surplus(Class::OnDemand, split)).sum();
    let observed = input.observe(groups.iter().flat_map(|group| &group.seats), state.breaker, plan);
    let back = probe_candidate(input, groups, state);
    let observed = Observed { fallen, may_disrupt: back.is_some(), ..observed };
    let (breaker, verdict) = step(state.breaker, &observed, input.spec.fallback_after, input.now);
    state.breaker = breaker;
    announce(verdict, &observed, plan);
    if let (Verdict::Probe, Some((uid, action))) = (verdict, back) {
        note(state, fallen, input.now);
        for group in groups.iter_mut() {
            group.seats.retain(|seat| seat.pod.uid != uid);
        }
        return vec![action];
    }
    if !breaker.is_open() || observed.stuck == 0 {
        return Vec::new();
    }

    let coming: u32 =
        groups.iter().map(|group| group.gated() + group.n().saturating_sub(count(group.seats.iter()))).sum();
    let room = observed.budget.saturating_sub(fallen + coming);
    let mut stuck: Vec<&Seat<'_>> =
        groups.iter().flat_map(|g| &g.seats).filter(|s| !s.unseen && input.stuck(s)).collect();
    stuck.sort_by(|a, b| (b.slot, &b.pod.name).cmp(&(a.slot, &a.pod.name)));
    stuck.truncate(usize::try_from(room).unwrap_or(usize::MAX));
    let deletes: Vec<Action> = stuck.iter().map(|seat| delete(seat)).collect();
    let uids: std::collections::HashSet<&str> = stuck.iter().map(|seat| seat.pod.uid.as_str()).collect();
    for group in groups.iter_mut() {
        group.seats.retain(|seat| !uids.contains(seat.pod.uid.as_str()));
    }
    deletes
}

pub(super) fn delete(seat: &Seat<'_>) -> Action {
    let reason = "no spot capacity was found for it in time: its replacement runs on-demand".to_owned();
    Action::Delete { pod: seat.pod.into(), reason }
}

pub(super) fn announce(verdict: Verdict, observed: &Observed, plan: &mut Plan) {
    match verdict {
        Verdict::Opened => plan.actions.push(Event::warning(
            "SpotShortage",
            format!(
                "no spot capacity for {} pods: up to {} replicas run on-demand until it is back",
                observed.stuck, observed.budget
            ),
        )),
        Verdict::StillShort => {
            plan.actions.push(Event::normal("SpotStillShort", "spot capacity is still short: trying again later"));
        }
        Verdict::Probe => plan.actions.push(Event::normal("SpotProbe", "trying spot capacity again with one replica")),
        Verdict::Closed => plan.actions.push(Event::normal("SpotBack", "spot capacity is back")),
        Verdict::Stay if observed.stuck > 0 && observed.budget == 0 => {
            plan.actions.push(Action::Tell(Event::grievance(
                "SpotShortage",
                "no spot capacity for some of its pods, and no fallback is allowed: they wait",
            )));
        }
        Verdict::Stay => {}
    }
}

fn probe_candidate(input: &Input<'_>, groups: &[Group<'_>], state: &State) -> Option<(String, Action)> {
    let Breaker::Open { probe, .. } = state.breaker else { return None };
    let mut active = groups.iter().filter(|group| group.n() > 0 || !group.seats.is_empty());
    let (Some(group), None) = (active.next(), active.next()) else { return None };
    let over = group.surplus(Class::OnDemand, input.spec.split) > 0;
    if input.now < probe || !over || !group.settled() || may_disrupt(input, state).is_err() {
        return None;
    }
    let ready = surely_ready(group.seats.iter(), input);
    let seat = candidate(group.seats.iter(), Class::OnDemand, ready, input)?;
    let reason = "to see whether spot capacity is back".to_owned();
    Some((seat.pod.uid.clone(), Action::Evict { pod: seat.pod.into(), reason }))
}

fn supply(input: &Input<'_>, groups: &[Group<'_>], state: &State, plan: &mut Plan) -> Supply {
    let split = input.spec.split;
    let used: u32 = groups.iter().map(|group| group.surplus(Class::OnDemand, split)).sum();
    let probe = match state.breaker {
        Breaker::Probing { since, .. } => {
            !groups.iter().flat_map(|group| &group.seats).any(|seat| sent_since(seat, since))
        }
        Breaker::Open { probe, .. } => {
            plan.by(input.probe_at(probe));
            false
        }
        Breaker::Closed | Breaker::Wary { .. } => false,
    };
    Supply { short: state.breaker.is_open(), probe, budget: input.budget().saturating_sub(used) }
}
