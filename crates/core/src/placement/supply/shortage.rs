//! The part of a decision that handles a spot shortage: counting pods for the breaker and acting on
//! its transitions.
//!
//! Never removes a Ready pod except as a probe, and never without [`may_disrupt`].

use std::collections::HashSet;

use jiff::Timestamp;

use super::{Breaker, FallbackAllowance, Probe, SupplyObservation, Transition, step};
use crate::CLOCK_TOLERANCE;
use crate::placement::Class;
use crate::placement::decision::{Action, Decision, WorkloadEvent};
use crate::placement::moves::{RETRY, candidate, may_disrupt, record_move, surely_ready};
use crate::placement::occupancy::{Group, Occupant, count};
use crate::placement::spec::Strength;
use crate::placement::state::PlacementState;
use crate::placement::ungate::after;
use crate::placement::workload::Managed;

impl Managed<'_> {
    /// Maximum number of replicas that may run on-demand beyond the on-demand quota.
    pub(in crate::placement) fn budget(&self) -> u32 {
        self.spec.fallback_budget.of(self.spec.split.spot(self.view.replicas))
    }

    /// Returns since when a spot pod is unschedulable. A preferred class never makes a pod
    /// unschedulable.
    pub(in crate::placement) fn unplaced(&self, occupant: &Occupant<'_>) -> Option<Timestamp> {
        let waits = self.spec.strength == Strength::Required && occupant.is(Class::Spot) && occupant.unbound();
        occupant.pod.unschedulable.filter(|_| waits)
    }

    /// Returns whether a spot pod has been unschedulable for `fallback-after`.
    pub(in crate::placement) fn stuck(&self, occupant: &Occupant<'_>) -> bool {
        self.unplaced(occupant).is_some_and(|since| after(since, self.spec.fallback_after) <= self.now)
    }

    /// Returns when the probe is considered next. An overdue probe may be blocked by something that
    /// is not watched, so it is retried periodically.
    pub(in crate::placement) fn probe_at(&self, probe: Timestamp) -> Timestamp {
        if probe > self.now { probe } else { after(self.now, RETRY) }
    }

    /// Counts the pods that the breaker depends on.
    pub(in crate::placement) fn observe<'a, 's>(
        &self,
        occupants: impl Iterator<Item = &'s Occupant<'a>> + Clone,
        breaker: Breaker,
        decision: &mut Decision,
    ) -> SupplyObservation
    where
        'a: 's,
    {
        for since in occupants.clone().filter_map(|occupant| self.unplaced(occupant)) {
            let due = after(since, self.spec.fallback_after);
            if due > self.now {
                decision.revisit_at(due);
            }
        }
        let probe = match breaker {
            Breaker::Probing { since, .. } => {
                let sent = occupants.clone().filter(|occupant| sent_since(occupant, since));
                // One bound pod proves that spot is back; otherwise a waiting pod keeps the probe
                // open.
                sent.map(|occupant| match (occupant.unbound(), self.stuck(occupant)) {
                    (false, _) => Probe::Bound,
                    (true, true) => Probe::Stuck,
                    (true, false) => Probe::Waiting,
                })
                .max()
                .unwrap_or(Probe::None)
            }
            _ => Probe::None,
        };
        let spot_bound = occupants.clone().filter(|occupant| occupant.is(Class::Spot) && !occupant.unbound());
        SupplyObservation {
            stuck: count(occupants.clone().filter(|occupant| self.stuck(occupant))),
            unplaced: count(occupants.filter(|occupant| self.unplaced(occupant).is_some())),
            last_bound: spot_bound.filter_map(|occupant| occupant.pod.scheduled).max(),
            excess: 0,
            budget: self.budget(),
            probe,
            may_disrupt: false,
        }
    }
}

/// Returns whether a spot pod was created since then. The creation time comes from the API server's
/// clock, `since` from ours.
fn sent_since(occupant: &Occupant<'_>, since: Timestamp) -> bool {
    occupant.is(Class::Spot) && after(occupant.pod.created, CLOCK_TOLERANCE).as_second() >= since.as_second()
}

