//! Supply of capacity: the breaker of a class and its transitions.
//!
//! Contains no pods: an observation goes in as numbers, the next state and a [`Transition`] come
//! out. The steps that count pods and act on a transition are in [`shortage`], the
//! choice of a probe in [`probe`].
//!
//! # States
//! - *Closed*: pods of the class go to it. A pod that stays unschedulable for `fallback-after`
//!   opens the breaker.
//! - *Open*: slots of the class without a running pod are filled from the other class, within the
//!   budget. A [`Way`] back is taken when it is due.
//! - *Probing*: one pod is sent to the class. If it is bound, the breaker closes and the other pods
//!   follow: unbound ones at once, running ones as ordinary moves. Otherwise the pause doubles.
//! - *Wary*: recently closed. A breaker that opens again soon continues with the longer pause, so
//!   that capacity that comes and goes does not move pods back and forth.
//!
//! # Invariants
//! 1. An unbound pod costs no availability. It is re-placed without regard to disruption budgets,
//!    windows, pauses, cooldowns and availability, but only after the scheduler found no node.
//! 2. A pod that waits in a class beyond its quota is re-placed at once.
//! 3. No ReplicaSet or StatefulSet has more pods outside their class than its budget. A running pod
//!    outside its class is never removed to respect the budget.
//! 4. While a class is short, every slot of it without a running pod falls back, up to the budget.
//! 5. If the other class is short too, one unbound pod waits in its own class: the first capacity
//!    of either class is used.
//! 6. The last Ready replica is never evicted for a probe without evidence of capacity.
//! 7. If capacity for the exact split exists and nothing forbids a move, the split is reached.
//!
//! # Cases
//! | breaker | observed | next | effect |
//! |---|---|---|---|
//! | closed | a pod is stuck, budget 0 | closed | reported |
//! | closed | a pod is stuck | open | unbound pods and empty slots fall back |
//! | open | a pod of the class was bound since, none waits | closed | pods return |
//! | open | a fallback pod is stuck in the other class | probing | that pod is the probe |
//! | open, due or evidence | an unbound fallback pod | probing | that pod is the probe |
//! | open, due or evidence | a pod is about to be placed | probing | that pod is the probe |
//! | open, due or evidence | a rollout holds its spot pods | open | they stay gated until then |
//! | probing | the scheduler has not tried the probe | probing | other spot pods stay gated |
//! | open, evidence | a move is allowed | probing | one pod is moved |
//! | open, due | a move is allowed, two Ready, all available | probing | one pod is evicted |
//! | open, due | a pod of the class is still stuck | open | longer pause |
//! | open, due | no pod is outside its class and none waits | closed | |
//! | probing | the probe was bound | closed | pods return |
//! | probing | the probe is stuck, fallback pods are stuck too | probing | the probe keeps waiting |
//! | probing | the probe is stuck, it had no node before | open | same pause, it falls back |
//! | probing | the probe is stuck | open | longer pause, the probe falls back |
//! | probing | no probe was created in time, sooner if no pod is missing | open | same pause |

pub(super) mod on_demand;
pub(super) mod probe;
pub(super) mod report;
pub(super) mod shortage;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::ungate::after;

const MIN_PAUSE: SignedDuration = SignedDuration::from_mins(1);
const MAX_PAUSE: SignedDuration = SignedDuration::from_hours(2);
/// Age at which a probe counts as not sent although every replica exists: the eviction was refused, or
/// the process ended between the write of the state and the eviction.
const UNSENT_AFTER: SignedDuration = SignedDuration::from_secs(30);
/// Minimum time for which a closed breaker remembers its attempts.
const MIN_MEMORY: SignedDuration = SignedDuration::from_hours(1);

