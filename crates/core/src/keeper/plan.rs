//! What is to be done about one node and its record: the transition table, as pure functions.
//!
//! # Guarantees
//! `tests/keeper_model` explores these very functions to exhaustion in small worlds. Change them only with it.
//! `plan` after its own effect plans nothing; keys that the policy does not keep are never in a plan for a node and
//! never leave a record; sequences only grow.
//!
//! # Assumptions
//! The record was read *after* the node, or is known to be what the predecessor of a node that has not changed since it began
//! had (`docs/decisions/0025-recall.md`). Whoever executes a plan makes every write conditional on the resourceVersion
//! (and UID) that was decided on, and before a capture of a live node looks once more whether it is still the same.

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::{
    hash::Digest,
    keys::{Content, Kept, Key, digest},
    machine::Sameness,
    mark::Mark,
    merge::{Merged, merge},
    record::{Origin, Record, Withheld},
    selection::{Incarnation, Policy},
};
use crate::config::names::{is_label_key, is_label_value};

/// What a decision is made with beside the node and the record.
#[derive(Clone, Debug)]
pub struct Context<'a> {
    pub policy: &'a Policy,
    /// The identity that the record is for, where it is not the node's name.
    pub identity: Option<String>,
    pub now: Timestamp,
    /// Who writes: `watch`, `webhook`, `cli`, `import`.
    pub by: &'a str,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plan {
    Nothing(Why),
    /// Write this record.
    Write(Act, Box<Record>),
    /// Patch the node.
    Restore(Restore),
}

/// Why nothing is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Nothing is kept of the node and there is no record.
    NothingKept,
    /// Node and record agree.
    Current,
    /// The record knows a newer state of the node.
    Older,
    /// The rest belongs to a machine of which this node does not say yet whether it is it.
    MachineUnknown,
}

/// The kinds of writes to a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// The node's state becomes the record's.
    Capture,
    /// A node that has everything takes the record over.
    Claim,
    /// What an unsettled node had decided is merged into the record as the node goes.
    Fold,
}

impl Act {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Capture => "capture",
            Self::Claim => "claim",
            Self::Fold => "fold",
        }
    }
}

/// What a node is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restore {
    pub set: Kept,
    pub remove: BTreeSet<Key>,
    pub mark: Mark,
    /// Keys that were not given, since they belong to another machine or may not ride in this request.
    pub withheld: BTreeSet<Key>,
    /// Some of them may still be given: the node has yet to say which machine it is.
    pub waits: bool,
}

/// The record as one node may see it.
struct View<'a> {
    record: &'a Record,
    /// What it holds for this incarnation: for one that was folded into it, what it held before.
    content: &'a Kept,
    /// What of it concerns the node: kept by the policy and for this machine.
    visible: Kept,
    /// Kept keys that are not for this node, or not yet.
    withheld: BTreeSet<Key>,
    /// Some of them wait for the node to say which machine it is.
    waits: bool,
    /// Protected keys of the machine that the record was taken from, where that is not known to be the node's: kept by
    /// the policy or not, they stay with that machine.
    foreign: Kept,
    /// What this machine had left in the record before another one came.
    returned: Kept,
    own_fold: bool,
}

