//! Last states of deleted nodes that are still to be written.
//!
//! A last state waits until its record holds it, however long the write fails. Memory is bounded by
//! [`ROOM`]: the oldest make room, and each of those is reported.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use perennial_core::keeper::{identity::Identified, selection::Node};
use tokio::time::Instant;

use crate::{
    keeper::{NodeKey, recall_cache::PackedNode},
    runtime::map::HashMap,
};

/// Maximum size of all last states in bytes: some 50,000 of common size.
pub const ROOM: usize = 32 << 20;

/// Last states by node name, oldest first. They are written before any decision about a successor.
#[derive(Debug)]
pub(super) struct LastStates {
    names: HashMap<NodeKey, VecDeque<LastState>>,
    /// Names by the number of the last state: the order of arrival.
    order: BTreeMap<u64, NodeKey>,
    next_number: u64,
    bytes: usize,
    room: usize,
    /// Number of last states whose record is not named after the node.
    identified: usize,
    /// Last states that were dropped because the size limit was reached, and are still to be
    /// reported.
    dropped: Vec<Dropped>,
}

#[derive(Debug)]
struct LastState {
    number: u64,
    uid: String,
    node: PackedNode,
    since: Instant,
    /// Name of the record, if it is not derived from the name of the node.
    record: Option<String>,
}

/// A last state that was dropped because the size limit was reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dropped {
    pub node: NodeKey,
    pub uid: String,
}

/// Number and size of the last states.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pending {
    pub states: usize,
    pub bytes: usize,
}

impl Default for LastStates {
    fn default() -> Self {
        Self::with_room(ROOM)
    }
}

impl LastStates {
    fn with_room(room: usize) -> Self {
        Self {
            names: HashMap::default(),
            order: BTreeMap::new(),
            next_number: 0,
            bytes: 0,
            room,
            identified: 0,
            dropped: Vec::new(),
        }
    }

    /// Adds a last state. `record` is the name of its record, as far as it is known.
    pub(super) fn push(&mut self, name: &NodeKey, node: &Node, packed: PackedNode, record: Option<&str>) {
        let record = filed_elsewhere(name, record);
        let number = self.next_number;
        self.next_number += 1;
        self.bytes += packed.size();
        self.identified += usize::from(record.is_some());
        let state = LastState { number, uid: node.uid.clone(), node: packed, since: Instant::now(), record };
        self.names.entry(Arc::clone(name)).or_default().push_back(state);
        self.order.insert(number, Arc::clone(name));
        // The newest stays, whatever its size.
        while self.bytes > self.room && self.order.len() > 1 {
            self.drop_oldest();
        }
    }

    /// Sets the names of the records again, after policies have changed.
    pub(super) fn refile(&mut self, record: impl Fn(&NodeKey, &Node) -> Option<Arc<str>>) {
        self.identified = 0;
        for (name, states) in &mut self.names {
            for state in states {
                state.record = filed_elsewhere(name, record(name, &state.node.unpack()).as_deref());
                self.identified += usize::from(state.record.is_some());
            }
        }
    }

    fn drop_oldest(&mut self) {
        let Some((number, name)) = self.order.first_key_value().map(|(number, name)| (*number, Arc::clone(name)))
        else {
            return;
        };
        let uid = self.names.get(&name).and_then(|states| states.iter().find(|state| state.number == number));
        let uid = uid.map(|state| state.uid.clone()).unwrap_or_default();
        self.retain(&name, |state| state.number != number);
        self.dropped.push(Dropped { node: name, uid });
    }

    /// Removes the last states of a name that `keep` rejects.
    pub(super) fn retain_nodes(&mut self, name: &str, keep: impl Fn(&Node) -> bool) {
        self.retain(name, |state| keep(&state.node.unpack()));
    }

    /// Returns the last states of a name, oldest first.
    pub(super) fn of(&self, name: &str) -> impl Iterator<Item = Node> {
        self.names.get(name).into_iter().flatten().map(|state| state.node.unpack())
    }

