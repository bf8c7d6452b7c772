//! The part of a decision that handles a shortage: counting pods for the breaker, acting on its
//! transitions and re-placing pods that wait for a node in the wrong class.
//!
//! Never removes a Ready pod except as a probe, and never without [`may_disrupt`].

use std::collections::HashSet;

use jiff::{SignedDuration, Timestamp};

use super::probe::{ProbePod, find_probe};
use super::report::report;
use super::{
    Breaker, FallbackAllowance, Probe, ProbeStage, SupplyObservation, Transition, Way, on_demand, probe_ends, step,
};
use crate::CLOCK_TOLERANCE;
use crate::placement::Class;
use crate::placement::decision::{Action, PlacementDecision, RoomSearch};
use crate::placement::moves::{Blocked, RETRY, may_disrupt, may_exchange, may_move_to, record_probe, record_success};
use crate::placement::occupancy::{Group, Occupant, count};
use crate::placement::spec::Strength;
use crate::placement::state::PlacementState;
use crate::placement::ungate::after;
use crate::placement::workload::{Managed, PodView};

/// Times of nodes have a resolution of one second.
const RESOLUTION: SignedDuration = SignedDuration::from_secs(1);

impl Managed<'_> {
    /// Maximum number of pods that may run on-demand beyond the on-demand quota, out of `n`
    /// replicas of one ReplicaSet or StatefulSet.
    pub(in crate::placement) fn budget(&self, n: u32) -> u32 {
        self.spec.fallback_budget.of(self.spec.split.spot(n))
    }

    /// Returns since when a pod of the class is unschedulable. A preferred class never makes a pod
    /// unschedulable.
    pub(in crate::placement) fn unplaced(&self, occupant: &Occupant<'_>, class: Class) -> Option<Timestamp> {
        let waits = self.spec.strength == Strength::Required && occupant.is(class) && occupant.unbound();
        occupant.pod.unschedulable.filter(|_| waits)
    }

    /// Returns whether a pod of the class has been unschedulable for `fallback-after`.
    pub(in crate::placement) fn stuck(&self, occupant: &Occupant<'_>, class: Class) -> bool {
        self.unplaced(occupant, class).is_some_and(|since| after(since, self.spec.fallback_after) <= self.now)
    }

    /// Returns whether Perennial assigned the class that the pod waits in. A class that another
    /// writer selects would only be selected again for a replacement.
    pub(in crate::placement) fn assigned(&self, occupant: &Occupant<'_>, class: Class) -> bool {
        self.unplaced(occupant, class).is_some() && !occupant.pending && occupant.pod.class == Some(class)
    }

    /// Returns when the probe is considered next. An overdue probe may be blocked by something that
    /// is not watched, so it is retried periodically.
    pub(in crate::placement) fn probe_at(&self, probe: Timestamp) -> Timestamp {
        if probe > self.now { probe } else { after(self.now, RETRY) }
    }

    /// Returns whether a node of the class became usable since the breaker opened or has room now,
    /// or whether the current probe began because of one.
    pub(in crate::placement) fn evidence(&self, class: Class, breaker: Breaker) -> bool {
        match breaker {
            Breaker::Closed | Breaker::Wary { .. } => false,
            Breaker::Open { since, .. } => {
                let nodes = self.nodes.of(class);
                let newest = nodes.usable_since.max(nodes.room_found);
                newest.is_some_and(|usable| after(usable, RESOLUTION) > since)
            }
            Breaker::Probing { evidence, .. } => evidence,
        }
    }

    /// Checks whether a running pod may be evicted as a probe. Without evidence of capacity the
    /// probe may fail, so that the workload must be able to spare the pod.
    pub(in crate::placement) fn may_probe(&self, state: &PlacementState, evidence: bool) -> Result<(), Blocked> {
        may_disrupt(self, state)?;
        may_move_to(Class::Spot, self)?;
        let view = self.view;
        if !evidence && (view.available < 2 || view.available < view.replicas) {
            let reason = format!("only {} of {} replicas are available to spare one", view.available, view.replicas);
            return Err(Blocked { needs_room: true, ..Blocked::until(reason, after(self.now, RETRY)) });
        }
        Ok(())
    }

    /// Checks whether a running fallback pod may be evicted as a probe while another on-demand pod
    /// waits for the capacity that becomes free: as many replicas run afterwards.
    pub(in crate::placement) fn may_give_way(&self, state: &PlacementState, evidence: bool) -> Result<(), Blocked> {
        if self.view.available < 2 && !evidence {
            let blocked = Blocked::until("no other replica is available", after(self.now, RETRY));
            return Err(Blocked { needs_room: true, ..blocked });
        }
        may_exchange(self, state)
    }

    /// Returns the search for room on spot nodes, if room would be reason enough for a probe now:
    /// room on an existing node counts like a new node. `found` is the probe that can be sent.
    pub(in crate::placement) fn room_search<'a, 's, T>(
        &self,
        breaker: Breaker,
        observed: &SupplyObservation,
        found: &Result<T, Option<Blocked>>,
        mut occupants: impl Iterator<Item = &'s Occupant<'a>>,
    ) -> Option<RoomSearch>
    where
        'a: 's,
    {
        let Breaker::Open { probe, .. } = breaker else { return None };
        let possible = match found {
            Ok(_) => true,
            Err(blocked) => blocked.as_ref().is_some_and(|blocked| blocked.needs_room),
        };
        let outside = observed.excess > 0 && observed.unplaced == 0;
        if !possible || !outside || observed.evidence || self.nodes.spot.total == 0 {
            return None;
        }
        let occupant = occupants.find(|occupant| occupant.is(Class::OnDemand) && !occupant.pending)?;
        Some(RoomSearch { class: Class::Spot, pod: occupant.pod.into(), again: probe <= self.now })
    }

    /// Returns whether every replica exists and none is terminating.
    pub(in crate::placement) fn is_complete(&self) -> bool {
        let stays = |pod: &&PodView| pod.occupies() && !self.pending.removed.contains(&pod.uid);
        let terminating = self.pods.iter().any(|pod| pod.deleting);
        !terminating && count(self.pods.iter().filter(stays)) == self.view.replicas
    }

    /// Counts the pods that the breaker of the spot class depends on.
    pub(in crate::placement) fn observe<'a, 's>(
        &self,
        occupants: &(impl Iterator<Item = &'s Occupant<'a>> + Clone),
        breaker: Breaker,
        decision: &mut PlacementDecision,
    ) -> SupplyObservation
    where
        'a: 's,
    {
        let spot = Class::Spot;
        let waiting = |class| occupants.clone().filter_map(move |occupant| self.unplaced(occupant, class));
        for since in waiting(Class::Spot).chain(waiting(Class::OnDemand)) {
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
                sent.map(|occupant| match (occupant.unbound(), self.stuck(occupant, spot)) {
                    (false, _) => Probe::Bound,
                    (true, true) => Probe::Stuck,
                    (true, false) => Probe::Waiting,
                })
                .max()
                .unwrap_or(Probe::None)
            }
            _ => Probe::None,
        };
        let complete = self.is_complete();
        if let (Breaker::Probing { since, .. }, Probe::None) = (breaker, probe) {
            let ends = probe_ends(since, complete, self.spec.fallback_after);
            decision.revisit_at(ends.max(self.now));
        }
        let spot_bound = occupants.clone().filter(|occupant| occupant.is(spot) && !occupant.unbound());
        SupplyObservation {
            stuck: count(occupants.clone().filter(|occupant| self.stuck(occupant, spot))),
            unplaced: count(waiting(spot)),
            last_bound: spot_bound.filter_map(|occupant| occupant.pod.scheduled).max(),
            excess: 0,
            budget: self.budget(self.view.replicas),
            probe,
            way: None,
            evidence: self.evidence(spot, breaker),
            complete,
        }
    }
}

