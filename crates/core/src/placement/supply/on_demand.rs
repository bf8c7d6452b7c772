//! Shortage of on-demand capacity, where `on-demand-fallback: spot` allows it: replicas above the
//! floor run on spot until on-demand capacity is back. StatefulSets use the breaker, and choose slots
//! themselves.
//!
//! Uses the breaker of spot with the classes exchanged. There is no separate probe: when one is
//! due, the breaker closes and the first ordinary move is the probe. If its pod finds no node, the
//! breaker opens again with a longer pause. While spot is short too, every pod waits in its own
//! class.

use super::report::report;
use super::{Breaker, Probe, SupplyObservation, Way, step};
use crate::placement::Class;
use crate::placement::decision::{Action, PlacementDecision};
use crate::placement::moves::{may_disrupt, may_move_to};
use crate::placement::occupancy::{Group, Occupant, count};
use crate::placement::spec::Strength;
use crate::placement::state::PlacementState;
use crate::placement::supply::shortage::delete;
use crate::placement::workload::Managed;

const TRIES_SPOT: &str = "no on-demand capacity, and it is above min-on-demand: its replacement runs on spot";

/// Returns whether on-demand pods above the floor go to spot.
pub(in crate::placement) fn is_short(state: &PlacementState) -> bool {
    state.on_demand.is_open() && !state.breaker.is_open()
}

/// Replicas of on-demand that run on spot.
#[derive(Clone, Copy, Debug)]
pub(in crate::placement) struct OnSpot {
    /// Number of pods on spot beyond its quota.
    pub(in crate::placement) excess: u32,
    /// The best way to try on-demand again.
    pub(in crate::placement) way: Option<Way>,
}

impl Managed<'_> {
    /// Maximum number of pods that may run on spot beyond the spot quota, out of `n` replicas of one
    /// ReplicaSet, while on-demand is short.
    pub(in crate::placement) fn on_demand_budget(&self, n: u32) -> u32 {
        let split = self.spec.split;
        let allowed = self.spec.on_demand_fallback && self.spec.strength == Strength::Required;
        if allowed { split.on_demand(n).saturating_sub(split.floor().of(n)) } else { 0 }
    }

    /// Returns whether all pods of a ReplicaSet that are on spot beyond the quota may stay there.
    pub(in crate::placement) fn excuses(&self, group: &Group<'_>, state: &PlacementState) -> bool {
        let (split, n) = (self.spec.split, group.n());
        state.on_demand.is_open()
            && group.surplus(Class::Spot, split) <= self.on_demand_budget(n)
            && group.count(Class::OnDemand) >= split.floor().of(n)
    }

    /// Returns whether a running pod may be moved to on-demand to try whether it is back.
    fn may_try_on_demand(&self, state: &PlacementState, evidence: bool) -> bool {
        let view = self.view;
        let spare = evidence || view.available >= 2 && view.available >= view.replicas;
        spare && may_disrupt(self, state).is_ok() && may_move_to(Class::OnDemand, self).is_ok()
    }

    /// Advances the breaker of on-demand.
    pub(in crate::placement) fn advance_on_demand<'a, 's>(
        &self,
        occupants: &(impl Iterator<Item = &'s Occupant<'a>> + Clone),
        OnSpot { excess, way }: OnSpot,
        state: &mut PlacementState,
        decision: &mut PlacementDecision,
    ) where
        'a: 's,
    {
        let class = Class::OnDemand;
        let budget = self.on_demand_budget(self.view.replicas);
        if budget == 0 {
            state.on_demand = Breaker::Closed;
            return;
        }
        let evidence = self.evidence(class, state.on_demand);
        let bound = occupants.clone().filter(|occupant| occupant.is(class) && !occupant.unbound());
        let seen = SupplyObservation {
            stuck: count(occupants.clone().filter(|occupant| self.stuck(occupant, class))),
            unplaced: count(occupants.clone().filter(|occupant| self.unplaced(occupant, class).is_some())),
            last_bound: bound.filter_map(|occupant| occupant.pod.scheduled).max(),
            excess,
            budget,
            probe: Probe::None,
            way: way.filter(|way| *way != Way::Eviction || self.may_try_on_demand(state, evidence)),
            evidence,
            complete: false,
        };
        let (breaker, transition) = step(state.on_demand, &seen, self.spec.fallback_after, self.now);
        state.on_demand = match breaker {
            Breaker::Probing { attempt, .. } => Breaker::Wary { closed: self.now, attempt },
            other => other,
        };
        report(class, transition, &seen, decision);
        if let Breaker::Open { probe, .. } = state.on_demand {
            decision.revisit_at(self.probe_at(probe));
        }
    }
}

/// Advances the breaker of on-demand and replaces pods above the floor that wait for it. Returns the
/// removals; removed pods no longer count in `groups`.
pub(in crate::placement) fn handle_shortage(
    workload: &Managed<'_>,
    groups: &mut [Group<'_>],
    state: &mut PlacementState,
    decision: &mut PlacementDecision,
) -> Vec<Action> {
    let excess = groups.iter().map(|group| group.surplus(Class::Spot, workload.spec.split)).sum();
    let all = groups.iter().flat_map(|group| &group.occupants);
    workload.advance_on_demand(&all, OnSpot { excess, way: Some(Way::Eviction) }, state, decision);
    if !is_short(state) {
        return Vec::new();
    }
    let mut removals = Vec::new();
    for group in groups.iter_mut() {
        let gone: Vec<String> = replaceable(workload, group).iter().map(|occupant| occupant.pod.uid.clone()).collect();
        let leaving = |occupant: &&Occupant<'_>| gone.contains(&occupant.pod.uid);
        removals.extend(group.occupants.iter().filter(leaving).map(|occupant| delete(occupant, TRIES_SPOT)));
        group.occupants.retain(|occupant| !gone.contains(&occupant.pod.uid));
    }
    removals
}

/// Returns the pods of one ReplicaSet above the floor that wait for on-demand capacity.
fn replaceable<'g, 'a>(workload: &Managed<'_>, group: &'g Group<'a>) -> Vec<&'g Occupant<'a>> {
    let (split, n) = (workload.spec.split, group.n());
    // The ReplicaSet removes pods itself, unbound ones first.
    if count(group.occupants.iter()) > n || !group.set.observed {
        return Vec::new();
    }
    let above = group.count(Class::OnDemand).saturating_sub(split.floor().of(n));
    let room = workload.on_demand_budget(n).saturating_sub(group.surplus(Class::Spot, split));
    let mut waiting: Vec<&Occupant<'_>> =
        group.occupants.iter().filter(|occupant| workload.assigned(occupant, Class::OnDemand)).collect();
    waiting.sort_by(|a, b| (b.slot, &b.pod.name).cmp(&(a.slot, &a.pod.name)));
    waiting.truncate(usize::try_from(above.min(room)).unwrap_or(usize::MAX));
    waiting
}
