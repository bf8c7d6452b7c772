//! The reason why a key is, or is not, on a node and in its record.
//!
//! Contains no rule of its own: it names the rule of [`super::decide`] that applies to the key.

use jiff::Timestamp;

use super::{
    case::Case,
    decide::{Decision, decide, is_writable},
    keys::{Kept, Key},
    machine::{Machine, Sameness},
    record::{Record, RecordFault},
    selection::{DOMAIN, Policy},
    stored_record::{Stored, Substitute},
};
use crate::config::{
    defaults::is_action_label,
    pattern::{Pattern, Patterns},
    settings::Identity,
};

/// Why a key is, or is not, on a node and in its record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The node is excluded from management.
    Ignored,
    /// Keys of Perennial's own domain are never kept.
    OurDomain,
    /// A pattern of the policy drops it.
    Dropped { policy: String, pattern: Pattern },
    /// No pattern of the policy keeps it.
    NotKept { policy: String },
    /// The node lacks the field that identifies it.
    Unidentified { identity: Identity },
    /// The record was written by a newer version of the operator.
    Newer { fault: RecordFault },
    /// The record is quarantined, and there is no substitute.
    Quarantined { fault: RecordFault },
    /// Other live nodes have the same identity.
    Contested { rivals: Vec<String> },
    /// It belongs to another machine.
    AnotherMachine { recorded: Machine, node: Machine },
    /// It belongs to one machine, and the node has not reported yet that it is that machine.
    MachineUnknown { recorded: Machine },
    /// The API server rejects it.
    Unwritable { value: String },
    /// The node has a value of its own, which takes precedence. `rollback_to`: the record has
    /// followed the node, and the version with this sequence contains the value `record`.
    OwnValue { node: Option<String>, record: Option<String>, rollback_to: Option<u64> },
    /// It was removed from the node, and then from the record.
    Removed { value: String, last_seen: Timestamp, removed_at: Timestamp, sequence: u64 },
    /// It was removed from the node and is about to be removed from the record.
    BeingRemoved { value: String },
    /// It is on the node, and the record lacks it or has another value.
    ToCapture { value: String },
    /// It is in the record and about to be set on the node.
    ToGive { value: String },
    /// It was never on this node.
    NeverSeen,
    /// The node is absent. The key is restored when it returns.
    Waits { value: String, protected: bool },
    /// It is on the node and in the record.
    Kept { value: String, given: bool },
    /// Other controllers report the health of the machine by it, or act on it.
    ActionLabel,
    /// Only these field managers write it, which write it again.
    Controllers { managers: Vec<String> },
}

impl Cause {
    /// Returns the cause in one word, for scripts.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Ignored => "Ignored",
            Self::OurDomain => "OurDomain",
            Self::Dropped { .. } => "Dropped",
            Self::NotKept { .. } => "NotKept",
            Self::Unidentified { .. } => "Unidentified",
            Self::Newer { .. } => "NewerRecord",
            Self::Quarantined { .. } => "Quarantined",
            Self::Contested { .. } => "Contested",
            Self::AnotherMachine { .. } => "AnotherMachine",
            Self::MachineUnknown { .. } => "MachineUnknown",
            Self::Unwritable { .. } => "Unwritable",
            Self::OwnValue { .. } => "OwnValue",
            Self::Removed { .. } => "Removed",
            Self::BeingRemoved { .. } => "BeingRemoved",
            Self::ToCapture { .. } => "ToCapture",
            Self::ToGive { .. } => "ToGive",
            Self::NeverSeen => "NeverSeen",
            Self::Waits { .. } => "Waits",
            Self::Kept { .. } => "Kept",
            Self::ActionLabel => "ActionLabel",
            Self::Controllers { .. } => "Controllers",
        }
    }

    /// Whether a write by the operator is outstanding.
    pub fn is_due(&self) -> bool {
        matches!(self, Self::BeingRemoved { .. } | Self::ToCapture { .. } | Self::ToGive { .. })
    }
}

/// Returns why this key is, or is not, on the node and in its record.
pub fn explain(key: &Key, case: &Case) -> Cause {
    let policy = &case.policy;
    if case.is_ignored() {
        return Cause::Ignored;
    }
    if let Some(cause) = unkept(key, policy) {
        return cause;
    }
    if let Key::Label(label) = key
        && !case.kept.contains_key(key)
        && policy.is_controllers(key, &case.node, case.mark.as_ref())
    {
        return Cause::Controllers { managers: case.node.writers.of(label).map(str::to_owned).collect() };
    }
    if case.node().is_some() && case.identity.is_none() {
        return Cause::Unidentified { identity: policy.identity.clone() };
    }
    match case.stored() {
        Some(Stored::Bad { fault, .. }) if fault.is_newer() => return Cause::Newer { fault: fault.clone() },
        Some(Stored::Bad { fault, good: Substitute::Nothing }) => {
            return Cause::Quarantined { fault: fault.clone() };
        }
        _ => {}
    }
    match (case.node(), case.record()) {
        (None, None) => Cause::NeverSeen,
        (Some(_), None) => match case.kept.get(key) {
            Some(_) if !case.rivals.is_empty() => contested(case),
            Some(value) => Cause::ToCapture { value: value.clone() },
            None => Cause::NeverSeen,
        },
        (None, Some(record)) => match record.kept.get(key) {
            Some(value) => Cause::Waits { value: value.clone(), protected: policy.protects(key) },
            None => missing(key, &record, case),
        },
        (Some(_), Some(record)) => both(key, &record, case),
    }
}

