//! Spot shortage: the breaker of a workload, and what must be remembered across restarts.
//!
//! Owns the state that is kept in an annotation on the workload, and its transitions. Does not know pods: what was observed comes
//! in as numbers, what to do goes out as a [`Verdict`].
//!
//! Closed: spot pods go to spot. A spot pod that found no place for `fallback-after` opens it. Open: pods that would be spot
//! run on-demand within the budget. When the pause is over, one of them is sent back to spot as a probe; if it finds a place the breaker
//! closes and the others follow as ordinary moves, else the pause doubles. A breaker that opens again soon after it closed goes on
//! with the longer pause, so that capacity that comes and goes does not make pods come and go.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::release::after;

const SHORTEST_PAUSE: SignedDuration = SignedDuration::from_mins(1);
const LONGEST_PAUSE: SignedDuration = SignedDuration::from_hours(2);
const SHORTEST_MEMORY: SignedDuration = SignedDuration::from_hours(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "camelCase")]
pub enum Breaker {
    #[default]
    Closed,
    /// Closed lately; opening again goes on from `attempt`.
    Wary {
        closed: Timestamp,
        attempt: u32,
    },
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

/// The last move, for the cooldown and to notice that moves do not help.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moved {
    pub at: Timestamp,
    /// How many replicas were in the wrong class then.
    pub drift: u32,
    /// How many moves in a row have changed nothing.
    pub stalled: u32,
}

/// What is kept on the workload.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct State {
    #[serde(default)]
    pub breaker: Breaker,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moved: Option<Moved>,
    /// The spot slots of a StatefulSet that run on-demand for now.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fallen: Vec<u32>,
}

impl State {
    /// A state that cannot be read counts as none; the second value says so.
    pub fn read(annotation: Option<&str>) -> (Self, bool) {
        match annotation.map(serde_json::from_str) {
            None => (Self::default(), true),
            Some(Ok(state)) => (state, true),
            Some(Err(_)) => (Self::default(), false),
        }
    }

