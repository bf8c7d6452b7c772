//! Names, labels and colours of all states. The dashboard reads them from the API, tables from here.

use std::fmt;

use perennial_core::keeper::{status::KeepState, stored_record::Stored};
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use crate::keeper::activity::What;

/// Colour of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Tone {
    Good,
    /// In progress, without a problem.
    Info,
    /// Changed, a write is due.
    Changed,
    Warn,
    Bad,
    Muted,
}

/// State of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RecordState {
    Good,
    /// Merged with the last state of a node that was deleted before it was restored.
    Folded,
    /// Without keys.
    Tombstone,
    /// Written by a newer version of the operator.
    Newer,
    /// Quarantined.
    Invalid,
}

/// State of a workload with placement annotations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum WorkloadState {
    /// All replicas have the requested capacity type.
    Exact,
    /// Replicas have the wrong capacity type.
    Drift,
    /// Replicas run on-demand because spot capacity is short.
    Fallback,
    /// The annotations are invalid, so the workload is not managed.
    Invalid,
}

/// Origin of a key of a node, or the reason why the key is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyOrigin {
    Restored,
    Kept,
    New,
    Due,
    Waiting,
    Withheld,
    Removed,
    Excluded,
    Foreign,
}

impl RecordState {
    pub(crate) fn of(stored: &Stored) -> Self {
        match stored {
            Stored::Good(record) if record.is_tombstone() => Self::Tombstone,
            Stored::Good(record) if record.folded => Self::Folded,
            Stored::Good(_) => Self::Good,
            Stored::Bad { fault, .. } if fault.is_newer() => Self::Newer,
            Stored::Bad { .. } => Self::Invalid,
        }
    }

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Good => "Good",
            Self::Folded => "Folded",
            Self::Tombstone => "Tombstone",
            Self::Newer => "Newer",
            Self::Invalid => "Invalid",
        }
    }
}

impl WorkloadState {
    const ALL: [Self; 4] = [Self::Exact, Self::Drift, Self::Fallback, Self::Invalid];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Exact => "Exact",
            Self::Drift => "Drift",
            Self::Fallback => "Fallback",
            Self::Invalid => "Invalid",
        }
    }

    const fn display(self) -> (Tone, &'static str) {
        match self {
            Self::Exact => (Tone::Good, "exact"),
            Self::Drift => (Tone::Changed, "drift"),
            Self::Fallback => (Tone::Warn, "short of spot"),
            Self::Invalid => (Tone::Bad, "left alone"),
        }
    }
}

impl KeyOrigin {
    const ALL: [Self; 9] = [
        Self::Restored,
        Self::Kept,
        Self::New,
        Self::Due,
        Self::Waiting,
        Self::Withheld,
        Self::Removed,
        Self::Excluded,
        Self::Foreign,
    ];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Restored => "restored",
            Self::Kept => "kept",
            Self::New => "new",
            Self::Due => "due",
            Self::Waiting => "waiting",
            Self::Withheld => "withheld",
            Self::Removed => "removed",
            Self::Excluded => "excluded",
            Self::Foreign => "foreign",
        }
    }

    const fn display(self) -> (Tone, &'static str) {
        match self {
            Self::Restored => (Tone::Good, "restored to this incarnation"),
            Self::Kept => (Tone::Info, "on the node and in its record"),
            Self::New => (Tone::Changed, "about to be captured"),
            Self::Due => (Tone::Warn, "about to be restored"),
            Self::Waiting => (Tone::Muted, "restored when the node is created again"),
            Self::Withheld => (Tone::Bad, "in the record, and not restored"),
            Self::Removed => (Tone::Muted, "removed from the node, and stays removed"),
            Self::Excluded => (Tone::Muted, "excluded by the policy"),
            Self::Foreign => (Tone::Muted, "written by programs, not kept"),
        }
    }
}

/// Returns the colour and the label of a node state.
fn node_display(state: KeepState) -> (Tone, &'static str) {
    match state {
        KeepState::Current => (Tone::Good, "current"),
        KeepState::Pending => (Tone::Changed, "changed"),
        KeepState::Unsettled => (Tone::Warn, "unsettled"),
        KeepState::Waiting => (Tone::Info, "waiting"),
        KeepState::Unidentified => (Tone::Warn, "unidentified"),
        KeepState::Contested => (Tone::Bad, "contested"),
        KeepState::NewerRecord => (Tone::Bad, "newer record"),
        KeepState::Away => (Tone::Muted, "away"),
        KeepState::NoRecord => (Tone::Muted, "no record"),
        KeepState::Ignored => (Tone::Muted, "ignored"),
    }
}

const ACTIVITIES: [What; 7] =
    [What::Restored, What::Returned, What::Joined, What::Left, What::Captured, What::Quarantined, What::Forgotten];

/// Returns the colour of an activity, and the predicate of its sentence.
fn activity_display(what: What) -> (Tone, &'static str) {
    match what {
        What::Restored => (Tone::Good, "was restored"),
        What::Returned => (Tone::Good, "was created again"),
        What::Joined => (Tone::Info, "was created"),
        What::Left => (Tone::Changed, "was deleted"),
        What::Captured => (Tone::Info, "was captured"),
        What::Quarantined => (Tone::Bad, "has a quarantined record"),
        What::Forgotten => (Tone::Muted, "has no record any more"),
    }
}

/// Returns the colour of a word in a table: a state of a node, of a record or of a check.
pub(crate) fn tone_of(word: &str) -> Option<Tone> {
    match word {
        "Good" | "pass" => Some(Tone::Good),
        "Folded" | "warn" => Some(Tone::Warn),
        "Newer" | "Invalid" | "fail" | "none" => Some(Tone::Bad),
        "Tombstone" => Some(Tone::Muted),
        _ => KeepState::ALL.into_iter().find(|state| state.as_str() == word).map(|state| node_display(state).0),
    }
}

/// Returns all states with their colours and labels, in the order in which lists show them.
pub(crate) fn catalog() -> Value {
    let entry = |name: Value, (tone, label): (Tone, &str)| json!({"name": name, "tone": tone, "label": label});
    json!({
        "nodes": KeepState::ALL.map(|state| entry(json!(state.as_str()), node_display(state))),
        "workloads": WorkloadState::ALL.map(|state| entry(json!(state), state.display())),
        "origins": KeyOrigin::ALL.map(|origin| entry(json!(origin), origin.display())),
        "activities": ACTIVITIES.map(|what| entry(json!(what), activity_display(what))),
    })
}

macro_rules! display_as_str {
    ($($name:ident),+) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }
    )+};
}

display_as_str!(RecordState, WorkloadState, KeyOrigin);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_has_a_distinct_label() {
        let catalog = catalog();
        for table in ["nodes", "workloads", "origins", "activities"] {
            let entries = catalog[table].as_array().unwrap();
            let labels: std::collections::BTreeSet<&str> =
                entries.iter().map(|entry| entry["label"].as_str().unwrap()).collect();
            assert_eq!(labels.len(), entries.len(), "{table}");
        }
    }
}
