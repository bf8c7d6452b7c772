//! Class and state of every node. A cluster may have very many nodes, so names are stored as keyed
//! hashes: the probability that two of a hundred thousand nodes collide is one in four thousand
//! million.

use std::hash::{BuildHasher, RandomState};

use perennial_core::placement::workload::NodeView;

use crate::runtime::map::HashMap;

#[derive(Debug, Default)]
pub(super) struct Nodes {
    entries: HashMap<u64, NodeEntry>,
    keys: RandomState,
}

#[derive(Clone, Copy, Debug)]
struct NodeEntry {
    view: NodeView,
    /// The node is part of the current list, or of the last complete one.
    listed: bool,
}

impl Nodes {
    pub(super) fn get(&self, name: &str) -> Option<NodeView> {
        self.entries.get(&self.keys.hash_one(name)).map(|node| node.view)
    }

    /// Stores a node and returns whether it changed.
    pub(super) fn put(&mut self, name: &str, view: NodeView) -> bool {
        let before = self.entries.insert(self.keys.hash_one(name), NodeEntry { view, listed: true });
        before.map(|node| node.view) != Some(view)
    }

    pub(super) fn remove(&mut self, name: &str) {
        self.entries.remove(&self.keys.hash_one(name));
    }

    /// Starts a list. Nodes are marked as they arrive: a set of all names would need as much memory
    /// again.
    pub(super) fn begin_list(&mut self) {
        self.entries.values_mut().for_each(|node| node.listed = false);
    }

    /// Ends a list: nodes that it did not contain are gone.
    pub(super) fn end_list(&mut self) {
        self.entries.retain(|_, node| node.listed);
        self.entries.shrink_to_fit();
    }
}
