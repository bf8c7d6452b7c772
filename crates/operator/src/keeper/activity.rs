//! Recent activity of nodes and records: counts over time, the latest events, and the figures that
//! lists of nodes show.
//!
//! For `top` and the dashboard. No decision depends on it, and without them nothing is recorded.

use std::{collections::VecDeque, sync::Arc};

use jiff::Timestamp;
use perennial_core::keeper::{keys::Kept, mark::Mark, selection, stored_record::Stored};
use serde::{Serialize, Serializer};
use tokio::sync::broadcast;

use super::{Key, apply::Held};
use crate::runtime::{clock::Clock, map::HashMap};

/// Number of events that are kept for new listeners.
const REMEMBERED: usize = 100;
/// Number of events that are buffered for a slow listener.
const BACKLOG: usize = 256;
/// Maximum number of keys that an event lists.
const NAMED: usize = 4;

/// Counts within an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub created: u64,
    pub deleted: u64,
    pub changed: u64,
    pub restored: u64,
    pub written: u64,
}

impl Counts {
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
    pub now: Counts,
    /// Oldest first.
    pub past: VecDeque<Counts>,
    pub total: Counts,
    intervals: usize,
}

impl Churn {
    fn new(intervals: usize) -> Self {
        Self { now: Counts::default(), past: VecDeque::new(), total: Counts::default(), intervals }
    }

