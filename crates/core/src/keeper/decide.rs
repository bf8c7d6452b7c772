//! The decision about one node and its record: the transition table, as pure functions.
//!
//! # Guarantees
//! `tests/keeper_model` and `tests/identity_model` explore [`decide`] to exhaustion in small
//! worlds. Change it only together with them. `decide` after its own effect returns
//! [`Decision::Nothing`]. Keys that the policy does not keep are never in a patch for a node and
//! never leave a record. Sequences only grow.
//!
//! # Assumptions
//! The record was read *after* the node, or equals the last state of the predecessor of a node that
//! has not changed since its creation (`docs/decisions/0025-recall.md`). The caller makes every
//! write conditional on the resourceVersion (and UID) that was decided on, and reads a live node
//! once more before it captures it.

mod record_view;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

pub(super) use self::record_view::is_writable;
use self::record_view::{RecordView, first_record, pick};
use super::{
    admission::kubelet_may_set,
    case::{Case, Phase},
    keys::{Kept, Key},
    mark::Mark,
    merge::Merged,
    record::Record,
    selection::Policy,
};

/// The write that a case needs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "one exists at a time, for as long as it takes to apply it")]
pub enum Decision {
    Nothing(Reason),
    /// Write this record.
    WriteRecord(RecordWrite, Box<Record>),
    /// Patch the node, or the request that creates it.
    PatchNode(Restore),
}

/// Why a case needs no write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// There is a record and no node.
    Absent,
    /// The node is excluded from management.
    Ignored,
    /// The node lacks the field that identifies it.
    Unidentified,
    /// The record was written by a newer version of the operator.
    NewerRecord,
    /// Other live nodes have the same identity.
    Contested,
    /// There is no record, and the node has no keys to write one from.
    NoRecord,
    /// Node and record agree.
    Current,
    /// The record holds a newer state of the node.
    Older,
    /// The remaining keys belong to a machine that the node is not known to be yet.
    MachineUnknown,
}

/// The kinds of writes to a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordWrite {
    /// The state of the node replaces the content of the record.
    Capture,
    /// A node that has every key of the record becomes its owner.
    Claim,
    /// The changes of a node that is deleted before it was settled are merged into the record.
    Fold,
}

impl RecordWrite {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Capture => "capture",
            Self::Claim => "claim",
            Self::Fold => "fold",
        }
    }
}

/// The keys to set on and remove from a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restore {
    pub set: Kept,
    pub remove: BTreeSet<Key>,
    pub mark: Mark,
    /// Keys of the record that are not set: they belong to another machine, or this request must
    /// not set them.
    pub withheld: BTreeSet<Key>,
    /// Some withheld keys may follow once the node reports its machine.
    pub waits: bool,
}

impl Restore {
    fn new(node: &Kept, merged: Merged, withheld: BTreeSet<Key>) -> Self {
        let remove = node.keys().filter(|key| !merged.kept.contains_key(*key)).cloned().collect();
        let set = merged.kept.into_iter().filter(|(key, value)| node.get(key) != Some(value)).collect();
        Self { set, remove, mark: merged.mark, withheld, waits: false }
    }

    pub fn changes_nothing(&self) -> bool {
        self.set.is_empty() && self.remove.is_empty()
    }
}

/// Decides what a case needs. This is the only decision about nodes and records.
pub fn decide(case: &Case) -> Decision {
    if case.phase == Phase::Absent {
        return Decision::Nothing(Reason::Absent);
    }
    if case.is_ignored() {
        return Decision::Nothing(Reason::Ignored);
    }
    if case.identity.is_none() {
        return Decision::Nothing(Reason::Unidentified);
    }
    if case.has_newer_record() {
        return Decision::Nothing(Reason::NewerRecord);
    }
    let record = case.record();
    let record = record.as_deref();
    if is_contested(case, record) {
        return Decision::Nothing(Reason::Contested);
    }
    match case.phase {
        Phase::Creating { by_kubelet } => creating(case, record, by_kubelet),
        Phase::Gone => gone(case, record),
        Phase::Live | Phase::Absent => live(case, record),
    }
}

/// Whether several live nodes with the same identity prevent a decision. Which of them is right
/// cannot be known.
///
/// Nothing is restored to any of them. The node that the record was written from is captured as
/// before. The last state of another one does not become part of the record while a node exists
/// that holds it.
fn is_contested(case: &Case, record: Option<&Record>) -> bool {
    match case.phase {
        Phase::Live | Phase::Absent => !case.rivals.is_empty() && record.is_none_or(|record| !case.wrote(record)),
        Phase::Gone => {
            record.is_some_and(|record| !case.wrote(record)) && case.rivals.iter().any(|rival| rival.holds_record)
        }
        Phase::Creating { .. } => !case.rivals.is_empty(),
    }
}

