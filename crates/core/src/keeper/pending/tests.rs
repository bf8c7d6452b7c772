use proptest::prelude::*;
use rstest::rstest;

use super::*;
use crate::{
    config::settings::{Gate, Merge},
    keeper::{
        admission::admit_before_write,
        case::Phase,
        keys::Key,
        machine::Machine,
        record::Record,
        selection::Policy,
        testing::{Defaults, after, case, gone, kept, labels, live, policy},
    },
};

fn node(uid: &str, version: u64, pairs: &str) -> Node {
    Node {
        name: "n1".to_owned(),
        uid: uid.to_owned(),
        resource_version: version,
        labels: labels(pairs),
        ..Node::default()
    }
}

fn captured(node: &Node, record: Option<&Record>) -> Record {
    match gone(node, record, &policy()) {
        Decision::WriteRecord(_, record) => *record,
        other => panic!("expected a write, got {other:?}"),
    }
}

fn pending(record: Option<&Record>, states: &[Node]) -> Option<Record> {
    let stored = record.map(|record| Arc::new(Stored::Good(Box::new(record.clone()))));
    let context = Defaults::default();
    let next = after_last_states(stored.as_ref(), states.iter().cloned(), |_, _| Vec::new(), &context.context());
    next.and_then(|stored| stored.good().cloned())
}

#[test]
fn the_pending_record_is_the_one_that_the_writes_result_in() {
    let first = captured(&node("u1", 10, "team=ml tier=gold"), None);
    let states = [node("u1", 20, "team=web tier=gold"), node("u2", 30, "rack=r7")];

    let written = states.iter().fold(first.clone(), |record, state| captured(state, Some(&record)));

    let next = pending(Some(&first), &states).expect("both need a write");
    assert_eq!(next.kept, kept("team=web tier=gold rack=r7"));
    assert_eq!(next, written);
    assert_eq!(pending(Some(&written), &states), None, "the record holds them");
}

#[rstest]
#[case::no_record(None)]
#[case::a_record(Some("team=ml"))]
fn a_state_that_changes_nothing_is_not_pending(#[case] before: Option<&str>) {
    let record = before.map(|pairs| captured(&node("u1", 10, pairs), None));
    assert_eq!(pending(record.as_ref(), &[node("u1", 20, before.unwrap_or_default())]), None);
}

/// Restores a bare successor before the last state of its predecessor is written.
fn restored(next: &Record, successor: &Node, policy: &Policy) -> Node {
    match restore_before_write(&case(Phase::Live, successor, Some(next), policy)) {
        Some(restore) => {
            let mut node = after(successor, &restore);
            node.resource_version += 1;
            node
        }
        None => successor.clone(),
    }
}

/// Two replicas have different last states, neither can write them, and the node waits for a
/// protected key.
#[test]
fn a_replica_with_an_older_last_state_leaves_the_node_alone() {
    let on = |machine: &str, node: Node| {
        let machine = Machine { system_uuid: machine.to_owned(), ..Machine::default() };
        Node { machine, ..node }
    };
    let older = captured(&on("s1", node("u1", 20, "team=ml node-role.kubernetes.io/x=a")), None);
    let newer = captured(&on("s1", node("u2", 30, "team=web node-role.kubernetes.io/x=a")), Some(&older));

    let given = restored(&newer, &on("s2", node("u3", 40, "")), &policy());

    assert_eq!(given.labels, labels("team=web"));
    let again = |record: &Record| restore_before_write(&case(Phase::Live, &given, Some(record), &policy()));
    assert_eq!((again(&newer), again(&older)), (None, None));
}

#[rstest]
#[case::changed("team=ml tier=gold", "team=web tier=gold")]
#[case::added("team=ml", "team=ml tier=gold")]
#[case::removed("team=ml tier=gold", "team=ml")]
#[case::all_removed("team=ml", "")]
fn a_successor_has_the_pending_state_whether_it_is_written_or_lost(#[case] before: &str, #[case] last: &str) {
    let written = captured(&node("u1", 10, before), None);
    let next = pending(Some(&written), &[node("u1", 20, last)]).expect("a change");

    let successor = restored(&next, &node("u2", 30, ""), &policy());
    assert_eq!(successor.labels, labels(last));
    assert_eq!(restored(&next, &successor, &policy()), successor, "it is restored once");

    for record in [&written, &next] {
        match live(&successor, Some(record), &policy()) {
            Decision::WriteRecord(_, record) => assert_eq!(record.kept, kept(last)),
            Decision::Nothing(_) => assert_eq!(record.kept, kept(last)),
            Decision::PatchNode(restore) => panic!("{restore:?}"),
        }
    }
}

fn some_labels() -> impl Strategy<Value = String> {
    let pair = ("a|b|c", "1|2").prop_map(|(key, value)| format!("{key}={value} "));
    proptest::collection::vec(pair, 0..4).prop_map(|pairs| pairs.concat())
}

