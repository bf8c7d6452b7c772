//! Checks the time of an audit: a wrong clock, anywhere, must not delete a record early.
//!
//! The time comes from `Date` headers of API servers, and one of several may be wrong. It is
//! compared with the time that has passed on this process's monotonic clock, and with the clock of
//! this machine.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

/// Largest difference between the time and the one that is expected after the last audit.
const JUMP: SignedDuration = SignedDuration::from_mins(10);
/// Largest difference between the clocks of this machine and of the API server: an hour, which is
/// the error of a wrong time zone, and a margin.
pub(super) const DIFFERENCE: SignedDuration = SignedDuration::from_mins(65);

/// Compares the time of each audit with the ones before.
#[derive(Clone, Debug)]
pub struct ClockGuard {
    period: Duration,
    /// Time of the last audit, and the time since the start on the monotonic clock.
    last: (Timestamp, Duration),
    /// The same of the last audit whose time was trusted, or of the start.
    agreed: (Timestamp, Duration),
    /// Time since the start of the last audit whose time was not trusted.
    doubted: Option<Duration>,
}

/// The time of an audit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuditTime {
    /// Never much later than the time that has passed since the last trusted audit.
    pub now: Timestamp,
    /// Records may be deleted by their age.
    pub trusted: bool,
    /// The time that is written as the beginning of an absence. If the time is not trusted, the
    /// latest that any clock shows: one that is too early would end the retention early.
    pub noted: Timestamp,
}

impl ClockGuard {
    /// `now` is the time of the start, `period` that between two audits.
    pub fn new(period: Duration, now: Timestamp) -> Self {
        Self { period, last: (now, Duration::ZERO), agreed: (now, Duration::ZERO), doubted: None }
    }

    /// Judges the time of an audit. `elapsed` is the time since the start on the monotonic clock,
    /// `ahead` that by which the clock of this machine is ahead of the API server's.
    ///
    /// After a jump or a difference, no time is trusted until all of one audit period agree.
    pub fn judge(&mut self, now: Timestamp, elapsed: Duration, ahead: SignedDuration) -> AuditTime {
        let after = |(then, at): (Timestamp, Duration)| then.saturating_add(elapsed.saturating_sub(at)).unwrap_or(now);
        let jumped = now.duration_since(after(self.last)).abs() > JUMP;
        self.last = (now, elapsed);
        if jumped || ahead.abs() > DIFFERENCE {
            self.doubted = Some(elapsed);
        } else if self.doubted.is_some_and(|since| elapsed.saturating_sub(since) >= self.period) {
            self.doubted = None;
        }
        if self.doubted.is_none() {
            self.agreed = (now, elapsed);
            return AuditTime { now, trusted: true, noted: now };
        }
        let (expected, here) = (after(self.agreed), now.saturating_add(ahead).unwrap_or(now));
        let latest = expected.saturating_add(JUMP).unwrap_or(expected);
        AuditTime { now: now.min(latest), trusted: false, noted: now.max(here).max(expected) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3600;
    const SAME: SignedDuration = SignedDuration::ZERO;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).unwrap()
    }

    fn guard() -> ClockGuard {
        ClockGuard::new(Duration::from_secs(HOUR), at(0))
    }

    #[test]
    fn a_clock_that_goes_as_it_should_is_trusted() {
        let mut guard = guard();
        for hour in 1..100 {
            let (now, elapsed) = (at(hour * 3600 + hour % 7), Duration::from_secs(HOUR * hour.unsigned_abs()));
            assert_eq!(guard.judge(now, elapsed, SAME), AuditTime { now, trusted: true, noted: now });
        }
    }

    #[test]
    fn a_jump_is_not_trusted_until_an_audit_period_agrees() {
        let mut guard = guard();
        let month = 31 * 24 * 3600;
        let mut judge = |hour: u64, off: i64| {
            let seconds = i64::try_from(hour * HOUR).unwrap();
            guard.judge(at(seconds + off), Duration::from_secs(hour * HOUR), SAME)
        };
        assert!(judge(1, 0).trusted);
        let jumped = judge(2, month);
        assert!(!jumped.trusted && jumped.now <= at(2 * 3600 + 600), "{jumped:?}");
        assert!(!judge(3, 0).trusted, "it jumps back");
        assert!(judge(4, 0).trusted);
        assert!(!judge(5, -month).trusted, "one that goes back is as wrong");
    }

    #[test]
    fn a_server_that_disagrees_with_this_machine_is_not_trusted() {
        let mut guard = guard();
        let ahead = SignedDuration::from_hours(-24 * 31);
        assert!(!guard.judge(at(60), Duration::from_mins(1), ahead).trusted);
        assert!(!guard.judge(at(120), Duration::from_mins(2), SAME).trusted, "both agreed for a minute only");
        assert!(guard.judge(at(60 + 3600), Duration::from_mins(61), SAME).trusted);
        assert!(guard.judge(at(120 + 3600), Duration::from_mins(62), SignedDuration::from_mins(59)).trusted);
    }
    /// A note that is too early ends a retention early; one that is too late ends it late.
    #[rstest::rstest]
    #[case::server_behind(-20, 20)]
    #[case::server_ahead(31, -31)]
    #[case::machine_behind(0, -20)]
    #[case::machine_ahead(0, 31)]
    #[case::both_jump_back(-20, 0)]
    fn an_absence_is_never_noted_too_early(#[case] server_days: i64, #[case] ahead_days: i64) {
        let mut guard = guard();
        for hour in 1..10 {
            let (right, elapsed) = (at(hour * 3600), Duration::from_secs(HOUR * hour.unsigned_abs()));
            let shown = at(hour * 3600 + server_days * 24 * 3600);
            let time = guard.judge(shown, elapsed, SignedDuration::from_hours(24 * ahead_days));
            if time.trusted {
                assert!(server_days == -20 && ahead_days == 0, "{time:?}");
                break;
            }
            assert!(time.noted >= right, "{hour}: {time:?}");
            assert!(time.now <= right + jiff::Span::new().minutes(10), "{hour}: {time:?}");
        }
    }
}
