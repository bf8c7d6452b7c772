//! What is to be done about one node and its record: the transition table, as pure functions.
//!
//! # Guarantees
//! The rules were explored to exhaustion as an explicit-state model. Change them only with a model that says so.
//! `plan` after its own effect plans nothing; keys that the policy does not keep are never in a plan for a node and
//! never leave a record; sequences only grow.
//!
//! # Assumptions
//! The record was read *after* the node. Whoever executes a plan makes every write conditional on the resourceVersion
//! (and UID) that was decided on, and before a capture of a live node looks once more whether it is still the same.

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::{
    kept::{Content, Kept, Key, digest},
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
    sameness: Sameness,
    own_fold: bool,
}

impl<'a> View<'a> {
    fn new(node: &Incarnation, record: &'a Record, policy: &Policy) -> Self {
        let own_fold = record.folded && record.node.uid == node.uid;
        let content = if own_fold { &record.before } else { &record.kept };
        let sameness =
            if record.node.uid == node.uid { Sameness::Same } else { node.machine.compare(&record.node.machine) };
        let mut visible = Kept::new();
        let mut withheld = BTreeSet::new();
        for (key, value) in content.iter().filter(|(key, value)| policy.keeps(key) && is_writable(key, value)) {
            if sameness != Sameness::Same && policy.protects(key) {
                withheld.insert(key.clone());
            } else {
                visible.insert(key.clone(), value.clone());
            }
        }
        // What this machine left here before another one came.
        for other in record.withheld.iter().filter(|other| other.machine == node.machine) {
            for (key, value) in Kept::from(other.content.clone()) {
                if policy.keeps(&key) && record.node.uid != node.uid && !visible.contains_key(&key) {
                    withheld.remove(&key);
                    visible.insert(key, value);
                }
            }
        }
        Self { record, content, visible, withheld, sameness, own_fold }
    }

    /// The record was last written from this incarnation, as it is marked now.
    fn is_owner(&self, node: &Incarnation) -> bool {
        self.record.node.uid == node.uid && !self.record.folded && self.record.node.mark == node.mark_digest()
    }

    fn is_settled(&self, node: &Incarnation) -> bool {
        self.is_owner(node) || node.mark.as_ref().is_some_and(|mark| mark.complete && mark.from == digest(self.content))
    }

    /// Settled by its mark alone, with keys that it decided itself: the record has yet to hear of them.
    fn has_news(&self, node: &Incarnation) -> bool {
        !self.is_owner(node) && node.mark.as_ref().is_some_and(|mark| !mark.own.is_empty())
    }

    /// Keys are withheld that this node may turn out to be the right machine for.
    fn waits(&self) -> bool {
        self.sameness == Sameness::Unknown && !self.withheld.is_empty()
    }

    fn merge(&self, node: &Incarnation, policy: &Policy) -> Merged {
        merge(&node.kept, node.mark.as_ref(), &self.visible, &self.withheld, digest(self.content), policy.merge)
    }

    /// The record's successor, with what the node says under the policy's keys.
    fn write(&self, node: &Incarnation, kept: &Kept, act: Act, context: &Context<'_>) -> Plan {
        let policy = context.policy;
        let mut next = fresh(node, kept, context);
        next.sequence = self.record.sequence + 1;
        // A policy that keeps less never takes anything out of records.
        next.kept.extend(pick(self.content, |key| !policy.keeps(key)));

        next.withheld = self.record.withheld.iter().filter(|other| other.machine != node.machine).cloned().collect();
        let foreign = pick(self.content, |key| self.withheld.contains(key));
        match self.sameness {
            // Not known to be another machine: what is protected stays with the machine that it was taken from.
            Sameness::Unknown if !foreign.is_empty() => {
                next.node.machine.clone_from(&self.record.node.machine);
                next.kept.extend(foreign);
            }
            Sameness::Different if !foreign.is_empty() => {
                next.withheld.insert(
                    0,
                    Withheld { machine: self.record.node.machine.clone(), content: Content::from(&foreign) },
                );
                next.withheld.truncate(policy.history.max(1));
            }
            _ => {}
        }

        next.history.clone_from(&self.record.history);
        if self.record.kept != next.kept {
            next.history.insert(0, self.record.entry());
        }
        next.history.truncate(policy.history);
        if act == Act::Fold {
            next.folded = true;
            next.node.mark.clear();
            next.before = pick(self.content, |key| !self.withheld.contains(key) || next.kept.contains_key(key));
        }
        Plan::Write(act, Box::new(next))
    }
}

/// What the API server would refuse is not given: one bad key must not keep the others from a node.
fn is_writable(key: &Key, value: &str) -> bool {
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
        return if node.kept == view.visible && !view.has_news(node) && !says_more {
            Plan::Nothing(Why::Current)
        } else if ours <= theirs {
            Plan::Nothing(Why::Older)
        } else {
            view.write(node, &node.kept, Act::Capture, context)
        };
    }

    let merged = view.merge(node, context.policy);
    if merged.kept != node.kept {
        let waits = view.waits();
        return Plan::Restore(Restore { waits, ..Restore::new(&node.kept, merged, view.withheld) });
    }
    if view.waits() {
        return Plan::Nothing(Why::MachineUnknown);
    }
    if ours < theirs { Plan::Nothing(Why::Older) } else { view.write(node, &node.kept, Act::Claim, context) }
}

/// What is to be done about the last state of a node that is gone, or about to be.
pub fn gone(node: &Incarnation, record: Option<&Record>, context: &Context<'_>) -> Plan {
    let Some(record) = record else { return first(node, context) };
    if node.resource_version <= record.node.resource_version {
        return Plan::Nothing(Why::Older);
    }
    let view = View::new(node, record, context.policy);
    let held = if view.own_fold { pick(&record.kept, |key| context.policy.keeps(key)) } else { view.visible.clone() };

    if view.is_settled(node) {
        if node.kept == held && !view.has_news(node) {
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
#[path = "plan_tests.rs"]
mod tests;
