//! What an import writes for one node.
//!
//! # Guarantees
//! A record that is there is not touched unless a person insists, and then by the same change as a rollback. A live node is
//! never written to for a first record: it is unsettled by it, and the operator gives it what it lacks; its own values stay.

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::Entry;
use crate::keeper::{
    commands::rollback,
    keys::{Content, Kept, Key},
    plan::Context,
    record::{Fault, Origin, Record},
    selection::Node,
    stored_record::Stored,
};

/// The UID of a record that no incarnation has written yet. Not empty: a node that is being created has no UID yet, and
/// would be taken for the one that wrote the record.
pub const NOBODY: &str = "imported";

/// What is done with one entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    Skip(Why),
    Write(Box<Written>),
}

/// Why nothing is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// The policy keeps nothing of it.
    NothingKept,
    /// The record has all of it.
    Same,
    /// There is a record that says something else.
    HasRecord { sequence: u64 },
    /// The record that is there cannot be trusted: its bytes are kept.
    Quarantined,
    /// The record that is there was written by a newer operator.
    Newer,
}

/// What is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    pub record: Record,
    /// What the record held before.
    pub before: Kept,
    /// What a live node is given and loses at once; only where a record is overruled.
    pub set: Kept,
    pub remove: BTreeSet<Key>,
    /// Keys of the entry that the policy does not keep.
    pub left_out: usize,
}

/// What to do with an entry. `at` is a resourceVersion of this cluster that is later than every node that is gone.
pub fn plan(
    entry: &Entry,
    node: Option<&Node>,
    stored: Option<&Stored>,
    force: bool,
    at: u64,
    context: &Context<'_>,
) -> Step {
    let policy = context.policy;
    let whole = entry.record.as_deref();
    let kept: Kept = match whole {
        Some(record) => record.kept.clone(),
        None => entry.kept.iter().filter(|(key, _)| policy.keeps(key)).map(|(k, v)| (k.clone(), v.clone())).collect(),
    };
    let left_out = entry.kept.len().saturating_sub(kept.len());
    if kept.is_empty() && whole.is_none() {
        return Step::Skip(Why::NothingKept);
    }
    let seen = node.map(|node| policy.select(node));
    let present = match stored {
        None => None,
        Some(stored) if stored.fault().is_some_and(Fault::is_newer) => return Step::Skip(Why::Newer),
        Some(Stored::Good(record)) => Some((**record).clone()),
        Some(Stored::Bad { .. }) if !force => return Step::Skip(Why::Quarantined),
        Some(bad) => seen.as_ref().and_then(|seen| bad.effective(seen)),
    };
    let Some(present) = present else {
        let record = first(entry, node, kept, at, context);
        return Step::Write(Box::new(Written {
            record,
            before: Kept::new(),
            set: Kept::new(),
            remove: BTreeSet::new(),
            left_out,
        }));
    };
    let same = match whole {
        Some(record) => record.kept == present.kept && record.history == present.history,
        None => kept.iter().all(|(key, value)| present.kept.get(key) == Some(value)),
    };
    if !force {
        return Step::Skip(if same { Why::Same } else { Why::HasRecord { sequence: present.sequence } });
    }
    let mut wanted = if whole.is_some() { Kept::new() } else { present.kept.clone() };
    wanted.extend(kept);
    let mut to = present.entry();
    to.content = Content::from(&wanted);
    let mut change = rollback(&present, &to, seen.as_ref(), context);
    // A live node that has not followed its record yet is given it now: the first try may have ended between the two.
    if same && change.set.is_empty() && change.remove.is_empty() {
        return Step::Skip(Why::Same);
    }
    if node.is_none() {
        change.record.node.resource_version = change.record.node.resource_version.max(at);
    }
    Step::Write(Box::new(Written {
        record: change.record,
        before: present.kept,
        set: change.set,
        remove: change.remove,
        left_out,
    }))
}

/// The first record of a node in this cluster. Numbers of another cluster's order mean nothing here.
fn first(entry: &Entry, node: Option<&Node>, kept: Kept, at: u64, context: &Context<'_>) -> Record {
    if let Some(record) = entry.record.as_deref() {
        let mut record = record.clone();
        if record.node.uid.is_empty() {
            NOBODY.clone_into(&mut record.node.uid);
        }
        record.node.resource_version = match node {
            Some(node) if node.uid == record.node.uid => node.resource_version,
            _ => at,
        };
        return record;
    }
    // What another tool kept by name is for whoever has that name now, unless it says for which machine.
    let machine = entry.machine.clone().or_else(|| node.map(|node| node.machine.clone())).unwrap_or_default();
    Record {
        sequence: 1,
        node: Origin {
            name: entry.node.clone(),
            uid: NOBODY.to_owned(),
            resource_version: at,
            mark: String::new(),
            machine,
        },
        identity: context.identity.clone(),
        kept,
        folded: false,
        before: Kept::new(),
        withheld: Vec::new(),
        captured_at: entry
            .captured_at
            .filter(|then| *then <= context.now && *then > Timestamp::UNIX_EPOCH)
            .unwrap_or(context.now),
        captured_by: context.by.to_owned(),
        history: Vec::new(),
    }
}
