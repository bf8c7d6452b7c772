//! The circumstances of a capture: the policy, the labels that policies select on, and the keys
//! that the node was never given.
//!
//! A record is judged by the policy that it was captured under. A node returns without most of its
//! labels, and its policy may be missing for a while: the record then stands for both.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use serde::{Deserialize, Serialize};

use super::{
    case::Case,
    hash::Digest,
    keys::{Content, Kept, Key},
    record::Record,
    selection::{CONFIG_POLICY, Node, Policy},
};

/// The circumstances under which a record was captured. Empty if there were no KeepPolicies.
///
/// Versions that do not know it ignore it, and drop it with their next write. It has a checksum of
/// its own, since theirs does not cover it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Provenance {
    /// Name of the policy. Empty: that of the configuration.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub policy: String,
    /// Digest of the settings of the policy at the time.
    #[serde(skip_serializing_if = "is_default")]
    pub digest: Digest,
    /// Retention of the policy at the time. Applies while the policy is missing.
    #[serde(skip_serializing_if = "is_default")]
    pub retention_seconds: u64,
    /// Labels of the node that policies select on, kept or not. `None`: the record has the label,
    /// and the node no longer did.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub selectors: BTreeMap<String, Option<String>>,
    /// Labels of former incarnations that policies select on and that this one did not have yet.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub expected: BTreeMap<String, String>,
    /// Keys of the record that this incarnation was never given, since the policy did not keep
    /// them. They cannot have been removed from it.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub ungiven: BTreeSet<Key>,
}

/// The circumstances as they are written, with a checksum.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Sealed {
    #[serde(flatten)]
    provenance: Provenance,
    #[serde(default)]
    checksum: Digest,
}

impl Sealed {
    /// Returns `None` if there is nothing to write.
    pub(super) fn new(provenance: &Provenance) -> Option<Self> {
        let checksum = provenance.sum();
        (*provenance != Provenance::default()).then(|| Self { provenance: provenance.clone(), checksum })
    }

    /// Replaces the checksum of a file that users may edit.
    pub(super) fn trusted(self) -> Self {
        Self { checksum: self.provenance.sum(), ..self }
    }

    /// Returns the circumstances as they were written. Empty if they were damaged.
    pub(super) fn verified(self) -> Provenance {
        if self.provenance.sum() == self.checksum { self.provenance } else { Provenance::default() }
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Provenance {
    /// Returns the circumstances of a capture of a node under a policy. `selectors` are the keys of
    /// the labels that policies select on.
    pub fn of(node: &Node, policy: &Policy, selectors: &BTreeSet<String>) -> Self {
        let value = |key: &String| Some((key.clone(), Some(node.labels.get(key)?.clone())));
        Self { selectors: selectors.iter().filter_map(value).collect(), ..Self::default() }.under(policy)
    }

    /// Returns the circumstances of the record that is written for a case, with this content.
    pub(super) fn next(case: &Case, record: Option<&Record>, kept: &Kept) -> Self {
        let former = record.map(|record| &record.provenance);
        let mut keys: BTreeSet<&String> = case.selectors.iter().collect();
        keys.extend(former.iter().flat_map(|former| former.selectors.keys().chain(former.expected.keys())));
        let inherited = record.map(|record| case.inherited_labels(record)).unwrap_or_default();

        let mut next = Self::default();
        for key in keys {
            if let Some(value) = case.node.labels.get(key) {
                next.selectors.insert(key.clone(), Some(value.clone()));
            } else if let Some(value) = inherited.get(key) {
                next.expected.insert(key.clone(), value.clone());
            } else if kept.contains_key(&Key::label(key)) {
                next.selectors.insert(key.clone(), None);
            }
        }
        if let Some(record) = record {
            next.ungiven = kept.keys().filter(|key| case.was_never_given(key, record)).cloned().collect();
        }
        next.under(&case.policy)
    }

    fn under(mut self, policy: &Policy) -> Self {
        if policy.name != CONFIG_POLICY || self != Self::default() {
            self.policy.clone_from(&policy.name);
            self.digest = policy.digest();
            self.retention_seconds = policy.retention.as_secs();
        }
        self
    }

    /// Returns the name of the policy.
    pub fn policy_name(&self) -> &str {
        if self.policy.is_empty() { CONFIG_POLICY } else { &self.policy }
    }

    pub fn retention(&self) -> Duration {
        Duration::from_secs(self.retention_seconds)
    }

    /// Returns every label that selects a policy for the next incarnation, over the labels in the
    /// record.
    fn selecting(&self, mut labels: BTreeMap<String, String>) -> BTreeMap<String, String> {
        for (key, value) in &self.selectors {
            match value {
                Some(value) => drop(labels.insert(key.clone(), value.clone())),
                None => drop(labels.remove(key)),
            }
        }
        for (key, value) in &self.expected {
            labels.entry(key.clone()).or_insert_with(|| value.clone());
        }
        labels
    }

    /// Whether both select the same policy for the next incarnation, by the same labels.
    pub(super) fn selects_like(&self, other: &Self) -> bool {
        self.policy_name() == other.policy_name() && self.selecting(BTreeMap::new()) == other.selecting(BTreeMap::new())
    }

    fn sum(&self) -> Digest {
        Digest::of([serde_json::to_vec(self).unwrap_or_default()])
    }
}

impl Record {
    /// Returns the labels that select a policy for a node with this record: its content, and the
    /// labels that policies select on.
    pub fn selecting_labels(&self) -> BTreeMap<String, String> {
        self.provenance.selecting(self.labels())
    }

    /// Returns the node that the record was written from, as far as the record describes it.
    pub fn described_node(&self) -> Node {
        let Content { annotations, .. } = Content::from(&self.kept);
        Node {
            name: self.node.name.clone(),
            machine: self.node.machine.clone(),
            labels: self.selecting_labels(),
            annotations,
            ..Node::default()
        }
    }
}

#[cfg(test)]
mod tests;
