//! Garbage collection of records whose node is absent.
//!
//! # Guarantees
//! Absence is concluded from a fresh list, never from a watch. Nothing is collected by its age
//! while most nodes are absent: an incomplete list and a cluster that is being rebuilt look the
//! same. Nothing is collected while the time is not trusted ([`ClockGuard`]).

mod batch;
mod clock_guard;
mod limit;
mod mass_absence;
#[cfg(test)]
mod tests;

pub use batch::Batch;
pub use clock_guard::{AuditTime, ClockGuard};
pub use limit::AbsentLimit;
pub use mass_absence::{Audits, NodeList, Tally, Trust};

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;

use super::{case::Case, import::decide::IMPORTED_UID, keys::TRUE, record::Record, stored_record::Stored};

/// Annotation of a record: time since which garbage collection finds no node for it.
pub const ABSENT_SINCE: &str = "perennial.dev/absent-since";
/// Annotation of a record: `"true"` exempts it from garbage collection.
pub const HOLD: &str = "perennial.dev/hold";
/// Annotation of a record: `"true"` confirms that its node is gone, even during a mass absence.
pub const CONFIRMED: &str = "perennial.dev/absence-confirmed";
/// Annotation of a record whose node became absent in a mass absence: the number of nodes before
/// it.
pub const MASS_ABSENCE: &str = "perennial.dev/mass-absence";
/// Time that a record without content is kept. Until then it orders late events after the removal
/// of the last key.
pub const TOMBSTONE_FOR: Duration = Duration::from_hours(1);

/// A record with the fields that garbage collection reads.
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
    /// Its node became absent in a mass absence: the number of nodes before it.
    pub mass_absence: Option<usize>,
    /// It was written from a node, not by an import.
    pub had_node: bool,
    pub retention: Duration,
}

impl Candidate {
    /// Builds the candidate of a record without a node. `annotations` are those of its ConfigMap.
    pub fn new(case: &Case, annotations: &BTreeMap<String, String>) -> Self {
        let is_set = |key: &str| annotations.get(key).is_some_and(|value| value == TRUE);
        let record = case.stored().and_then(Stored::good);
        let captured_at = record.map_or(Timestamp::UNIX_EPOCH, |record| record.captured_at);
        // A node cannot have been absent before it was captured: a clock was wrong, or the
        // annotation is from another record. A capture in the future is itself the wrong time, and
        // would otherwise refute every note until then.
        let absent_since = annotations.get(ABSENT_SINCE).and_then(|text| text.parse().ok());
        let is_future = captured_at.duration_since(case.now) > clock_guard::DIFFERENCE;
        let absent_since = absent_since.filter(|since| is_future || *since >= captured_at);
        Self {
            present: false,
            tombstone: record.is_some_and(Record::is_tombstone),
            bad: record.is_none(),
            captured_at,
            absent_since,
            held: is_set(HOLD),
            confirmed: is_set(CONFIRMED),
            mass_absence: annotations.get(MASS_ABSENCE).and_then(|text| text.parse().ok()),
            had_node: record.is_some_and(|record| record.node.uid != IMPORTED_UID),
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
    /// Write down that its node became absent in a mass absence, with this number of nodes before
    /// it.
    NoteMassAbsence(usize),
    /// The node is back: remove the note.
    ClearAbsence,
    /// Delete the record, after another check that its node does not exist.
    Delete,
}

/// The time at which garbage collection deletes a record, if nothing changes until then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CollectionTime {
    /// The node exists.
    Present,
    /// The absence of the node is not noted yet. The record is kept for this long after that.
    AfterNote(Duration),
    /// Not before this time. Later while most nodes are absent.
    At(Timestamp),
    /// The record is held.
    Held,
    /// The record is quarantined.
    Quarantined,
    /// The retention is longer than times can express.
    Unlimited,
}

/// Returns the time at which [`collect`] deletes a record.
pub fn collection_time(record: &Candidate) -> CollectionTime {
    let after = |then: Timestamp, limit: Duration| {
        then.checked_add(limit).map_or(CollectionTime::Unlimited, CollectionTime::At)
    };
    match (record.present, record.tombstone, record.absent_since) {
        _ if record.bad => CollectionTime::Quarantined,
        _ if record.held => CollectionTime::Held,
        (true, true, _) | (false, true, None) => after(record.captured_at, TOMBSTONE_FOR),
        (true, false, _) => CollectionTime::Present,
        (false, true, Some(since)) => after(since, TOMBSTONE_FOR),
        (false, false, Some(since)) => after(since, record.retention),
        (false, false, None) => CollectionTime::AfterNote(record.retention),
    }
}

fn is_older(then: Timestamp, limit: Duration, now: Timestamp) -> bool {
    now > then && now.duration_since(then).unsigned_abs() >= limit
}

/// Decides about one record. `became_absent`: its node was there in one of the last audits.
pub fn collect(record: &Candidate, now: Timestamp, list: &NodeList, became_absent: bool) -> Collection {
    let older = |then: Timestamp, limit: Duration| is_older(then, limit, now);
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
    if let Trust::MassAbsence { before } = list.trust
        && became_absent
        && !record.tombstone
        && record.mass_absence.is_none()
    {
        return Collection::NoteMassAbsence(before);
    }
    let Some(since) = record.absent_since else {
        return if record.tombstone && older(record.captured_at, TOMBSTONE_FOR) && !record.held {
            Collection::Delete
        } else {
            Collection::NoteAbsence
        };
    };
    let limit = if record.tombstone { TOMBSTONE_FOR } else { record.retention };
    // A mass absence that lasts for twice the retention is no longer doubted.
    let sure = record.tombstone || older(since, limit.saturating_mul(2)) || !list.doubts(record);
    if older(since, limit) && sure && !record.held { Collection::Delete } else { Collection::Keep }
}