    /// Ends the current interval.
    pub fn turn(&mut self) {
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
pub struct Happening {
    pub number: u64,
    pub at: Timestamp,
    #[serde(serialize_with = "as_text")]
    pub node: Key,
    pub what: What,
    /// Number of keys that it affects.
    pub keys: usize,
    /// The first of these keys.
    pub some: Vec<String>,
}

fn as_text<S: Serializer>(key: &Key, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(key)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum What {
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

/// State of a live node, to detect changes.
#[derive(Clone, Debug)]
struct NodeNote {
    uid: String,
    mark: bool,
}

/// Figures of a record.
#[derive(Clone, Copy, Debug)]
pub struct RecordNote {
    pub sequence: u64,
    pub captured_at: Option<Timestamp>,
    pub keys: usize,
    bad: bool,
}

/// Recent activity of nodes and records.
#[derive(Debug)]
pub struct Board {
    clock: Clock,
    nodes: HashMap<Key, NodeNote>,
    records: HashMap<String, RecordNote>,
    pub churn: Churn,
    /// Oldest first.
    recent: VecDeque<Arc<Happening>>,
    number: u64,
    /// Increases with every change of a node or a record.
    version: u64,
    tell: broadcast::Sender<Arc<Happening>>,
}

impl Board {
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
            tell: broadcast::Sender::new(BACKLOG),
        }
    }

    /// Returns the events from now on.
    pub fn listen(&self) -> broadcast::Receiver<Arc<Happening>> {
        self.tell.subscribe()
    }

    /// Returns the latest events, newest first.
    pub fn recent(&self) -> impl Iterator<Item = &Arc<Happening>> {
        self.recent.iter().rev()
    }

    pub fn version(&self) -> u64 {
        self.version
    }

    pub fn record(&self, name: &str) -> Option<&RecordNote> {
        self.records.get(name)
    }

    /// Records a node from the watch. Without `news` it comes from a list and is no event.
    pub(super) fn saw_node(&mut self, key: &Key, node: &selection::Node, has_record: bool, news: bool) {
        self.version += 1;
        let mark = Mark::read(&node.annotations).filter(|mark| !mark.given.is_empty() || mark.unlisted);
        let seen = NodeNote { uid: node.uid.clone(), mark: mark.is_some() };
        let before = self.nodes.insert(Arc::clone(key), seen);
        if !news {
            return;
        }
        let same = before.as_ref().is_some_and(|before| before.uid == node.uid);
        if same {
            self.churn.now.changed += 1;
        } else {
            self.churn.now.created += 1;
            let what = if has_record { What::Returned } else { What::Joined };
            self.happened(key, what, &Kept::new());
        }
        if let Some(mark) = mark
            && !(same && before.is_some_and(|before| before.mark))
        {
            self.churn.now.restored += 1;
            self.happened(key, What::Restored, &mark.given);
        }
    }

    /// Records the deletion of a node.
    pub(super) fn saw_delete(&mut self, key: &Key) {
        self.version += 1;
        self.nodes.remove(key);
        self.churn.now.deleted += 1;
        self.happened(key, What::Left, &Kept::new());
    }

    /// Records a record from the watch.
    pub(super) fn saw_record(&mut self, held: &Held, news: bool) {
        self.version += 1;
        let nothing = Kept::new();
        let (seen, kept) = match held.stored() {
            Stored::Good(record) => {
                let (sequence, captured_at) = (record.sequence, Some(record.captured_at));
                (RecordNote { sequence, captured_at, keys: record.kept.len(), bad: false }, &record.kept)
            }
            Stored::Bad { .. } => (RecordNote { sequence: 0, captured_at: None, keys: 0, bad: true }, &nothing),
        };
        let before = self.records.insert(held.name().to_owned(), seen);
        if !news {
            return;
        }
        self.churn.now.written += 1;
        let node: Key = Arc::from(held.node_name());
        match before {
            Some(before) if seen.bad && before.bad => {}
            // Only other content is an event: garbage collection annotates the same object.
            Some(before) if !seen.bad && before.sequence == seen.sequence => {}
            _ if seen.bad => self.happened(&node, What::Quarantined, kept),
            _ => self.happened(&node, What::Captured, kept),
        }
    }

    /// Records the deletion of a record.
    pub(super) fn lost_record(&mut self, name: &str, node: &str) {
        self.version += 1;
        if self.records.remove(name).is_some() {
            self.happened(&Arc::from(node), What::Forgotten, &Kept::new());
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

    fn happened(&mut self, node: &Key, what: What, kept: &Kept) {
        self.number += 1;
        let some = kept.iter().take(NAMED).map(|(key, value)| format!("{key}={value}")).collect();
        let happening = Arc::new(Happening {
            number: self.number,
            at: self.clock.now(),
            node: Arc::clone(node),
            what,
            keys: kept.len(),
            some,
        });
        self.recent.push_back(Arc::clone(&happening));
        while self.recent.len() > REMEMBERED {
            self.recent.pop_front();
        }
        // Fails only without listeners.
        let _ = self.tell.send(happening);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use perennial_core::keeper::{keys::Key as KeptKey, mark::MARK};

    use super::*;

    fn board() -> Board {
        Board::new(Clock::from_fn(|| Timestamp::UNIX_EPOCH), 3)
    }

    fn node(uid: &str, given: &[(&str, &str)]) -> selection::Node {
        let mut annotations = BTreeMap::new();
        if !given.is_empty() {
            let given = given.iter().map(|(k, v)| (KeptKey::label(k), (*v).to_owned())).collect();
            annotations.insert(MARK.to_owned(), Mark { given, ..Mark::default() }.render());
        }
        selection::Node { name: "n1".into(), uid: uid.into(), annotations, ..selection::Node::default() }
    }

    fn said(board: &Board) -> Vec<(What, usize)> {
        let mut said: Vec<(What, usize)> = board.recent().map(|h| (h.what, h.keys)).collect();
        said.reverse();
        said
    }

    #[test]
    fn what_was_there_already_did_not_happen() {
        let (mut board, key) = (board(), Key::from("n1"));
        board.saw_node(&key, &node("u1", &[("team", "ml")]), true, false);
        assert!(said(&board).is_empty());
        assert_eq!(board.churn.now, Counts::default());
    }

    #[test]
    fn a_restore_is_told_once_for_each_incarnation() {
        let (mut board, key) = (board(), Key::from("n1"));
        let mut hears = board.listen();
        board.saw_node(&key, &node("u1", &[]), true, true);
        board.saw_node(&key, &node("u1", &[("team", "ml")]), true, true);
        board.saw_node(&key, &node("u1", &[("team", "ml")]), true, true);
        board.saw_delete(&key);
        // The webhook restores it in the create request.
        board.saw_node(&key, &node("u2", &[("team", "ml")]), true, true);
        let expected =
            [(What::Returned, 0), (What::Restored, 1), (What::Left, 0), (What::Returned, 0), (What::Restored, 1)];
        assert_eq!(said(&board), expected);
        assert_eq!((board.churn.now.created, board.churn.now.deleted, board.churn.now.restored), (2, 1, 2));
        assert_eq!(hears.try_recv().unwrap().what, What::Returned);
        assert_eq!(hears.try_recv().unwrap().some, ["team=ml"]);
    }

    #[test]
    fn only_so_many_intervals_are_remembered() {
        let mut board = board();
        for count in 0..5 {
            board.churn.now.created = count;
            board.churn.turn();
        }
        let past: Vec<u64> = board.churn.past.iter().map(|counts| counts.created).collect();
        assert_eq!((past.as_slice(), board.churn.total.created), ([2, 3, 4].as_slice(), 10));
    }

    #[test]
    fn only_so_much_is_remembered() {
        let (mut board, key) = (board(), Key::from("n1"));
        for _ in 0..300 {
            board.saw_delete(&key);
        }
        let numbers: Vec<u64> = board.recent().map(|happening| happening.number).collect();
        assert_eq!((numbers.len(), numbers[0]), (REMEMBERED, 300));
    }
}
