//! Packed fingerprints of nodes and records, and the question whether a node may need work.
//!
//! # Guarantees
//! A fingerprint that needs nothing implies that [`decide`](super::decide::decide) returns
//! [`Decision::Nothing`](super::decide::Decision::Nothing) for the same node and record, provided
//! that the record was written by this operator. The opposite does not hold: where the hashes
//! cannot tell, the answer is that work may be needed.

use std::hash::{DefaultHasher, Hash, Hasher};

use super::{
    hash::Digest,
    identity::Identified,
    keys::digest,
    mark::Mark,
    policy_set::PolicySet,
    provenance::Provenance,
    record::{Record, RecordFault},
    selection::{Node, ignored},
    status::KeepState,
    stored_record::Stored,
};

/// Hashes of everything that a decision reads of a node.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts")]
pub struct NodeFingerprint {
    uid: u64,
    resource_version: u64,
    kept: u64,
    /// The policy keeps none of its keys.
    empty: bool,
    /// Some kept keys are protected.
    protected: bool,
    mark: u64,
    /// Digest of the record that the mark was written from.
    mark_from: u64,
    complete: bool,
    /// The mark covers every kept key.
    covers_kept: bool,
    /// The mark lists keys with values of the node's own, which the record may not hold yet.
    own: bool,
    machine: u64,
    /// Some fields of the machine are empty.
    machine_incomplete: bool,
    ignored: bool,
    identified: bool,
    gated: bool,
    /// Its policy, and the labels that policies select on.
    selection: u64,
    /// Hash of every field that any policy may read. Most events of a node change none of them.
    content: u64,
}

/// Hashes of everything that a decision reads of a record.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts")]
pub struct RecordFingerprint {
    uid: u64,
    node_resource_version: u64,
    kept: u64,
    mark: u64,
    machine: u64,
    folded: bool,
    bad: bool,
    /// Written by a newer version of the operator.
    newer: bool,
    tombstone: bool,
    /// The policy, and the labels that policies select on.
    selection: u64,
    /// Some keys were never given to the node that it was written from.
    ungiven: bool,
    /// Machines that protected keys are withheld for.
    withheld: Box<[u64]>,
}

/// The work that a live node may need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    Nothing,
    /// The node may have to be patched.
    Restore,
    /// The record may have to be written.
    Capture,
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

fn hash_digest(digest: &Digest) -> u64 {
    hash(&digest.as_str())
}

fn hash_content(node: &Node) -> u64 {
    let labels = (&node.labels, &node.writers);
    hash(&(&node.uid, labels, &node.annotations, &node.taints, node.unschedulable, &node.machine))
}

/// Hashes the policy and the labels that policies select on. Labels that are still expected can
/// equal those of no node.
fn hash_selection(provenance: &Provenance) -> u64 {
    hash(&(provenance.policy_name(), &provenance.selectors, &provenance.expected))
}

impl NodeFingerprint {
    pub fn new(node: &Node, policies: &PolicySet) -> Self {
        let policy = &*policies.for_node(node);
        let kept = policy.select(node);
        let mark = Mark::read(&node.annotations);
        let mark = mark.as_ref();
        let machine = &node.machine;
        Self {
            uid: hash(&node.uid),
            resource_version: node.resource_version,
            kept: hash_digest(&digest(&kept)),
            empty: kept.is_empty(),
            protected: kept.keys().any(|key| policy.protects(key)),
            mark: hash(&Mark::digest_of(&node.annotations)),
            mark_from: mark.map_or(0, |mark| hash_digest(&mark.from)),
            complete: mark.is_some_and(|mark| mark.complete),
            covers_kept: mark.is_some_and(|mark| kept.keys().all(|key| mark.covers(key))),
            own: mark.is_some_and(|mark| !mark.own.is_empty()),
            machine: hash(&machine.normalized()),
            machine_incomplete: [&machine.provider_id, &machine.system_uuid, &machine.machine_id]
                .into_iter()
                .any(String::is_empty),
            ignored: ignored(node),
            identified: Identified::of(&policy.identity, node).is_some(),
            gated: node.is_gated(),
            selection: hash_selection(&Provenance::of(node, policy, policies.selectors())),
            content: hash_content(node),
        }
    }