/// Serialized into the annotation [`super::STATE`]; variant and field names are part of that
/// format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "camelCase")]
pub enum Breaker {
    #[default]
    Closed,
    /// Closed at `closed`; opening again continues from `attempt`.
    Wary { closed: Timestamp, attempt: u32 },
    /// Open since `since`; the next probe is due at `probe`.
    Open { since: Timestamp, probe: Timestamp, attempt: u32 },
    Probing {
        since: Timestamp,
        attempt: u32,
        /// The probe began because of a new node of the class.
        #[serde(default, skip_serializing_if = "is_false")]
        evidence: bool,
        /// The probe had no node in the other class either, so that it costs nothing if it fails.
        #[serde(default, skip_serializing_if = "is_false")]
        stranded: bool,
    },
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_false(value: &bool) -> bool {
    !value
}

impl Breaker {
    /// Returns whether there was no shortage so far.
    pub(super) fn is_initial(&self) -> bool {
        *self == Self::Closed
    }

    pub fn is_open(self) -> bool {
        matches!(self, Breaker::Open { .. } | Breaker::Probing { .. })
    }
}

/// Progress of a probe, ordered by how much it proves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Probe {
    /// No pod was sent to spot since the probe began.
    None,
    /// Unschedulable for `fallback-after`.
    Stuck,
    Waiting,
    Bound,
}

/// Kind of a probe, ordered by preference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    /// A running pod is evicted.
    Eviction,
    /// A pod that is created anyway.
    Created,
    /// A fallback pod without a node.
    Unbound,
    /// A fallback pod without a node, for which the other class has had no capacity for
    /// `fallback-after`.
    Stranded,
}

/// Input of the breaker.
#[derive(Debug, Clone, Copy)]
pub struct SupplyObservation {
    /// Pods of the class that have been unschedulable for `fallback-after`.
    pub stuck: u32,
    /// Pods of the class that are currently unschedulable.
    pub unplaced: u32,
    /// Time at which the last pod of the class was bound.
    pub last_bound: Option<Timestamp>,
    /// Pods of the other class beyond their quota.
    pub excess: u32,
    pub budget: u32,
    pub probe: Probe,
    /// Best way to send a probe now.
    pub way: Option<Way>,
    /// A node of the class became usable since the breaker opened.
    pub evidence: bool,
    /// Every replica exists and none is terminating: no pod was removed for a probe.
    pub complete: bool,
}

/// Result of one step of the breaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transition {
    Stay,
    Opened,
    /// One fallback pod must be sent back to spot.
    Probe,
    /// Spot is still short; the next probe is later.
    StillShort,
    Closed,
}

fn pause(attempt: u32, fallback_after: SignedDuration) -> SignedDuration {
    let factor = 1i32 << attempt.min(16);
    fallback_after.max(MIN_PAUSE).checked_mul(factor).unwrap_or(MAX_PAUSE).min(MAX_PAUSE)
}

/// Returns when a probe ends for which no pod was created.
fn probe_ends(since: Timestamp, complete: bool, fallback_after: SignedDuration) -> Timestamp {
    let patience = fallback_after * 2;
    after(since, if complete { patience.min(UNSENT_AFTER) } else { patience })
}