/// Returns whether a spot pod was created since then. The creation time comes from the API server's
/// clock, `since` from ours.
pub(in crate::placement) fn sent_since(occupant: &Occupant<'_>, since: Timestamp) -> bool {
    occupant.is(Class::Spot) && after(occupant.pod.created, CLOCK_TOLERANCE).as_second() >= since.as_second()
}

/// Advances the breaker of a Deployment and re-places pods that wait in the wrong class. Returns
/// the removals; removed pods no longer count in `groups`.
pub(in crate::placement) fn handle_shortage(
    workload: &Managed<'_>,
    groups: &mut [Group<'_>],
    state: &mut PlacementState,
    decision: &mut PlacementDecision,
) -> Vec<Action> {
    let split = workload.spec.split;
    let excess: u32 = groups.iter().map(|group| group.surplus(Class::OnDemand, split)).sum();
    let observed = workload.observe(&groups.iter().flat_map(|group| &group.occupants), state.breaker, decision);
    let found = find_probe(workload, groups, state, observed.evidence);
    let observed = SupplyObservation { excess, way: found.as_ref().ok().map(|found| found.way), ..observed };
    let (breaker, transition) = step(state.breaker, &observed, workload.spec.fallback_after, workload.now);
    if let (Breaker::Open { probe, .. }, Err(Some(blocked))) = (breaker, &found)
        && probe <= workload.now
    {
        blocked.clone().of_probe(workload).wait(decision);
    }
    let all = groups.iter().flat_map(|group| &group.occupants);
    decision.search_room(workload.room_search(breaker, &observed, &found, all), workload.now);
    state.breaker = breaker;
    report(Class::Spot, transition, &observed, decision);
    if transition == Transition::Closed {
        record_success(state);
    }
    let mut removals = Vec::new();
    if let (Transition::Probe, Ok(ProbePod { way, pod: Some((uid, action)) })) = (transition, found) {
        if way == Way::Eviction {
            record_probe(state, workload.now);
        }
        for group in groups.iter_mut() {
            group.occupants.retain(|occupant| occupant.pod.uid != uid);
        }
        removals.push(action);
    }
    for group in groups.iter_mut() {
        let uids: HashSet<String> = {
            let leaving = replaceable(workload, group, state);
            removals.extend(leaving.iter().map(|(occupant, reason)| delete(occupant, reason)));
            leaving.iter().map(|(occupant, _)| occupant.pod.uid.clone()).collect()
        };
        group.occupants.retain(|occupant| !uids.contains(&occupant.pod.uid));
    }
    removals
}

pub(in crate::placement) const FALLS_BACK: &str = "no spot capacity: its replacement runs on-demand";
pub(in crate::placement) const TRIES_SPOT: &str = "it waits for on-demand capacity: its replacement tries spot";

/// Returns the reason for which a pod that waits in the wrong class is replaced.
pub(in crate::placement) fn wrong_class(class: Class) -> &'static str {
    match class {
        Class::Spot => "it waits for spot capacity beyond the quota: its replacement runs on-demand",
        Class::OnDemand => "it waits for on-demand capacity beyond the quota: its replacement runs on spot",
    }
}

