//! Names, labels and colours of all states. The dashboard reads them from the API, tables from
//! here.

use std::fmt;

use perennial_core::keeper::{explain::Cause, status::KeepState, stored_record::Stored};
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use super::explain::key::is_default;
use crate::keeper::activity::ActivityKind;

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
    /// On the node, and in no record.
    NotCaptured,
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
            Self::Fallback => (Tone::Warn, "spot shortage"),
            Self::Invalid => (Tone::Bad, "not managed"),
        }
    }
}

impl KeyOrigin {
    const ALL: [Self; 10] = [
        Self::Restored,
        Self::Kept,
        Self::New,
        Self::Due,
        Self::Waiting,
        Self::Withheld,
        Self::Removed,
        Self::NotCaptured,
        Self::Excluded,
        Self::Foreign,
    ];

    /// Returns the origin of a key, or why it is missing. `is_there`: the node has the key.
    pub(crate) fn of(cause: &Cause, is_there: bool) -> Self {
        match cause {
            Cause::Kept { given: true, .. } => Self::Restored,
            Cause::Kept { .. } | Cause::OwnValue { node: Some(_), .. } => Self::Kept,
            // Written by programs, which write it again.
            Cause::Dropped { policy, pattern } if is_default(policy, pattern) => Self::Foreign,
            Cause::OurDomain | Cause::ActionLabel | Cause::Controllers { .. } => Self::Foreign,
            Cause::Dropped { .. } | Cause::NotKept { .. } | Cause::Ignored => Self::Excluded,
            Cause::ToCapture { .. } => Self::New,
            Cause::ToGive { .. } => Self::Due,
            Cause::Waits { .. } => Self::Waiting,
            Cause::Removed { .. }
            | Cause::BeingRemoved { .. }
            | Cause::OwnValue { node: None, .. }
            | Cause::NeverSeen => Self::Removed,
            Cause::Unidentified { .. }
            | Cause::Newer { .. }
            | Cause::Quarantined { .. }
            | Cause::Contested { .. }
            | Cause::AnotherMachine { .. }
            | Cause::MachineUnknown { .. }
            | Cause::Unwritable { .. } => {
                if is_there {
                    Self::NotCaptured
                } else {
                    Self::Withheld
                }
            }
        }
    }

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
            Self::NotCaptured => "not captured",
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
            Self::Excluded => (Tone::Muted, "excluded by the policy or an annotation"),
            Self::Foreign => (Tone::Muted, "written by programs, not kept"),
            Self::NotCaptured => (Tone::Bad, "on the node, and in no record"),
        }
    }
}

/// Returns the colour and the label of a node state.
fn node_display(state: KeepState) -> (Tone, &'static str) {
    match state {
        KeepState::Current => (Tone::Good, "current"),
        KeepState::Pending => (Tone::Changed, "pending"),
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

const ACTIVITIES: [ActivityKind; 7] = [
    ActivityKind::Restored,
    ActivityKind::Returned,
    ActivityKind::Joined,
    ActivityKind::Left,
    ActivityKind::Captured,
    ActivityKind::Quarantined,
    ActivityKind::Forgotten,
];

/// Returns the colour of an activity, and the predicate of its sentence.
fn activity_display(what: ActivityKind) -> (Tone, &'static str) {
    match what {
        ActivityKind::Restored => (Tone::Good, "was restored"),
        ActivityKind::Returned => (Tone::Good, "was created again"),
        ActivityKind::Joined => (Tone::Info, "was created"),
        ActivityKind::Left => (Tone::Changed, "was deleted"),
        ActivityKind::Captured => (Tone::Info, "was captured"),
        ActivityKind::Quarantined => (Tone::Bad, "has a quarantined record"),
        ActivityKind::Forgotten => (Tone::Muted, "has no record any more"),
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
    fn a_label_of_a_node_is_the_name_of_its_state_in_lower_case() {
        for state in KeepState::ALL {
            let mut words = String::new();
            for letter in state.as_str().chars() {
                if letter.is_uppercase() && !words.is_empty() {
                    words.push(' ');
                }
                words.extend(letter.to_lowercase());
            }
            assert_eq!(node_display(state).1, words);
        }
    }

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
