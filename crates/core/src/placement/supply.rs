//! Spot shortage: the breaker of a workload and its transitions.
//!
//! Contains no pods: an observation goes in as numbers, the next state and a [`Transition`] come
//! out. The steps that count pods and act on a transition are in [`shortage`].
//!
//! - *Closed*: spot pods go to spot. A spot pod that stays unschedulable for `fallback-after` opens
//!   the breaker.
//! - *Open*: pods that would be spot run on-demand, within the budget. After a pause, one of them
//!   is sent back to spot as a probe.
//! - *Probing*: if the probe is scheduled, the breaker closes and the other pods follow as ordinary
//!   moves. Otherwise the pause doubles.
//! - *Wary*: recently closed. A breaker that opens again soon continues with the longer pause, so
//!   that capacity that comes and goes does not move pods back and forth.

pub(super) mod shortage;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::ungate::after;

const MIN_PAUSE: SignedDuration = SignedDuration::from_mins(1);
const MAX_PAUSE: SignedDuration = SignedDuration::from_hours(2);
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
    Wary {
        closed: Timestamp,
        attempt: u32,
    },
    /// Open since `since`; the next probe is due at `probe`.
    Open {
        since: Timestamp,
        probe: Timestamp,
        attempt: u32,
    },
    Probing {
        since: Timestamp,
        attempt: u32,
    },
}

impl Breaker {
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

/// Input of the breaker.
#[derive(Debug, Clone, Copy)]
pub struct SupplyObservation {
    /// Spot pods that have been unschedulable for `fallback-after`.
    pub stuck: u32,
    /// Spot pods that are currently unschedulable.
    pub unplaced: u32,
    /// Time at which the last spot pod was bound.
    pub last_bound: Option<Timestamp>,
    /// On-demand pods beyond their quota.
    pub excess: u32,
    pub budget: u32,
    pub probe: Probe,
    /// A running pod may be evicted now.
    pub may_disrupt: bool,
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
        Breaker::Open { probe, .. } if now < probe => (breaker, Transition::Stay),
        Breaker::Open { since, attempt, .. } => {
            let came_back = seen.unplaced == 0 && seen.last_bound.is_some_and(|bound| bound > since);
            if seen.stuck > 0 {
                (open(attempt + 1), Transition::StillShort)
            } else if came_back || (seen.excess == 0 && seen.unplaced == 0) {
                closed(attempt)
            } else if seen.excess > 0 && seen.may_disrupt {
                (Breaker::Probing { since: now, attempt }, Transition::Probe)
            } else {
                (breaker, Transition::Stay)
            }
        }
        Breaker::Probing { since, attempt } => match seen.probe {
            Probe::Bound => closed(attempt),
            Probe::Stuck => (open(attempt + 1), Transition::StillShort),
            // The eviction was refused, or no replacement was created.
            Probe::None if now >= after(since, fallback_after * 2) => (open(attempt), Transition::StillShort),
            Probe::None | Probe::Waiting => (breaker, Transition::Stay),
        },
    }
}

/// Number of pods of a workload that may still fall back to on-demand in this decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FallbackAllowance {
    pub short: bool,
    /// The next spot pod is the probe.
    pub probe: bool,
    /// Pods that may run on-demand beyond the on-demand quota.
    pub budget: u32,
}

impl FallbackAllowance {
    /// Returns whether the next spot pod must run on-demand. `quota_left`: the on-demand quota is
    /// not used up.
    pub(super) fn take(&mut self, quota_left: bool) -> bool {
        if !self.short || std::mem::take(&mut self.probe) {
            return false;
        }
        if quota_left {
            return true;
        }
        let allowed = self.budget > 0;
        self.budget = self.budget.saturating_sub(1);
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AFTER: SignedDuration = SignedDuration::from_mins(5);

    fn at(minutes: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + minutes * 60).unwrap()
    }

    fn calm() -> SupplyObservation {
        SupplyObservation {
            stuck: 0,
            unplaced: 0,
            last_bound: None,
            excess: 0,
            budget: 9,
            probe: Probe::None,
            may_disrupt: true,
        }
    }

    fn short() -> SupplyObservation {
        SupplyObservation { stuck: 1, unplaced: 1, ..calm() }
    }

    fn run(breaker: Breaker, seen: SupplyObservation, minute: i64) -> (Breaker, Transition) {
        step(breaker, &seen, AFTER, at(minute))
    }

    #[test]
    fn a_stuck_pod_opens_the_breaker_only_within_a_budget() {
        assert_eq!(run(Breaker::Closed, calm(), 0).1, Transition::Stay);
        assert_eq!(run(Breaker::Closed, SupplyObservation { budget: 0, ..short() }, 0).1, Transition::Stay);
        let (open, transition) = run(Breaker::Closed, short(), 0);
        assert_eq!((open, transition), (Breaker::Open { since: at(0), probe: at(5), attempt: 0 }, Transition::Opened));
    }

    #[test]
    fn pauses_double_while_probes_fail() {
        let (mut breaker, _) = run(Breaker::Closed, short(), 0);
        let excess = SupplyObservation { excess: 3, ..calm() };
        let mut pauses = Vec::new();
        for _ in 0..7 {
            let Breaker::Open { since, probe, .. } = breaker else { panic!("{breaker:?}") };
            pauses.push(probe.duration_since(since).as_mins());
            let (probing, transition) = step(breaker, &excess, AFTER, probe);
            assert_eq!(transition, Transition::Probe);
            let failed = SupplyObservation { probe: Probe::Stuck, stuck: 1, unplaced: 1, ..excess };
            breaker = step(probing, &failed, AFTER, probe + AFTER).0;
        }
        assert_eq!(pauses, [5, 10, 20, 40, 80, 120, 120]);
    }

    #[test]
    fn a_bound_probe_closes_the_breaker_and_an_early_relapse_continues_the_pauses() {
        let probing = Breaker::Probing { since: at(0), attempt: 2 };
        let (wary, transition) = run(probing, SupplyObservation { probe: Probe::Bound, ..calm() }, 1);
        assert_eq!(transition, Transition::Closed);
        assert!(matches!(run(wary, short(), 10).0, Breaker::Open { attempt: 3, .. }));
        assert!(matches!(run(wary, short(), 90).0, Breaker::Open { attempt: 0, .. }));
    }

    #[test]
    fn no_probe_is_sent_when_spot_pods_are_bound_or_stuck() {
        let open = Breaker::Open { since: at(0), probe: at(5), attempt: 0 };
        let excess = SupplyObservation { excess: 3, ..calm() };
        assert_eq!(run(open, SupplyObservation { last_bound: Some(at(2)), ..excess }, 5).1, Transition::Closed);
        assert_eq!(run(open, SupplyObservation { stuck: 1, unplaced: 1, ..excess }, 5).1, Transition::StillShort);
        assert_eq!(run(open, calm(), 5).1, Transition::Closed);
        assert_eq!(run(open, SupplyObservation { may_disrupt: false, ..excess }, 5).1, Transition::Stay);
        assert_eq!(run(open, excess, 4).1, Transition::Stay);
    }

    #[test]
    fn a_probe_without_a_replacement_is_given_up() {
        let probing = Breaker::Probing { since: at(0), attempt: 1 };
        assert_eq!(run(probing, calm(), 9).1, Transition::Stay);
        assert_eq!(run(probing, calm(), 10).1, Transition::StillShort);
        assert_eq!(run(probing, SupplyObservation { probe: Probe::Waiting, ..calm() }, 10).1, Transition::Stay);
    }
}
