//! The policies in force, and the one that applies to a node or to a record.
//!
//! A record is judged by the policy that it was captured under, also if that policy selects other
//! nodes by now. The same policy applies to a node that returns without the labels of its record,
//! until its own labels select one. While the policy of a record is missing (deleted, invalid or
//! not readable), the record stays where it is filed and keeps its retention, whatever other
//! policies select.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use super::{
    identity::Identified,
    keys::Key,
    mark::Mark,
    policy::{KeepPolicy, choose},
    record::Record,
    selection::{CONFIG_POLICY, Node, Policy},
};
use crate::config::settings::Identity;

/// The KeepPolicies of the cluster over the policy of the configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicySet {
    default: Arc<Policy>,
    policies: Vec<KeepPolicy>,
    /// Keys of the labels that policies select nodes by.
    selectors: Arc<BTreeSet<String>>,
}

/// The policy that a record was captured under, where the record itself is not cached.
#[derive(Clone, Copy, Debug)]
pub struct CapturedUnder<'a> {
    /// Name of the policy. Empty if the record names none.
    pub policy: &'a str,
    /// Retention of the policy.
    pub retention: Duration,
}

impl PolicySet {
    /// `default` applies to every node that none of the `policies` selects.
    pub fn new(default: Arc<Policy>, policies: Vec<KeepPolicy>) -> Self {
        let mut selectors: BTreeSet<String> = BTreeSet::new();
        for policy in &policies {
            selectors.extend(policy.selector.keys().map(str::to_owned));
            if let Identity::Label(key) = &policy.policy.identity {
                selectors.insert(key.clone());
            }
        }
        Self { default, policies, selectors: Arc::new(selectors) }
    }

    /// Returns the keys of the labels that policies select nodes by.
    pub fn selectors(&self) -> &Arc<BTreeSet<String>> {
        &self.selectors
    }

    /// Returns the policy for a node with these labels.
    pub fn for_labels(&self, labels: &BTreeMap<String, String>) -> Arc<Policy> {
        choose(&self.policies, labels).map_or_else(|| Arc::clone(&self.default), |found| Arc::clone(&found.policy))
    }

    /// Returns the policy for a node whose record is not known.
    pub fn for_node(&self, node: &Node) -> Arc<Policy> {
        self.for_labels(&node.labels)
    }

    /// Returns the identity of a node whose record is not known. `None` while the node lacks the
    /// identifying field.
    pub fn identify(&self, node: &Node) -> Option<Identified> {
        Identified::of(&self.for_node(node).identity, node)
    }

    /// Returns the policy for a node with this record. `mark` is the mark of the node, if it is
    /// trusted.
    pub fn for_node_with_record(&self, node: &Node, mark: Option<&Mark>, record: &Record) -> Arc<Policy> {
        let mut labels = inherited_labels(node, mark, record);
        let is_bare = !labels.is_empty() && !self.selects_by_labels(&node.labels);
        labels.extend(node.labels.clone());
        let by_labels = || {
            let informed = self.for_labels(&labels);
            if informed.name == CONFIG_POLICY { self.of_missing(record, &labels).unwrap_or(informed) } else { informed }
        };
        let informed = if is_bare { self.of_record(record, &labels).unwrap_or_else(by_labels) } else { by_labels() };
        if self.belongs(node, &informed, record) { informed } else { self.for_node(node) }
    }

    /// Whether a record that was found under an identity of a node belongs to the node under this
    /// policy. The policy may identify nodes by something else by now.
    fn belongs(&self, node: &Node, policy: &Policy, record: &Record) -> bool {
        let kind = &policy.identity;
        let is_its = |identity: Identified| {
            identity.is_same(&Identified::of_record(record))
                || Identified::of(kind, &record.described_node()).is_some_and(|theirs| identity.is_same(&theirs))
        };
        *kind == self.for_node(node).identity
            || record.node.uid == node.uid
            || Identified::of(kind, node).is_some_and(is_its)
    }

    /// Returns the policy for a record without a node.
    pub fn for_record(&self, record: Option<&Record>) -> Arc<Policy> {
        let Some(record) = record else { return Arc::clone(&self.default) };
        let labels = record.selecting_labels();
        self.of_record(record, &labels).unwrap_or_else(|| self.for_labels(&labels))
    }

