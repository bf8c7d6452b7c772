//! What goes wrong between the operator and the API server, and how often.

use std::{collections::BTreeMap, time::Duration};

use crate::dice::Dice;

/// Chances in a thousand, for each request or each event.
#[derive(Clone, Debug, Default)]
pub struct Weather {
    pub throttled: u32,
    pub unavailable: u32,
    pub failed: u32,
    pub unreachable: u32,
    pub answer_lost: u32,
    pub answer_never: u32,
    pub slow: u32,
    pub cut: u32,
    pub repeated: u32,
    pub delayed: u32,
    pub expired: u32,
    pub hook_unreachable: u32,
    pub hook_slow: u32,
    pub hook_lost: u32,
    /// The longest that a slow request takes on its way.
    pub slowest: u64,
}

impl Weather {
    /// Everything, so many times as often as on an ordinary bad day.
    pub fn bad(times: u32) -> Self {
        Self {
            throttled: 4 * times,
            unavailable: 4 * times,
            failed: 4 * times,
            unreachable: 4 * times,
            answer_lost: 6 * times,
            answer_never: 2 * times,
            slow: 5 * times,
            cut: 6 * times,
            repeated: 8 * times,
            delayed: 10 * times,
            expired: 3 * times,
            hook_unreachable: 12 * times,
            hook_slow: 12 * times,
            hook_lost: 8 * times,
            slowest: 14_000,
        }
    }
}

/// What becomes of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Fine,
    Throttled,
    Unavailable,
    Failed,
    Unreachable,
    AnswerLost,
    AnswerNever,
    Slow(Duration),
}

impl Fate {
    pub fn name(self) -> &'static str {
        match self {
            Self::Fine => "none",
            Self::Throttled => "429 with Retry-After",
            Self::Unavailable => "503",
            Self::Failed => "500",
            Self::Unreachable => "connection refused",
            Self::AnswerLost => "answer lost",
            Self::AnswerNever => "answer never came",
            Self::Slow(_) => "request on its way for seconds",
        }
    }
}

impl Weather {
    pub fn fate(&self, dice: &mut Dice) -> Fate {
        let rolled = u32::try_from(dice.roll(1000)).unwrap_or_default();
        let mut bound = 0;
        let fates = [
            (self.throttled, Fate::Throttled),
            (self.unavailable, Fate::Unavailable),
            (self.failed, Fate::Failed),
            (self.unreachable, Fate::Unreachable),
            (self.answer_lost, Fate::AnswerLost),
            (self.answer_never, Fate::AnswerNever),
        ];
        for (chance, fate) in fates {
            bound += chance;
            if rolled < bound {
                return fate;
            }
        }
        if rolled < bound + self.slow { Fate::Slow(dice.millis(500, self.slowest.max(501))) } else { Fate::Fine }
    }
}

/// How often what happened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts(pub BTreeMap<&'static str, u64>);

impl Counts {
    pub fn add(&mut self, what: &'static str) {
        *self.0.entry(what).or_default() += 1;
    }

    pub fn merge(&mut self, other: &Self) {
        for (what, count) in &other.0 {
            *self.0.entry(what).or_default() += count;
        }
    }
}
