//! Nodes, records and decisions for the unit tests of this module.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;

use super::{
    case::{Case, CaseContext, Phase},
    decide::{Decision, Restore, decide},
    keys::{Kept, Key},
    mark::MARK,
    policy::KeepPolicy,
    policy_set::PolicySet,
    record::Record,
    selection::{Node, Policy},
    stored_record::Stored,
};
use crate::config::settings::Settings;

/// The policy of the default configuration.
pub(crate) fn policy() -> Policy {
    Policy::from_settings(&Settings::default().keeper)
}

/// Returns KeepPolicies over the default configuration.
pub(crate) fn keep_policies(specs: &[(&str, serde_json::Value)]) -> PolicySet {
    let base = Settings::default().keeper;
    let parsed = specs.iter().map(|(name, spec)| KeepPolicy::parse(name, spec, &base).unwrap());
    PolicySet::new(Arc::new(policy()), parsed.collect())
}

/// Parses `key=value` pairs separated by spaces.
pub(crate) fn labels(pairs: &str) -> BTreeMap<String, String> {
    pairs.split_whitespace().filter_map(|p| p.split_once('=')).map(|(k, v)| (k.to_owned(), v.to_owned())).collect()
}

/// Parses labels that are kept.
pub(crate) fn kept(pairs: &str) -> Kept {
    labels(pairs).into_iter().map(|(key, value)| (Key::Label(key), value)).collect()
}

/// Owner of the policies of a [`CaseContext`].
pub(crate) struct Defaults(pub(crate) PolicySet);

impl Default for Defaults {
    fn default() -> Self {
        Self(policy().into())
    }
}

impl Defaults {
    pub(crate) fn context(&self) -> CaseContext<'_> {
        CaseContext { policies: &self.0, now: Timestamp::UNIX_EPOCH, by: "test" }
    }
}

/// Builds a case without rivals under one policy.
pub(crate) fn case(phase: Phase, node: &Node, record: Option<&Record>, policy: &Policy) -> Case {
    let defaults = Defaults(policy.clone().into());
    let stored = record.map(|record| Arc::new(Stored::Good(Box::new(record.clone()))));
    Case::new(phase, Some(node.clone()), stored, Vec::new(), &defaults.context())
}

pub(crate) fn live(node: &Node, record: Option<&Record>, policy: &Policy) -> Decision {
    decide(&case(Phase::Live, node, record, policy))
}

pub(crate) fn gone(node: &Node, record: Option<&Record>, policy: &Policy) -> Decision {
    decide(&case(Phase::Gone, node, record, policy))
}

pub(crate) fn create(node: &Node, record: &Record, policy: &Policy, by_kubelet: bool) -> Restore {
    match decide(&case(Phase::Creating { by_kubelet }, node, Some(record), policy)) {
        Decision::PatchNode(restore) => restore,
        other => panic!("expected a patch, got {other:?}"),
    }
}

/// Returns the node after a restore.
pub(crate) fn after(node: &Node, restore: &Restore) -> Node {
    let mut node = node.clone();
    for key in &restore.remove {
        if let Key::Label(key) = key {
            node.labels.remove(key);
        }
    }
    for (key, value) in &restore.set {
        if let Key::Label(key) = key {
            node.labels.insert(key.clone(), value.clone());
        }
    }
    node.annotations.insert(MARK.to_owned(), restore.mark.render());
    node.resource_version += 1;
    node
}
