//! Garbage collection of records whose node is absent.
//!
//! # Guarantees
//! Absence is concluded from a fresh list, never from a watch. Nothing is collected while most
//! nodes are absent: an incomplete list and a cluster that is being rebuilt look the same.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;

use super::{case::Case, keys::TRUE, record::Record, stored_record::Stored};

/// Annotation of a record: time since which garbage collection finds no node for it.
pub const ABSENT_SINCE: &str = "perennial.dev/absent-since";
/// Annotation of a record: `"true"` exempts it from garbage collection.
pub const HOLD: &str = "perennial.dev/hold";
/// Annotation of a record: `"true"` confirms that its node is gone, even during a mass absence.
pub const CONFIRMED: &str = "perennial.dev/absence-confirmed";
/// Time that a record without content is kept. Until then it orders late events after the removal
/// of the last key.
pub const TOMBSTONE_FOR: Duration = Duration::from_hours(1);
/// Minimum number of records for a mass absence.
const MASS: usize = 4;

/// A record as garbage collection sees it.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts")]
pub struct Candidate {
    /// A node with its identity is in a fresh list.
    pub present: bool,
    pub tombstone: bool,
    /// It is quarantined: nothing is decided about it.
    pub bad: bool,
    pub captured_at: Timestamp,
    pub absent_since: Option<Timestamp>,
    pub held: bool,
    pub confirmed: bool,
    pub retention: Duration,
}

impl Candidate {
    /// Builds the candidate of a record without a node. `annotations` are those of its ConfigMap.
    pub fn new(case: &Case, annotations: &BTreeMap<String, String>) -> Self {
        let is_set = |key: &str| annotations.get(key).is_some_and(|value| value == TRUE);
        let record = case.stored().and_then(Stored::good);
        Self {
            present: false,
            tombstone: record.is_some_and(Record::is_tombstone),
            bad: record.is_none(),
            captured_at: record.map_or(Timestamp::UNIX_EPOCH, |record| record.captured_at),
            absent_since: annotations.get(ABSENT_SINCE).and_then(|text| text.parse().ok()),
            held: is_set(HOLD),
            confirmed: is_set(CONFIRMED),
            retention: record.map_or(Duration::MAX, |_| case.policy.retention),
        }
    }
}

/// Action of garbage collection on a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collection {
    Keep,
    /// Write down that its node is absent from now on.
    NoteAbsence,
    /// The node is back: remove the note.
    ClearAbsence,
    /// Delete the record, after another check that its node does not exist.
    Delete,
}

/// Whether so many nodes are absent that the list of nodes is not trusted.
pub fn is_mass_absence(nodes: usize, records: usize, absent: usize) -> bool {
    records > 0 && (nodes == 0 || (records >= MASS && absent * 2 > records))
}

/// Decides about one record.
pub fn collect(record: &Candidate, now: Timestamp, mass_absence: bool) -> Collection {
    let older = |then: Timestamp, limit: Duration| now.duration_since(then).unsigned_abs() >= limit && now > then;
    if record.bad {
        return Collection::Keep;
    }
    if record.present {
        return match (record.absent_since, record.tombstone && older(record.captured_at, TOMBSTONE_FOR) && !record.held)
        {
            (_, true) => Collection::Delete,
            (Some(_), false) => Collection::ClearAbsence,
            (None, false) => Collection::Keep,
        };
    }
    let Some(since) = record.absent_since else {
        return if record.tombstone && older(record.captured_at, TOMBSTONE_FOR) && !record.held {
            Collection::Delete
        } else {
            Collection::NoteAbsence
        };
    };
    let limit = if record.tombstone { TOMBSTONE_FOR } else { record.retention };
    let due = older(since, limit);
    // A mass absence that lasts for twice the retention is no longer doubted.
    let sure = !mass_absence || record.confirmed || record.tombstone || older(since, limit.saturating_mul(2));
    if due && sure && !record.held { Collection::Delete } else { Collection::Keep }
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

    fn record() -> Candidate {
        Candidate {
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

    fn absent(days: i64) -> Candidate {
        Candidate { absent_since: Some(now() - (days * 24).hours()), ..record() }
    }

    #[test]
    fn an_absence_is_noted_first_and_collected_past_the_retention() {
        assert_eq!(collect(&record(), now(), false), Collection::NoteAbsence);
        assert_eq!(collect(&absent(29), now(), false), Collection::Keep);
        assert_eq!(collect(&absent(30), now(), false), Collection::Delete);
    }

    #[test]
    fn a_node_that_is_back_clears_the_note() {
        assert_eq!(collect(&Candidate { present: true, ..absent(40) }, now(), false), Collection::ClearAbsence);
        assert_eq!(collect(&Candidate { present: true, ..record() }, now(), false), Collection::Keep);
    }

    #[rstest]
    #[case::held(Candidate { held: true, ..absent(400) }, false)]
    #[case::bad(Candidate { bad: true, ..absent(400) }, false)]
    #[case::in_a_mass_absence(absent(40), true)]
    fn it_is_kept(#[case] candidate: Candidate, #[case] mass: bool) {
        assert_eq!(collect(&candidate, now(), mass), Collection::Keep);
    }

    #[test]
    fn a_person_or_time_ends_a_mass_absence() {
        assert_eq!(collect(&Candidate { confirmed: true, ..absent(40) }, now(), true), Collection::Delete);
        assert_eq!(collect(&absent(60), now(), true), Collection::Delete);
    }

    #[test]
    fn a_tombstone_is_collected_an_hour_later() {
        let fresh = Candidate { tombstone: true, captured_at: now() - 30.minutes(), ..record() };
        assert_ne!(collect(&fresh, now(), false), Collection::Delete);
        let old = Candidate { tombstone: true, captured_at: now() - 90.minutes(), ..record() };
        assert_eq!(collect(&old, now(), false), Collection::Delete);
        assert_eq!(collect(&Candidate { present: true, ..old }, now(), false), Collection::Delete);
    }

    #[test]
    fn a_clock_that_runs_ahead_collects_nothing() {
        assert_eq!(
            collect(&Candidate { absent_since: Some(now() + 1000.hours()), ..record() }, now(), false),
            Collection::Keep
        );
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
