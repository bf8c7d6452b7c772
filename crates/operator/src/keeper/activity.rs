//! Recent activity of nodes and records: counts over time, the latest events, and the figures that
//! lists of nodes show.
//!
//! For `top` and the dashboard. No decision depends on it, and without them nothing is recorded.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use perennial_core::keeper::{keys::Kept, mark::Mark, selection, stored_record::Stored};
use serde::{Serialize, Serializer};
use tokio::sync::broadcast;

use super::{NodeKey, apply::LoadedRecord};
use crate::runtime::{clock::Clock, map::HashMap};

/// Number of events that are kept for new listeners.
const KEPT_EVENTS: usize = 100;
/// Number of events that are buffered for a slow listener.
const BACKLOG: usize = 256;
/// Maximum number of keys that an event lists.
const NAMED: usize = 4;

/// Counts within an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ActivityCounts {
    pub created: u64,
    pub deleted: u64,
    pub changed: u64,
    pub restored: u64,
    pub written: u64,
}

impl ActivityCounts {
    /// Returns the number of nodes that were created or deleted.
    pub fn churn(&self) -> u64 {
        self.created + self.deleted
    }

    fn add(&mut self, other: Self) {
        self.created += other.created;
        self.deleted += other.deleted;
        self.changed += other.changed;
        self.restored += other.restored;
        self.written += other.written;
    }
}

/// Counts over time: the current interval and those before it.
#[derive(Debug)]
pub struct Churn {
    pub now: ActivityCounts,
    /// Oldest first.
    pub past: VecDeque<ActivityCounts>,
    pub total: ActivityCounts,
    intervals: usize,
}

impl Churn {
    fn new(intervals: usize) -> Self {
        Self { now: ActivityCounts::default(), past: VecDeque::new(), total: ActivityCounts::default(), intervals }
    }

    /// Ends the current interval.
    pub fn end_interval(&mut self) {
        let now = std::mem::take(&mut self.now);
        self.total.add(now);
        self.past.push_back(now);
        while self.past.len() > self.intervals {
            self.past.pop_front();
        }
    }
}

/// An event of a node or its record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ActivityEvent {
    pub number: u64,
    pub at: Timestamp,
    #[serde(serialize_with = "as_text")]
    pub node: NodeKey,
    pub what: ActivityKind,
    /// Number of keys that it affects.
    pub keys: usize,
    /// The first of these keys.
    pub some: Vec<String>,
}

fn as_text<S: Serializer>(key: &NodeKey, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(key)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum ActivityKind {
    /// A node without a record was created.
    Joined,
    /// A node with a record was created.
    Returned,
    Left,
    /// The node was restored.
    Restored,
    /// Its record was written.
    Captured,
    /// Its record is quarantined.
    Quarantined,
    /// Its record was deleted.
    Forgotten,
}

/// Figures of a live node, and its state to detect changes.
#[derive(Clone, Debug)]
pub struct NodeNote {
    uid: String,
    mark: bool,
    /// Its condition Ready. `None` if it is unknown.
    pub ready: Option<bool>,
    pub labels: PackedLabels,
}

/// Labels as one text, since there are many nodes: `key=value` in the order of the keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PackedLabels(Box<str>);

impl PackedLabels {
    pub fn new(labels: &BTreeMap<String, String>) -> Self {
        let pairs: Vec<String> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        Self(pairs.join("\n").into())
    }

    pub fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.lines().filter_map(|line| line.split_once('='))
    }

    pub fn unpack(&self) -> BTreeMap<String, String> {
        self.pairs().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
    }
}

/// Figures of a record.
#[derive(Clone, Debug)]
pub struct RecordNote {
    pub sequence: u64,
    pub captured_at: Option<Timestamp>,
    pub keys: usize,
    /// Its labels, and those that policies select its node by.
    pub labels: PackedLabels,
    /// The policy that it was captured under, empty if it names none, and the retention of that
    /// policy.
    pub policy: Box<str>,
    pub retention: Duration,
    /// The record has no keys.
    pub tombstone: bool,
    /// The record is excluded from garbage collection.
    pub held: bool,
    /// Time since which garbage collection finds no node for it.
    pub absent_since: Option<Timestamp>,
    /// The record is quarantined.
    pub bad: bool,
}

/// Recent activity of nodes and records.
#[derive(Debug)]
pub struct Activity {
    clock: Clock,
    nodes: HashMap<NodeKey, NodeNote>,
    records: HashMap<String, RecordNote>,
    pub churn: Churn,
    /// Oldest first.
    recent: VecDeque<Arc<ActivityEvent>>,
    number: u64,
    /// Increases with every change of a node or a record.
    version: u64,
    sender: broadcast::Sender<Arc<ActivityEvent>>,
}

impl Activity {
    /// Keeps the counts of the last `intervals` intervals.
    pub fn new(clock: Clock, intervals: usize) -> Self {
        Self {
            clock,
            nodes: HashMap::default(),
            records: HashMap::default(),
            churn: Churn::new(intervals),
            recent: VecDeque::new(),
            number: 0,
            version: 0,
            sender: broadcast::Sender::new(BACKLOG),
        }
    }

