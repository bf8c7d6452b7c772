//! The decision about one entry of an import.
//!
//! # Guarantees
//! An existing record is overwritten only with `force`, and then by the same change as a rollback.
//! A live node is never patched for a first record: the record unsettles it, the operator then
//! restores the keys that it lacks, and values that the node has stay.

use std::{collections::BTreeSet, sync::Arc};

use jiff::Timestamp;

use super::ImportEntry;
use crate::{
    config::settings::Identity,
    keeper::{
        case::{Case, CaseContext},
        commands::rollback,
        identity::{Identified, RecordName},
        keys::{Content, Kept, Key},
        policy_set::PolicySet,
        provenance::Provenance,
        record::{Origin, Record},
        selection::Node,
        stored_record::Stored,
    },
};

/// The UID in a record that was not written from a node. It is not empty, since a node that is
/// being created has no UID yet and must not count as the owner of the record.
pub const IMPORTED_UID: &str = "imported";

/// The decision about one entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImportDecision {
    Skip(SkipReason),
    /// The node is absent, and the entry lacks the field that identifies it.
    Refuse(Identity),
    Write(Box<ImportWrite>),
}

/// Why an entry is skipped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SkipReason {
    /// The policy keeps none of its keys.
    NothingKept,
    /// The record has the same content.
    Same,
    /// There is a record with other content.
    HasRecord { sequence: u64 },
    /// The existing record is quarantined.
    Quarantined,
    /// The existing record was written by a newer version of the operator.
    Newer,
}

/// The record to write for an entry, and the keys to patch on its node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportWrite {
    pub record: Record,
    /// Content of the record that is replaced.
    pub before: Kept,
    /// Keys to set on a live node at once. Empty unless a record is overwritten.
    pub set: Kept,
    /// Keys to remove from a live node at once. Empty unless a record is overwritten.
    pub remove: BTreeSet<Key>,
    /// Number of keys of the entry that the policy does not keep.
    pub left_out: usize,
}

impl ImportEntry {
    /// Returns the name of the record that the entry is for. `None` if the identity of its node is
    /// not known.
    pub fn record_name(&self, node: Option<&Node>, policies: &PolicySet) -> Option<RecordName> {
        if let Some(record) = &self.record {
            return Some(record.name());
        }
        let described = self.described_node();
        let node = node.unwrap_or(&described);
        Identified::of(&policies.for_node(node).identity, node).map(|identity| identity.record_name())
    }

    /// Builds the case of the entry's node. The entry itself selects the policy of an absent node.
    pub fn case(&self, node: Option<Node>, stored: Option<Arc<Stored>>, context: &CaseContext<'_>) -> Case {
        if let Some(node) = node {
            return Case::live(node, stored, Vec::new(), context);
        }
        let described = self.described_node();
        let policy = context.policies.for_node(&described);
        let identity = Identified::of(&policy.identity, &described);
        Case { policy, identity, ..Case::absent(stored, context) }
    }

    /// Returns an absent node as far as the entry describes it.
    fn described_node(&self) -> Node {
        let Content { labels, annotations, .. } = Content::from(&self.kept);
        Node {
            name: self.node.clone(),
            labels,
            annotations,
            machine: self.machine.clone().unwrap_or_default(),
            ..Node::default()
        }
    }
}

/// Decides about an entry. `at` is a resourceVersion of this cluster that is later than every
/// deleted node.
pub fn decide_import(entry: &ImportEntry, case: &Case, force: bool, at: u64) -> ImportDecision {
    if entry.record.is_none() && case.identity.is_none() {
        return ImportDecision::Refuse(case.policy.identity.clone());
    }
    let policy = &case.policy;
    let whole = entry.record.as_deref();
    let kept: Kept = match whole {
        Some(record) => record.kept.clone(),
        None => entry.kept.iter().filter(|(key, _)| policy.keeps(key)).map(|(k, v)| (k.clone(), v.clone())).collect(),
    };
    let left_out = entry.kept.len().saturating_sub(kept.len());
    if kept.is_empty() && whole.is_none() {
        return ImportDecision::Skip(SkipReason::NothingKept);
    }
    let present = match case.stored() {
        None => None,
        Some(_) if case.has_newer_record() => return ImportDecision::Skip(SkipReason::Newer),
        Some(Stored::Good(record)) => Some((**record).clone()),
        Some(Stored::Bad { .. }) if !force => return ImportDecision::Skip(SkipReason::Quarantined),
        Some(Stored::Bad { .. }) => case.node().and(case.record()).map(std::borrow::Cow::into_owned),
    };
    let Some(present) = present else {
        let record = first(entry, case, kept, at);
        return ImportDecision::Write(Box::new(ImportWrite {
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
        let reason = if same { SkipReason::Same } else { SkipReason::HasRecord { sequence: present.sequence } };
        return ImportDecision::Skip(reason);
    }
    let mut wanted = if whole.is_some() { Kept::new() } else { present.kept.clone() };
    wanted.extend(kept);
    let mut to = present.entry();
    to.content = Content::from(&wanted);
    let mut change = rollback(case, &present, &to);
    // A live node that lags behind its record is patched now: a first attempt may have ended
    // between its two writes.
    if same && change.set.is_empty() && change.remove.is_empty() {
        return ImportDecision::Skip(SkipReason::Same);
    }
    if case.node().is_none() {
        change.record.node.resource_version = change.record.node.resource_version.max(at);
    }
    ImportDecision::Write(Box::new(ImportWrite {
        record: change.record,
        before: present.kept,
        set: change.set,
        remove: change.remove,
        left_out,
    }))
}

/// Returns the first record of a node in this cluster. ResourceVersions of another cluster have no
/// meaning here.
fn first(entry: &ImportEntry, case: &Case, kept: Kept, at: u64) -> Record {
    if let Some(record) = entry.record.as_deref() {
        let mut record = record.clone();
        if record.node.uid.is_empty() {
            IMPORTED_UID.clone_into(&mut record.node.uid);
        }
        record.node.resource_version = match case.node() {
            Some(node) if node.uid == record.node.uid => node.resource_version,
            _ => at,
        };
        return record;
    }
    // A label set without a machine belongs to the node that has the name now.
    let machine = entry.machine.clone().or_else(|| case.node().map(|node| node.machine.clone())).unwrap_or_default();
    Record {
        sequence: 1,
        node: Origin {
            name: entry.node.clone(),
            uid: IMPORTED_UID.to_owned(),
            resource_version: at,
            mark: String::new(),
            machine,
        },
        identity: case.identity.as_ref().and_then(Identified::text),
        provenance: Provenance::of(&entry.described_node(), &case.policy, &case.selectors),
        kept,
        folded: false,
        before: Kept::new(),
        withheld: Vec::new(),
        captured_at: entry
            .captured_at
            .filter(|then| *then <= case.now && *then > Timestamp::UNIX_EPOCH)
            .unwrap_or(case.now),
        captured_by: case.by.clone(),
        history: Vec::new(),
    }
}