/// Returns the pods of one ReplicaSet that wait for a node in the wrong class, with reasons.
fn replaceable<'g, 'a>(
    workload: &Managed<'_>,
    group: &'g Group<'a>,
    state: &PlacementState,
) -> Vec<(&'g Occupant<'a>, &'static str)> {
    let (split, n) = (workload.spec.split, group.n());
    let total = count(group.occupants.iter());
    // The ReplicaSet removes pods itself, unbound ones first.
    if total > n || !group.set.observed {
        return Vec::new();
    }
    let breaker = state.breaker;
    let short = breaker.is_open();
    let excused = if on_demand::is_short(state) { workload.on_demand_budget(n) } else { 0 };
    let budget = if short { workload.budget(n) } else { 0 };
    let waiting = |class: Class| {
        let mut pods: Vec<&Occupant<'_>> =
            group.occupants.iter().filter(|occupant| workload.assigned(occupant, class)).collect();
        pods.sort_by(|a, b| (b.slot, &b.pod.name).cmp(&(a.slot, &a.pod.name)));
        pods
    };
    let up_to = |limit: u32| usize::try_from(limit).unwrap_or(usize::MAX);
    let (spot, on_demand) = (group.count(Class::Spot), group.count(Class::OnDemand));
    let (spot_quota, on_demand_quota) = (split.spot(n), split.on_demand(n));

    let over = spot.saturating_sub(spot_quota + excused);
    let beyond: Vec<_> = waiting(Class::Spot).into_iter().take(up_to(over)).collect();
    let back = waiting(Class::OnDemand).into_iter().take(up_to(on_demand.saturating_sub(on_demand_quota + budget)));
    let coming = group.gated() + (n - total);
    let room = (on_demand_quota + budget).saturating_sub(on_demand + coming + count(beyond.iter()));
    let is_probe = |occupant: &Occupant<'_>| match breaker {
        Breaker::Probing { since, .. } => sent_since(occupant, since),
        _ => false,
    };
    let falling = waiting(Class::Spot).into_iter().skip(beyond.len());
    let falling = falling.filter(|occupant| short && !is_probe(occupant)).take(up_to(room));
    let falling: Vec<_> = falling.map(|occupant| (occupant, FALLS_BACK)).collect();
    beyond
        .into_iter()
        .map(|occupant| (occupant, wrong_class(Class::Spot)))
        .chain(back.map(|occupant| (occupant, wrong_class(Class::OnDemand))))
        .chain(falling)
        .collect()
}

pub(in crate::placement) fn delete(occupant: &Occupant<'_>, reason: &str) -> Action {
    Action::Delete { pod: occupant.pod.into(), reason: reason.to_owned() }
}

/// Returns how many pods of a ReplicaSet may fall back in this decision.
pub(in crate::placement) fn allowance(
    workload: &Managed<'_>,
    group: &Group<'_>,
    state: &PlacementState,
    probe: ProbeStage,
) -> FallbackAllowance {
    let used = group.surplus(Class::OnDemand, workload.spec.split);
    FallbackAllowance {
        short: state.breaker.is_open(),
        probe,
        budget: workload.budget(group.n()).saturating_sub(used),
        on_demand_short: on_demand::is_short(state),
    }
}
