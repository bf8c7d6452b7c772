//! Supply of capacity: the breaker of a class and its transitions.
//!
//! Contains no pods: an observation goes in as numbers, the next state and a [`Transition`] come
//! out. The steps that count pods and act on a transition are in [`shortage`].
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
//! | probing | the probe is stuck | open | longer pause, the probe falls back |
//! | probing | no probe was created in time | open | same pause |

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
    Wary { closed: Timestamp, attempt: u32 },
    /// Open since `since`; the next probe is due at `probe`.
    Open { since: Timestamp, probe: Timestamp, attempt: u32 },
    Probing {
        since: Timestamp,
        attempt: u32,
        /// The probe began because of a new node of the class.
        #[serde(default, skip_serializing_if = "is_false")]
        evidence: bool,
    },
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_false(value: &bool) -> bool {
    !value
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

/// How a probe is sent, ordered by preference.
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
                (Breaker::Probing { since: now, attempt, evidence: seen.evidence }, Transition::Probe)
            } else {
                (breaker, Transition::Stay)
            }
        }
        Breaker::Probing { since, attempt, .. } => match seen.probe {
            Probe::Bound => closed(attempt),
            // Both classes are short: the probe costs nothing and keeps waiting.
            Probe::Stuck if seen.way == Some(Way::Stranded) => (breaker, Transition::Stay),
            Probe::Stuck => (open(attempt + 1), Transition::StillShort),
            // The eviction was refused, or no replacement was created.
            Probe::None if now >= after(since, fallback_after * 2) => (open(attempt), Transition::StillShort),
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
    /// have to be evicted afterwards, which a disruption budget may forbid for ever.
    AwaitsProbe,
}

/// Number of pods of a workload that may still fall back to on-demand in this decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FallbackAllowance {
    pub short: bool,
    pub probe: ProbeStage,
    /// Pods that may run on-demand beyond the on-demand quota.
    pub budget: u32,
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
            way: Some(Way::Eviction),
            evidence: false,
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
            let failed = SupplyObservation { probe: Probe::Stuck, stuck: 1, unplaced: 1, way: None, ..excess };
            breaker = step(probing, &failed, AFTER, probe + AFTER).0;
        }
        assert_eq!(pauses, [5, 10, 20, 40, 80, 120, 120]);
    }

    #[test]
    fn a_bound_probe_closes_the_breaker_and_an_early_relapse_continues_the_pauses() {
        let probing = Breaker::Probing { since: at(0), attempt: 2, evidence: false };
        let (wary, transition) = run(probing, SupplyObservation { probe: Probe::Bound, ..calm() }, 1);
        assert_eq!(transition, Transition::Closed);
        assert!(matches!(run(wary, short(), 10).0, Breaker::Open { attempt: 3, .. }));
        assert!(matches!(run(wary, short(), 90).0, Breaker::Open { attempt: 0, .. }));
    }

    /// The table of cases of an open breaker.
    #[test]
    fn an_open_breaker_takes_the_way_that_costs_least() {
        use Transition::{Closed, Probe, Stay, StillShort};
        let open = Breaker::Open { since: at(0), probe: at(5), attempt: 0 };
        let excess = SupplyObservation { excess: 3, way: None, ..calm() };
        let by = |way: Way| SupplyObservation { way: Some(way), ..excess };
        let evident = |way: Way| SupplyObservation { evidence: true, ..by(way) };
        for (name, seen, minute, expected) in [
            ("nothing can be sent", excess, 5, Stay),
            ("bound since", SupplyObservation { last_bound: Some(at(2)), ..excess }, 3, Closed),
            ("bound before", SupplyObservation { last_bound: Some(at(-2)), ..excess }, 3, Stay),
            ("bound, others wait", SupplyObservation { last_bound: Some(at(2)), unplaced: 1, ..excess }, 3, Stay),
            ("stranded in the other class", by(Way::Stranded), 1, Probe),
            ("unbound, not due", by(Way::Unbound), 4, Stay),
            ("unbound, due", by(Way::Unbound), 5, Probe),
            ("unbound, a new node", evident(Way::Unbound), 1, Probe),
            ("created, not due", by(Way::Created), 4, Stay),
            ("created, due", by(Way::Created), 5, Probe),
            ("created, a new node", evident(Way::Created), 1, Probe),
            ("evicted, not due", by(Way::Eviction), 4, Stay),
            ("evicted, due", by(Way::Eviction), 5, Probe),
            ("evicted, a new node", evident(Way::Eviction), 1, Probe),
            ("one already waits", SupplyObservation { unplaced: 1, ..evident(Way::Eviction) }, 5, Stay),
            ("stuck", SupplyObservation { stuck: 1, unplaced: 1, ..excess }, 5, StillShort),
            ("nothing outside its class", SupplyObservation { way: None, ..calm() }, 5, Closed),
        ] {
            assert_eq!(run(open, seen, minute).1, expected, "{name}");
        }
    }

    #[test]
    fn a_probe_keeps_waiting_while_both_classes_are_short() {
        let probing = Breaker::Probing { since: at(0), attempt: 1, evidence: false };
        let stuck = SupplyObservation { probe: Probe::Stuck, stuck: 1, unplaced: 1, excess: 3, way: None, ..calm() };
        let both = SupplyObservation { way: Some(Way::Stranded), ..stuck };
        assert_eq!(run(probing, both, 60), (probing, Transition::Stay));
        assert_eq!(run(probing, stuck, 60).1, Transition::StillShort);
        assert_eq!(run(probing, SupplyObservation { probe: Probe::Bound, ..both }, 60).1, Transition::Closed);
    }

    #[test]
    fn a_probe_without_a_replacement_is_given_up() {
        let probing = Breaker::Probing { since: at(0), attempt: 1, evidence: false };
        assert_eq!(run(probing, calm(), 9).1, Transition::Stay);
        assert_eq!(run(probing, calm(), 10).1, Transition::StillShort);
        assert_eq!(run(probing, SupplyObservation { probe: Probe::Waiting, ..calm() }, 10).1, Transition::Stay);
    }
}