fn live(case: &Case, record: Option<&Record>) -> Decision {
    let Some(record) = record else { return first(case) };
    let view = RecordView::new(case, record);
    let (ours, theirs) = (case.node.resource_version, record.node.resource_version);

    if view.is_settled() {
        // The deletion of the node was captured, and then did not happen.
        if view.own_fold && ours >= theirs {
            return view.write(&case.kept, RecordWrite::Capture);
        }
        let completes = view.is_owner() && case.node.machine.completes(&record.node.machine);
        let differs = case.kept != view.visible && view.capture_changes_record() || view.selects_otherwise();
        return if !differs && !view.has_unrecorded_keys() && !completes {
            Decision::Nothing(Reason::Current)
        } else if view.is_older() {
            Decision::Nothing(Reason::Older)
        } else {
            view.write(&case.kept, RecordWrite::Capture)
        };
    }

    let restore = restore_of(case, record);
    if !restore.changes_nothing() {
        return Decision::PatchNode(restore);
    }
    if view.waits {
        return Decision::Nothing(Reason::MachineUnknown);
    }
    if ours < theirs { Decision::Nothing(Reason::Older) } else { view.write(&case.kept, RecordWrite::Claim) }
}

/// Returns the restore of an unsettled node, also if it has every key already and only lacks the
/// mark.
pub(super) fn restore_of(case: &Case, record: &Record) -> Restore {
    let view = RecordView::new(case, record);
    let (merged, waits) = (view.merge(), view.waits);
    Restore { waits, ..Restore::new(&case.kept, merged, view.withheld) }
}

fn gone(case: &Case, record: Option<&Record>) -> Decision {
    let Some(record) = record else { return first(case) };
    let view = RecordView::new(case, record);
    if view.is_older() {
        return Decision::Nothing(Reason::Older);
    }
    let mut held = view.visible.clone();
    if view.own_fold {
        held.retain(|key, _| view.returned.contains_key(key));
        held.extend(pick(&record.kept, |key| case.policy.keeps(key)));
    }

    if view.is_settled() {
        let differs = case.kept != held && view.capture_changes_record() || view.selects_otherwise();
        if !differs && !view.has_unrecorded_keys() {
            return Decision::Nothing(Reason::Current);
        }
        return view.write(&case.kept, RecordWrite::Capture);
    }
    let merged = view.merge();
    if merged.kept == held && (!merged.decided || case.wrote(record)) {
        return Decision::Nothing(Reason::Current);
    }
    view.write(&merged.kept, RecordWrite::Fold)
}

fn creating(case: &Case, record: Option<&Record>, by_kubelet: bool) -> Decision {
    let Some(record) = record else { return Decision::Nothing(Reason::NoRecord) };
    let mut view = RecordView::new(case, record);
    let whole = Restore::new(&case.kept, view.merge(), BTreeSet::new());
    view.withheld.extend(whole.set.into_keys().filter(|key| by_kubelet && !kubelet_may_set(key)));
    let merged = view.merge();
    Decision::PatchNode(Restore::new(&case.kept, merged, view.withheld))
}

/// Returns a write for a last state that needs none: the same content, captured from this state.
///
/// It is sent if the capture of an earlier state may be in flight, which decided on the record as
/// it is now. That capture conflicts then, instead of replacing what was deleted.
pub fn capture_again(case: &Case) -> Option<Box<Record>> {
    let is_bad = case.stored().is_some_and(|stored| stored.fault().is_some());
    let Decision::Nothing(Reason::Current | Reason::NoRecord) = decide(case) else { return None };
    if case.phase != Phase::Gone || is_bad {
        return None;
    }
    let record = case.record();
    let Some(record) = record.as_deref() else { return Some(Box::new(first_record(case, &case.kept))) };
    let view = RecordView::new(case, record);
    match view.write(&case.kept, RecordWrite::Capture) {
        Decision::WriteRecord(_, next) if view.is_settled() => Some(next),
        _ => None,
    }
}

/// Decides about a node without a record.
fn first(case: &Case) -> Decision {
    if case.kept.is_empty() {
        Decision::Nothing(Reason::NoRecord)
    } else {
        Decision::WriteRecord(RecordWrite::Capture, Box::new(first_record(case, &case.kept)))
    }
}

/// Returns the keys that the policy protects: they are restored only to the machine that they were
/// captured from.
pub(super) fn protected(kept: &Kept, policy: &Policy) -> BTreeSet<Key> {
    kept.keys().filter(|key| policy.protects(key)).cloned().collect()
}
