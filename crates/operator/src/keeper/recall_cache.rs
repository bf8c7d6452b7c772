//! Recent last states of deleted nodes, and the packed form of nodes.
//!
//! A last state has two uses. A record that arrives late may be older than it. And the next node of
//! the same name may be restored from it without reading the record, if the deletion and the
//! creation were delivered by one uninterrupted watch (`docs/decisions/0025-recall.md`).

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use perennial_core::keeper::selection::{self, DOMAIN};

use super::NodeKey;
use crate::runtime::map::HashMap;

/// A node in a few hundred bytes instead of thousands. Clones share them.
#[derive(Clone, Debug)]
pub struct PackedNode(Arc<[u8]>);

impl PackedNode {
    /// Packs a node. Annotations of others, the largest part of a node, are dropped unless `looks`
    /// is set.
    pub fn new(node: &selection::Node, looks: bool) -> Self {
        let ours = |key: &str| looks || key.starts_with(DOMAIN);
        let annotations: BTreeMap<&String, &String> = node.annotations.iter().filter(|(key, _)| ours(key)).collect();
        let parts = (
            (&node.name, &node.uid, node.resource_version, node.created, node.terminating),
            (&node.labels, annotations, &node.taints, node.unschedulable, &node.machine, &node.writers),
        );
        // Cannot fail: maps of strings and numbers.
        Self(serde_json::to_vec(&parts).unwrap_or_default().into())
    }

    pub fn unpack(&self) -> selection::Node {
        let (
            (name, uid, resource_version, created, terminating),
            (labels, annotations, taints, unschedulable, machine, writers),
        ) = serde_json::from_slice(&self.0).unwrap_or_default();
        selection::Node {
            name,
            uid,
            resource_version,
            labels,
            annotations,
            taints,
            unschedulable,
            machine,
            created,
            terminating,
            writers,
        }
    }

    pub fn size(&self) -> usize {
        self.0.len()
    }
}

/// Maximum size of all last states in bytes. The oldest are dropped first.
const ROOM: usize = 6 << 20;

/// Recent last states by node name.
#[derive(Debug, Default)]
pub struct RecallCache {
    names: HashMap<NodeKey, VecDeque<Last>>,
    /// Names in the order of arrival.
    order: VecDeque<NodeKey>,
    bytes: usize,
    /// Increases whenever the watch of nodes restarts: events may be missing in between.
    watch: u64,
}

#[derive(Debug)]
struct Last {
    node: PackedNode,
    watch: u64,
    successor: Successor,
}

/// State of the next node of the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Successor {
    None,
    /// It was created and has not changed since.
    Unchanged,
    Changed,
}

impl RecallCache {
    pub fn push(&mut self, name: &NodeKey, node: PackedNode) {
        self.bytes += node.size();
        let last = Last { node, watch: self.watch, successor: Successor::None };
        self.names.entry(Arc::clone(name)).or_default().push_back(last);
        self.order.push_back(Arc::clone(name));
        while self.bytes > ROOM
            && let Some(oldest) = self.order.pop_front()
        {
            self.forget_oldest(&oldest);
        }
    }

    fn forget_oldest(&mut self, name: &NodeKey) {
        if let Some(states) = self.names.get_mut(name) {
            self.bytes -= states.pop_front().map_or(0, |last| last.node.size());
            if states.is_empty() {
                self.names.remove(name);
            }
        }
    }

    /// Returns the last states of a name, oldest first.
    pub fn of(&self, name: &str) -> Vec<selection::Node> {
        self.names.get(name).into_iter().flatten().map(|last| last.node.unpack()).collect()
    }

    /// Removes the last states of a name that `keep` rejects.
    pub fn retain(&mut self, name: &str, keep: impl Fn(&selection::Node) -> bool) {
        let Some(states) = self.names.get_mut(name) else { return };
        let size = |states: &VecDeque<Last>| states.iter().map(|last| last.node.size()).sum::<usize>();
        self.bytes -= size(states);
        states.retain(|last| keep(&last.node.unpack()));
        self.bytes += size(states);
        if states.is_empty() {
            self.names.remove(name);
        }
    }

