//! The wall clock, passed in. It is only written into objects and compared with what replicas
//! wrote; durations within this process are measured by monotonic instants.
//!
//! # Guarantees
//! Replicas whose machines disagree about the time agree as soon as the API server has answered
//! once: all use its time.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
};

use jiff::{SignedDuration, Timestamp};
use perennial_core::CLOCK_TOLERANCE;

/// A source of the time of day. Clones share the offset to the API server.
#[derive(Clone)]
pub struct Clock {
    here: Arc<dyn Fn() -> Timestamp + Send + Sync>,
    /// Seconds by which the local time is ahead of the API server's.
    ahead: Arc<AtomicI64>,
}

impl Clock {
    pub fn system() -> Self {
        Self::from_fn(Timestamp::now)
    }

    pub fn from_fn(now: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self { here: Arc::new(now), ahead: Arc::default() }
    }

    pub fn now(&self) -> Timestamp {
        let (here, ahead) = ((self.here)(), self.ahead.load(Ordering::Relaxed));
        here.saturating_sub(SignedDuration::from_secs(ahead)).unwrap_or(here)
    }

    /// Returns the time by which this machine's clock is ahead of the API server's.
    pub fn ahead(&self) -> SignedDuration {
        SignedDuration::from_secs(self.ahead.load(Ordering::Relaxed))
    }

    /// Records the API server's time. Returns the difference where it is large enough to be
    /// corrected.
    pub fn observe(&self, server: Timestamp) -> Option<SignedDuration> {
        let off = self.now().duration_since(server);
        // `Date` has whole seconds and responses take time: a smaller difference means nothing.
        if off.abs() <= CLOCK_TOLERANCE {
            return None;
        }
        let ahead = (self.here)().duration_since(server);
        self.ahead.store(ahead.as_secs(), Ordering::Relaxed);
        Some(off)
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clock")
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[rstest]
    #[case::ahead("2026-06-01T13:00:00Z", "2026-06-01T12:00:00Z", Some(3600))]
    #[case::behind("2026-06-01T11:00:00Z", "2026-06-01T12:00:00Z", Some(-3600))]
    #[case::as_good_as_equal("2026-06-01T12:00:09Z", "2026-06-01T12:00:00Z", None)]
    fn the_api_servers_time_is_ours(#[case] here: &str, #[case] there: &str, #[case] off: Option<i64>) {
        let (here, there) = (at(here), at(there));
        let clock = Clock::from_fn(move || here);
        let other = clock.clone();

        assert_eq!(clock.observe(there).map(|off| off.as_secs()), off);

        assert_eq!(other.now(), if off.is_some() { there } else { here });
        assert_eq!(clock.observe(there), None, "reported once");
    }
}
