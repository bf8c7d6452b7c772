//! One node with everything that a decision about it depends on.
//!
//! A [`Case`] is built once from a node and its record as they were read, carries the node through
//! [`decide`](super::decide::decide), and is what the controller, both webhooks, the commands,
//! garbage collection, the dashboard and the models decide on.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::Timestamp;

use super::{
    hash::Digest,
    identity::Identified,
    keys::{Kept, Key},
    mark::Mark,
    policy_set::{PolicySet, inherited_labels},
    record::{Origin, Record, RecordFault},
    selection::{Node, Policy, ignored},
    stored_record::Stored,
};

/// The point in the life of a node at which a decision is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// The node exists.
    Live,
    /// The node was deleted, or its deletion is being admitted. The case holds its last state.
    Gone,
    /// The creation of the node is being admitted.
    Creating {
        /// NodeRestriction limits the keys that a kubelet may set on its own Node.
        by_kubelet: bool,
    },
    /// There is no node, only a record.
    Absent,
}

/// Another live node with the same identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rival {
    pub name: String,
    /// The record was written from this node, or the node has been given everything that the record
    /// holds.
    pub holds_record: bool,
}

/// The circumstances of a decision that do not come from the node or its record.
#[derive(Clone, Copy, Debug)]
pub struct CaseContext<'a> {
    pub policies: &'a PolicySet,
    pub now: Timestamp,
    /// The writer named in records: `cli`, `import` or the identity of a replica.
    pub by: &'a str,
}

/// A node, its record, its policy, its identity, its rivals and the time.
#[derive(Clone, Debug)]
pub struct Case {
    pub(super) phase: Phase,
    /// Empty in [`Phase::Absent`].
    pub(super) node: Node,
    /// Keys of the node that the policy keeps.
    pub(super) kept: Kept,
    pub(super) mark: Option<Mark>,
    pub(super) policy: Arc<Policy>,
    /// Keys of the labels that policies select nodes by.
    pub(super) selectors: Arc<BTreeSet<String>>,
    /// The policy that the record was captured under is deleted, invalid or not readable.
    pub(super) policy_is_missing: bool,
    /// `None` while the node lacks the field that identifies it.
    pub(super) identity: Option<Identified>,
    pub(super) stored: Option<Arc<Stored>>,
    pub(super) rivals: Vec<Rival>,
    pub(super) now: Timestamp,
    pub(super) by: String,
}

impl Case {
    /// Builds the case of a node that exists.
    pub fn live(node: Node, stored: Option<Arc<Stored>>, rivals: Vec<Rival>, context: &CaseContext<'_>) -> Self {
        Self::new(Phase::Live, Some(node), stored, rivals, context)
    }

    /// Builds the case of the last state of a node.
    pub fn gone(node: Node, stored: Option<Arc<Stored>>, rivals: Vec<Rival>, context: &CaseContext<'_>) -> Self {
        Self::new(Phase::Gone, Some(node), stored, rivals, context)
    }

    /// Builds the case of a record without a node.
    pub fn absent(stored: Option<Arc<Stored>>, context: &CaseContext<'_>) -> Self {
        Self::new(Phase::Absent, None, stored, Vec::new(), context)
    }

    /// Builds a case: chooses the policy, identifies the node and selects the keys that the policy
    /// keeps.
    ///
    /// The record must have been read after the node, or be known to equal the last state of the
    /// node's predecessor.
    pub fn new(
        phase: Phase,
        node: Option<Node>,
        stored: Option<Arc<Stored>>,
        rivals: Vec<Rival>,
        context: &CaseContext<'_>,
    ) -> Self {
        let policies = context.policies;
        let (phase, node) = node.map_or_else(|| (Phase::Absent, Node::default()), |node| (phase, node));
        let mark = Mark::read(&node.annotations).filter(|_| trusts_mark(phase));
        let record = stored.as_ref().and_then(|stored| stored.record_for(&node));
        let policy = match record.as_deref() {
            _ if phase == Phase::Absent => policies.for_record(stored.as_ref().and_then(|it| it.good())),
            Some(record) => policies.for_node_with_record(&node, mark.as_ref(), record),
            None => policies.for_node(&node),
        };
        let policy_is_missing = record.as_deref().is_some_and(|record| !policies.has_policy_of(record));
        let kept = policy.select_beside(&node, record.as_deref());
        Self {
            phase,
            kept,
            mark,
            selectors: Arc::clone(policies.selectors()),
            policy_is_missing,
            identity: Identified::of(&policy.identity, &node),
            node,
            policy,
            stored,
            rivals,
            now: context.now,
            by: context.by.to_owned(),
        }
    }

