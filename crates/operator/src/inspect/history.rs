//! Earlier contents of a record.

use jiff::Timestamp;
use perennial_core::keeper::{
    keys::Kept,
    record::{HistoryEntry, Record},
    stored_record::{Stored, Substitute},
};

/// Content that a record has or had.
pub(crate) struct Version {
    pub(crate) sequence: u64,
    pub(crate) captured_at: Timestamp,
    pub(crate) uid: String,
    pub(crate) kept: Kept,
}

impl From<&HistoryEntry> for Version {
    fn from(entry: &HistoryEntry) -> Self {
        Self {
            sequence: entry.sequence,
            captured_at: entry.captured_at,
            uid: entry.uid.clone(),
            kept: Kept::from(entry.content.clone()),
        }
    }
}

/// Returns the current and all earlier versions of a record, newest first.
pub(crate) fn versions(record: &Record) -> Vec<Version> {
    let current = Version {
        sequence: record.sequence,
        captured_at: record.captured_at,
        uid: record.node.uid.clone(),
        kept: record.kept.clone(),
    };
    std::iter::once(current).chain(record.history.iter().map(Version::from)).collect()
}

/// Returns the versions of a stored record, newest first. A quarantined record has those of its
/// substitute.
pub(crate) fn stored_versions(stored: Option<&Stored>) -> Vec<Version> {
    match stored {
        Some(Stored::Good(record) | Stored::Bad { good: Substitute::Recovered(record), .. }) => versions(record),
        Some(Stored::Bad { good: Substitute::History(entry), .. }) => vec![Version::from(&**entry)],
        _ => Vec::new(),
    }
}
