//! What of a node is kept: the policy's patterns applied to what the node says.

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

/// Our own domain: never kept, never restored, whatever the patterns say.
pub const DOMAIN: &str = "perennial.dev/";
/// `"true"` on a node: Perennial does nothing with it.
pub const IGNORE: &str = "perennial.dev/ignore";
/// On a node that waits for its restore: pods stay away.
pub const GATE_TAINT: &str = "perennial.dev/restoring";
pub const GATE_EFFECT: &str = "NoSchedule";
/// Why a node was cordoned. Kept together with the cordon.
pub const CORDON_REASON: &str = "perennial.dev/cordon-reason";

/// So many bytes of annotations are kept of a node, in the order of their keys: all annotations of an object share 256 KiB,
/// and the mark and those of others need room as well.
pub const ANNOTATIONS_LIMIT: usize = 64 * 1024;

/// What a node says of itself, as far as Perennial looks.
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
    /// When it was created, in seconds since 1970; 0 where it does not say.
    pub created: i64,
    /// It has a deletionTimestamp: somebody's finalizer holds it.
    pub terminating: bool,
}

/// Which keys are kept of a node, and how they are given back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Where it comes from: `config`, or the name of a KeepPolicy.
    pub name: String,
    pub keep: Patterns,
    pub drop: Patterns,
    pub annotations: Patterns,
    pub taints: Patterns,
    pub cordon: bool,
    pub merge: Merge,
    pub identity: Identity,
    /// Keys that go only to the machine that they were taken from.
    pub protected: Patterns,
    /// Annotations that machines write for themselves: never kept.
    pub machine_annotations: Patterns,
    /// Taints that others put on a starting node and take away themselves.
    pub startup_taints: Patterns,
    pub history: usize,
    /// How long a record is kept whose node is away.
    pub retention: Duration,
}

impl Policy {
    /// The policy of the config file: for every node that no KeepPolicy selects.
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

    /// Whether this policy keeps such a key.
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

    /// Whether such a key may only go to the machine that it was taken from.
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
    /// It carries our taint: pods stay away until it has been given everything.
    pub fn is_gated(&self) -> bool {
        self.taints.iter().any(|taint| taint.key == GATE_TAINT)
    }
}

/// Whether the node asks to be left alone.
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
