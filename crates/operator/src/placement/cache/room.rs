//! Room on nodes for the pods of a workload, as far as it was searched for.
//!
//! Pure: the comparison of requests with the room on a node is made by the caller.

use std::collections::{BTreeMap, HashSet};

use jiff::{SignedDuration, Timestamp};
use perennial_core::placement::Class;

use crate::runtime::map::HashMap;

/// Time for which a node without room for a workload's pods is no evidence of capacity.
const FULL_FOR: SignedDuration = SignedDuration::from_mins(5);

/// Results of comparing the requests of a workload's pods with the room on nodes.
#[derive(Debug, Default)]
pub(super) struct RoomFindings {
    /// Nodes without room, and when that was found.
    full: HashMap<String, Timestamp>,
    /// Nodes whose room was reason for an eviction since the shortage began.
    used: HashSet<String>,
    /// When room was last searched for, and found in each class.
    searched: Option<Timestamp>,
    found: BTreeMap<Class, Timestamp>,
}

/// Result of one search for room.
#[derive(Debug, Default)]
pub struct RoomSearched {
    /// Nodes without room.
    pub full: Vec<String>,
    /// A node with room.
    pub found: Option<String>,
}

impl RoomFindings {
    pub(super) fn store(&mut self, class: Class, result: RoomSearched, now: Timestamp) {
        self.full.retain(|_, since| now < *since + FULL_FOR);
        for node in &result.full {
            self.used.remove(node);
        }
        self.full.extend(result.full.into_iter().map(|node| (node, now)));
        self.searched = Some(now);
        if let Some(node) = result.found {
            self.used.insert(node);
            self.found.insert(class, now);
        } else {
            self.found.remove(&class);
        }
    }

    pub(super) fn is_full(&self, node: &str) -> bool {
        self.full.contains_key(node)
    }

    pub(super) fn is_used(&self, node: &str) -> bool {
        self.used.contains(node)
    }

    pub(super) fn searched(&self) -> Option<Timestamp> {
        self.searched
    }

    pub(super) fn found(&self, class: Class) -> Option<Timestamp> {
        self.found.get(&class).copied()
    }

    /// Drops the results about a node, which is a new one now.
    pub(super) fn forget_node(&mut self, node: &str) {
        self.full.remove(node);
        self.used.remove(node);
    }

    /// Notes that the shortage is over.
    pub(super) fn end_shortage(&mut self) {
        self.used.clear();
    }
}