    /// Removes the states of a name that `keep` rejects.
    fn retain(&mut self, name: &str, mut keep: impl FnMut(&LastState) -> bool) {
        let Some(states) = self.names.get_mut(name) else { return };
        states.retain(|state| {
            let kept = keep(state);
            if !kept {
                self.order.remove(&state.number);
                self.bytes -= state.node.size();
                self.identified -= usize::from(state.record.is_some());
            }
            kept
        });
        if states.is_empty() {
            self.names.remove(name);
        }
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &NodeKey> {
        self.names.keys()
    }

    /// Returns the names with a last state that has waited for at least this long.
    pub(super) fn waiting_for(&self, age: Duration) -> impl Iterator<Item = &NodeKey> {
        let is_old = move |states: &VecDeque<LastState>| states.front().is_some_and(|s| s.since.elapsed() >= age);
        self.names.iter().filter(move |(_, states)| is_old(states)).map(|(name, _)| name)
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.names.contains_key(name)
    }

    /// Whether last states of a name, or of another name for the same record, are still to be
    /// written.
    pub(super) fn has_for(&self, name: &str, record: Option<&str>) -> bool {
        self.has(name) || record.is_some_and(|record| self.other_name(record, name).is_some())
    }

    /// Whether the last state of this incarnation is still to be written.
    pub(super) fn has_incarnation(&self, name: &str, uid: &str) -> bool {
        self.names.get(name).is_some_and(|states| states.iter().any(|state| state.uid == uid))
    }

    /// Returns the oldest last state of a name.
    pub(super) fn next(&self, name: &str) -> Option<Node> {
        self.names.get(name)?.front().map(|state| state.node.unpack())
    }

    /// Returns the last states for a record, oldest first: those of this name, and those of any
    /// other name that the machine left under.
    pub(super) fn of_record(&self, record: &str, name: &str) -> Vec<Node> {
        let is_its = |state: &LastState| state.record.as_deref() == Some(record);
        let named = self.names.get(name).into_iter().flatten().filter(|state| state.record.is_none() || is_its(state));
        let mut nodes: Vec<Node> = named.map(|state| state.node.unpack()).collect();
        if self.identified > 0 {
            let others = self.names.iter().filter(|(other, _)| ***other != *name).flat_map(|(_, states)| states);
            nodes.extend(others.filter(|state| is_its(state)).map(|state| state.node.unpack()));
        }
        nodes.sort_by_key(|node| node.resource_version);
        nodes
    }

    /// Removes a last state that was written, or needs no write.
    pub(super) fn finish(&mut self, name: &str, uid: &str) {
        if let Some(number) = self.names.get(name).and_then(VecDeque::front).filter(|state| state.uid == uid) {
            let number = number.number;
            self.retain(name, |state| state.number != number);
        }
    }

    /// Removes the last states for a record that needs no write of them any more.
    pub(super) fn caught_up(&mut self, record: &str, node: &str, needs_write: impl Fn(&Node) -> bool) {
        if self.names.is_empty() {
            return;
        }
        // Those after one that needs a write follow it, also if the record happens to equal them
        // now.
        let mut follows = false;
        self.retain(node, |state| {
            follows |= needs_write(&state.node.unpack());
            follows
        });
        while let Some(other) = self.other_name(record, node)
            && let before = self.order.len()
        {
            let mut follows = false;
            self.retain(&other, |state| {
                let is_its = state.record.as_deref() == Some(record);
                follows |= is_its && needs_write(&state.node.unpack());
                !is_its || follows
            });
            if self.order.len() == before {
                break;
            }
        }
    }

    /// Returns another name with a last state for this record.
    pub(super) fn other_name(&self, record: &str, but: &str) -> Option<NodeKey> {
        if self.identified == 0 {
            return None;
        }
        let is_its = |state: &LastState| state.record.as_deref() == Some(record);
        let mut others = self.names.iter().filter(|(name, _)| ***name != *but);
        others.find(|(_, states)| states.iter().any(is_its)).map(|(name, _)| Arc::clone(name))
    }

    /// Returns the last states that were dropped since the last call.
    pub(super) fn take_dropped(&mut self) -> Vec<Dropped> {
        std::mem::take(&mut self.dropped)
    }

    pub(super) fn pending(&self) -> Pending {
        Pending { states: self.order.len(), bytes: self.bytes }
    }
}

/// Returns the name of a record, unless it is derived from the name of the node.
fn filed_elsewhere(node: &str, record: Option<&str>) -> Option<String> {
    record.filter(|record| *record != Identified::named(node).record_name().0).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push(states: &mut LastStates, name: &str, uid: &str, size: usize) {
        let mut node = Node { name: name.to_owned(), uid: uid.to_owned(), ..Node::default() };
        node.labels.insert("blob".to_owned(), "x".repeat(size));
        states.push(&Arc::from(name), &node, PackedNode::new(&node, false), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_last_state_waits_for_as_long_as_it_takes() {
        let mut states = LastStates::default();
        push(&mut states, "n1", "u1", 10);

        tokio::time::advance(Duration::from_hours(24 * 365)).await;
        push(&mut states, "n2", "u2", 10);

        assert_eq!(states.next("n1").map(|node| node.uid).as_deref(), Some("u1"));
        assert_eq!(states.waiting_for(Duration::from_mins(1)).map(|name| &**name).collect::<Vec<_>>(), ["n1"]);
        assert_eq!(states.take_dropped(), []);
    }

    #[test]
    fn the_oldest_make_room_and_are_reported() {
        let mut states = LastStates::with_room(2500);
        for (name, uid) in [("n1", "u1"), ("n2", "u2"), ("n1", "u3"), ("n3", "u4")] {
            push(&mut states, name, uid, 1000);
        }

        let dropped = states.take_dropped();

        let dropped: Vec<(&str, &str)> = dropped.iter().map(|one| (&*one.node, one.uid.as_str())).collect();
        assert_eq!(dropped, [("n1", "u1"), ("n2", "u2")]);
        assert_eq!(states.next("n1").map(|node| node.uid).as_deref(), Some("u3"));
        assert!(states.pending().bytes <= 2500 && states.pending().states == 2);
        assert_eq!(states.take_dropped(), [], "reported once");
        push(&mut states, "huge", "u5", 5000);
        assert!(states.next("huge").is_some(), "one that is larger than the room is still held");
    }

    #[test]
    fn the_size_is_that_of_the_pending_states() {
        let mut states = LastStates::default();
        push(&mut states, "n1", "u1", 10);
        push(&mut states, "n1", "u2", 10);
        states.finish("n1", "u2");
        assert_eq!(states.pending().states, 2, "only the oldest is written next");
        states.finish("n1", "u1");
        states.caught_up("node-n1", "n1", |_| false);
        assert_eq!(states.pending(), Pending::default());
        assert!(!states.has("n1") && states.names().next().is_none());
    }
}
