//! The record from the point of view of one node: visible, withheld and returned keys, and its
//! successor.

use std::collections::BTreeSet;

use super::{Decision, RecordWrite};
use crate::{
    config::names::{TAINT_EFFECTS, is_annotation_key, is_label_key, is_label_value},
    keeper::{
        case::Case,
        hash::Digest,
        identity::Identified,
        keys::{Content, Kept, Key, digest},
        machine::Sameness,
        mark::{self, MARK, Mark},
        merge::{Merged, RecordKeys, merge},
        provenance::Provenance,
        record::{Record, Withheld},
        selection::ANNOTATIONS_LIMIT,
    },
};

/// The record from the point of view of one node.
pub(super) struct RecordView<'a> {
    case: &'a Case,
    record: &'a Record,
    /// Content for this incarnation. For one that was folded into the record, the content before
    /// the fold.
    pub(super) content: &'a Kept,
    /// The part of the content that concerns the node: kept by the policy and not bound to another
    /// machine.
    pub(super) visible: Kept,
    /// Kept keys that are not for this node, or not yet.
    pub(super) withheld: BTreeSet<Key>,
    /// Some withheld keys may follow once the node reports its machine.
    pub(super) waits: bool,
    /// Protected keys of the recorded machine, unless that is known to be the node's. They stay
    /// with that machine whether the policy keeps them or not.
    foreign: Kept,
    /// Keys that this machine left in the record before another machine took the identity.
    pub(super) returned: Kept,
    pub(super) own_fold: bool,
}

impl<'a> RecordView<'a> {
    pub(super) fn new(case: &'a Case, record: &'a Record) -> Self {
        let (machine, policy) = (&case.node.machine, &case.policy);
        let own_fold = record.folded && case.wrote(record);
        let content = if own_fold { &record.before } else { &record.kept };
        let sameness = sameness(case, record);
        let is_given = |key: &Key, value: &str| policy.keeps(key) && is_writable(key, value);
        let is_foreign = |key: &Key| sameness != Sameness::Same && policy.protects(key);
        let foreign = pick(content, is_foreign);
        let mut visible = pick(content, |key| !is_foreign(key));
        visible.retain(|key, value| is_given(key, value));

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
        visible
            .extend(returned.iter().filter(|(key, value)| is_given(key, value)).map(|(k, v)| (k.clone(), v.clone())));
        visible.retain(|key, _| !pending.contains(key));
        retain_annotations_with_room(&mut visible, case);
        pending.retain(|key| policy.keeps(key));

        let waits = !pending.is_empty();
        let mut withheld = pending;
        withheld.extend(foreign.keys().filter(|key| policy.keeps(key) && !visible.contains_key(*key)).cloned());
        Self { case, record, content, visible, withheld, waits, foreign, returned, own_fold }
    }

    /// Whether the record was last written from this incarnation with its current mark.
    pub(super) fn is_owner(&self) -> bool {
        self.case.wrote(self.record) && !self.record.folded && self.record.node.mark == self.case.mark_digest()
    }

    /// Whether the record holds this state of the node, or a newer one. The owner's own state
    /// counts as newer: the policy may have come to keep more of it.
    pub(super) fn is_older(&self) -> bool {
        let (ours, theirs) = (self.case.node.resource_version, self.record.node.resource_version);
        ours < theirs || ours == theirs && !self.is_owner()
    }

    /// Whether the node was given everything. A key that the mark does not cover is still to be
    /// given: the policy did not keep it at the time, or it was not known to be for this machine.
    pub(super) fn is_settled(&self) -> bool {
        if self.is_owner() {
            let ungiven = &self.record.provenance.ungiven;
            return self.visible.keys().all(|key| !self.returned.contains_key(key) && !ungiven.contains(key));
        }
        !self.waits
            && self.case.mark.as_ref().is_some_and(|mark| {
                let is_given = || mark.from == self.digest() && self.visible.keys().all(|key| mark.covers(key));
                mark.complete && (mark.is_newer_than(self.record.node.resource_version) || is_given())
            })
    }

