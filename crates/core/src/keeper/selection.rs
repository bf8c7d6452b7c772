//! Nodes, policies, and the keys of a node that a policy keeps.

use std::{collections::BTreeMap, time::Duration};

use super::{
    keys::{Kept, Key, TRUE, Taint},
    machine::Machine,
};
use crate::config::{
    defaults::{MACHINE_ANNOTATIONS, STARTUP_TAINTS},
    pattern::Patterns,
    settings::{Identity, Keeper, Merge},
};

/// Perennial's own domain: its keys are never kept or restored, whatever the patterns are.
pub const DOMAIN: &str = "perennial.dev/";
/// Annotation or label of a node: `"true"` excludes it from management.
pub const IGNORE: &str = "perennial.dev/ignore";
/// Taint of a node that waits for its restore.
pub const GATE_TAINT: &str = "perennial.dev/restoring";
pub const GATE_EFFECT: &str = "NoSchedule";
/// Annotation with the reason of a cordon. Kept together with the cordon.
pub const CORDON_REASON: &str = "perennial.dev/cordon-reason";

/// Maximum size of the kept annotations of a node in bytes, in the order of their keys. All
/// annotations of an object share 256 KiB, including the mark.
pub const ANNOTATIONS_LIMIT: usize = 64 * 1024;

/// The fields of a Node that Perennial reads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    pub name: String,
    pub uid: String,
    pub resource_version: u64,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    pub taints: Vec<Taint>,
    pub unschedulable: bool,
    pub machine: Machine,
    /// Creation time in seconds since 1970; 0 if unknown.
    pub created: i64,
    /// It has a deletionTimestamp, and a finalizer holds it.
    pub terminating: bool,
}

/// The keys that are kept of a node, and how they are restored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// `config`, or the name of a KeepPolicy.
    pub name: String,
    pub keep: Patterns,
    pub drop: Patterns,
    pub annotations: Patterns,
    pub taints: Patterns,
    pub cordon: bool,
    pub merge: Merge,
    pub identity: Identity,
    /// Keys that are restored only to the machine that they were captured from.
    pub protected: Patterns,
    /// Annotations that are written by machines and never kept.
    pub machine_annotations: Patterns,
    /// Taints that other components set on a starting node and remove themselves.
    pub startup_taints: Patterns,
    pub history: usize,
    /// Time that the record of an absent node is kept.
    pub retention: Duration,
}

impl Policy {
    /// Returns the policy of the configuration, for every node that no KeepPolicy selects.
    pub fn from_settings(keeper: &Keeper) -> Self {
        Self {
            name: "config".to_owned(),
            keep: keeper.keep.clone(),
            drop: keeper.drop.clone(),
            annotations: keeper.annotations.clone(),
            taints: keeper.taints.clone(),
            cordon: keeper.cordon,
            merge: keeper.merge,
            identity: keeper.identity.clone(),
            protected: keeper.protected.clone(),
            machine_annotations: Patterns::of(MACHINE_ANNOTATIONS),
            startup_taints: Patterns::of(STARTUP_TAINTS),
            history: usize::from(keeper.history),
            retention: keeper.retention,
        }
    }

    /// Whether this policy keeps a key.
    pub fn keeps(&self, key: &Key) -> bool {
        match key {
            Key::Label(key) => !key.starts_with(DOMAIN) && self.keep.matches(key) && !self.drop.matches(key),
            Key::Annotation(key) if key == CORDON_REASON => self.cordon,
            Key::Annotation(key) => {
                !key.starts_with(DOMAIN) && self.annotations.matches(key) && !self.machine_annotations.matches(key)
            }
            Key::Taint { key, .. } => {
                !key.starts_with(DOMAIN) && self.taints.matches(key) && !self.startup_taints.matches(key)
            }
            Key::Cordon => self.cordon,
        }
    }

    /// Whether a key is restored only to the machine that it was captured from.
    pub fn protects(&self, key: &Key) -> bool {
        matches!(key, Key::Label(key) if self.protected.matches(key))
    }

    /// Returns the keys of a node that this policy keeps.
    pub fn select(&self, node: &Node) -> Kept {
        let mut room = ANNOTATIONS_LIMIT;
        let mut fits = |key: &Key, value: &String| match key {
            Key::Annotation(key) => {
                let rest = room.checked_sub(key.len() + value.len());
                room = rest.unwrap_or(room);
                rest.is_some()
            }
            _ => true,
        };
        let labels = node.labels.iter().map(|(key, value)| (Key::Label(key.clone()), value.clone()));
        let annotations = node.annotations.iter().map(|(key, value)| (Key::Annotation(key.clone()), value.clone()));
        let taints = node
            .taints
            .iter()
            .map(|taint| (Key::Taint { key: taint.key.clone(), effect: taint.effect.clone() }, taint.value.clone()));
        let cordon = node.unschedulable.then(|| (Key::Cordon, TRUE.to_owned()));
        let all = labels.chain(annotations).chain(taints).chain(cordon);
        all.filter(|(key, value)| self.keeps(key) && fits(key, value)).collect()
    }
}

impl Node {
    /// Whether the node has the gate taint.
    pub fn is_gated(&self) -> bool {
        self.taints.iter().any(|taint| taint.key == GATE_TAINT)
    }
}

/// Whether an annotation or a label excludes the node from management.
pub fn ignored(node: &Node) -> bool {
    [&node.annotations, &node.labels].iter().any(|map| map.get(IGNORE).is_some_and(|value| value == TRUE))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::settings::Settings;

    #[test]
    fn annotations_are_kept_as_far_as_there_is_room() {
        let mut policy = Policy::from_settings(&Settings::default().keeper);
        policy.annotations = Patterns::of(&["*"]);
        let annotations = [("a", 60 * 1024), ("b", 10 * 1024), ("c", 100)];
        let annotations = annotations.map(|(key, size)| (key.to_owned(), "x".repeat(size)));
        let node = Node { annotations: annotations.into(), ..Node::default() };
        let kept = policy.select(&node);
        assert_eq!(kept.into_keys().collect::<Vec<_>>(), ["a", "c"].map(|key| Key::Annotation(key.into())));
    }
}
