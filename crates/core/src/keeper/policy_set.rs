//! The policies in force, and the one that applies to a node.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    identity::Identified,
    keys::Key,
    mark::Mark,
    policy::{KeepPolicy, choose},
    record::Record,
    selection::{Node, Policy},
};
use crate::config::settings::Identity;

/// The KeepPolicies of the cluster over the policy of the configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicySet {
    default: Arc<Policy>,
    policies: Vec<KeepPolicy>,
}

impl PolicySet {
    /// `default` applies to every node that none of the `policies` selects.
    pub fn new(default: Arc<Policy>, policies: Vec<KeepPolicy>) -> Self {
        Self { default, policies }
    }

    /// Returns the policy for a node with these labels.
    pub fn for_labels(&self, labels: &BTreeMap<String, String>) -> Arc<Policy> {
        choose(&self.policies, labels).map_or_else(|| Arc::clone(&self.default), |found| Arc::clone(&found.policy))
    }

    /// Returns the policy for a node whose record is not known.
    pub fn for_node(&self, node: &Node) -> Arc<Policy> {
        self.for_labels(&node.labels)
    }

    /// Returns the identity of a node. `None` while the node lacks the identifying field.
    pub fn identify(&self, node: &Node) -> Option<Identified> {
        Identified::of(&self.for_node(node).identity, node)
    }

    /// Returns the policy for a node with this record.
    ///
    /// A node that returns without labels is selected by the labels of its record as well. Labels
    /// that the node was given and has no longer were removed from it: they do not select it.
    pub fn for_node_with_record(&self, node: &Node, record: Option<&Record>) -> Arc<Policy> {
        let plain = self.for_node(node);
        let Some(record) = record.filter(|record| record.node.uid != node.uid) else { return plain };
        let mark = Mark::read(&node.annotations);
        let mut labels = record.labels();
        labels.retain(|key, _| !mark.as_ref().is_some_and(|mark| mark.covers(&Key::label(key))));
        labels.extend(node.labels.clone());
        let informed = self.for_labels(&labels);
        // A policy with another identity would lead to another record.
        if informed.identity == plain.identity { informed } else { plain }
    }

    /// Returns the policy for a record without a node.
    pub fn for_record(&self, record: Option<&Record>) -> Arc<Policy> {
        self.for_labels(&record.map(Record::labels).unwrap_or_default())
    }

    /// Whether any policy identifies nodes by something else than their name.
    pub fn identities_differ(&self) -> bool {
        self.all().any(|policy| policy.identity != Identity::Name)
    }

    /// Whether any policy reads annotations of nodes other than Perennial's own.
    pub fn reads_annotations(&self) -> bool {
        self.all().any(|policy| !policy.annotations.is_empty() || matches!(policy.identity, Identity::Annotation(_)))
    }

    /// Whether there are KeepPolicies in force.
    pub fn has_keep_policies(&self) -> bool {
        !self.policies.is_empty()
    }

    fn all(&self) -> impl Iterator<Item = &Policy> {
        std::iter::once(&*self.default).chain(self.policies.iter().map(|policy| &*policy.policy))
    }
}

impl From<Policy> for PolicySet {
    fn from(policy: Policy) -> Self {
        Self::new(Arc::new(policy), Vec::new())
    }
}
