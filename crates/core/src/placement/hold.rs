//! Holds: the reasons for which a gated spot pod stays gated although its slot is known.
//!
//! A rollout holds its spot pods until enough of its on-demand pods are Ready. If those have had no
//! node for `fallback-after`, it goes on as far as the former ReplicaSet keeps the floor. If they
//! are not Ready after the maximum time of a hold, it holds nothing: otherwise each step of the
//! rollout would wait for them again. After a mass interruption, replacements are released a few at
//! a time. While a probe is on its way to the scheduler, spot pods that would fall back wait for its
//! result. Every hold has a time limit.

use jiff::{SignedDuration, Timestamp};

use super::Class;
use super::occupancy::{Group, Occupant, count};
use super::ungate::after;
use super::workload::Managed;

/// Reason for a hold, and its maximum duration from the creation of the pod.
pub(super) struct Hold {
    pub reason: String,
    pub limit: SignedDuration,
}

impl Hold {
    /// The hold of a spot pod that would fall back, while the scheduler has not tried the probe.
    pub(super) fn for_probe(limit: SignedDuration) -> Self {
        Self { reason: "another pod is probing whether spot capacity is back".to_owned(), limit }
    }
}

/// The holds of one ReplicaSet's spot pods.
pub(super) struct SpotHold {
    /// Ready on-demand pods that the rollout still lacks.
    missing: u32,
    /// Those of them that the rollout waits for.
    lacking: u32,
    /// Maximum number of spot pods while on-demand pods are stuck: with more of them the Deployment
    /// may remove the on-demand pods of the former ReplicaSet.
    spare: Option<u32>,
    /// Spot pods that are not held.
    released: u32,
    floor: u32,
    /// Spot pods without a node.
    outstanding: u32,
    /// Maximum number of outstanding spot pods after a mass interruption.
    window: Option<u32>,
    rollout_limit: SignedDuration,
    window_limit: SignedDuration,
}

impl SpotHold {
    /// `rollout`: another ReplicaSet of the workload has pods.
    pub(super) fn new(group: &Group<'_>, workload: &Managed<'_>, rollout: bool) -> Self {
        let split = workload.spec.split;
        let spot = split.spot(group.n());
        let missing = split.floor().of(group.n()).saturating_sub(group.ready(Class::OnDemand));
        let unready = || group.occupants.iter().filter(|one| one.is(Class::OnDemand) && !one.pod.ready);
        let is_late = |one: &&Occupant<'_>| workload.now >= after(one.pod.created, workload.settings.hold_timeout);
        let is_stuck = |one: &&Occupant<'_>| !is_late(one) && workload.stuck(one, Class::OnDemand);
        let awaited = missing.saturating_sub(count(unready().filter(is_late)));
        let lacking = awaited.saturating_sub(count(unready().filter(is_stuck)));
        let view = workload.view;
        let spare = view.replicas.saturating_sub(view.max_unavailable + split.floor().of(view.replicas));
        // A ReplicaSet with more pods than its cached spec is stale in the cache: it may be the
        // newest by now.
        let may_be_newest = group.set.newest || count(group.occupants.iter()) > group.n();
        let mass_interruption = group.leaving >= spot.div_ceil(4).max(3);
        let holds = rollout && may_be_newest;
        Self {
            missing: if holds { missing } else { 0 },
            lacking: if holds { lacking } else { 0 },
            spare: (holds && awaited > 0).then_some(spare),
            released: group.count(Class::Spot),
            floor: split.floor().of(group.n()),
            outstanding: count(
                group.occupants.iter().filter(|occupant| occupant.is(Class::Spot) && occupant.unbound()),
            ),
            window: mass_interruption.then(|| (spot / 10).max(5)),
            rollout_limit: workload.settings.hold_timeout,
            window_limit: workload.settings.gate_timeout,
        }
    }

    /// Returns whether some spot pod is held, or may have to be.
    pub(super) fn may_hold(&self) -> bool {
        self.lacking > 0 || self.spare.is_some() || self.window.is_some()
    }

    /// Returns the hold of the next spot pod.
    pub(super) fn next(&self) -> Option<Hold> {
        if self.lacking > 0 {
            let reason = format!(
                "another ReplicaSet still has pods, and {} of {} on-demand pods of this one are not Ready yet",
                self.lacking, self.floor
            );
            return Some(Hold { reason, limit: self.rollout_limit });
        }
        if self.spare.is_some_and(|spare| self.released >= spare) {
            let reason = "its on-demand pods have no node, and the former ReplicaSet keeps min-on-demand".to_owned();
            return Some(Hold { reason, limit: self.rollout_limit });
        }
        let window = self.window.filter(|window| self.outstanding >= *window)?;
        let reason = format!("many spot pods were lost at once: {window} replacements at a time");
        Some(Hold { reason, limit: self.window_limit })
    }

    /// Counts a spot pod that is released now.
    pub(super) fn release_one(&mut self) {
        self.outstanding += 1;
        self.released += 1;
    }

    /// Returns whether a pod of the rollout has been held for the maximum time.
    pub(super) fn timed_out(&self, group: &Group<'_>, now: Timestamp) -> bool {
        self.missing > 0
            && group.occupants.iter().any(|occupant| now >= after(occupant.pod.created, self.rollout_limit))
    }
}
