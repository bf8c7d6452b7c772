//! What people ask for by hand: roll back, forget, restore now.
//!
//! # Guarantees
//! The record is written first, as the node's own (its UID, resourceVersion and mark): the controller then finds it
//! current and does nothing until the node is patched. Every write is conditional, as all are.

use std::collections::{BTreeMap, BTreeSet};

use super::{identity::Identified, keys::Key};
use super::{
    keys::Kept,
    plan::{Context, Restore},
    record::{Entry, Origin, Record},
    selection::{Incarnation, Node},
};
use crate::config::settings::Identity;

/// A change that a person asked for: the record to write, then what the node is to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub record: Record,
    /// What to set on and remove from the live node, where there is one and it differs. Its mark stays.
    pub set: Kept,
    pub remove: BTreeSet<Key>,
}

/// Back to what the record held before. Keys that the policy does not keep stay as they are, and so do those on the node that the
/// record never held: whoever asks may judge by another policy than the one that captured.
pub fn rollback(record: &Record, to: &Entry, node: Option<&Incarnation>, context: &Context<'_>) -> Change {
    let policy = context.policy;
    let mut kept: Kept = Kept::from(to.content.clone()).into_iter().filter(|(key, _)| policy.keeps(key)).collect();
    let (set, mut remove) = node.map(|node| difference(&node.kept, &kept)).unwrap_or_default();
    let past = record.history.iter().map(|entry| Kept::from(entry.content.clone()));
    let held: BTreeSet<Key> = past.chain([record.kept.clone()]).flat_map(Kept::into_keys).collect();
    remove.retain(|key| held.contains(key));
    kept.extend(
        record.kept.iter().filter(|(key, _)| !policy.keeps(key)).map(|(key, value)| (key.clone(), value.clone())),
    );
    let mut next = next(record, node, kept, context);
    // Newer than the node as it is now, older than the node as it will be once it is patched: both of the writes that
    // follow come later in the API server's order.
    next.node.resource_version += u64::from(node.is_some());
    // The second of two tries finds what the first has written.
    if record.kept != next.kept {
        next.history.insert(0, record.entry());
    }
    next.history.truncate(policy.history.max(1));
    Change { record: next, set, remove }
}

/// Nothing of the past: a live node begins anew with what it has, for one that is away a tombstone is left.
pub fn forget(record: &Record, node: Option<&Incarnation>, context: &Context<'_>) -> Record {
    let kept = node.map(|node| node.kept.clone()).unwrap_or_default();
    Record { history: Vec::new(), withheld: Vec::new(), ..next(record, node, kept, context) }
}

/// The record over the node, now: its values win. What only the node has stays.
pub fn restore_now(record: &Record, node: &Incarnation, context: &Context<'_>) -> Option<Restore> {
    let policy =
        super::selection::Policy { merge: crate::config::settings::Merge::Overwrite, ..context.policy.clone() };
    let bare = Incarnation { mark: None, uid: String::new(), ..node.clone() };
    super::plan::create(&bare, Some(record), &Context { policy: &policy, ..context.clone() }, |_| true)
        .filter(|restore| !restore.changes_nothing())
}

fn next(record: &Record, node: Option<&Incarnation>, kept: Kept, context: &Context<'_>) -> Record {
    let origin = node.map_or_else(
        || record.node.clone(),
        |node| Origin {
            name: node.name.clone(),
            uid: node.uid.clone(),
            resource_version: node.resource_version,
            mark: node.mark_digest(),
            machine: node.machine.clone(),
        },
    );
    Record {
        sequence: record.sequence + 1,
        node: origin,
        kept,
        folded: false,
        before: Kept::new(),
        captured_at: context.now,
        captured_by: context.by.to_owned(),
        ..record.clone()
    }
}

fn difference(from: &Kept, to: &Kept) -> (Kept, BTreeSet<Key>) {
    let set =
        to.iter().filter(|(key, value)| from.get(key) != Some(value)).map(|(k, v)| (k.clone(), v.clone())).collect();
    let remove = from.keys().filter(|key| !to.contains_key(*key)).cloned().collect();
    (set, remove)
}

