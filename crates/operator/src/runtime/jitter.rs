//! The source of randomness. Seeded from outside, so that a simulation can replay it.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use rand::{RngExt, SeedableRng, rngs::StdRng};

/// A source of jitter, shared by clones.
#[derive(Clone, Debug)]
pub struct Jitter(Arc<Mutex<StdRng>>);

impl Jitter {
    pub fn seeded(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(StdRng::seed_from_u64(seed))))
    }

    /// Returns the pause of an exponential backoff before attempt `attempt + 1`: at least half of
    /// the nominal pause.
    pub fn backoff(&self, attempt: u32, first: Duration, most: Duration) -> Duration {
        nominal_pause(attempt, first, most).mul_f64(0.5 + self.fraction() / 2.0)
    }

    /// Uniform between two durations.
    pub fn between(&self, (least, most): (Duration, Duration)) -> Duration {
        least + most.saturating_sub(least).mul_f64(self.fraction())
    }

    /// Uniform in 0..1.
    pub fn fraction(&self) -> f64 {
        self.0.lock().map_or(0.5, |mut rng| rng.random::<f64>())
    }
}

/// Returns the pause of an exponential backoff before attempt `attempt + 1`, without jitter.
pub fn nominal_pause(attempt: u32, first: Duration, most: Duration) -> Duration {
    first.saturating_mul(2u32.saturating_pow(attempt.min(20))).min(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_their_limit_and_replay() {
        let pauses = |seed| {
            let jitter = Jitter::seeded(seed);
            (0..30).map(|i| jitter.backoff(i, Duration::from_millis(100), Duration::from_secs(10))).collect::<Vec<_>>()
        };
        let all = pauses(7);
        assert_eq!(all, pauses(7));
        assert!(all[0] <= Duration::from_millis(100) && all[0] >= Duration::from_millis(50));
        assert!(all[20..].iter().all(|p| *p >= Duration::from_secs(5) && *p <= Duration::from_secs(10)));
    }
}
