//! Changes that a user requests: roll back, forget, restore now, and the move to another identity.
//!
//! # Guarantees
//! The record is written first, with the UID, resourceVersion and mark of the node. The controller
//! then finds it current and does nothing until the node is patched. Every write is conditional.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    case::{Case, Phase},
    decide::{Decision, Restore, decide},
    identity::Identified,
    keys::{Kept, Key},
    policy_set::PolicySet,
    provenance::Provenance,
    record::{HistoryEntry, Record},
    selection::{Node, Policy},
};
use crate::config::settings::Merge;

/// A requested change: the record to write, then the keys to patch on the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub record: Record,
    /// Keys to set on the live node. Its mark stays.
    pub set: Kept,
    pub remove: BTreeSet<Key>,
}

/// Returns the change that brings node and record back to a history entry.
///
/// Keys that the policy does not keep stay as they are. Keys on the node that the record never held
/// stay as well: the command may run under another policy than the one that captured.
pub fn rollback(case: &Case, record: &Record, to: &HistoryEntry) -> Change {
    let policy = &case.policy;
    let mut kept: Kept = Kept::from(to.content.clone()).into_iter().filter(|(key, _)| policy.keeps(key)).collect();
    let (set, mut remove) = case.node().map(|_| difference(&case.kept, &kept)).unwrap_or_default();
    let past = record.history.iter().map(|entry| Kept::from(entry.content.clone()));
    let held: BTreeSet<Key> = past.chain([record.kept.clone()]).flat_map(Kept::into_keys).collect();
    remove.retain(|key| held.contains(key));
    kept.extend(
        record.kept.iter().filter(|(key, _)| !policy.keeps(key)).map(|(key, value)| (key.clone(), value.clone())),
    );
    let mut next = next(case, record, kept);
    // Newer than the node as it is now, older than the node after its patch: both writes that
    // follow come later in the order of the API server.
    next.node.resource_version += u64::from(case.node().is_some());
    // A second attempt finds the record that the first one wrote.
    if record.kept != next.kept {
        next.history.insert(0, record.entry());
    }
    next.history.truncate(policy.history.max(1));
    Change { record: next, set, remove }
}

/// Returns the record without its history. A live node starts over with the keys it has; a
/// tombstone replaces the record of an absent one, and of one that is ignored, which is not captured
/// again.
pub fn forget(case: &Case, record: &Record) -> Record {
    let kept = if case.is_ignored() { Kept::new() } else { case.kept.clone() };
    Record { history: Vec::new(), withheld: Vec::new(), ..next(case, record, kept) }
}

/// Returns the restore that makes the values of the record win. Keys that only the node has stay.
pub fn restore_now(case: &Case) -> Option<Restore> {
    let overwrite = Case {
        phase: Phase::Creating { by_kubelet: false },
        // Without its annotations and labels, since the command also applies to a node that is
        // ignored.
        node: Node { uid: String::new(), labels: BTreeMap::new(), annotations: BTreeMap::new(), ..case.node.clone() },
        mark: None,
        policy: Arc::new(Policy { merge: Merge::Overwrite, ..(*case.policy).clone() }),
        rivals: Vec::new(),
        ..case.clone()
    };
    match decide(&overwrite) {
        Decision::PatchNode(restore) if !restore.changes_nothing() => Some(restore),
        _ => None,
    }
}

fn next(case: &Case, record: &Record, kept: Kept) -> Record {
    let provenance = case.node().map(|_| Provenance::next(case, Some(record), &kept));
    Record {
        provenance: provenance.unwrap_or_else(|| record.provenance.clone()),
        sequence: record.sequence + 1,
        node: case.node().map_or_else(|| record.node.clone(), |_| case.origin()),
        kept,
        folded: false,
        before: Kept::new(),
        captured_at: case.now,
        captured_by: case.by.clone(),
        ..record.clone()
    }
}

