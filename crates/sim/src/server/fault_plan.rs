//! Chooses the faults between the operator and the API server, by their rates.

use std::{collections::BTreeMap, time::Duration};

use perennial_testkit::prng::Prng;

/// Probabilities in a thousand, for each request or each event.
#[derive(Clone, Debug, Default)]
pub struct FaultRates {
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
    /// Maximum delay of a slow request in milliseconds.
    pub slowest: u64,
}

impl FaultRates {
    /// Returns a basic rate for every fault, multiplied by `times`.
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

/// The fault of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestFault {
    Fine,
    Throttled,
    Unavailable,
    Failed,
    Unreachable,
    AnswerLost,
    AnswerNever,
    Slow(Duration),
}

impl RequestFault {
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

impl FaultRates {
    pub fn fault(&self, prng: &mut Prng) -> RequestFault {
        let rolled = u32::try_from(prng.below(1000)).unwrap_or_default();
        let mut bound = 0;
        let fates = [
            (self.throttled, RequestFault::Throttled),
            (self.unavailable, RequestFault::Unavailable),
            (self.failed, RequestFault::Failed),
            (self.unreachable, RequestFault::Unreachable),
            (self.answer_lost, RequestFault::AnswerLost),
            (self.answer_never, RequestFault::AnswerNever),
        ];
        for (chance, fault) in fates {
            bound += chance;
            if rolled < bound {
                return fault;
            }
        }
        if rolled < bound + self.slow {
            RequestFault::Slow(prng.millis(500, self.slowest.max(501)))
        } else {
            RequestFault::Fine
        }
    }
}

/// Counters by name.
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
