//! Last states of deleted nodes that are still to be written.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use perennial_core::{
    config::Identity,
    keeper::{
        identity::Identified,
        selection::{Node, Policy},
    },
};
use tokio::time::Instant;

use crate::{
    keeper::{Key, recall_cache::Packed},
    runtime::map::HashMap,
};

/// Time that a last state is held: longer than a failover to another replica takes.
const LAST_FOR: Duration = Duration::from_mins(10);

/// Last states by node name, oldest first. They are written before any decision about a successor.
#[derive(Debug, Default)]
pub(super) struct LastStates(HashMap<Key, VecDeque<LastState>>);

#[derive(Debug)]
struct LastState {
    uid: String,
    node: Packed,
    since: Instant,
    /// Name of the record, if it is not derived from the name of the node.
    record: Option<String>,
}

impl LastStates {
    pub(super) fn push(&mut self, name: &Key, node: &Node, packed: Packed, policy: &Policy) {
        let identity = Identified::of(&policy.identity, node).filter(|_| policy.identity != Identity::Name);
        let record = identity.map(|identity| identity.record_name().0);
        let state = LastState { uid: node.uid.clone(), node: packed, since: Instant::now(), record };
        self.0.entry(Arc::clone(name)).or_default().push_back(state);
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &Key> {
        self.0.keys()
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Whether the last state of this incarnation is still to be written.
    pub(super) fn has_incarnation(&self, name: &str, uid: &str) -> bool {
        self.0.get(name).is_some_and(|states| states.iter().any(|state| state.uid == uid))
    }

    /// Returns the oldest last state of a name.
    pub(super) fn next(&self, name: &str) -> Option<Node> {
        self.0.get(name)?.front().map(|state| state.node.unpack())
    }

    /// Removes a last state that was written, or needs no write.
    pub(super) fn finish(&mut self, name: &str, uid: &str) {
        if let Some(states) = self.0.get_mut(name) {
            if states.front().is_some_and(|state| state.uid == uid) {
                states.pop_front();
            }
            if states.is_empty() {
                self.0.remove(name);
            }
        }
    }

    /// Returns another name with a last state for this record.
    pub(super) fn other_name(&self, record: &str, but: &str) -> Option<Key> {
        let is_its = |state: &LastState| state.record.as_deref() == Some(record);
        let mut others = self.0.iter().filter(|(name, _)| ***name != *but);
        others.find(|(_, states)| states.iter().any(is_its)).map(|(name, _)| Arc::clone(name))
    }

    /// Drops last states that another replica owns: it has written them by now.
    pub(super) fn expire(&mut self) {
        self.0.retain(|_, states| {
            states.retain(|state| state.since.elapsed() < LAST_FOR);
            !states.is_empty()
        });
    }
}