    /// Whether this is the incarnation with this UID.
    pub fn is_of(&self, uid: &str) -> bool {
        self.uid == hash(&uid)
    }

    pub fn is_same_incarnation(&self, other: &Self) -> bool {
        self.uid == other.uid
    }

    pub fn is_newer_than(&self, other: &Self) -> bool {
        self.resource_version > other.resource_version
    }

    pub fn resource_version(&self) -> u64 {
        self.resource_version
    }

    /// Whether this state is newer than a resourceVersion.
    pub fn is_after(&self, resource_version: u64) -> bool {
        self.resource_version > resource_version
    }

    /// Whether the policy keeps none of its keys.
    pub fn is_empty(&self) -> bool {
        self.empty
    }

    pub fn is_ignored(&self) -> bool {
        self.ignored
    }

    /// Whether the node has the taint that holds pods back until it is restored.
    pub fn is_gated(&self) -> bool {
        self.gated
    }

    /// Whether a decision reads the same of both, apart from the resourceVersion and the identity.
    pub fn decides_like(&self, other: &Self) -> bool {
        (self.uid, self.kept, self.mark, self.machine, self.ignored, self.gated, self.selection)
            == (other.uid, other.kept, other.mark, other.machine, other.ignored, other.gated, other.selection)
    }

    /// Whether a node has the content that this fingerprint was taken of, under any policy.
    pub fn has_content_of(&self, node: &Node) -> bool {
        self.content == hash_content(node)
    }

    /// Records a later resourceVersion of the same content.
    pub fn advance(&mut self, resource_version: u64) {
        self.resource_version = self.resource_version.max(resource_version);
    }

    /// Makes every later state of the node count as new: the policies have changed.
    pub fn outdate(&mut self) {
        self.resource_version = 0;
        self.content = 0;
    }

    /// Returns the work that a live node may need.
    pub fn need(&self, record: Option<&RecordFingerprint>) -> Need {
        if self.ignored || !self.identified {
            return Need::Nothing;
        }
        let Some(record) = record else {
            return match (self.gated, self.empty) {
                (true, _) => Need::Restore,
                (false, true) => Need::Nothing,
                (false, false) => Need::Capture,
            };
        };
        let owner = self.owns(record);
        let settled = if owner { !record.ungiven } else { self.is_settled_by_mark(record) };
        if record.bad || self.gated || !settled {
            return Need::Restore;
        }
        let older = self.resource_version < record.node_resource_version;
        let same_machine = !owner || self.machine == record.machine;
        if self.agrees_with(record) && same_machine || owner && older && !self.has_returned_keys(record) {
            Need::Nothing
        } else {
            Need::Capture
        }
    }

    /// Whether the last state of a deleted node may have to be written.
    pub fn last_state_may_need_write(&self, record: Option<&RecordFingerprint>) -> bool {
        if self.ignored || !self.identified {
            return false;
        }
        let Some(record) = record else { return !self.empty };
        let (ours, theirs) = (self.resource_version, record.node_resource_version);
        let owner = self.owns(record);
        if ours < theirs || ours == theirs && !owner && !record.bad {
            return false;
        }
        let settled = owner && !record.ungiven || self.is_settled_by_mark(record);
        !(settled && !record.bad && self.agrees_with(record))
    }

    /// Whether the record was last written from this incarnation with its current mark.
    pub fn owns(&self, record: &RecordFingerprint) -> bool {
        self.uid == record.uid && !record.folded && self.mark == record.mark
    }

    /// Whether the mark shows that the node was given everything in the record.
    pub fn is_settled_by_mark(&self, record: &RecordFingerprint) -> bool {
        self.complete && !(record.folded && record.uid == self.uid) && self.mark_from == record.kept
    }