fn contested(case: &Case) -> Cause {
    Cause::Contested { rivals: case.rivals.iter().map(|rival| rival.name.clone()).collect() }
}

/// Returns the rule of the policy that excludes the key.
fn unkept(key: &Key, policy: &Policy) -> Option<Cause> {
    if policy.keeps(key) {
        return None;
    }
    let dropped_by =
        |patterns: &Patterns, text: &str| patterns.as_slice().iter().find(|pattern| pattern.matches(text)).cloned();
    let pattern = match key {
        Key::Label(text) | Key::Annotation(text) | Key::Taint { key: text, .. } if text.starts_with(DOMAIN) => {
            return Some(Cause::OurDomain);
        }
        Key::Label(text) if is_action_label(text) => return Some(Cause::ActionLabel),
        Key::Label(text) => dropped_by(&policy.drop, text),
        Key::Annotation(text) => {
            dropped_by(&policy.machine_annotations, text).filter(|_| policy.annotations.matches(text))
        }
        Key::Taint { key: text, .. } => {
            dropped_by(&policy.startup_taints, text).filter(|_| policy.taints.matches(text))
        }
        Key::Cordon => None,
    };
    let policy = policy.name.clone();
    Some(match pattern {
        Some(pattern) => Cause::Dropped { policy, pattern },
        None => Cause::NotKept { policy },
    })
}

/// Explains a key of a node that has a record.
fn both(key: &Key, record: &Record, case: &Case) -> Cause {
    let (policy, machine) = (&case.policy, &case.node.machine);
    let owner = case.wrote(record);
    let (on_node, in_record) = (case.kept.get(key), record.kept.get(key));
    if !case.rivals.is_empty() && !owner && on_node != in_record {
        return contested(case);
    }
    let Some(value) = in_record else {
        return match on_node {
            Some(value) => Cause::ToCapture { value: value.clone() },
            None => missing(key, record, case),
        };
    };
    if on_node.is_none() && policy.protects(key) && !(owner && machine.completes(&record.node.machine)) {
        let recorded = record.node.machine.clone();
        match machine.compare(&recorded) {
            Sameness::Different => return Cause::AnotherMachine { recorded, node: machine.clone() },
            Sameness::Unknown => return Cause::MachineUnknown { recorded },
            Sameness::Same => {}
        }
    }
    if on_node.is_none() && !is_writable(key, value) {
        return Cause::Unwritable { value: value.clone() };
    }
    let mark = case.mark.as_ref();
    // A value that was set after the restore is not a restored one.
    let given = mark.is_some_and(|mark| mark.given.get(key) == Some(value));
    let own = mark.is_some_and(|mark| mark.belongs_to_node(key));
    if on_node == Some(value) {
        // The record was written since. Its former value is in the history.
        let versions = record.history.iter();
        let before =
            versions.filter_map(|entry| Some((Kept::from(entry.content.clone()).remove(key)?, entry.sequence)));
        return match { before }.find(|(then, _)| then != value) {
            Some((then, sequence)) if mark.is_some_and(|mark| mark.own.contains(key)) => {
                Cause::OwnValue { node: Some(value.clone()), record: Some(then), rollback_to: Some(sequence) }
            }
            _ => Cause::Kept { value: value.clone(), given },
        };
    }
    match decide(case) {
        Decision::PatchNode(restore) if restore.set.contains_key(key) => Cause::ToGive { value: value.clone() },
        Decision::WriteRecord(..) if on_node.is_none() => Cause::BeingRemoved { value: value.clone() },
        Decision::WriteRecord(..) if !own => match on_node {
            Some(now) => Cause::ToCapture { value: now.clone() },
            None => Cause::BeingRemoved { value: value.clone() },
        },
        _ => Cause::OwnValue { node: on_node.cloned(), record: Some(value.clone()), rollback_to: None },
    }
}

/// Explains a key that neither the record nor the node has.
fn missing(key: &Key, record: &Record, case: &Case) -> Cause {
    for other in &record.withheld {
        if Kept::from(other.content.clone()).contains_key(key) {
            let recorded = other.machine.clone();
            let machine = case.node().map_or_else(|| record.node.machine.clone(), |node| node.machine.clone());
            return match machine.compare(&recorded) {
                Sameness::Unknown => Cause::MachineUnknown { recorded },
                _ => Cause::AnotherMachine { recorded, node: machine },
            };
        }
    }
    // Newest first: the write after the first entry with the key is the one that removed it.
    let mut after = (record.sequence, record.captured_at);
    for entry in &record.history {
        if let Some(value) = Kept::from(entry.content.clone()).get(key) {
            return Cause::Removed {
                value: value.clone(),
                last_seen: entry.captured_at,
                removed_at: after.1,
                sequence: entry.sequence,
            };
        }
        after = (entry.sequence, entry.captured_at);
    }
    if case.mark.as_ref().is_some_and(|mark| mark.belongs_to_node(key)) {
        return Cause::OwnValue { node: None, record: None, rollback_to: None };
    }
    Cause::NeverSeen
}

#[cfg(test)]
mod tests;