    /// Whether the mark lists keys with values of the node's own that the record does not hold yet.
    pub(super) fn has_unrecorded_keys(&self) -> bool {
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

    pub(super) fn merge(&self) -> Merged {
        // An owner and its record agreed on all keys that the owner was given.
        let ungiven = &self.record.provenance.ungiven;
        let agreed = || Mark { given: pick(self.content, |key| !ungiven.contains(key)), ..Mark::default() };
        let agreed = self.is_owner().then(agreed);
        let mark = agreed.as_ref().or(self.case.mark.as_ref());
        let (digest, version) = (self.digest(), self.record.node.resource_version);
        let record = RecordKeys { visible: &self.visible, withheld: &self.withheld, digest, version };
        merge(&self.case.kept, mark, &record, self.case.policy.merge)
    }

    pub(super) fn write(&self, kept: &Kept, kind: RecordWrite) -> Decision {
        Decision::WriteRecord(kind, Box::new(self.next(kept, kind)))
    }

    /// Whether a capture of a settled node that differs from the record would change the record.
    pub(super) fn capture_changes_record(&self) -> bool {
        if !self.is_owner() {
            return true;
        }
        let next = self.next(&self.case.kept, RecordWrite::Capture);
        next.kept != self.record.kept || next.withheld != self.record.withheld
    }

    /// Whether the labels of the node select another policy than the record was captured under, or
    /// select it by other labels. A policy that is missing changes no record.
    pub(super) fn selects_otherwise(&self) -> bool {
        !self.case.policy_is_missing
            && !Provenance::next(self.case, Some(self.record), &self.record.kept).selects_like(&self.record.provenance)
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
        next.withheld.truncate(policy.withheld);

        next.provenance = Provenance::next(self.case, Some(self.record), &next.kept);

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
        let is_other = |other: &&Withheld| self.case.node.machine.compare(&other.machine) != Sameness::Same;
        let others = self.record.withheld.iter().filter(is_other).cloned();
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
pub(in crate::keeper) fn is_writable(key: &Key, value: &str) -> bool {
    match key {
        Key::Label(key) => is_label_key(key) && is_label_value(value),
        Key::Taint { key, effect } => {
            is_label_key(key) && is_label_value(value) && TAINT_EFFECTS.contains(&effect.as_str())
        }
        Key::Annotation(key) => is_annotation_key(key),
        Key::Cordon => true,
    }
}

/// Removes the annotations that a node has no room for: the API server would refuse the whole patch,
/// and what is beyond the limit would not be kept again.
fn retain_annotations_with_room(visible: &mut Kept, case: &Case) {
    if !visible.keys().any(|key| matches!(key, Key::Annotation(_))) {
        return;
    }
    let size = |(key, value): (&String, &String)| key.len() + value.len();
    let all = case.node.annotations.iter().filter(|(key, _)| *key != MARK).map(size).sum::<usize>();
    let kept = case.kept.iter().filter_map(|(key, value)| match key {
        Key::Annotation(key) => Some(size((key, value))),
        _ => None,
    });
    let room = ANNOTATIONS_LIMIT.saturating_sub(kept.sum());
    let mut room = room.min((mark::ANNOTATIONS_LIMIT - mark::SPARED).saturating_sub(all));
    visible.retain(|key, value| match key {
        Key::Annotation(name) if !case.node.annotations.contains_key(name) => {
            let rest = room.checked_sub(size((name, value)));
            room = rest.unwrap_or(room);
            rest.is_some()
        }
        _ => true,
    });
}

pub(super) fn pick(kept: &Kept, wanted: impl Fn(&Key) -> bool) -> Kept {
    kept.iter().filter(|(key, _)| wanted(key)).map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// Returns the first record of a node.
pub(super) fn first_record(case: &Case, kept: &Kept) -> Record {
    Record {
        sequence: 1,
        node: case.origin(),
        identity: case.identity.as_ref().and_then(Identified::text),
        provenance: Provenance::next(case, None, kept),
        kept: kept.clone(),
        folded: false,
        before: Kept::new(),
        withheld: Vec::new(),
        captured_at: case.now,
        captured_by: case.by.clone(),
        history: Vec::new(),
    }
}
