//! The records that one pass of an audit acts on, in bounded memory.

use jiff::Timestamp;

use super::{Candidate, Collection, NodeList, Trust, collect};

/// Records that may need a write, in the kinds of writes. Whether the list of nodes is trusted is
/// known only after the last record, and no kind may take the place of another: those that turn out
/// to need nothing would be selected again in every pass.
#[derive(Clone, Debug)]
pub struct Batch<T> {
    notes: BoundedList<T>,
    deletions: BoundedList<T>,
    /// Noted records that need another write only if there is a mass absence.
    in_mass: BoundedList<T>,
}

#[derive(Clone, Debug)]
struct BoundedList<T> {
    limit: usize,
    items: Vec<T>,
    is_full: bool,
}

impl<T> BoundedList<T> {
    fn new(limit: usize) -> Self {
        Self { limit, items: Vec::new(), is_full: false }
    }

    fn push(&mut self, item: impl FnOnce() -> T) {
        if self.items.len() < self.limit {
            self.items.push(item());
        } else {
            self.is_full = true;
        }
    }
}

impl<T> Batch<T> {
    /// `limit` is the maximum number of records of each kind.
    pub fn new(limit: usize) -> Self {
        Self { notes: BoundedList::new(limit), deletions: BoundedList::new(limit), in_mass: BoundedList::new(limit) }
    }

    /// Adds a record if it may need a write. `nodes` is the number of nodes in the list.
    pub fn count(
        &mut self,
        record: &Candidate,
        became_absent: bool,
        (now, nodes): (Timestamp, usize),
        item: impl FnOnce() -> T,
    ) {
        match collect(record, now, &NodeList { nodes, trust: Trust::Full }, false) {
            Collection::Delete => self.deletions.push(item),
            Collection::Keep if became_absent && record.mass_absence.is_none() => self.in_mass.push(item),
            Collection::Keep => {}
            _ => self.notes.push(item),
        }
    }

    /// Returns the records of each kind that may need a write, with whether there are more.
    pub fn into_kinds(self, list: &NodeList) -> Vec<(Vec<T>, bool)> {
        let is_mass = matches!(list.trust, Trust::MassAbsence { .. });
        let kinds = [Some(self.notes), Some(self.deletions), Some(self.in_mass).filter(|_| is_mass)];
        kinds.into_iter().flatten().map(|kind| (kind.items, kind.is_full)).collect()
    }
}
