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

use std::collections::BTreeSet;

use super::{
    admission::kubelet_may_set,
    case::{Case, Phase},
    hash::Digest,
    identity::Identified,
    keys::{Content, Kept, Key, digest},
    machine::Sameness,
    mark::Mark,
    merge::{Merged, merge},
    record::{Record, Withheld},
    selection::Policy,
};
use crate::config::names::{is_label_key, is_label_value};

/// The write that a case needs.
#[derive(Clone, Debug, PartialEq, Eq)]
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
        let differs = case.kept != view.visible && view.capture_changes_record();
        return if !differs && !view.has_unrecorded_keys() && !completes {
            Decision::Nothing(Reason::Current)
        } else if view.is_older() {
            Decision::Nothing(Reason::Older)
        } else {
            view.write(&case.kept, RecordWrite::Capture)
        };
    }

    let merged = view.merge();
    if merged.kept != case.kept {
        let waits = view.waits;
        return Decision::PatchNode(Restore { waits, ..Restore::new(&case.kept, merged, view.withheld) });
    }
    if view.waits {
        return Decision::Nothing(Reason::MachineUnknown);
    }
    if ours < theirs { Decision::Nothing(Reason::Older) } else { view.write(&case.kept, RecordWrite::Claim) }
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
        let differs = case.kept != held && view.capture_changes_record();
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

/// Decides about a node without a record.
fn first(case: &Case) -> Decision {
    if case.kept.is_empty() {
        Decision::Nothing(Reason::NoRecord)
    } else {
        Decision::WriteRecord(RecordWrite::Capture, Box::new(first_record(case, &case.kept)))
    }
}

fn first_record(case: &Case, kept: &Kept) -> Record {
    Record {
        sequence: 1,
        node: case.origin(),
        identity: case.identity.as_ref().and_then(Identified::text),
        kept: kept.clone(),
        folded: false,
        before: Kept::new(),
        withheld: Vec::new(),
        captured_at: case.now,
        captured_by: case.by.clone(),
        history: Vec::new(),
    }
}

/// The record from the point of view of one node.
struct RecordView<'a> {
    case: &'a Case,
    record: &'a Record,
    /// Content for this incarnation. For one that was folded into the record, the content before
    /// the fold.
    content: &'a Kept,
    /// The part of the content that concerns the node: kept by the policy and not bound to another
    /// machine.
    visible: Kept,
    /// Kept keys that are not for this node, or not yet.
    withheld: BTreeSet<Key>,
    /// Some withheld keys may follow once the node reports its machine.
    waits: bool,
    /// Protected keys of the recorded machine, unless that is known to be the node's. They stay
    /// with that machine whether the policy keeps them or not.
    foreign: Kept,
    /// Keys that this machine left in the record before another machine took the identity.
    returned: Kept,
    own_fold: bool,
}

impl<'a> RecordView<'a> {
    fn new(case: &'a Case, record: &'a Record) -> Self {
        let (machine, policy) = (&case.node.machine, &case.policy);
        let own_fold = record.folded && case.wrote(record);
        let content = if own_fold { &record.before } else { &record.kept };
        let sameness = sameness(case, record);
        let gives = |key: &Key, value: &str| policy.keeps(key) && is_writable(key, value);
        let is_foreign = |key: &Key| sameness != Sameness::Same && policy.protects(key);
        let foreign = pick(content, is_foreign);
        let mut visible = pick(content, |key| !is_foreign(key));
        visible.retain(|key, value| gives(key, value));

        let mut pending = BTreeSet::new();
        let mut returned = Kept::new();
        for other in &record.withheld {
            match machine.compare(&other.machine) {
                Sameness::Same => {
                    for (key, value) in Kept::from(other.content.clone()) {
                        if !visible.contains_key(&key) {
                            returned.entry(key).or_insert(value);
                        }
                    }
                }
                Sameness::Unknown => pending.extend(Kept::from(other.content.clone()).into_keys()),
                Sameness::Different => {}
            }
        }
        if sameness == Sameness::Unknown {
            pending.extend(foreign.keys().cloned());
        }
        visible.extend(returned.iter().filter(|(key, value)| gives(key, value)).map(|(k, v)| (k.clone(), v.clone())));
        visible.retain(|key, _| !pending.contains(key));
        pending.retain(|key| policy.keeps(key));

        let waits = !pending.is_empty();
        let mut withheld = pending;
        withheld.extend(foreign.keys().filter(|key| policy.keeps(key) && !visible.contains_key(*key)).cloned());
        Self { case, record, content, visible, withheld, waits, foreign, returned, own_fold }
    }

    /// Whether the record was last written from this incarnation with its current mark.
    fn is_owner(&self) -> bool {
        self.case.wrote(self.record) && !self.record.folded && self.record.node.mark == self.case.mark_digest()
    }

    /// Whether the record holds this state of the node, or a newer one. The owner's own state
    /// counts as newer: the policy may have come to keep more of it.
    fn is_older(&self) -> bool {
        let (ours, theirs) = (self.case.node.resource_version, self.record.node.resource_version);
        ours < theirs || ours == theirs && !self.is_owner()
    }

