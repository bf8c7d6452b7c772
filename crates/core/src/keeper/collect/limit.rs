//! The limit of absent records.

use std::collections::BinaryHeap;

use jiff::Timestamp;

use super::{Candidate, NodeList, Trust};

/// Selects the records that exceed the limit of absent records, oldest absence first, in one pass
/// over all records and in bounded memory.
#[derive(Clone, Debug)]
pub struct AbsentLimit<T: Ord> {
    /// Maximum number of absent records. 0: no limit.
    limit: usize,
    /// Maximum number of records that are selected at once.
    batch: usize,
    absent: usize,
    /// The oldest absences, newest first.
    oldest: BinaryHeap<(Timestamp, T)>,
}

impl<T: Ord> AbsentLimit<T> {
    pub fn new(limit: usize, batch: usize) -> Self {
        Self { limit, batch, absent: 0, oldest: BinaryHeap::new() }
    }

    /// Counts a record. Held and quarantined records count, but are never selected. The records of
    /// a mass absence that lasts are selected neither.
    pub fn count(&mut self, record: &Candidate, list_nodes: usize, item: impl FnOnce() -> T) {
        if self.limit == 0 || record.present || record.tombstone {
            return;
        }
        self.absent += 1;
        let list = NodeList { nodes: list_nodes, trust: Trust::Full };
        let Some(since) = record.absent_since else { return };
        if record.held || record.bad || list.doubts(record) {
            return;
        }
        let is_full = self.oldest.len() >= self.batch;
        if is_full && self.oldest.peek().is_some_and(|(newest, _)| *newest <= since) {
            return;
        }
        self.oldest.push((since, item()));
        if is_full {
            self.oldest.pop();
        }
    }

    /// Returns the records that exceed the limit, oldest absence first. None while the list of
    /// nodes is not trusted.
    pub fn exceeding(self, list: &NodeList) -> Vec<T> {
        let excess = if list.trust == Trust::Full { self.absent.saturating_sub(self.limit) } else { 0 };
        self.oldest.into_sorted_vec().into_iter().take(excess).map(|(_, item)| item).collect()
    }
}
