//! Differences between nodes and their records: the next write of the operator, key by key.

use std::collections::BTreeSet;

use perennial_core::keeper::{
    decide::RecordWrite,
    keys::{Kept, Key},
    status::KeepStatus,
};

use super::inspected_node::InspectedNode;

/// The write that is due for one node.
pub(crate) struct Difference {
    pub(crate) node: String,
    pub(crate) what: &'static str,
    pub(crate) changes: Vec<Change>,
    /// Keys that the write leaves unchanged.
    pub(crate) unchanged: Kept,
}

/// One key that would change.
pub(crate) struct Change {
    pub(crate) key: Key,
    pub(crate) before: Option<String>,
    pub(crate) after: Option<String>,
}

/// Returns `None` if no write is due.
pub(crate) fn difference(look: &InspectedNode) -> Option<Difference> {
    let (what, before, after) = match look.status() {
        KeepStatus::Pending(kind, next) => {
            let before = look.record().map(|record| record.kept).unwrap_or_default();
            let what = match kind {
                RecordWrite::Capture if look.held.is_none() => "record would be created",
                RecordWrite::Capture => "record would be updated",
                RecordWrite::Claim => "record would be claimed by this incarnation",
                RecordWrite::Fold => "node would be merged into its record",
            };
            (what, before, next.kept)
        }
        KeepStatus::Unsettled(restore) => {
            let before = look.kept().cloned().unwrap_or_default();
            let mut after = before.clone();
            after.retain(|key, _| !restore.remove.contains(key));
            after.extend(restore.set);
            ("node would be restored", before, after)
        }
        _ => return None,
    };
    let changes = changes(&before, &after);
    let unchanged = before.into_iter().filter(|(key, value)| after.get(key) == Some(value)).collect();
    Some(Difference { node: look.name().to_owned(), what, changes, unchanged })
}

/// Returns the keys that differ between two sets.
pub(crate) fn changes(before: &Kept, after: &Kept) -> Vec<Change> {
    let keys: BTreeSet<&Key> = before.keys().chain(after.keys()).collect();
    let changed = keys.into_iter().filter(|key| before.get(key) != after.get(key));
    changed
        .map(|key| Change { key: key.clone(), before: before.get(key).cloned(), after: after.get(key).cloned() })
        .collect()
}