fn difference(from: &Kept, to: &Kept) -> (Kept, BTreeSet<Key>) {
    let set =
        to.iter().filter(|(key, value)| from.get(key) != Some(value)).map(|(k, v)| (k.clone(), v.clone())).collect();
    let remove = from.keys().filter(|key| !to.contains_key(*key)).cloned().collect();
    (set, remove)
}

/// Returns the record under the identity that its policy has now. `None` if it stays: the name is
/// the same, the record does not contain the identifying field, or its policy is missing. The
/// case is that of a record without a node.
///
/// A record without a policy (of an earlier version) stays as long as any policy looks for it
/// there.
pub fn migrate(case: &Case, policies: &PolicySet) -> Option<Record> {
    let record = case.stored()?.good()?;
    let filed = Identified::of_record(record);
    let identified = Identified::of(&case.policy.identity, &record.described_node())?;
    let is_other = identified.kind() != filed.kind();
    if is_other && record.provenance == Provenance::default() && policies.identifies_by(filed.kind()) {
        return None;
    }
    let moved = Record { identity: identified.text(), sequence: record.sequence + 1, ..record.clone() };
    (moved.name() != record.name()).then_some(moved)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        config::settings::Identity,
        keeper::{
            decide::Reason,
            machine::Machine,
            selection::IGNORE,
            stored_record::Stored,
            testing::{Defaults, case, gone, kept, labels, live, policy},
        },
    };

    fn node(rv: u64, pairs: &str) -> Node {
        let machine = Machine { system_uuid: "s".into(), ..Machine::default() };
        let (name, uid) = ("n1".into(), "u1".into());
        Node { name, uid, resource_version: rv, labels: labels(pairs), machine, ..Node::default() }
    }

    fn written(decision: Decision) -> Record {
        match decision {
            Decision::WriteRecord(_, record) => *record,
            other => panic!("{other:?}"),
        }
    }

    fn here(node: &Node, record: &Record) -> Case {
        case(Phase::Live, node, Some(record), &policy())
    }

    fn away(record: &Record, policy: Policy) -> Case {
        let stored = Arc::new(Stored::Good(Box::new(record.clone())));
        Case::absent(Some(stored), &Defaults(policy.into()).context())
    }

    fn two_captures() -> Record {
        let first = written(live(&node(5, "team=ml rack=r1"), None, &policy()));
        written(live(&node(6, "team=db extra=x"), Some(&first), &policy()))
    }

    #[test]
    fn a_rollback_is_at_rest_before_and_after_the_node_is_patched() {
        let record = two_captures();
        let now = node(6, "team=db extra=x");
        let change = rollback(&here(&now, &record), &record, &record.history[0]);
        assert_eq!(change.set, kept("team=ml rack=r1"));
        assert_eq!(change.remove, BTreeSet::from([Key::label("extra")]));
        assert_eq!(live(&now, Some(&change.record), &policy()), Decision::Nothing(Reason::Older));
        let after = node(8, "team=ml rack=r1");
        assert_eq!(live(&after, Some(&change.record), &policy()), Decision::Nothing(Reason::Current));
        assert_eq!(change.record.sequence, 3);
        assert_eq!(Kept::from(change.record.history[0].content.clone()), kept("team=db extra=x"));
    }

    #[test]
    fn a_rollback_takes_nothing_from_a_node_that_the_record_never_held() {
        let record = two_captures();
        let now = node(6, "team=db extra=x disk=nvme");
        let change = rollback(&here(&now, &record), &record, &record.history[0]);
        assert_eq!(change.remove, BTreeSet::from([Key::label("extra")]));
    }

    #[test]
    fn a_rollback_that_is_retried_has_the_same_result() {
        let record = two_captures();
        let to = record.history[0].clone();
        let first = rollback(&here(&node(6, "team=db extra=x"), &record), &record, &to);
        // The record is written, and the node has changed before it could be patched.
        let again = rollback(&here(&node(9, "team=db extra=x"), &first.record), &first.record, &to);
        assert_eq!((again.set, again.remove), (first.set, first.remove));
        assert_eq!(again.record.kept, first.record.kept);
        assert_eq!(again.record.history, first.record.history);
        assert_eq!(again.record.node.resource_version, 10);
    }

    #[test]
    fn a_rollback_of_a_node_that_is_away_is_given_when_it_returns() {
        let record = two_captures();
        let change = rollback(&away(&record, policy()), &record, &record.history[0]);
        let back = Node { uid: "u2".into(), ..node(9, "") };
        match live(&back, Some(&change.record), &policy()) {
            Decision::PatchNode(restore) => assert_eq!(restore.set, kept("team=ml rack=r1")),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_forgotten_live_node_is_still_kept() {
        let record = two_captures();
        let now = node(6, "team=db extra=x");
        let forgotten = forget(&here(&now, &record), &record);
        assert!(forgotten.history.is_empty());
        assert_eq!(live(&now, Some(&forgotten), &policy()), Decision::Nothing(Reason::Current));
        assert_eq!(gone(&node(8, "team=db extra=x"), Some(&forgotten), &policy()), Decision::Nothing(Reason::Current));
    }

    #[test]
    fn a_forgotten_absent_node_leaves_a_tombstone() {
        let record = two_captures();
        let forgotten = forget(&away(&record, policy()), &record);
        assert!(forgotten.is_tombstone() && forgotten.sequence == 3);
    }

    #[test]
    fn a_forgotten_ignored_node_leaves_a_tombstone() {
        let record = two_captures();
        let mut now = node(6, "team=db extra=x");
        now.annotations.insert(IGNORE.to_owned(), "true".to_owned());
        let forgotten = forget(&here(&now, &record), &record);
        assert!(forgotten.is_tombstone() && forgotten.sequence == 3);
        // Nothing is restored until the node is captured again.
        assert!(matches!(live(&now, Some(&forgotten), &policy()), Decision::Nothing(_)));
        let back = Node { uid: "u2".into(), ..node(9, "") };
        assert!(
            !matches!(live(&back, Some(&forgotten), &policy()), Decision::PatchNode(restore) if !restore.set.is_empty())
        );
        assert_eq!(written(live(&node(9, "team=db"), Some(&forgotten), &policy())).kept, kept("team=db"));
    }

    #[test]
    fn restoring_now_sets_the_keys_of_the_record() {
        let record = two_captures();
        let restore = restore_now(&here(&node(9, "team=other mine=1"), &record)).unwrap();
        assert_eq!(restore.set, kept("team=db extra=x"));
        assert!(restore.remove.is_empty());
        assert!(restore_now(&here(&node(9, "team=db extra=x mine=1"), &record)).is_none());
    }

    #[test]
    fn a_node_that_is_ignored_can_be_restored_by_command() {
        let record = two_captures();
        let mut ignored = node(9, "");
        ignored.annotations.insert(IGNORE.into(), "true".into());
        assert_eq!(restore_now(&here(&ignored, &record)).unwrap().set, kept("team=db extra=x"));
    }

    fn moved_to(identity: Identity, record: &Record) -> Option<Record> {
        let policies: PolicySet = Policy { identity, ..policy() }.into();
        let stored = Arc::new(Stored::Good(Box::new(record.clone())));
        migrate(&Case::absent(Some(stored), &Defaults(policies.clone()).context()), &policies)
    }

    #[test]
    fn a_record_moves_to_another_identity_if_it_has_the_field() {
        let record = two_captures();
        let moved = moved_to(Identity::SystemUuid, &record).unwrap();
        assert_ne!(moved.name(), record.name());
        assert_eq!(moved.kept, record.kept);
        assert_eq!(moved_to(Identity::ProviderId, &record), None);
        assert_eq!(moved_to(Identity::Name, &record), None);
        let back = moved_to(Identity::Name, &moved).unwrap();
        assert_eq!(back.name(), record.name());
    }
}