    pub fn to_annotation(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

impl Breaker {
    pub fn is_open(self) -> bool {
        matches!(self, Breaker::Open { .. } | Breaker::Probing { .. })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Probe {
    /// No pod has been sent to spot since the probe began.
    None,
    Waiting,
    Bound,
    Stuck,
}

/// What the breaker looks at.
#[derive(Debug, Clone, Copy)]
pub struct Observed {
    /// Spot pods that found no place for `fallback-after`, and those that have none at all at the moment.
    pub stuck: u32,
    pub unplaced: u32,
    /// When the last spot pod was bound.
    pub last_bound: Option<Timestamp>,
    /// On-demand pods beyond their quota.
    pub fallen: u32,
    pub budget: u32,
    pub probe: Probe,
    /// A running pod may be evicted now.
    pub may_disrupt: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Stay,
    Opened,
    /// Send one fallen pod back.
    Probe,
    /// Spot is still short; the next look is later.
    StillShort,
    Closed,
}

fn pause(attempt: u32, fallback_after: SignedDuration) -> SignedDuration {
    let factor = 1i32 << attempt.min(16);
    fallback_after.max(SHORTEST_PAUSE).checked_mul(factor).unwrap_or(LONGEST_PAUSE).min(LONGEST_PAUSE)
}

/// One step of the breaker. Without a verdict other than [`Verdict::Stay`] or a lapsed memory the breaker is as before.
pub fn step(breaker: Breaker, seen: &Observed, fallback_after: SignedDuration, now: Timestamp) -> (Breaker, Verdict) {
    let open = |attempt| {
        let attempt = u32::min(attempt, 16);
        Breaker::Open { since: now, probe: after(now, pause(attempt, fallback_after)), attempt }
    };
    let closed = |attempt| (Breaker::Wary { closed: now, attempt }, Verdict::Closed);
    let trips = seen.stuck > 0 && seen.budget > 0;
    match breaker {
        Breaker::Closed if trips => (open(0), Verdict::Opened),
        Breaker::Closed => (breaker, Verdict::Stay),
        Breaker::Wary { closed, attempt } => {
            let memory = SHORTEST_MEMORY.max(pause(attempt, fallback_after) * 4);
            let remembered = now < after(closed, memory);
            match (trips, remembered) {
                (true, true) => (open(attempt + 1), Verdict::Opened),
                (true, false) => (open(0), Verdict::Opened),
                // Forgetting costs no write: a lapsed memory reads as none.
                (false, _) => (breaker, Verdict::Stay),
            }
        }
        Breaker::Open { probe, .. } if now < probe => (breaker, Verdict::Stay),
        Breaker::Open { since, attempt, .. } => {
            let came_back = seen.unplaced == 0 && seen.last_bound.is_some_and(|bound| bound > since);
            if seen.stuck > 0 {
                (open(attempt + 1), Verdict::StillShort)
            } else if came_back || (seen.fallen == 0 && seen.unplaced == 0) {
                closed(attempt)
            } else if seen.fallen > 0 && seen.may_disrupt {
                (Breaker::Probing { since: now, attempt }, Verdict::Probe)
            } else {
                (breaker, Verdict::Stay)
            }
        }
        Breaker::Probing { since, attempt } => match seen.probe {
            Probe::Bound => closed(attempt),
            Probe::Stuck => (open(attempt + 1), Verdict::StillShort),
            // The eviction was refused, or its replacement never came.
            Probe::None if now >= after(since, fallback_after * 2) => (open(attempt), Verdict::StillShort),
            Probe::None | Probe::Waiting => (breaker, Verdict::Stay),
        },
    }
}

/// What is left for pods that would be spot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Supply {
    pub short: bool,
    /// The next spot pod is the probe.
    pub probe: bool,
    /// How many more may run on-demand beyond the quota.
    pub budget: u32,
}

impl Supply {
    /// Whether the next pod that would be spot has to run on-demand, given whether the on-demand quota has room.
    pub(super) fn falls(&mut self, room: bool) -> bool {
        if !self.short || std::mem::take(&mut self.probe) {
            return false;
        }
        if room {
            return true;
        }
        let some = self.budget > 0;
        self.budget = self.budget.saturating_sub(1);
        some
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AFTER: SignedDuration = SignedDuration::from_mins(5);

    fn at(minutes: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + minutes * 60).unwrap()
    }

    fn calm() -> Observed {
        Observed {
            stuck: 0,
            unplaced: 0,
            last_bound: None,
            fallen: 0,
            budget: 9,
            probe: Probe::None,
            may_disrupt: true,
        }
    }

    fn short() -> Observed {
        Observed { stuck: 1, unplaced: 1, ..calm() }
    }

    fn run(breaker: Breaker, seen: Observed, minute: i64) -> (Breaker, Verdict) {
        step(breaker, &seen, AFTER, at(minute))
    }

    #[test]
    fn a_stuck_pod_opens_it_only_within_a_budget() {
        assert_eq!(run(Breaker::Closed, calm(), 0).1, Verdict::Stay);
        assert_eq!(run(Breaker::Closed, Observed { budget: 0, ..short() }, 0).1, Verdict::Stay);
        let (open, verdict) = run(Breaker::Closed, short(), 0);
        assert_eq!((open, verdict), (Breaker::Open { since: at(0), probe: at(5), attempt: 0 }, Verdict::Opened));
    }

    #[test]
    fn pauses_double_while_probes_fail() {
        let (mut breaker, _) = run(Breaker::Closed, short(), 0);
        let fallen = Observed { fallen: 3, ..calm() };
        let mut pauses = Vec::new();
        for _ in 0..7 {
            let Breaker::Open { since, probe, .. } = breaker else { panic!("{breaker:?}") };
            pauses.push(probe.duration_since(since).as_mins());
            let (probing, verdict) = step(breaker, &fallen, AFTER, probe);
            assert_eq!(verdict, Verdict::Probe);
            let failed = Observed { probe: Probe::Stuck, stuck: 1, unplaced: 1, ..fallen };
            breaker = step(probing, &failed, AFTER, probe + AFTER).0;
        }
        assert_eq!(pauses, [5, 10, 20, 40, 80, 120, 120]);
    }

    #[test]
    fn a_probe_that_finds_a_place_closes_it_and_a_soon_relapse_is_remembered() {
        let probing = Breaker::Probing { since: at(0), attempt: 2 };
        let (wary, verdict) = run(probing, Observed { probe: Probe::Bound, ..calm() }, 1);
        assert_eq!(verdict, Verdict::Closed);
        assert!(matches!(run(wary, short(), 10).0, Breaker::Open { attempt: 3, .. }));
        assert!(matches!(run(wary, short(), 90).0, Breaker::Open { attempt: 0, .. }));
    }

    #[test]
    fn nothing_is_probed_when_spot_is_seen_to_work_or_to_be_short() {
        let open = Breaker::Open { since: at(0), probe: at(5), attempt: 0 };
        let fallen = Observed { fallen: 3, ..calm() };
        assert_eq!(run(open, Observed { last_bound: Some(at(2)), ..fallen }, 5).1, Verdict::Closed);
        assert_eq!(run(open, Observed { stuck: 1, unplaced: 1, ..fallen }, 5).1, Verdict::StillShort);
        assert_eq!(run(open, calm(), 5).1, Verdict::Closed);
        assert_eq!(run(open, Observed { may_disrupt: false, ..fallen }, 5).1, Verdict::Stay);
        assert_eq!(run(open, fallen, 4).1, Verdict::Stay);
    }

    #[test]
    fn a_probe_that_never_came_is_given_up() {
        let probing = Breaker::Probing { since: at(0), attempt: 1 };
        assert_eq!(run(probing, calm(), 9).1, Verdict::Stay);
        assert_eq!(run(probing, calm(), 10).1, Verdict::StillShort);
        assert_eq!(run(probing, Observed { probe: Probe::Waiting, ..calm() }, 10).1, Verdict::Stay);
    }

    #[test]
    fn the_state_survives_its_annotation_and_rubbish_counts_as_none() {
        let state = State {
            breaker: Breaker::Open { since: at(0), probe: at(5), attempt: 1 },
            moved: Some(Moved { at: at(1), drift: 3, stalled: 0 }),
            fallen: vec![3, 7],
        };
        assert_eq!(State::read(Some(&state.to_annotation())), (state, true));
        assert_eq!(State::read(Some("{]")), (State::default(), false));
        assert_eq!(State::read(None), (State::default(), true));
    }
}
