//! Old records: what the audit does with records whose node is away.
//!
//! # Guarantees
//! Absence comes from a fresh list, never from a watch. Nothing is collected while a mass of nodes is absent: a list that
//! is wrong, or a cluster that is being rebuilt, looks like that.

use std::time::Duration;

use jiff::Timestamp;

/// On a record: since when the audit finds no node for it.
pub const ABSENT_SINCE: &str = "perennial.dev/absent-since";
/// `"true"` on a record: it is kept for ever.
pub const HOLD: &str = "perennial.dev/hold";
/// `"true"` on a record: a person says that its node is gone, whatever else is absent.
pub const CONFIRMED: &str = "perennial.dev/absence-confirmed";
/// A record with no labels keeps the order of things for this long.
pub const TOMBSTONE_FOR: Duration = Duration::from_hours(1);
/// Fewer records than this are no mass.
const MASS: usize = 4;

/// What the audit sees of a record.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is one thing that was seen")]
pub struct Seen {
    /// A node of its identity is in the fresh list.
    pub present: bool,
    pub tombstone: bool,
    /// It cannot be read: nothing is decided about it.
    pub bad: bool,
    pub captured_at: Timestamp,
    pub absent_since: Option<Timestamp>,
    pub held: bool,
    pub confirmed: bool,
    pub retention: Duration,
}

/// What the audit does with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Keep,
    /// Write down that its node is absent from now on.
    Note,
    /// Its node is back: the note goes.
    Clear,
    /// Delete it, after one more look whether its node is really not there.
    Collect,
}

/// Whether so many nodes are absent that nothing may be concluded from it.
pub fn is_mass_absence(nodes: usize, records: usize, absent: usize) -> bool {
    records > 0 && (nodes == 0 || (records >= MASS && absent * 2 > records))
}

/// What to do with one record.
pub fn step(seen: &Seen, now: Timestamp, mass_absence: bool) -> Step {
    let older = |then: Timestamp, limit: Duration| now.duration_since(then).unsigned_abs() >= limit && now > then;
    if seen.bad {
        return Step::Keep;
    }
    if seen.present {
        return match (seen.absent_since, seen.tombstone && older(seen.captured_at, TOMBSTONE_FOR) && !seen.held) {
            (_, true) => Step::Collect,
            (Some(_), false) => Step::Clear,
            (None, false) => Step::Keep,
        };
    }
    let Some(since) = seen.absent_since else {
        return if seen.tombstone && older(seen.captured_at, TOMBSTONE_FOR) && !seen.held {
            Step::Collect
        } else {
            Step::Note
        };
    };
    let limit = if seen.tombstone { TOMBSTONE_FOR } else { seen.retention };
    let due = older(since, limit);
    // Time clears a mass absence as well: nobody came back for as long again.
    let sure = !mass_absence || seen.confirmed || seen.tombstone || older(since, limit.saturating_mul(2));
    if due && sure && !seen.held { Step::Collect } else { Step::Keep }
}

#[cfg(test)]
mod tests {
    use jiff::ToSpan;
    use rstest::rstest;

    use super::*;

    const DAY: Duration = Duration::from_hours(24);

    fn now() -> Timestamp {
        "2026-06-01T00:00:00Z".parse().unwrap()
    }

    fn record() -> Seen {
        Seen {
            present: false,
            tombstone: false,
            bad: false,
            captured_at: now() - 2000.hours(),
            absent_since: None,
            held: false,
            confirmed: false,
            retention: DAY * 30,
        }
    }

    fn absent(days: i64) -> Seen {
        Seen { absent_since: Some(now() - (days * 24).hours()), ..record() }
    }

    #[test]
    fn an_absence_is_noted_first_and_collected_past_the_retention() {
        assert_eq!(step(&record(), now(), false), Step::Note);
        assert_eq!(step(&absent(29), now(), false), Step::Keep);
        assert_eq!(step(&absent(30), now(), false), Step::Collect);
    }

    #[test]
    fn a_node_that_is_back_clears_the_note() {
        assert_eq!(step(&Seen { present: true, ..absent(40) }, now(), false), Step::Clear);
        assert_eq!(step(&Seen { present: true, ..record() }, now(), false), Step::Keep);
    }

    #[rstest]
    #[case::held(Seen { held: true, ..absent(400) }, false)]
    #[case::bad(Seen { bad: true, ..absent(400) }, false)]
    #[case::in_a_mass_absence(absent(40), true)]
    fn it_is_kept(#[case] seen: Seen, #[case] mass: bool) {
        assert_eq!(step(&seen, now(), mass), Step::Keep);
    }

    #[test]
    fn a_person_or_time_ends_a_mass_absence() {
        assert_eq!(step(&Seen { confirmed: true, ..absent(40) }, now(), true), Step::Collect);
        assert_eq!(step(&absent(60), now(), true), Step::Collect);
    }

    #[test]
    fn a_tombstone_is_collected_an_hour_later() {
        let fresh = Seen { tombstone: true, captured_at: now() - 30.minutes(), ..record() };
        assert_ne!(step(&fresh, now(), false), Step::Collect);
        let old = Seen { tombstone: true, captured_at: now() - 90.minutes(), ..record() };
        assert_eq!(step(&old, now(), false), Step::Collect);
        assert_eq!(step(&Seen { present: true, ..old }, now(), false), Step::Collect);
    }

    #[test]
    fn a_clock_that_runs_ahead_collects_nothing() {
        assert_eq!(step(&Seen { absent_since: Some(now() + 1000.hours()), ..record() }, now(), false), Step::Keep);
    }

    #[rstest]
    #[case(0, 1, 1, true)]
    #[case(10, 10, 5, false)]
    #[case(10, 10, 6, true)]
    #[case(1, 2, 2, false)]
    #[case(5, 0, 0, false)]
    fn a_mass_absence_is(#[case] nodes: usize, #[case] records: usize, #[case] absent: usize, #[case] mass: bool) {
        assert_eq!(is_mass_absence(nodes, records, absent), mass);
    }
}
