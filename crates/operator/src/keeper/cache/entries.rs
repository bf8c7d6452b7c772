//! The entries of the cache.

use std::{
    collections::BTreeSet,
    hash::{DefaultHasher, Hash, Hasher},
    num::NonZeroU64,
    sync::Arc,
};

use perennial_core::{
    config::Identity,
    keeper::{
        fingerprint::{NodeFingerprint, RecordFingerprint},
        identity::Identified,
        policy_set::PolicySet,
        selection::Node,
    },
};

use crate::keeper::{NodeKey, apply::LoadedRecord};

/// One live node.
#[derive(Clone, Debug)]
pub(super) struct NodeEntry {
    pub(super) fingerprint: NodeFingerprint,
    /// Hash of the name of its policy.
    pub(super) policy: u64,
    /// Name of its record. `None` while the node lacks the field that identifies it.
    pub(super) record: Option<Arc<str>>,
    /// All names that its record may have, if several identities are in use.
    pub(super) names: Option<Box<RecordNames>>,
    /// resourceVersion of the record with which this state was found to need nothing.
    pub(super) clean_with: Option<NonZeroU64>,
    /// The list that is being delivered contains the node. A response is no part of a list.
    pub(super) listed: bool,
}

/// The names that the record of a node may have.
#[derive(Clone, Debug)]
pub(super) struct RecordNames {
    /// Name by the policy that selects the node by its own labels.
    pub(super) own: Option<Arc<str>>,
    /// Names by the other identities in use.
    pub(super) others: Vec<Arc<str>>,
    /// The existing records were read, and the name of the entry was found to be the right one.
    pub(super) decided: bool,
}

/// One record.
#[derive(Clone, Debug)]
pub(super) struct RecordEntry {
    pub(super) fingerprint: RecordFingerprint,
    pub(super) resource_version: u64,
    /// The newest signing key has not signed it.
    pub(super) unsigned: bool,
    /// Its ConfigMap has the annotation `absent-since`.
    pub(super) absence_noted: bool,
    /// The list that is being delivered contains the record. A response is no part of a list.
    pub(super) listed: bool,
    /// resourceVersion of its last live node when that left; 0 if it was not seen.
    pub(super) left_at: u64,
    /// The identity that it is filed under, unless that is the name of the node.
    pub(super) identity: Option<Box<Identity>>,
    pub(super) node: NodeKey,
}

impl NodeEntry {
    /// `in_use` are the identities that existing records are filed under.
    pub(super) fn new(node: &Node, policies: &PolicySet, in_use: &BTreeSet<Identity>) -> Self {
        let policy = policies.for_node(node);
        let name = |identity: &Identified| -> Arc<str> { Arc::from(identity.record_name().0) };
        let own = Identified::of(&policy.identity, node);
        let record = own.as_ref().map(name);
        let others: Vec<Arc<str>> = policies
            .identities_of(node, in_use)
            .iter()
            .filter(|identity| own.as_ref() != Some(identity))
            .map(name)
            .collect();
        let names = RecordNames { own: record.clone(), others, decided: false };
        Self {
            fingerprint: NodeFingerprint::new(node, policies),
            policy: hash(&policy.name.as_str()),
            names: (!names.others.is_empty()).then(|| Box::new(names)),
            record,
            clean_with: None,
            listed: false,
        }
    }

    /// Returns the name by the policy that selects the node by its own labels.
    pub(super) fn own_name(&self) -> Option<&Arc<str>> {
        self.names.as_ref().map_or(self.record.as_ref(), |names| names.own.as_ref())
    }

    /// Whether a decision reads the same of both, apart from the resourceVersion.
    pub(super) fn decides_like(&self, other: &Self) -> bool {
        self.fingerprint.decides_like(&other.fingerprint) && self.own_name() == other.own_name()
    }
}

impl RecordEntry {
    pub(super) fn new(held: &LoadedRecord) -> Self {
        let identity = held.stored().good().map(|record| Identified::of_record(record).kind().clone());
        Self {
            identity: identity.filter(|identity| *identity != Identity::Name).map(Box::new),
            fingerprint: RecordFingerprint::new(held.stored()),
            resource_version: held.resource_version(),
            unsigned: held.is_unsigned(),
            absence_noted: held.stored().good().is_some() && held.is_noted_absent(),
            listed: false,
            left_at: 0,
            node: Arc::from(held.node_name()),
        }
    }
}

pub(super) fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}