    /// Whether the record holds exactly this state of the node and nothing else.
    pub fn is_recorded_in(&self, record: &RecordFingerprint) -> bool {
        let plain = !record.folded && !record.bad && !record.ungiven && record.withheld.is_empty();
        let selected = self.selection == record.selection;
        plain && selected && !self.ignored && record.kept == self.kept && record.machine == self.machine
    }

    /// Returns the state of the node as computed from the hashes. `clean`: `decide` was found to
    /// return nothing.
    pub fn state(&self, record: Option<&RecordFingerprint>, contested: bool, clean: bool) -> KeepState {
        if self.ignored {
            return KeepState::Ignored;
        }
        if !self.identified {
            return KeepState::Unidentified;
        }
        if record.is_some_and(|record| record.newer) {
            return KeepState::NewerRecord;
        }
        if contested && record.is_none_or(|record| record.uid != self.uid) {
            return KeepState::Contested;
        }
        let Some(record) = record else {
            return match self.need(None) {
                Need::Restore => KeepState::Unsettled,
                Need::Capture => KeepState::Pending,
                Need::Nothing => KeepState::NoRecord,
            };
        };
        let owner = self.owns(record);
        let need = if clean { Need::Nothing } else { self.need(Some(record)) };
        match need {
            Need::Restore => KeepState::Unsettled,
            Need::Capture => KeepState::Pending,
            // Decided, and nothing can be done for now.
            Need::Nothing if !record.bad && !owner && !self.is_settled_by_mark(record) => KeepState::Waiting,
            Need::Nothing => KeepState::Current,
        }
    }

    /// Whether a settled node has the content of its record, with no reason left for a write.
    fn agrees_with(&self, record: &RecordFingerprint) -> bool {
        let covered = self.owns(record) || self.covers_kept && !self.own;
        // Protected keys of another machine are not the node's own.
        let machine = !self.protected || self.machine == record.machine;
        // A machine with empty fields may turn out to be one that keys are withheld for.
        let withheld = record.withheld.is_empty() || !self.machine_incomplete;
        let selected = self.selection == record.selection;
        self.kept == record.kept && selected && covered && machine && withheld && !self.has_returned_keys(record)
    }

    /// Whether the record withholds keys for the machine of the node.
    fn has_returned_keys(&self, record: &RecordFingerprint) -> bool {
        record.withheld.contains(&self.machine)
    }
}

impl RecordFingerprint {
    pub fn new(stored: &Stored) -> Self {
        match stored.good() {
            Some(record) => Self::of_record(record),
            None => Self {
                uid: 0,
                node_resource_version: 0,
                kept: 0,
                mark: 0,
                machine: 0,
                folded: false,
                bad: true,
                newer: stored.fault().is_some_and(RecordFault::is_newer),
                tombstone: false,
                selection: 0,
                ungiven: false,
                withheld: Box::default(),
            },
        }
    }

    fn of_record(record: &Record) -> Self {
        Self {
            uid: hash(&record.node.uid),
            node_resource_version: record.node.resource_version,
            kept: hash_digest(&digest(&record.kept)),
            mark: hash(&record.node.mark),
            machine: hash(&record.node.machine.normalized()),
            folded: record.folded,
            bad: false,
            newer: false,
            tombstone: record.is_tombstone(),
            selection: hash_selection(&record.provenance),
            ungiven: !record.provenance.ungiven.is_empty(),
            withheld: record.withheld.iter().map(|withheld| hash(&withheld.machine.normalized())).collect(),
        }
    }

    /// Whether both records were written from the same machine.
    pub fn is_of_same_machine(&self, other: &Self) -> bool {
        self.uid == other.uid || self.machine == other.machine
    }

    /// Whether the record is quarantined.
    pub fn is_bad(&self) -> bool {
        self.bad
    }

    pub fn is_tombstone(&self) -> bool {
        self.tombstone
    }
}

#[cfg(test)]
mod tests;