proptest! {
    /// Neither the written nor the pending record changes a label of a node that was restored from
    /// the pending one, and its state reaches the record.
    #[test]
    fn losing_the_pending_state_undoes_nothing(
        before in some_labels(), last in some_labels(), own in some_labels()
    ) {
        prop_assume!(!labels(&before).is_empty());
        let written = captured(&node("u1", 10, &before), None);
        let Some(next) = pending(Some(&written), &[node("u1", 20, &last)]) else { return Ok(()) };
        let successor = restored(&next, &node("u2", 30, &own), &policy());
        for record in [&written, &next] {
            match live(&successor, Some(record), &policy()) {
                Decision::PatchNode(restore) => prop_assert!(restore.changes_nothing(), "{restore:?}"),
                Decision::WriteRecord(_, record) => {
                    let all: crate::keeper::keys::Kept =
                        successor.labels.iter().map(|(k, v)| (Key::Label(k.clone()), v.clone())).collect();
                    prop_assert_eq!(record.kept, all);
                }
                Decision::Nothing(_) => {}
            }
        }
    }
}

/// A create that is answered from the pending state, with and without the write afterwards.
#[rstest]
#[case::changed("team=ml tier=gold", "team=web tier=gold")]
#[case::removed("team=ml tier=gold", "team=ml")]
fn a_create_is_answered_with_the_pending_state(#[case] before: &str, #[case] last: &str) {
    let written = captured(&node("u1", 10, before), None);
    let next = pending(Some(&written), &[node("u1", 20, last)]).expect("a change");
    let bare = Node { name: "n1".to_owned(), ..Node::default() };
    let creating = case(Phase::Creating { by_kubelet: true }, &bare, Some(&next), &policy());
    let object = serde_json::json!({"metadata": {"name": "n1"}});

    let admitted = admit_before_write(&object, &creating, Gate::Never);

    let mut created = after(&bare, &admitted.restore.expect("a restore"));
    (created.uid, created.resource_version) = ("u2".to_owned(), 30);
    assert_eq!(created.labels, labels(last));
    for record in [&written, &next] {
        match live(&created, Some(record), &policy()) {
            Decision::WriteRecord(_, record) => assert_eq!(record.kept, kept(last)),
            Decision::Nothing(_) => assert_eq!(record.kept, kept(last)),
            Decision::PatchNode(restore) => assert!(restore.changes_nothing(), "{restore:?}"),
        }
    }
}

/// Restores a node by several replicas in turn until none has anything to restore. Each has a
/// record, and whether that is still to be written.
fn restored_in_turn(replicas: &[(&Record, bool)], mut node: Node, policy: &Policy) -> Node {
    for _ in 0..4 {
        let before = node.clone();
        for (record, is_pending) in replicas {
            node = match decide(&case(Phase::Live, &node, Some(record), policy)) {
                _ if *is_pending => restored(record, &node, policy),
                Decision::PatchNode(restore) => after(&node, &restore),
                Decision::WriteRecord(..) | Decision::Nothing(_) => node,
            };
        }
        if (&node.labels, &node.annotations) == (&before.labels, &before.annotations) {
            return node;
        }
    }
    panic!("the replicas restore the node against each other: {node:?}");
}

/// While records cannot be written, replicas may have observed different deletions.
#[rstest]
#[case::changed("team=ml tier=gold", "team=web tier=gold", "team=web tier=iron")]
#[case::changed_back("team=ml", "team=web", "team=ml")]
#[case::added("team=ml", "team=ml tier=gold", "team=ml tier=gold rack=r7")]
#[case::removed("team=ml tier=gold", "team=ml", "")]
#[case::removed_and_added("team=ml tier=gold", "tier=gold", "team=ml tier=gold")]
fn replicas_that_observed_different_deletions_agree_on_the_latest(
    #[values(Merge::KeepExisting, Merge::Overwrite)] merge: Merge,
    #[values([0, 1, 2], [2, 1, 0], [1, 0, 2], [2, 0, 1])] order: [usize; 3],
    #[case] before: &str,
    #[case] first: &str,
    #[case] second: &str,
) {
    let policy = Policy { merge, ..policy() };
    let written = captured(&node("u1", 10, before), None);
    let one = pending(Some(&written), &[node("u1", 20, first)]).expect("a change");
    let mut later = restored(&one, &node("u2", 30, ""), &policy);
    (later.labels, later.resource_version) = (labels(second), 40);
    let two = pending(Some(&written), &[node("u1", 20, first), later]).expect("a change");
    let replicas = [(&written, false), (&one, true), (&two, true)];

    let node = restored_in_turn(&order.map(|at| replicas[at]), node("u3", 50, ""), &policy);

    assert_eq!(node.labels, labels(second));
    for record in [&written, &one, &two] {
        match decide(&case(Phase::Live, &node, Some(record), &policy)) {
            Decision::WriteRecord(_, next) => assert_eq!(next.kept, kept(second), "its state reaches the record"),
            Decision::Nothing(_) => assert_eq!(record.kept, kept(second)),
            Decision::PatchNode(restore) => panic!("{restore:?}"),
        }
    }
}