    /// Returns the case of the same node with another record.
    #[must_use]
    pub fn with_record(&self, stored: Option<Arc<Stored>>, context: &CaseContext<'_>) -> Self {
        let node = (self.phase != Phase::Absent).then(|| self.node.clone());
        Self::new(self.phase, node, stored, self.rivals.clone(), context)
    }

    /// Returns the case of the same node if it were deleted now.
    #[must_use]
    pub fn deleted(&self) -> Self {
        Self { phase: Phase::Gone, rivals: Vec::new(), ..self.clone() }
    }

    /// Whether a later state of the node would lead to the same decision.
    pub fn is_same_in(&self, later: &Node) -> bool {
        self.node.uid == later.uid
            && self.node.machine == later.machine
            && self.kept == self.policy.select_beside(later, self.record().as_deref())
            && self.mark == Mark::read(&later.annotations)
            && self.selectors.iter().all(|key| self.node.labels.get(key) == later.labels.get(key))
    }

    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Returns the node. `None` if there is only a record.
    pub fn node(&self) -> Option<&Node> {
        (self.phase != Phase::Absent).then_some(&self.node)
    }

    /// Returns the node of a case that was built from one. Empty in [`Phase::Absent`].
    pub fn subject(&self) -> &Node {
        &self.node
    }

    /// Returns the keys of the node that the policy keeps.
    pub fn kept(&self) -> &Kept {
        &self.kept
    }

    pub fn mark(&self) -> Option<&Mark> {
        self.mark.as_ref()
    }

    /// Returns the digest of the node's mark as records hold it. Empty without a mark.
    pub fn mark_digest(&self) -> String {
        self.mark.as_ref().map(|mark| Digest::of([mark.render()]).to_string()).unwrap_or_default()
    }

    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    pub fn identity(&self) -> Option<&Identified> {
        self.identity.as_ref()
    }

    pub fn stored(&self) -> Option<&Stored> {
        self.stored.as_deref()
    }

    pub fn rivals(&self) -> &[Rival] {
        &self.rivals
    }

    /// Returns the names of the rivals, separated by commas.
    pub fn rival_names(&self) -> String {
        self.rivals.iter().map(|rival| rival.name.as_str()).collect::<Vec<_>>().join(", ")
    }

    /// Returns the record to decide on: the stored one, or its substitute if the stored one is
    /// quarantined.
    pub fn record(&self) -> Option<Cow<'_, Record>> {
        self.stored.as_ref().and_then(|stored| stored.record_for(&self.node))
    }

    /// Whether the record was written by a newer version of the operator. Such a record is never
    /// touched.
    pub fn has_newer_record(&self) -> bool {
        self.stored.as_ref().and_then(|stored| stored.fault()).is_some_and(RecordFault::is_newer)
    }

    /// Whether an annotation or a label of the node excludes it from management.
    pub fn is_ignored(&self) -> bool {
        ignored(&self.node)
    }

    /// Whether the record was written from this incarnation of the node.
    pub(super) fn wrote(&self, record: &Record) -> bool {
        record.node.uid == self.node.uid
    }

    /// Returns the labels of a record that select a policy for the node, which does not have them
    /// yet.
    pub(super) fn inherited_labels(&self, record: &Record) -> BTreeMap<String, String> {
        inherited_labels(&self.node, self.mark.as_ref(), record)
    }

    /// Whether this incarnation was never given a key of its record, since the policy does not keep
    /// it. Its absence is then no removal.
    pub(super) fn was_never_given(&self, key: &Key, record: &Record) -> bool {
        let had = || {
            self.wrote(record) && !record.provenance.ungiven.contains(key)
                || self.mark.as_ref().is_some_and(|mark| mark.covers(key))
                || self.node.value_of(key) == record.kept.get(key).map(String::as_str)
        };
        record.kept.contains_key(key) && !self.policy.keeps(key) && !had()
    }

    /// Returns the node as the origin of a record.
    pub(super) fn origin(&self) -> Origin {
        Origin {
            name: self.node.name.clone(),
            uid: self.node.uid.clone(),
            resource_version: self.node.resource_version,
            mark: self.mark_digest(),
            machine: self.node.machine.clone(),
        }
    }
}

/// Whether the mark on the node is trusted. The mark in a create request may come from a saved
/// manifest.
fn trusts_mark(phase: Phase) -> bool {
    !matches!(phase, Phase::Creating { .. })
}
