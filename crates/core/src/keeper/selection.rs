//! Nodes, policies, and the keys of a node that a policy keeps.

use std::{collections::BTreeMap, time::Duration};

use super::{
    admission::kubelet_may_set,
    hash::Digest,
    keys::{Kept, Key, TRUE, Taint},
    machine::Machine,
    mark::Mark,
    record::Record,
    writers::Writers,
};
use crate::config::{
    defaults::{MACHINE_ANNOTATIONS, OWN_DOMAIN, RESERVED_DOMAINS, STARTUP_TAINTS, is_action_label},
    pattern::{Pattern, Patterns},
    settings::{Identity, Keeper, Merge},
};

/// Name of the policy of the configuration.
pub const CONFIG_POLICY: &str = "config";
/// Perennial's own domain: its keys are never kept or restored, whatever the patterns are.
pub const DOMAIN: &str = OWN_DOMAIN;
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
    /// Field managers of its labels.
    pub writers: Writers,
}

/// The keys that are kept of a node, and how they are restored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// `config`, or the name of a KeepPolicy.
    pub name: String,
    pub keep: Patterns,
    pub drop: Patterns,
    /// Field managers whose labels are not kept: they write them again.
    pub drop_managers: Patterns,
    pub annotations: Patterns,
    pub taints: Patterns,
    pub cordon: bool,
    pub merge: Merge,
    pub identity: Identity,
    /// Keys that are restored only to the machine that they were captured from. Patterns of a whole
    /// reserved domain leave out the labels that a kubelet may set itself.
    pub protected: Patterns,
    /// Annotations that are written by machines and never kept.
    pub machine_annotations: Patterns,
    /// Taints that other components set on a starting node and remove themselves.
    pub startup_taints: Patterns,
    pub history: usize,
    /// Maximum number of other machines whose protected keys a record holds.
    pub withheld: usize,
    /// Time that the record of an absent node is kept.
    pub retention: Duration,
}

impl Policy {
    /// Returns the policy of the configuration, for every node that no KeepPolicy selects.
    pub fn from_settings(keeper: &Keeper) -> Self {
        Self {
            name: CONFIG_POLICY.to_owned(),
            keep: keeper.keep.clone(),
            drop: keeper.dropped(),
            drop_managers: keeper.drop_managers.clone(),
            annotations: keeper.annotations.clone(),
            taints: keeper.taints.clone(),
            cordon: keeper.cordon,
            merge: keeper.merge,
            identity: keeper.identity.clone(),
            protected: keeper.protected.clone(),
            machine_annotations: Patterns::of(MACHINE_ANNOTATIONS),
            startup_taints: Patterns::of(STARTUP_TAINTS),
            history: usize::from(keeper.history),
            withheld: usize::from(keeper.withheld),
            retention: keeper.retention,
        }
    }