    /// Whether the node was given everything. A key that the mark does not cover is still to be
    /// given: the policy did not keep it at the time, or it was not known to be for this machine.
    fn is_settled(&self) -> bool {
        if self.is_owner() {
            return self.visible.keys().all(|key| !self.returned.contains_key(key));
        }
        !self.waits
            && self.case.mark.as_ref().is_some_and(|mark| {
                mark.complete && mark.from == self.digest() && self.visible.keys().all(|key| mark.covers(key))
            })
    }

    /// Whether the mark lists keys with values of the node's own that the record does not hold yet.
    fn has_unrecorded_keys(&self) -> bool {
        !self.is_owner() && self.case.mark.as_ref().is_some_and(|mark| !mark.own.is_empty())
    }

    /// Returns the digest that the mark of a node holds after it was given this record.
    fn digest(&self) -> Digest {
        if self.returned.is_empty() {
            return digest(self.content);
        }
        let mut whole = self.content.clone();
        whole.extend(self.returned.clone());
        digest(&whole)
    }

    fn merge(&self) -> Merged {
        // An owner and its record agreed on the whole content.
        let agreed = self.is_owner().then(|| Mark { given: self.content.clone(), ..Mark::default() });
        let mark = agreed.as_ref().or(self.case.mark.as_ref());
        merge(&self.case.kept, mark, &self.visible, &self.withheld, self.digest(), self.case.policy.merge)
    }

    fn write(&self, kept: &Kept, kind: RecordWrite) -> Decision {
        Decision::WriteRecord(kind, Box::new(self.next(kept, kind)))
    }

    /// Whether a capture of a settled node that differs from the record would change the record.
    fn capture_changes_record(&self) -> bool {
        if !self.is_owner() {
            return true;
        }
        let next = self.next(&self.case.kept, RecordWrite::Capture);
        next.kept != self.record.kept || next.withheld != self.record.withheld
    }

    /// Returns the successor of the record.
    fn next(&self, kept: &Kept, kind: RecordWrite) -> Record {
        let policy = &self.case.policy;
        let mut next = first_record(self.case, kept);
        next.sequence = self.record.sequence + 1;
        let mut rest = pick(self.content, |key| !self.foreign.contains_key(key));
        rest.extend(self.returned.clone());
        // A policy that keeps less never removes keys from records.
        next.kept.extend(pick(&rest, |key| !policy.keeps(key)));
        next.withheld = self.next_withheld();
        next.withheld.truncate(policy.history.max(1));

        next.history.clone_from(&self.record.history);
        if self.record.kept != next.kept {
            next.history.insert(0, self.record.entry());
        }
        next.history.truncate(policy.history);
        if kind == RecordWrite::Fold {
            next.folded = true;
            next.node.mark.clear();
            next.before = rest;
        }
        next
    }

    /// Returns the protected keys of other machines that the successor of the record holds.
    fn next_withheld(&self) -> Vec<Withheld> {
        let foreign = Withheld { machine: self.record.node.machine.clone(), content: Content::from(&self.foreign) };
        let others = self.record.withheld.iter().filter(|other| other.machine != self.case.node.machine).cloned();
        std::iter::once(foreign).chain(others).filter_map(|other| still_withheld(other, self.case)).collect()
    }
}

/// Compares the machine of the node with the recorded one. A machine that reports more fields than
/// before stays the same.
fn sameness(case: &Case, record: &Record) -> Sameness {
    let recorded = &record.node.machine;
    if case.wrote(record) && case.node.machine.completes(recorded) {
        Sameness::Same
    } else {
        case.node.machine.compare(recorded)
    }
}

/// Returns the keys that remain withheld for a machine. If that machine is the node's and reports
/// more fields now, the keys that the node was given or has set itself are dropped.
fn still_withheld(mut other: Withheld, case: &Case) -> Option<Withheld> {
    let mut content = Kept::from(other.content);
    if case.node.machine.completes(&other.machine) {
        let covered = |key: &Key| case.mark.as_ref().is_some_and(|mark| mark.covers(key));
        content.retain(|key, _| !case.policy.keeps(key) || !case.kept.contains_key(key) && !covered(key));
    }
    other.content = Content::from(&content);
    (!content.is_empty()).then_some(other)
}

/// Whether the API server accepts this key and value. A single invalid key must not prevent the
/// others from being set.
pub(super) fn is_writable(key: &Key, value: &str) -> bool {
    match key {
        Key::Label(key) | Key::Taint { key, .. } => is_label_key(key) && is_label_value(value),
        Key::Annotation(key) => is_label_key(key),
        Key::Cordon => true,
    }
}

fn pick(kept: &Kept, wanted: impl Fn(&Key) -> bool) -> Kept {
    kept.iter().filter(|(key, _)| wanted(key)).map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// Returns the keys that the policy protects: they are restored only to the machine that they were
/// captured from.
pub(super) fn protected(kept: &Kept, policy: &Policy) -> BTreeSet<Key> {
    kept.keys().filter(|key| policy.protects(key)).cloned().collect()
}

#[cfg(test)]
mod tests;