    /// Returns the name and the retention of the policy for a record that is not cached itself: as
    /// [`Self::for_record`] without a node, else by the labels of node and record. `labels` are the
    /// selecting labels of the record, under those of its node.
    pub fn summary(
        &self,
        labels: &BTreeMap<String, String>,
        captured: Option<CapturedUnder<'_>>,
        has_node: bool,
    ) -> (String, Duration) {
        let captured = captured.filter(|captured| !captured.policy.is_empty());
        let own = captured.filter(|_| !has_node).and_then(|captured| self.named(captured.policy));
        let policy = own.unwrap_or_else(|| self.for_labels(labels));
        let applies = !has_node || policy.name == CONFIG_POLICY;
        match captured.filter(|captured| applies && self.is_missing(captured.policy)) {
            Some(captured) => (captured.policy.to_owned(), captured.retention),
            None => (policy.name.clone(), policy.retention),
        }
    }

    /// Returns the policy that a record was captured under, or its stand-in. `None` if the record
    /// does not name one: there were no policies, or an earlier version has written it. `labels` are
    /// those of the record, under those of its node.
    fn of_record(&self, record: &Record, labels: &BTreeMap<String, String>) -> Option<Arc<Policy>> {
        let name = &record.provenance.policy;
        if name.is_empty() {
            return None;
        }
        self.named(name).or_else(|| self.of_missing(record, labels))
    }

    /// Returns the stand-in for the missing policy of a record: the policy that the labels select,
    /// such as the same one under another name, with the identity and the retention of the missing
    /// one.
    fn of_missing(&self, record: &Record, labels: &BTreeMap<String, String>) -> Option<Arc<Policy>> {
        if !self.is_missing(record.provenance.policy_name()) {
            return None;
        }
        Some(Arc::new(Policy {
            name: record.provenance.policy_name().to_owned(),
            identity: Identified::of_record(record).kind().clone(),
            retention: record.provenance.retention(),
            ..(*self.for_labels(labels)).clone()
        }))
    }

    /// Whether a policy of this name is neither in force nor replaced.
    fn is_missing(&self, name: &str) -> bool {
        self.default.name == CONFIG_POLICY && !self.has_policy(name)
    }

    /// Whether one of these labels selects a policy. A policy without a selector is not selected by
    /// labels.
    fn selects_by_labels(&self, labels: &BTreeMap<String, String>) -> bool {
        choose(&self.policies, labels).is_some_and(|policy| policy.selector.keys().next().is_some())
    }

    /// Returns the policy of this name, if it is in force.
    pub fn named(&self, name: &str) -> Option<Arc<Policy>> {
        if name == self.default.name {
            return Some(Arc::clone(&self.default));
        }
        self.policies.iter().find(|policy| policy.name == name).map(|policy| Arc::clone(&policy.policy))
    }

    /// Whether the policy that a record was captured under is in force.
    pub fn has_policy_of(&self, record: &Record) -> bool {
        self.has_policy(record.provenance.policy_name())
    }

    /// Whether a policy of this name is in force.
    pub fn has_policy(&self, name: &str) -> bool {
        name == CONFIG_POLICY || self.policies.iter().any(|policy| policy.name == name)
    }

    /// Returns the policy of the configuration.
    pub fn configured(&self) -> Arc<Policy> {
        Arc::clone(&self.default)
    }

    /// Whether a policy in force identifies nodes in this way.
    pub fn identifies_by(&self, kind: &Identity) -> bool {
        self.all().any(|policy| policy.identity == *kind)
    }

    /// Returns the ways in which the policies in force identify nodes.
    pub fn identities(&self) -> BTreeSet<Identity> {
        let mut all: BTreeSet<Identity> = self.all().map(|policy| policy.identity.clone()).collect();
        // A node may have been captured before it reported its provider.
        if all.contains(&Identity::Auto) {
            all.insert(Identity::Name);
        }
        all
    }

    /// Whether any policy identifies nodes by something else than their name, on every provider.
    pub fn identities_differ(&self) -> bool {
        self.all().any(|policy| !matches!(policy.identity, Identity::Name | Identity::Auto))
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

/// Returns the labels of a record that select a policy for a node that does not have them yet.
///
/// Labels that the node was given and has no longer were removed from it: they do not select it.
pub(super) fn inherited_labels(node: &Node, mark: Option<&Mark>, record: &Record) -> BTreeMap<String, String> {
    let mut labels =
        if record.node.uid == node.uid { record.provenance.expected.clone() } else { record.selecting_labels() };
    labels.retain(|key, _| !node.labels.contains_key(key) && !mark.is_some_and(|mark| mark.covers(&Key::label(key))));
    labels
}

impl From<Policy> for PolicySet {
    fn from(policy: Policy) -> Self {
        Self::new(Arc::new(policy), Vec::new())
    }
}

#[cfg(test)]
mod tests;