/// Advances the breaker of a Deployment. Returns the removals; removed pods no longer count in
/// `groups`.
pub(in crate::placement) fn handle_shortage(
    workload: &Managed<'_>,
    groups: &mut [Group<'_>],
    state: &mut PlacementState,
    decision: &mut Decision,
) -> Vec<Action> {
    let split = workload.spec.split;
    let excess: u32 = groups.iter().map(|group| group.surplus(Class::OnDemand, split)).sum();
    let observed = workload.observe(groups.iter().flat_map(|group| &group.occupants), state.breaker, decision);
    let probe = probe_candidate(workload, groups, state);
    let observed = SupplyObservation { excess, may_disrupt: probe.is_some(), ..observed };
    let (breaker, transition) = step(state.breaker, &observed, workload.spec.fallback_after, workload.now);
    state.breaker = breaker;
    report(transition, &observed, decision);
    if let (Transition::Probe, Some((uid, action))) = (transition, probe) {
        record_move(state, excess, workload.now);
        for group in groups.iter_mut() {
            group.occupants.retain(|occupant| occupant.pod.uid != uid);
        }
        return vec![action];
    }
    if !breaker.is_open() || observed.stuck == 0 {
        return Vec::new();
    }

    let coming: u32 =
        groups.iter().map(|group| group.gated() + group.n().saturating_sub(count(group.occupants.iter()))).sum();
    let room = observed.budget.saturating_sub(excess + coming);
    let mut stuck: Vec<&Occupant<'_>> =
        groups.iter().flat_map(|group| &group.occupants).filter(|o| !o.pending && workload.stuck(o)).collect();
    stuck.sort_by(|a, b| (b.slot, &b.pod.name).cmp(&(a.slot, &a.pod.name)));
    stuck.truncate(usize::try_from(room).unwrap_or(usize::MAX));
    let deletes: Vec<Action> = stuck.iter().map(|occupant| delete_stuck(occupant)).collect();
    let uids: HashSet<&str> = stuck.iter().map(|occupant| occupant.pod.uid.as_str()).collect();
    for group in groups.iter_mut() {
        group.occupants.retain(|occupant| !uids.contains(occupant.pod.uid.as_str()));
    }
    deletes
}

pub(in crate::placement) fn delete_stuck(occupant: &Occupant<'_>) -> Action {
    let reason = "no spot capacity within fallback-after: its replacement runs on-demand".to_owned();
    Action::Delete { pod: occupant.pod.into(), reason }
}

/// Adds the Event of a transition.
pub(in crate::placement) fn report(transition: Transition, observed: &SupplyObservation, decision: &mut Decision) {
    decision.actions.extend(match transition {
        Transition::Opened => Some(WorkloadEvent::warning(
            "SpotShortage",
            format!(
                "no spot capacity for {} pods: up to {} replicas run on-demand until it is back",
                observed.stuck, observed.budget
            ),
        )),
        Transition::StillShort => {
            Some(WorkloadEvent::normal("SpotStillShort", "spot capacity is still short; the next probe is later"))
        }
        Transition::Probe => Some(WorkloadEvent::normal("SpotProbe", "probing spot capacity with one replica")),
        Transition::Closed => Some(WorkloadEvent::normal("SpotBack", "spot capacity is back")),
        Transition::Stay if observed.stuck > 0 && observed.budget == 0 => {
            Some(Action::Report(WorkloadEvent::lasting_warning(
                "SpotShortage",
                "no spot capacity for some of its pods, and fallback-budget allows no fallback: they stay Pending",
            )))
        }
        Transition::Stay => None,
    });
}

/// Returns the pod whose eviction would be the probe, if a probe is due and may be sent now.
fn probe_candidate(workload: &Managed<'_>, groups: &[Group<'_>], state: &PlacementState) -> Option<(String, Action)> {
    let Breaker::Open { probe, .. } = state.breaker else { return None };
    let mut active = groups.iter().filter(|group| group.n() > 0 || !group.occupants.is_empty());
    let (Some(group), None) = (active.next(), active.next()) else { return None };
    let over = group.surplus(Class::OnDemand, workload.spec.split) > 0;
    if workload.now < probe || !over || !group.settled() || may_disrupt(workload, state).is_err() {
        return None;
    }
    let ready = surely_ready(group.occupants.iter(), workload);
    let occupant = candidate(group.occupants.iter(), Class::OnDemand, ready, workload)?;
    let reason = "probing whether spot capacity is back".to_owned();
    Some((occupant.pod.uid.clone(), Action::Evict { pod: occupant.pod.into(), reason }))
}

/// Returns how many pods of a Deployment may fall back in this decision.
pub(in crate::placement) fn allowance(
    workload: &Managed<'_>,
    groups: &[Group<'_>],
    state: &PlacementState,
    decision: &mut Decision,
) -> FallbackAllowance {
    let split = workload.spec.split;
    let used: u32 = groups.iter().map(|group| group.surplus(Class::OnDemand, split)).sum();
    let probe = match state.breaker {
        Breaker::Probing { since, .. } => {
            !groups.iter().flat_map(|group| &group.occupants).any(|occupant| sent_since(occupant, since))
        }
        Breaker::Open { probe, .. } => {
            decision.revisit_at(workload.probe_at(probe));
            false
        }
        Breaker::Closed | Breaker::Wary { .. } => false,
    };
    FallbackAllowance { short: state.breaker.is_open(), probe, budget: workload.budget().saturating_sub(used) }
}