    /// The watch of nodes restarts.
    pub fn interrupted(&mut self) {
        self.watch += 1;
    }

    /// A node was created, or has changed.
    pub fn changed(&mut self, name: &str, begins: bool) {
        if let Some(last) = self.names.get_mut(name).and_then(VecDeque::back_mut) {
            last.successor =
                if begins && last.successor == Successor::None { Successor::Unchanged } else { Successor::Changed };
        }
    }

    /// Returns the last state of the predecessor of a node that has not changed since its creation.
    pub fn before_unchanged(&self, name: &str) -> Option<selection::Node> {
        self.recall(name, Successor::Unchanged)
    }

    /// Returns the last state of a node that has no successor yet.
    pub fn before_next(&self, name: &str) -> Option<selection::Node> {
        self.recall(name, Successor::None)
    }

    fn recall(&self, name: &str, successor: Successor) -> Option<selection::Node> {
        let last = self.names.get(name)?.back()?;
        (last.watch == self.watch && last.successor == successor).then(|| last.node.unpack())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, uid: &str) -> selection::Node {
        selection::Node { name: name.to_owned(), uid: uid.to_owned(), ..selection::Node::default() }
    }

    fn packed(name: &str, uid: &str) -> PackedNode {
        PackedNode::new(&node(name, uid), false)
    }

    fn uid(node: Option<selection::Node>) -> Option<String> {
        node.map(|node| node.uid)
    }

    #[test]
    fn a_packed_node_is_the_same_node() {
        let mut full = node("n", "u");
        full.labels.insert("team".to_owned(), "ml".to_owned());
        full.machine.provider_id = "aws:///i-1".to_owned();
        full.annotations.insert("perennial.dev/restored".to_owned(), "{}".to_owned());
        assert_eq!(PackedNode::new(&full, false).unpack(), full);

        full.annotations.insert("someone.else/blob".to_owned(), "x".to_owned());
        assert_ne!(PackedNode::new(&full, false).unpack(), full, "annotations that no policy reads are dropped");
        assert_eq!(PackedNode::new(&full, true).unpack(), full);
    }

    #[test]
    fn the_predecessor_is_recalled_until_its_successor_changes() {
        let mut past = RecallCache::default();
        let name: NodeKey = Arc::from("n");
        past.push(&name, packed("n", "1"));
        assert_eq!(uid(past.before_next("n")).as_deref(), Some("1"));
        assert_eq!(past.before_unchanged("n"), None);
        past.changed("n", true);
        assert_eq!(uid(past.before_unchanged("n")).as_deref(), Some("1"));
        assert_eq!(past.before_next("n"), None, "it has a successor");
        past.changed("n", false);
        assert_eq!(past.before_unchanged("n"), None);
        past.push(&name, packed("n", "2"));
        assert_eq!(uid(past.before_next("n")).as_deref(), Some("2"));
    }

    #[test]
    fn nothing_is_recalled_across_an_interruption() {
        let mut past = RecallCache::default();
        past.push(&Arc::from("n"), packed("n", "1"));
        past.interrupted();
        assert_eq!(past.before_next("n"), None);
        assert_eq!(past.of("n").len(), 1, "a late record may still need it");
    }

    #[test]
    fn the_oldest_make_room() {
        let mut past = RecallCache::default();
        let mut large = node("", "u");
        large.labels.insert("blob".to_owned(), "x".repeat(ROOM / 4));
        for number in 0..8 {
            let name: NodeKey = Arc::from(format!("n{number}"));
            large.name = name.to_string();
            past.push(&name, PackedNode::new(&large, false));
        }
        assert!(past.bytes <= ROOM);
        assert!(past.before_next("n0").is_none() && past.before_next("n7").is_some());
        assert_eq!(past.order.len(), past.names.len());
    }
}