/// Computes the next state. With [`Transition::Stay`] the breaker is unchanged.
pub fn step(
    breaker: Breaker,
    seen: &SupplyObservation,
    fallback_after: SignedDuration,
    now: Timestamp,
) -> (Breaker, Transition) {
    let open = |attempt| {
        let attempt = u32::min(attempt, 16);
        Breaker::Open { since: now, probe: after(now, pause(attempt, fallback_after)), attempt }
    };
    let closed = |attempt| (Breaker::Wary { closed: now, attempt }, Transition::Closed);
    let trips = seen.stuck > 0 && seen.budget > 0;
    match breaker {
        Breaker::Closed if trips => (open(0), Transition::Opened),
        Breaker::Closed => (breaker, Transition::Stay),
        Breaker::Wary { closed, attempt } => {
            let memory = MIN_MEMORY.max(pause(attempt, fallback_after) * 4);
            let remembered = now < after(closed, memory);
            match (trips, remembered) {
                (true, true) => (open(attempt + 1), Transition::Opened),
                (true, false) => (open(0), Transition::Opened),
                // An expired memory is not written: it reads as Closed.
                (false, _) => (breaker, Transition::Stay),
            }
        }
        Breaker::Open { since, probe, attempt } => {
            let due = now >= probe;
            let came_back = seen.unplaced == 0 && seen.last_bound.is_some_and(|bound| bound > since);
            let may_probe = match seen.way {
                Some(Way::Stranded) => true,
                Some(Way::Unbound | Way::Created | Way::Eviction) => due || seen.evidence,
                None => false,
            };
            if came_back || (due && seen.excess == 0 && seen.unplaced == 0) {
                closed(attempt)
            } else if due && seen.stuck > 0 {
                (open(attempt + 1), Transition::StillShort)
            } else if may_probe && seen.unplaced == 0 {
                let stranded = seen.way == Some(Way::Stranded);
                (Breaker::Probing { since: now, attempt, evidence: seen.evidence, stranded }, Transition::Probe)
            } else {
                (breaker, Transition::Stay)
            }
        }
        Breaker::Probing { since, attempt, stranded, .. } => match seen.probe {
            Probe::Bound => closed(attempt),
            // Both classes are short: the probe costs nothing and keeps waiting.
            Probe::Stuck if seen.way == Some(Way::Stranded) => (breaker, Transition::Stay),
            Probe::Stuck if stranded => (open(attempt), Transition::StillShort),
            Probe::Stuck => (open(attempt + 1), Transition::StillShort),
            // The eviction was refused, or no replacement was created.
            Probe::None if now >= probe_ends(since, seen.complete, fallback_after) => {
                (open(attempt), Transition::StillShort)
            }
            Probe::None | Probe::Waiting => (breaker, Transition::Stay),
        },
    }
}

/// Stage of the probe that a decision sends or waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProbeStage {
    /// No probe, or the scheduler found no node for it.
    None,
    /// A probe is due or there is evidence, but the rollout holds the spot pods that could be it.
    Held,
    /// The next spot pod is the probe.
    Due,
    /// A spot pod was sent, and the scheduler has not tried it yet. That takes milliseconds unless
    /// the scheduler is down.
    Untried,
}

/// Destination of a spot pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SpotPod {
    Spot,
    /// The pod runs on-demand.
    FallsBack,
    /// The pod stays gated until the scheduler has tried the probe. A pod that fell back now might
    /// have to be evicted afterwards, which a disruption budget may never allow.
    AwaitsProbe,
}

/// Number of pods of a workload that may still fall back to on-demand in this decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FallbackAllowance {
    pub short: bool,
    pub probe: ProbeStage,
    /// Pods that may run on-demand beyond the on-demand quota.
    pub budget: u32,
    /// Pods may run on spot beyond the spot quota, because on-demand is short.
    pub on_demand_short: bool,
}

impl FallbackAllowance {
    /// Decides where the next spot pod goes. `quota_left`: the on-demand quota is not used up.
    /// `may_wait`: the pod may stay gated for now.
    pub(super) fn take(&mut self, quota_left: bool, may_wait: bool) -> SpotPod {
        if !self.short {
            return SpotPod::Spot;
        }
        if self.probe == ProbeStage::Due {
            self.probe = ProbeStage::None;
            return SpotPod::Spot;
        }
        if quota_left {
            return SpotPod::FallsBack;
        }
        // A held pod is the probe as soon as its hold ends.
        if self.budget == 0 || self.probe == ProbeStage::Held {
            return SpotPod::Spot;
        }
        if self.probe == ProbeStage::Untried && may_wait {
            return SpotPod::AwaitsProbe;
        }
        self.budget -= 1;
        SpotPod::FallsBack
    }

    /// Notes that a spot pod is sent in this decision.
    pub(super) fn sent(&mut self) {
        if self.short {
            self.probe = ProbeStage::Untried;
        }
    }
}

#[cfg(test)]
mod tests;