impl<'a> View<'a> {
    fn new(node: &Incarnation, record: &'a Record, policy: &Policy) -> Self {
        let own_fold = record.folded && record.node.uid == node.uid;
        let content = if own_fold { &record.before } else { &record.kept };
        let sameness = sameness(node, record);
        let gives = |key: &Key, value: &str| policy.keeps(key) && is_writable(key, value);
        let is_foreign = |key: &Key| sameness != Sameness::Same && policy.protects(key);
        let foreign = pick(content, is_foreign);
        let mut visible = pick(content, |key| !is_foreign(key));
        visible.retain(|key, value| gives(key, value));

        let mut pending = BTreeSet::new();
        let mut returned = Kept::new();
        for other in &record.withheld {
            match node.machine.compare(&other.machine) {
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
        Self { record, content, visible, withheld, waits, foreign, returned, own_fold }
    }

    /// The record was last written from this incarnation, as it is marked now.
    fn is_owner(&self, node: &Incarnation) -> bool {
        self.record.node.uid == node.uid && !self.record.folded && self.record.node.mark == node.mark_digest()
    }

    /// The record knows this state of the node, or a newer one. The very state that it was written from is news again
    /// when the policy has come to keep more of it.
    fn is_older(&self, node: &Incarnation) -> bool {
        let (ours, theirs) = (node.resource_version, self.record.node.resource_version);
        ours < theirs || ours == theirs && !self.is_owner(node)
    }

    /// Whether the node was given everything. A mark that does not speak of a key was written when the policy did not
    /// keep it, or when it was not known to be for this machine: then that key is still to come.
    fn is_settled(&self, node: &Incarnation) -> bool {
        if self.is_owner(node) {
            return self.visible.keys().all(|key| !self.returned.contains_key(key));
        }
        !self.waits
            && node.mark.as_ref().is_some_and(|mark| {
                mark.complete && mark.from == self.digest() && self.visible.keys().all(|key| mark.speaks_of(key))
            })
    }

    /// Settled by its mark alone, with keys that it decided itself: the record has yet to hear of them.
    fn has_news(&self, node: &Incarnation) -> bool {
        !self.is_owner(node) && node.mark.as_ref().is_some_and(|mark| !mark.own.is_empty())
    }

    /// What the node's mark says it was given from.
    fn digest(&self) -> Digest {
        if self.returned.is_empty() {
            return digest(self.content);
        }
        let mut whole = self.content.clone();
        whole.extend(self.returned.clone());
        digest(&whole)
    }

    fn merge(&self, node: &Incarnation, policy: &Policy) -> Merged {
        // An owner and its record agreed on all that the record holds.
        let agreed = self.is_owner(node).then(|| Mark { given: self.content.clone(), ..Mark::default() });
        let mark = agreed.as_ref().or(node.mark.as_ref());
        merge(&node.kept, mark, &self.visible, &self.withheld, self.digest(), policy.merge)
    }

    /// The record's successor, with what the node says under the policy's keys.
    fn write(&self, node: &Incarnation, kept: &Kept, act: Act, context: &Context<'_>) -> Plan {
        Plan::Write(act, Box::new(self.next(node, kept, act, context)))
    }

    /// Whether a capture of a settled node, which is not as the record says, would tell the record anything.
    fn is_news(&self, node: &Incarnation, context: &Context<'_>) -> bool {
        if !self.is_owner(node) {
            return true;
        }
        let next = self.next(node, &node.kept, Act::Capture, context);
        next.kept != self.record.kept || next.withheld != self.record.withheld
    }

    fn next(&self, node: &Incarnation, kept: &Kept, act: Act, context: &Context<'_>) -> Record {
        let policy = context.policy;
        let mut next = fresh(node, kept, context);
        next.sequence = self.record.sequence + 1;
        let mut rest = pick(self.content, |key| !self.foreign.contains_key(key));
        rest.extend(self.returned.clone());
        // A policy that keeps less never takes anything out of records.
        next.kept.extend(pick(&rest, |key| !policy.keeps(key)));
        next.withheld = self.withheld_by(node, policy);
        next.withheld.truncate(policy.history.max(1));

        next.history.clone_from(&self.record.history);
        if self.record.kept != next.kept {
            next.history.insert(0, self.record.entry());
        }
        next.history.truncate(policy.history);
        if act == Act::Fold {
            next.folded = true;
            next.node.mark.clear();
            next.before = rest;
        }
        next
    }

    /// What waits for other machines once this node writes the record.
    fn withheld_by(&self, node: &Incarnation, policy: &Policy) -> Vec<Withheld> {
        let foreign = Withheld { machine: self.record.node.machine.clone(), content: Content::from(&self.foreign) };
        let others = self.record.withheld.iter().filter(|other| other.machine != node.machine).cloned();
        std::iter::once(foreign).chain(others).filter_map(|other| unsaid(other, node, policy)).collect()
    }
}

/// The machine of a record's own incarnation stays the same one when it says more of itself.
fn sameness(node: &Incarnation, record: &Record) -> Sameness {
    let recorded = &record.node.machine;
    if record.node.uid == node.uid && node.machine.completes(recorded) {
        Sameness::Same
    } else {
        node.machine.compare(recorded)
    }
}

/// What is still to wait for a machine: where the node is that one and says more now, not the keys that it was given
/// or decided itself.
fn unsaid(mut other: Withheld, node: &Incarnation, policy: &Policy) -> Option<Withheld> {
    let mut content = Kept::from(other.content);
    if node.machine.completes(&other.machine) {
        let mark = node.mark.as_ref();
        let given = |key: &Key| mark.is_some_and(|mark| mark.speaks_of(key));
        content.retain(|key, _| !policy.keeps(key) || !node.kept.contains_key(key) && !given(key));
    }
    other.content = Content::from(&content);
    (!content.is_empty()).then_some(other)
}

/// What the API server would refuse is not given: one bad key must not keep the others from a node.
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

/// The first record of a node.
fn fresh(node: &Incarnation, kept: &Kept, context: &Context<'_>) -> Record {
    Record {
        sequence: 1,
        node: Origin {
            name: node.name.clone(),
            uid: node.uid.clone(),
            resource_version: node.resource_version,
            mark: node.mark_digest(),
            machine: node.machine.clone(),
        },
        identity: context.identity.clone(),
        kept: kept.clone(),
        folded: false,
        before: Kept::new(),
        withheld: Vec::new(),
        captured_at: context.now,
        captured_by: context.by.to_owned(),
        history: Vec::new(),
    }
}

fn first(node: &Incarnation, context: &Context<'_>) -> Plan {
    if node.kept.is_empty() {
        Plan::Nothing(Why::NothingKept)
    } else {
        Plan::Write(Act::Capture, Box::new(fresh(node, &node.kept, context)))
    }
}

/// What is to be done about a node that is there.
pub fn live(node: &Incarnation, record: Option<&Record>, context: &Context<'_>) -> Plan {
    let Some(record) = record else { return first(node, context) };
    let view = View::new(node, record, context.policy);
    let (ours, theirs) = (node.resource_version, record.node.resource_version);

    if view.is_settled(node) {
        // Its deletion was captured and then did not happen.
        if view.own_fold && ours >= theirs {
            return view.write(node, &node.kept, Act::Capture, context);
        }
        let says_more = view.is_owner(node) && node.machine.completes(&record.node.machine);
        let differs = node.kept != view.visible && view.is_news(node, context);
        return if !differs && !view.has_news(node) && !says_more {
            Plan::Nothing(Why::Current)
        } else if view.is_older(node) {
            Plan::Nothing(Why::Older)
        } else {
            view.write(node, &node.kept, Act::Capture, context)
        };
    }

    let merged = view.merge(node, context.policy);
    if merged.kept != node.kept {
        let waits = view.waits;
        return Plan::Restore(Restore { waits, ..Restore::new(&node.kept, merged, view.withheld) });
    }
    if view.waits {
        return Plan::Nothing(Why::MachineUnknown);
    }
    if ours < theirs { Plan::Nothing(Why::Older) } else { view.write(node, &node.kept, Act::Claim, context) }
}

/// What is to be done about the last state of a node that is gone, or about to be.
pub fn gone(node: &Incarnation, record: Option<&Record>, context: &Context<'_>) -> Plan {
    let Some(record) = record else { return first(node, context) };
    let view = View::new(node, record, context.policy);
    if view.is_older(node) {
        return Plan::Nothing(Why::Older);
    }
    let mut held = view.visible.clone();
    if view.own_fold {
        held.retain(|key, _| view.returned.contains_key(key));
        held.extend(pick(&record.kept, |key| context.policy.keeps(key)));
    }

    if view.is_settled(node) {
        let differs = node.kept != held && view.is_news(node, context);
        if !differs && !view.has_news(node) {
            return Plan::Nothing(Why::Current);
        }
        return view.write(node, &node.kept, Act::Capture, context);
    }
    let merged = view.merge(node, context.policy);
    if merged.kept == held && (!merged.decided || record.node.uid == node.uid) {
        return Plan::Nothing(Why::Current);
    }
    view.write(node, &merged.kept, Act::Fold, context)
}

/// What goes into the create of a node. An incoming mark is not believed: it may come from a saved manifest.
///
/// `may_ride` says whether a key may be in this request: NodeRestriction refuses some from a kubelet.
pub fn create(
    node: &Incarnation,
    record: Option<&Record>,
    context: &Context<'_>,
    may_ride: impl Fn(&Key) -> bool,
) -> Option<Restore> {
    let node = Incarnation { mark: None, ..node.clone() };
    let mut view = View::new(&node, record?, context.policy);
    let whole = Restore::new(&node.kept, view.merge(&node, context.policy), BTreeSet::new());
    view.withheld.extend(whole.set.into_keys().filter(|key| !may_ride(key)));
    let merged = view.merge(&node, context.policy);
    Some(Restore::new(&node.kept, merged, view.withheld))
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

#[cfg(test)]
mod tests;