    /// Returns the events from now on.
    pub fn listen(&self) -> broadcast::Receiver<Arc<ActivityEvent>> {
        self.sender.subscribe()
    }

    /// Returns the latest events, newest first.
    pub fn recent(&self) -> impl Iterator<Item = &Arc<ActivityEvent>> {
        self.recent.iter().rev()
    }

    pub fn version(&self) -> u64 {
        self.version
    }

    pub fn record(&self, name: &str) -> Option<&RecordNote> {
        self.records.get(name)
    }

    pub fn node(&self, name: &str) -> Option<&NodeNote> {
        self.nodes.get(name)
    }

    /// Records a node from the watch, with its condition Ready. Without `news` it comes from a list
    /// and is no event.
    pub(super) fn on_node(
        &mut self,
        key: &NodeKey,
        (node, ready): (&selection::Node, Option<bool>),
        has_record: bool,
        news: bool,
    ) {
        self.version += 1;
        let mark = Mark::read(&node.annotations).filter(|mark| !mark.given.is_empty() || mark.unlisted);
        let labels = PackedLabels::new(&node.labels);
        let seen = NodeNote { uid: node.uid.clone(), mark: mark.is_some(), ready, labels };
        let before = self.nodes.insert(Arc::clone(key), seen);
        if !news {
            return;
        }
        let same = before.as_ref().is_some_and(|before| before.uid == node.uid);
        if same {
            self.churn.now.changed += 1;
        } else {
            self.churn.now.created += 1;
            let what = if has_record { ActivityKind::Returned } else { ActivityKind::Joined };
            self.publish(key, what, &Kept::new());
        }
        if let Some(mark) = mark
            && !(same && before.is_some_and(|before| before.mark))
        {
            self.churn.now.restored += 1;
            self.publish(key, ActivityKind::Restored, &mark.given);
        }
    }

    /// Records the deletion of a node.
    pub(super) fn on_node_deleted(&mut self, key: &NodeKey) {
        self.version += 1;
        self.nodes.remove(key);
        self.churn.now.deleted += 1;
        self.publish(key, ActivityKind::Left, &Kept::new());
    }

    /// Records a record from the watch.
    pub(super) fn on_record(&mut self, held: &LoadedRecord, news: bool) {
        self.version += 1;
        let nothing = Kept::new();
        let quarantined = RecordNote {
            sequence: 0,
            captured_at: None,
            keys: 0,
            labels: PackedLabels::default(),
            policy: Box::default(),
            retention: Duration::MAX,
            tombstone: false,
            held: held.is_on_hold(),
            absent_since: held.absent_since(),
            bad: true,
        };
        let (seen, kept) = match held.stored() {
            Stored::Good(record) => {
                let note = RecordNote {
                    sequence: record.sequence,
                    captured_at: Some(record.captured_at),
                    keys: record.kept.len(),
                    labels: PackedLabels::new(&record.selecting_labels()),
                    policy: record.provenance.policy.as_str().into(),
                    retention: record.provenance.retention(),
                    tombstone: record.is_tombstone(),
                    bad: false,
                    ..quarantined
                };
                (note, &record.kept)
            }
            Stored::Bad { .. } => (quarantined, &nothing),
        };
        let (sequence, bad) = (seen.sequence, seen.bad);
        let before = self.records.insert(held.name().to_owned(), seen);
        if !news {
            return;
        }
        self.churn.now.written += 1;
        let node: NodeKey = Arc::from(held.node_name());
        match before {
            Some(before) if bad && before.bad => {}
            // Only other content is an event: garbage collection annotates the same object.
            Some(before) if !bad && before.sequence == sequence => {}
            _ if bad => self.publish(&node, ActivityKind::Quarantined, kept),
            _ => self.publish(&node, ActivityKind::Captured, kept),
        }
    }

    /// Records the deletion of a record.
    pub(super) fn on_record_deleted(&mut self, name: &str, node: &str) {
        self.version += 1;
        if self.records.remove(name).is_some() {
            self.publish(&Arc::from(node), ActivityKind::Forgotten, &Kept::new());
        }
    }

    /// Drops the nodes that a list did not contain.
    pub(super) fn retain_nodes(&mut self, is_there: impl Fn(&str) -> bool) {
        self.version += 1;
        self.nodes.retain(|name, _| is_there(name));
    }

    pub(super) fn retain_records(&mut self, is_there: impl Fn(&str) -> bool) {
        self.version += 1;
        self.records.retain(|name, _| is_there(name));
    }

    fn publish(&mut self, node: &NodeKey, what: ActivityKind, kept: &Kept) {
        self.number += 1;
        let some = kept.iter().take(NAMED).map(|(key, value)| format!("{key}={value}")).collect();
        let event = Arc::new(ActivityEvent {
            number: self.number,
            at: self.clock.now(),
            node: Arc::clone(node),
            what,
            keys: kept.len(),
            some,
        });
        self.recent.push_back(Arc::clone(&event));
        while self.recent.len() > KEPT_EVENTS {
            self.recent.pop_front();
        }
        // Fails only without listeners.
        let _ = self.sender.send(event);
    }
}

#[cfg(test)]
mod tests;