/// The record under another identity, where the setting changed and the record knows enough. `None`: it stays.
pub fn migrate(record: &Record, identity: &Identity, context_by: &str, now: jiff::Timestamp) -> Option<Record> {
    let (mut labels, mut annotations) = (BTreeMap::new(), BTreeMap::new());
    for (key, value) in &record.kept {
        match key {
            Key::Label(key) => drop(labels.insert(key.clone(), value.clone())),
            Key::Annotation(key) => drop(annotations.insert(key.clone(), value.clone())),
            _ => {}
        }
    }
    let node = Node {
        name: record.node.name.clone(),
        machine: record.node.machine.clone(),
        labels,
        annotations,
        ..Node::default()
    };
    let identified = Identified::of(identity, &node)?;
    let moved = Record {
        identity: identified.text(),
        sequence: record.sequence + 1,
        captured_at: now,
        captured_by: context_by.to_owned(),
        ..record.clone()
    };
    (moved.name() != record.name()).then_some(moved)
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::{
        config::settings::Settings,
        keeper::{
            machine::Machine,
            plan::{Plan, Why, gone, live},
            selection::Policy,
        },
    };

    fn policy() -> Policy {
        Policy::from_settings(&Settings::default().keeper)
    }

    fn context(policy: &Policy) -> Context<'_> {
        Context { policy, identity: None, now: Timestamp::UNIX_EPOCH, by: "cli" }
    }

    fn kept(text: &str) -> Kept {
        text.split_whitespace().filter_map(|p| p.split_once('=')).map(|(k, v)| (Key::label(k), v.to_owned())).collect()
    }

    fn node(rv: u64, labels: &str) -> Incarnation {
        let machine = Machine { system_uuid: "s".into(), ..Machine::default() };
        Incarnation {
            name: "n1".into(),
            uid: "u1".into(),
            resource_version: rv,
            kept: kept(labels),
            mark: None,
            machine,
        }
    }

    fn written(plan: Plan) -> Record {
        match plan {
            Plan::Write(_, record) => *record,
            other => panic!("{other:?}"),
        }
    }

    fn two_captures() -> Record {
        let policy = policy();
        let first = written(live(&node(5, "team=ml rack=r1"), None, &context(&policy)));
        written(live(&node(6, "team=db extra=x"), Some(&first), &context(&policy)))
    }

    #[test]
    fn a_rollback_is_at_rest_before_and_after_the_node_is_patched() {
        let (policy, record) = (policy(), two_captures());
        let now = node(6, "team=db extra=x");
        let change = rollback(&record, &record.history[0], Some(&now), &context(&policy));
        assert_eq!(change.set, kept("team=ml rack=r1"));
        assert_eq!(change.remove, BTreeSet::from([Key::label("extra")]));
        assert_eq!(live(&now, Some(&change.record), &context(&policy)), Plan::Nothing(Why::Older));
        let after = node(8, "team=ml rack=r1");
        assert_eq!(live(&after, Some(&change.record), &context(&policy)), Plan::Nothing(Why::Current));
        assert_eq!(change.record.sequence, 3);
        assert_eq!(Kept::from(change.record.history[0].content.clone()), kept("team=db extra=x"));
    }

    #[test]
    fn a_rollback_takes_nothing_from_a_node_that_the_record_never_held() {
        let (policy, record) = (policy(), two_captures());
        let now = node(6, "team=db extra=x disk=nvme");
        let change = rollback(&record, &record.history[0], Some(&now), &context(&policy));
        assert_eq!(change.remove, BTreeSet::from([Key::label("extra")]));
    }

    #[test]
    fn a_rollback_that_is_tried_again_does_what_it_was_to_do() {
        let (policy, record) = (policy(), two_captures());
        let to = record.history[0].clone();
        let first = rollback(&record, &to, Some(&node(6, "team=db extra=x")), &context(&policy));
        // The record is written; the node has changed before it could be patched.
        let again = rollback(&first.record, &to, Some(&node(9, "team=db extra=x")), &context(&policy));
        assert_eq!((again.set, again.remove), (first.set, first.remove));
        assert_eq!(again.record.kept, first.record.kept);
        assert_eq!(again.record.history, first.record.history);
        assert_eq!(again.record.node.resource_version, 10);
    }

    #[test]
    fn a_rollback_of_a_node_that_is_away_is_given_when_it_returns() {
        let (policy, record) = (policy(), two_captures());
        let change = rollback(&record, &record.history[0], None, &context(&policy));
        let back = Incarnation { uid: "u2".into(), ..node(9, "") };
        match live(&back, Some(&change.record), &context(&policy)) {
            Plan::Restore(restore) => assert_eq!(restore.set, kept("team=ml rack=r1")),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_forgotten_live_node_is_still_kept() {
        let (policy, record) = (policy(), two_captures());
        let now = node(6, "team=db extra=x");
        let forgotten = forget(&record, Some(&now), &context(&policy));
        assert!(forgotten.history.is_empty());
        assert_eq!(live(&now, Some(&forgotten), &context(&policy)), Plan::Nothing(Why::Current));
        assert_eq!(gone(&node(8, "team=db extra=x"), Some(&forgotten), &context(&policy)), Plan::Nothing(Why::Current));
    }

    #[test]
    fn a_forgotten_absent_node_leaves_a_tombstone() {
        let (policy, record) = (policy(), two_captures());
        let forgotten = forget(&record, None, &context(&policy));
        assert!(forgotten.is_tombstone() && forgotten.sequence == 3);
    }

    #[test]
    fn restoring_now_sets_what_the_record_has() {
        let (policy, record) = (policy(), two_captures());
        let restore = restore_now(&record, &node(9, "team=other mine=1"), &context(&policy)).unwrap();
        assert_eq!(restore.set, kept("team=db extra=x"));
        assert!(restore.remove.is_empty());
        assert!(restore_now(&record, &node(9, "team=db extra=x mine=1"), &context(&policy)).is_none());
    }

    #[test]
    fn a_record_moves_to_another_identity_where_it_knows_it() {
        let record = two_captures();
        let moved = migrate(&record, &Identity::SystemUuid, "cli", Timestamp::UNIX_EPOCH).unwrap();
        assert_ne!(moved.name(), record.name());
        assert_eq!(moved.kept, record.kept);
        assert_eq!(migrate(&record, &Identity::ProviderId, "cli", Timestamp::UNIX_EPOCH), None);
        assert_eq!(migrate(&record, &Identity::Name, "cli", Timestamp::UNIX_EPOCH), None);
        let back = migrate(&moved, &Identity::Name, "cli", Timestamp::UNIX_EPOCH).unwrap();
        assert_eq!(back.name(), record.name());
    }
}
