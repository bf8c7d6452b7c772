//! Last states of deleted nodes that are not written yet, and the record as it will be once they
//! are.
//!
//! # Guarantees
//! A decision about a successor that is made with [`after_last_states`] is the one that is made
//! after the write. A node that was restored before the write keeps what it was given, also if the
//! pending states are lost and never written ([`restore_before_write`]).

use std::{collections::BTreeSet, sync::Arc};

use super::{
    case::{Case, CaseContext, Rival},
    decide::{Decision, RecordWrite, Restore, decide, restore_of},
    keys::Key,
    record::Record,
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
/// given everything. `written` is the record as it is stored.
///
/// Keys in which the case's record differs from the written one become the node's own. If the
/// pending states are lost, the node is the only place that has them, and the written record must
/// not undo them. A node that has every key already is therefore given a mark.
pub fn restore_before_write(case: &Case, written: Option<&Record>) -> Option<Restore> {
    let restore = match decide(case) {
        Decision::PatchNode(restore) => restore,
        Decision::WriteRecord(RecordWrite::Claim, _) => restore_of(case, &*case.record()?),
        Decision::WriteRecord(..) | Decision::Nothing(_) => return None,
    };
    Some(keep_newer(case, written, restore))
}

/// Makes the keys in which the case's record differs from the written one the node's own.
pub(super) fn keep_newer(case: &Case, written: Option<&Record>, mut restore: Restore) -> Restore {
    let value = |key: &Key| written.and_then(|record| record.kept.get(key));
    let mark = &mut restore.mark;
    let newer: BTreeSet<Key> =
        mark.given.iter().filter(|(key, given)| value(key) != Some(*given)).map(|(key, _)| key.clone()).collect();
    mark.given.retain(|key, _| !newer.contains(key));
    mark.own.extend(newer);
    let removed = written.into_iter().flat_map(|record| record.kept.keys());
    let removed = removed.filter(|key| case.policy().keeps(key) && !restore.withheld.contains(*key));
    let removed: Vec<Key> = removed.filter(|key| !mark.covers(key)).cloned().collect();
    mark.own.extend(removed);
    restore
}

#[cfg(test)]
mod tests;
