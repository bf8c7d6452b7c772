//! Last states of deleted nodes that are not written yet, and the record as it will be once they
//! are.
//!
//! # Guarantees
//! A decision about a successor that is made with [`after_last_states`] is the one that is made
//! after the write. A node that was restored before the write keeps what it was given, also if the
//! pending states are lost and never written ([`restore_before_write`]).

use std::sync::Arc;

use super::{
    case::{Case, CaseContext, Rival},
    decide::{Decision, RecordWrite, Restore, decide, restore_of},
    selection::Node,
    stored_record::Stored,
};

/// Returns the record as it will be once these last states, oldest first, are written. `None` if
/// the stored record holds them all.
pub fn after_last_states(
    stored: Option<&Arc<Stored>>,
    states: impl IntoIterator<Item = Node>,
    rivals: impl Fn(&Node, Option<&Stored>) -> Vec<Rival>,
    context: &CaseContext<'_>,
) -> Option<Arc<Stored>> {
    let mut pending: Option<Arc<Stored>> = None;
    for state in states {
        let record = pending.as_ref().or(stored).cloned();
        let rivals = rivals(&state, record.as_deref());
        if let Decision::WriteRecord(_, next) = decide(&Case::gone(state, record, rivals, context)) {
            pending = Some(Arc::new(Stored::Good(next)));
        }
    }
    pending
}

/// Returns the restore of a live node whose record is not written yet. `None` if the node has been
/// given everything.
///
/// The mark holds the version of the pending state. A replica without that state, or with an older
/// one, then changes nothing that was given: if the pending states are lost, the node is the only
/// place that has them. A node that has every key already is therefore given a mark too. A node
/// that was given a later state is left alone: two replicas would write their marks for ever.
pub fn restore_before_write(case: &Case) -> Option<Restore> {
    let version = case.record().map_or(0, |record| record.node.resource_version);
    if case.mark().is_some_and(|mark| mark.is_newer_than(version)) {
        return None;
    }
    let restore = match decide(case) {
        Decision::PatchNode(restore) => restore,
        Decision::WriteRecord(RecordWrite::Claim, _) => restore_of(case, &*case.record()?),
        Decision::WriteRecord(..) | Decision::Nothing(_) => return None,
    };
    let restore = with_version(case, restore);
    let is_given = restore.changes_nothing() && case.mark() == Some(&restore.mark);
    (!is_given).then_some(restore)
}

/// Adds the version of the case's record to the mark of a restore.
pub(super) fn with_version(case: &Case, mut restore: Restore) -> Restore {
    restore.mark.version = case.record().map_or(0, |record| record.node.resource_version);
    restore
}

#[cfg(test)]
mod tests;