    /// Whether this policy keeps a key.
    pub fn keeps(&self, key: &Key) -> bool {
        match key {
            Key::Label(key) => {
                let is_kept = self.keep.matches(key) && !self.drop.matches(key);
                is_kept && !key.starts_with(DOMAIN) && !is_action_label(key)
            }
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

    /// Returns the digest of the settings that a KeepPolicy may change.
    pub fn digest(&self) -> Digest {
        let patterns =
            [&self.keep, &self.drop, &self.annotations, &self.taints].map(|patterns| format!("{patterns:?}"));
        let rest = format!("{} {:?} {} {}", self.cordon, self.merge, self.identity, self.retention.as_secs());
        Digest::of(patterns.iter().chain([&rest]))
    }

    /// Whether a key is restored only to the machine that it was captured from.
    pub fn protects(&self, key: &Key) -> bool {
        let Key::Label(label) = key else { return false };
        let is_reserved = |pattern: &Pattern| RESERVED_DOMAINS.contains(&pattern.as_str());
        let protects = |pattern: &Pattern| pattern.matches(label) && !(is_reserved(pattern) && kubelet_may_set(key));
        self.protected.as_slice().iter().any(protects)
    }

    /// Whether only controllers write a key of a node, which write it again. Keys that the node was
    /// given are never theirs, although a restore in the create is attributed to the creator.
    pub fn is_controllers(&self, key: &Key, node: &Node, mark: Option<&Mark>) -> bool {
        let Key::Label(label) = key else { return false };
        let given = |mark: &Mark| mark.given.contains_key(key) || mark.unlisted;
        node.writers.are_all(label, &self.drop_managers) && !mark.is_some_and(given)
    }

    /// Returns the keys of a node that this policy keeps.
    pub fn select(&self, node: &Node) -> Kept {
        self.select_beside(node, None)
    }

    /// Returns the keys of a node that this policy keeps, beside its record. Keys that the record
    /// holds are compared with the node, regardless of their writer: a value of the node is never
    /// overwritten.
    pub fn select_beside(&self, node: &Node, record: Option<&Record>) -> Kept {
        let mark = if node.writers.is_empty() { None } else { Mark::read(&node.annotations) };
        let recorded =
            |key: &Key| record.is_some_and(|record| record.kept.contains_key(key) || record.before.contains_key(key));
        let is_kept = |key: &Key| self.keeps(key) && (recorded(key) || !self.is_controllers(key, node, mark.as_ref()));
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
        all.filter(|(key, value)| is_kept(key) && fits(key, value)).collect()
    }
}

impl Node {
    /// Returns the value of a key of the node.
    pub fn value_of(&self, key: &Key) -> Option<&str> {
        match key {
            Key::Label(key) => self.labels.get(key).map(String::as_str),
            Key::Annotation(key) => self.annotations.get(key).map(String::as_str),
            Key::Taint { key, effect } => {
                let taint = self.taints.iter().find(|taint| taint.key == *key && taint.effect == *effect);
                taint.map(|taint| taint.value.as_str())
            }
            Key::Cordon => self.unschedulable.then_some(TRUE),
        }
    }

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
    fn labels_that_a_kubelet_may_not_set_are_protected() {
        let policy = Policy::from_settings(&Settings::default().keeper);
        let protects = |policy: &Policy, key: &str| policy.protects(&Key::label(key));
        for key in [
            "node-role.kubernetes.io/gpu",
            "node-restriction.kubernetes.io/tenant",
            "a.node-restriction.kubernetes.io/x",
            "zone.k8s.io/pci",
            "example.kubernetes.io/tier",
            "kubernetes.io/role",
            "k8s.io/x",
        ] {
            assert!(protects(&policy, key), "{key}");
        }
        for key in ["team", "example.com/tier", "topology.kubernetes.io/zone", "x.node.kubernetes.io/y", "notk8s.io/x"]
        {
            assert!(!protects(&policy, key), "{key}");
        }
        let own = Policy { protected: Patterns::of(&["topology.kubernetes.io/*"]), ..policy };
        assert!(protects(&own, "topology.kubernetes.io/zone") && !protects(&own, "node-role.kubernetes.io/gpu"));
    }

    #[test]
    fn labels_of_people_are_kept_and_those_of_kubelets_are_not() {
        let policy = Policy::from_settings(&Settings::default().keeper);
        let labels = ["beta.kubernetes.io/os", "topology.kubernetes.io/zone", "beta.kubernetes.io/instance-type"];
        let by = |manager: &str| Node {
            labels: labels.iter().map(|key| ((*key).to_owned(), "x".to_owned())).collect(),
            writers: labels.iter().map(|key| (manager, *key)).collect(),
            ..Node::default()
        };
        let kept = policy.select(&by("kubectl-label"));
        assert_eq!(kept.into_keys().collect::<Vec<_>>(), [Key::label("beta.kubernetes.io/os")], "the others are facts");
        for kubelet in ["kubelet", "k3s", "k3s-agent", "kubelite"] {
            assert_eq!(policy.select(&by(kubelet)), Kept::new(), "{kubelet}");
        }
    }

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
