//! Holds: the reasons for which a gated spot pod stays gated although its slot is known.
//!
//! A rollout holds its spot pods until enough of its on-demand pods are Ready. After a mass
//! interruption, replacements are released a few at a time. Every hold has a time limit.

use jiff::{SignedDuration, Timestamp};

use super::Class;
use super::occupancy::{Group, count};
use super::ungate::after;
use super::workload::Managed;

/// Reason for a hold, and its maximum duration from the creation of the pod.
pub(super) struct Hold {
    pub reason: String,
    pub limit: SignedDuration,
}

/// The holds of one ReplicaSet's spot pods.
pub(super) struct SpotHold {
    /// Ready on-demand pods that the rollout still lacks.
    lacking: u32,
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
        let lacking = split.floor().saturating_sub(group.ready(Class::OnDemand));
        // A ReplicaSet with more pods than its cached spec is stale in the cache: it may be the
        // newest by now.
        let may_be_newest = group.set.newest || count(group.occupants.iter()) > group.n();
        let mass_interruption = group.leaving >= spot.div_ceil(4).max(3);
        Self {
            lacking: if rollout && may_be_newest { lacking } else { 0 },
            floor: split.floor(),
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
        self.lacking > 0 || self.window.is_some()
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
        let window = self.window.filter(|window| self.outstanding >= *window)?;
        let reason = format!("many spot pods were lost at once: {window} replacements at a time");
        Some(Hold { reason, limit: self.window_limit })
    }

    /// Counts a spot pod that is released now.
    pub(super) fn release_one(&mut self) {
        self.outstanding += 1;
    }

    /// Returns whether a pod of the rollout has been held for the maximum time.
    pub(super) fn timed_out(&self, group: &Group<'_>, now: Timestamp) -> bool {
        self.lacking > 0
            && group.occupants.iter().any(|occupant| now >= after(occupant.pod.created, self.rollout_limit))
    }
}
