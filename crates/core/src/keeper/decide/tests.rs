//! The transition table, row by row, and properties over random lives of a node.

use proptest::prelude::*;
use rstest::rstest;

use super::*;
use crate::{
    config::{pattern::Patterns, settings::Merge},
    keeper::{
        keys::{Content, digest},
        machine::Machine,
        mark::MARK,
        record::Withheld,
        selection::Node,
        testing::{after, case, create, gone, kept, labels, live, policy},
    },
};

fn node(uid: &str, rv: u64, pairs: &str) -> Node {
    Node { name: "n1".into(), uid: uid.into(), resource_version: rv, labels: labels(pairs), ..Node::default() }
}

fn on(machine: &str, mut node: Node) -> Node {
    let mut parts = machine.split(',').map(str::to_owned);
    let mut next = || parts.next().unwrap_or_default();
    node.machine = Machine { provider_id: next(), system_uuid: next(), machine_id: next() };
    node
}

/// Returns the keys that the default policy keeps of a node.
fn kept_of(node: &Node) -> Kept {
    policy().select(node)
}

fn written(decision: Decision, kind: RecordWrite) -> Record {
    match decision {
        Decision::WriteRecord(found, record) if found == kind => *record,
        other => panic!("expected {kind:?}, got {other:?}"),
    }
}

fn restored(decision: Decision) -> Restore {
    match decision {
        Decision::PatchNode(restore) => restore,
        other => panic!("expected a restore, got {other:?}"),
    }
}

/// Returns the record of a node that was captured as it is.
fn record_of(node: &Node) -> Record {
    written(live(node, None, &policy()), RecordWrite::Capture)
}

#[test]
fn a_node_with_kept_keys_and_no_record_is_captured() {
    let record = record_of(&node("u1", 5, "team=ml"));
    assert_eq!((record.sequence, &*record.node.uid, record.node.resource_version), (1, "u1", 5));
    assert_eq!(record.kept, kept("team=ml"));
}

#[test]
fn a_node_with_nothing_kept_and_no_record_costs_nothing() {
    let bare = node("u1", 5, "");
    assert_eq!(live(&bare, None, &policy()), Decision::Nothing(Reason::NoRecord));
    assert_eq!(gone(&bare, None, &policy()), Decision::Nothing(Reason::NoRecord));
}

#[test]
fn a_node_like_its_record_costs_nothing() {
    let n = node("u1", 5, "team=ml");
    let later = node("u1", 9, "team=ml");
    assert_eq!(live(&later, Some(&record_of(&n)), &policy()), Decision::Nothing(Reason::Current));
}

#[test]
fn a_last_state_that_needs_no_write_is_captured_again_with_the_same_content() {
    let record = record_of(&node("u1", 5, "team=ml"));
    let back = node("u1", 9, "team=ml");
    let again = capture_again(&case(Phase::Gone, &back, Some(&record), &policy())).unwrap();
    assert_eq!((&again.kept, again.sequence, again.node.resource_version), (&record.kept, 2, 9));
    assert_eq!(gone(&back, Some(&again), &policy()), Decision::Nothing(Reason::Current));
    assert_eq!(
        live(&node("u1", 7, "team=db"), Some(&again), &policy()),
        Decision::Nothing(Reason::Older),
        "the state in between is not captured any more"
    );

    let emptied = capture_again(&case(Phase::Gone, &node("u1", 9, ""), None, &policy())).unwrap();
    assert!(emptied.is_tombstone());
}

#[test]
fn a_last_state_that_differs_is_captured_once() {
    let record = record_of(&node("u1", 5, "team=ml"));
    assert_eq!(capture_again(&case(Phase::Gone, &node("u1", 9, "team=db"), Some(&record), &policy())), None);
    assert_eq!(capture_again(&case(Phase::Live, &node("u1", 9, "team=ml"), Some(&record), &policy())), None);
    assert_eq!(capture_again(&case(Phase::Gone, &node("u2", 9, "team=db"), Some(&record), &policy())), None);
}

#[rstest]
#[case::changed("team=db")]
#[case::added("team=ml rack=r1")]
#[case::emptied("")]
fn a_settled_node_that_differs_is_captured(#[case] now: &str) {
    let record = record_of(&node("u1", 5, "team=ml"));
    let next = written(live(&node("u1", 6, now), Some(&record), &policy()), RecordWrite::Capture);
    assert_eq!(next.kept, kept(now));
    assert_eq!(next.sequence, 2);
    assert_eq!(next.is_tombstone(), now.is_empty());
    assert_eq!(Kept::from(next.history[0].content.clone()), kept("team=ml"));
}

#[test]
fn an_older_view_of_a_settled_node_changes_nothing() {
    let record = record_of(&node("u1", 5, "team=ml"));
    let older = node("u1", 4, "team=db");
    assert_eq!(live(&older, Some(&record), &policy()), Decision::Nothing(Reason::Older));
    assert_eq!(gone(&older, Some(&record), &policy()), Decision::Nothing(Reason::Older));
    let predecessor = node("u0", 5, "team=db");
    assert_eq!(gone(&predecessor, Some(&record), &policy()), Decision::Nothing(Reason::Older));
}

#[test]
fn a_bare_returning_node_is_given_its_record_and_is_then_settled() {
    let record = record_of(&node("u1", 5, "team=ml rack=r1"));
    let bare = node("u2", 8, "");
    let restore = restored(live(&bare, Some(&record), &policy()));
    assert_eq!(restore.set, kept("team=ml rack=r1"));
    assert!(restore.remove.is_empty() && restore.mark.complete);
    assert_eq!(restore.mark.given, kept("team=ml rack=r1"));
    let full = after(&bare, &restore);
    assert_eq!(live(&full, Some(&record), &policy()), Decision::Nothing(Reason::Current));
}

#[test]
fn a_value_that_a_returning_node_brings_wins_and_is_captured_once() {
    let record = record_of(&node("u1", 5, "team=ml rack=r1"));
    let came = node("u2", 8, "team=db");
    let restore = restored(live(&came, Some(&record), &policy()));
    assert_eq!(restore.set, kept("rack=r1"));
    assert_eq!(restore.mark.own, BTreeSet::from([Key::label("team")]));
    let full = after(&came, &restore);
    let next = written(live(&full, Some(&record), &policy()), RecordWrite::Capture);
    assert_eq!(next.kept, kept("team=db rack=r1"));
    assert_eq!(live(&full, Some(&next), &policy()), Decision::Nothing(Reason::Current));
}

#[test]
fn overwrite_gives_the_recorded_value() {
    let policy = Policy { merge: Merge::Overwrite, ..policy() };
    let record = record_of(&node("u1", 5, "team=ml"));
    let came = node("u2", 8, "team=db extra=x");
    let restore = restored(live(&came, Some(&record), &policy));
    assert_eq!(restore.set, kept("team=ml"));
    assert!(restore.remove.is_empty());
    let full = after(&came, &restore);
    let next = written(live(&full, Some(&record), &policy), RecordWrite::Capture);
    assert_eq!(next.kept, kept("team=ml extra=x"));
}

#[test]
fn a_node_that_returns_with_everything_claims_its_record_without_a_patch() {
    let record = record_of(&node("u1", 5, "team=ml"));
    let came = node("u2", 8, "team=ml");
    let next = written(live(&came, Some(&record), &policy()), RecordWrite::Claim);
    assert_eq!((&*next.node.uid, next.sequence), ("u2", 2));
    assert_eq!(live(&came, Some(&next), &policy()), Decision::Nothing(Reason::Current));
}

#[test]
fn a_flapping_node_keeps_its_record() {
    let record = record_of(&node("u1", 5, "team=ml"));
    let bare = node("u2", 8, "");
    assert_eq!(gone(&bare, Some(&record), &policy()), Decision::Nothing(Reason::Current));
}

#[test]
fn changes_of_a_flapping_node_are_folded_in() {
    let record = record_of(&node("u1", 5, "team=ml rack=r1"));
    let flapped = node("u2", 8, "team=db");
    let next = written(gone(&flapped, Some(&record), &policy()), RecordWrite::Fold);
    assert!(next.folded);
    assert_eq!(next.kept, kept("team=db rack=r1"));
    assert_eq!(next.before, kept("team=ml rack=r1"));
    assert_eq!(gone(&flapped, Some(&next), &policy()), Decision::Nothing(Reason::Older));
}

#[test]
fn a_fold_whose_delete_was_refused_is_decided_again_against_the_state_before() {
    let record = record_of(&node("u1", 5, "team=ml rack=r1"));
    let flapped = node("u2", 8, "team=db");
    let folded = written(gone(&flapped, Some(&record), &policy()), RecordWrite::Fold);
    let restore = restored(live(&flapped, Some(&folded), &policy()));
    assert_eq!(restore.set, kept("rack=r1"));
    let full = after(&flapped, &restore);
    let next = written(live(&full, Some(&folded), &policy()), RecordWrite::Capture);
    assert!(!next.folded);
    assert_eq!(next.kept, kept("team=db rack=r1"));
}

#[test]
fn the_last_state_of_a_settled_node_is_captured() {
    let record = record_of(&node("u1", 5, "team=ml"));
    let next = written(gone(&node("u1", 7, "team=db"), Some(&record), &policy()), RecordWrite::Capture);
    assert_eq!(next.kept, kept("team=db"));
    assert!(!next.folded);
}

#[test]
fn a_late_delete_of_an_older_incarnation_changes_nothing() {
    let second = record_of(&node("u2", 20, "team=db"));
    assert_eq!(gone(&node("u1", 15, "team=ml"), Some(&second), &policy()), Decision::Nothing(Reason::Older));
}

#[test]
fn a_removed_label_stays_removed() {
    let record = record_of(&node("u1", 5, "team=ml rack=r1"));
    let next = written(live(&node("u1", 6, "rack=r1"), Some(&record), &policy()), RecordWrite::Capture);
    let restore = restored(live(&node("u2", 9, ""), Some(&next), &policy()));
    assert_eq!(restore.set, kept("rack=r1"));
}

#[test]
fn a_label_removed_between_restore_and_capture_is_not_resurrected() {
    let record = record_of(&node("u1", 5, "team=ml rack=r1"));
    let restore = restored(live(&node("u2", 8, ""), Some(&record), &policy()));
    let mut full = after(&node("u2", 8, ""), &restore);
    full.labels.remove("team");
    full.resource_version += 1;
    let next = written(live(&full, Some(&record), &policy()), RecordWrite::Capture);
    assert_eq!(next.kept, kept("rack=r1"));
}

#[test]
fn a_newer_record_updates_only_given_keys_that_are_unchanged() {
    let record = record_of(&node("u1", 5, "team=ml rack=r1 gone=x"));
    let bare = node("u2", 8, "");
    let given = after(&bare, &restored(live(&bare, Some(&record), &policy())));
    // The last state of u1 arrives late: it had changed once more.
    let moved = written(gone(&node("u1", 7, "team=db rack=r1"), Some(&record), &policy()), RecordWrite::Capture);
    let mut touched = given.clone();
    touched.labels.insert("rack".into(), "mine".into());
    let restore = restored(live(&touched, Some(&moved), &policy()));
    assert_eq!(restore.set, kept("team=db"));
    assert_eq!(restore.remove, BTreeSet::from([Key::label("gone")]));
    assert_eq!(kept_of(&after(&touched, &restore)), kept("team=db rack=mine"));
}

#[test]
fn a_narrower_policy_never_takes_keys_out_of_records_nor_gives_them() {
    let record = record_of(&node("u1", 5, "team=ml rack=r1"));
    let mut narrow = policy();
    narrow.keep = crate::config::pattern::Patterns::of(&["rack"]);
    let next = written(live(&node("u1", 6, "rack=r2"), Some(&record), &narrow), RecordWrite::Capture);
    assert_eq!(next.kept, kept("team=ml rack=r2"));
    assert_eq!(restored(live(&node("u2", 9, ""), Some(&next), &narrow)).set, kept("rack=r2"));
}

const ROLE: &str = "node-role.kubernetes.io/gpu";

#[test]
fn protected_keys_go_only_to_the_same_machine() {
    let first = on("p,s,m", node("u1", 5, &format!("team=ml {ROLE}=yes")));
    let record = record_of(&first);
    let same = on("p,s,m", node("u2", 8, ""));
    assert_eq!(restored(live(&same, Some(&record), &policy())).set, kept_of(&first));

    let other = on("p,x,m", node("u2", 8, ""));
    let restore = restored(live(&other, Some(&record), &policy()));
    assert_eq!(restore.set, kept("team=ml"));
    assert_eq!(restore.withheld, BTreeSet::from([Key::label(ROLE)]));
    assert!(!restore.mark.complete);

    // The other machine takes the record over; what was protected waits for its own machine.
    let other = after(&other, &restore);
    let claimed = written(live(&other, Some(&record), &policy()), RecordWrite::Claim);
    assert_eq!(claimed.kept, kept("team=ml"));
    assert_eq!(live(&other, Some(&claimed), &policy()), Decision::Nothing(Reason::Current));
    let again = on("p,x,m", node("u3", 12, ""));
    assert_eq!(restored(live(&again, Some(&claimed), &policy())).set, kept("team=ml"));
    let back = on("p,s,m", node("u4", 12, ""));
    assert_eq!(restored(live(&back, Some(&claimed), &policy())).set, kept_of(&first));
}

#[test]
fn a_machine_that_is_not_known_yet_waits_for_its_protected_keys() {
    let record = record_of(&on("p,s,m", node("u1", 5, &format!("team=ml {ROLE}=yes"))));
    let early = on(",s,m", node("u2", 8, ""));
    let restore = restored(live(&early, Some(&record), &policy()));
    assert_eq!(restore.set, kept("team=ml"));
    let early = after(&early, &restore);
    assert_eq!(live(&early, Some(&record), &policy()), Decision::Nothing(Reason::MachineUnknown));
    let known = on("p,s,m", early);
    assert_eq!(restored(live(&known, Some(&record), &policy())).set, kept(&format!("{ROLE}=yes")));
}

#[test]
fn an_unknown_machine_that_goes_again_leaves_protected_keys_to_their_machine() {
    let record = record_of(&on("p,s,m", node("u1", 5, &format!("team=ml {ROLE}=yes"))));
    let folded = written(gone(&on(",s,m", node("u2", 8, "team=db")), Some(&record), &policy()), RecordWrite::Fold);
    assert_eq!(folded.kept, kept("team=db"));
    let back = on("p,s,m", node("u3", 12, ""));
    let restore = restored(live(&back, Some(&folded), &policy()));
    assert_eq!(restore.set, kept(&format!("team=db {ROLE}=yes")));
}

#[test]
fn a_machine_that_returns_after_another_waits_until_it_is_known() {
    let record = record_of(&on("p,s,m", node("u1", 5, &format!("team=ml {ROLE}=yes"))));
    let other = on("q,t,n", node("u2", 8, "team=ml"));
    let record = written(live(&other, Some(&record), &policy()), RecordWrite::Claim);

    let early = on(",s,m", node("u3", 12, ""));
    let restore = restored(live(&early, Some(&record), &policy()));
    assert!(!restore.mark.complete);
    let early = after(&early, &restore);
    assert_eq!(live(&early, Some(&record), &policy()), Decision::Nothing(Reason::MachineUnknown));
    let known = on("p,s,m", early);
    assert_eq!(restored(live(&known, Some(&record), &policy())).set, kept(&format!("{ROLE}=yes")));
}

#[test]
fn two_machines_that_have_the_same_protected_key_keep_a_value_each() {
    let record = record_of(&on("p,s,m", node("u1", 5, &format!("{ROLE}=one"))));
    let other = on("q,t,n", node("u2", 8, &format!("{ROLE}=two")));
    let record = written(gone(&other, Some(&record), &policy()), RecordWrite::Fold);
    assert_eq!(record.before, kept(""), "what another machine had is not what this one was merged into");

    let back = on("p,s,m", node("u3", 12, "team=ml"));
    let restore = restored(live(&back, Some(&record), &policy()));
    assert_eq!(restore.set, kept(&format!("{ROLE}=one")));
    let record = written(live(&after(&back, &restore), Some(&record), &policy()), RecordWrite::Capture);
    let other = on("q,t,n", node("u4", 20, ""));
    assert_eq!(restored(live(&other, Some(&record), &policy())).set, kept(&format!("team=ml {ROLE}=two")));
}

#[test]
fn withheld_keys_of_a_machine_do_not_replace_newer_values_once_it_is_known() {
    let record = record_of(&on(",s,m", node("u1", 5, &format!("{ROLE}=old"))));
    let born = on(",s,m", node("u2", 8, ""));
    let full = on("p,s,m", after(&born, &restored(live(&born, Some(&record), &policy()))));
    let record = written(live(&full, Some(&record), &policy()), RecordWrite::Capture);
    assert!(record.withheld.is_empty(), "the machine has spoken of that key since");
    let changed = Node { labels: labels(&format!("{ROLE}=new")), resource_version: 20, ..full };
    let record = written(live(&changed, Some(&record), &policy()), RecordWrite::Capture);
    let again = on(",s,m", node("u3", 25, "x=y"));
    let early = after_its_restore(&again, &record);
    assert_eq!(live(&early, Some(&record), &policy()), Decision::Nothing(Reason::MachineUnknown));
    assert_eq!(restored(live(&on("p,s,m", early), Some(&record), &policy())).set, kept(&format!("{ROLE}=new")));
}

/// The node after its restore, if it is given anything.
fn after_its_restore(node: &Node, record: &Record) -> Node {
    match live(node, Some(record), &policy()) {
        Decision::PatchNode(restore) => after(node, &restore),
        _ => node.clone(),
    }
}

#[test]
fn a_machine_that_is_folded_away_and_returns_before_it_left_is_still_given_its_keys() {
    let record = record_of(&on("p,s,m", node("u1", 5, &format!("{ROLE}=yes"))));
    let early = on(",s,m", node("u2", 8, "team=ml"));
    // The delete was captured and then refused. In between, the node reports its machine.
    let folded = written(gone(&early, Some(&record), &policy()), RecordWrite::Fold);
    let known = on("p,s,m", early);
    let restore = restored(live(&known, Some(&folded), &policy()));
    assert_eq!(restore.set, kept(&format!("{ROLE}=yes")));
    let removed = Node { labels: labels("team=ml"), resource_version: 11, ..after(&known, &restore) };
    let last = written(gone(&removed, Some(&folded), &policy()), RecordWrite::Capture);
    assert_eq!((last.kept, last.withheld), (kept("team=ml"), Vec::new()), "its removal is not undone");
}

fn narrow(keep: &str) -> Policy {
    Policy { keep: crate::config::pattern::Patterns::of(&[keep]), ..policy() }
}

#[test]
fn a_key_that_the_policy_keeps_again_is_given_to_a_node_that_joined_in_between() {
    let record = record_of(&node("u1", 5, "team=ml rack=r1"));
    let restore = create(&node("", 0, ""), &record, &narrow("rack"), false);
    let born = after(&node("u2", 8, ""), &restore);
    assert_eq!(live(&born, Some(&record), &narrow("rack")), Decision::Nothing(Reason::Current));
    assert_eq!(restored(live(&born, Some(&record), &policy())).set, kept("team=ml"));
}

#[test]
fn a_key_that_the_policy_comes_to_keep_is_captured_from_a_node_that_did_not_change() {
    let wide = node("u1", 5, "team=ml rack=r1");
    let record = written(live(&wide, None, &narrow("rack")), RecordWrite::Capture);
    for decision in [live(&wide, Some(&record), &policy()), gone(&wide, Some(&record), &policy())] {
        let next = written(decision, RecordWrite::Capture);
        assert_eq!(next.kept, kept_of(&wide));
        assert_eq!(live(&wide, Some(&next), &policy()), Decision::Nothing(Reason::Current));
        assert_eq!(gone(&wide, Some(&next), &policy()), Decision::Nothing(Reason::Current));
    }
}

#[test]
fn a_protected_key_that_is_not_kept_now_stays_with_its_machine() {
    let record = record_of(&on("p,s,m", node("u1", 5, &format!("team=ml {ROLE}=yes"))));
    let other = on("q,t,n", node("u2", 8, "team=db"));
    let record = written(gone(&other, Some(&record), &narrow("team")), RecordWrite::Fold);
    let again = on("q,t,n", node("u3", 12, ""));
    assert_eq!(restored(live(&again, Some(&record), &policy())).set, kept("team=db"));
    let back = on("p,s,m", node("u4", 12, ""));
    assert_eq!(restored(live(&back, Some(&record), &policy())).set, kept(&format!("team=db {ROLE}=yes")));
}

#[test]
fn a_waiting_owner_costs_nothing() {
    let mut record = record_of(&on(",s,m", node("u1", 5, &format!("{ROLE}=yes"))));
    let machine = on("p,s,m", node("", 0, "")).machine;
    record.withheld = vec![Withheld { machine, content: Content::from(&kept(&format!("{ROLE}=old"))) }];
    for rv in [5, 6] {
        let owner = on(",s,m", node("u1", rv, &format!("{ROLE}=yes")));
        assert_eq!(live(&owner, Some(&record), &policy()), Decision::Nothing(Reason::Current));
    }
}

#[test]
fn a_node_that_learns_its_provider_id_completes_its_record() {
    let record = record_of(&on(",s,m", node("u1", 5, "team=ml")));
    let known = on("p,s,m", node("u1", 6, "team=ml"));
    let next = written(live(&known, Some(&record), &policy()), RecordWrite::Capture);
    assert_eq!(next.node.machine, known.machine);
    assert!(next.history.is_empty());
}

#[test]
fn a_create_carries_the_record_and_its_mark() {
    let record = record_of(&node("u1", 5, "team=ml rack=r1"));
    let restore = create(&node("", 0, "rack=mine"), &record, &policy(), false);
    assert_eq!(restore.set, kept("team=ml"));
    let born = after(&node("u2", 8, "rack=mine"), &restore);
    let next = written(live(&born, Some(&record), &policy()), RecordWrite::Capture);
    assert_eq!(next.kept, kept("team=ml rack=mine"));
}

#[test]
fn a_create_does_not_believe_a_mark_that_came_with_it() {
    let record = record_of(&node("u1", 5, "team=ml"));
    let mut saved = node("", 0, "");
    let mark = Mark { from: digest(&record.kept), complete: true, ..Mark::default() };
    saved.annotations.insert(MARK.into(), mark.render());
    let restore = create(&saved, &record, &policy(), false);
    assert_eq!(restore.set, kept("team=ml"));
}

#[test]
fn a_kubelets_create_gets_only_permitted_keys_and_the_rest_follows() {
    let record = record_of(&node("u1", 5, &format!("team=ml {ROLE}=yes")));
    let restore = create(&node("", 0, ""), &record, &policy(), true);
    assert_eq!(restore.set, kept("team=ml"));
    assert!(!restore.mark.complete && !restore.mark.given.contains_key(&Key::label(ROLE)));
    let born = after(&node("u2", 8, ""), &restore);
    let rest = restored(live(&born, Some(&record), &policy()));
    assert_eq!(rest.set, kept(&format!("{ROLE}=yes")));
    assert!(rest.mark.complete);
}

#[test]
fn a_tombstone_gives_a_mark_and_no_labels() {
    let record = record_of(&node("u1", 5, "team=ml"));
    let tombstone = written(live(&node("u1", 6, ""), Some(&record), &policy()), RecordWrite::Capture);
    let restore = create(&node("", 0, ""), &tombstone, &policy(), false);
    assert!(restore.changes_nothing() && restore.mark.complete);
}

/// One step in the life of a node with a record, everything processed in order.
#[derive(Clone, Debug)]
enum NodeStep {
    Set(u8, u8),
    Remove(u8),
    Leave,
    Return,
    ReturnWith(u8, u8),
    Reconcile,
}

fn step() -> impl Strategy<Value = NodeStep> {
    let (key, value) = (0u8..3, 0u8..3);
    prop_oneof![
        (key.clone(), value.clone()).prop_map(|(k, v)| NodeStep::Set(k, v)),
        key.clone().prop_map(NodeStep::Remove),
        Just(NodeStep::Leave),
        Just(NodeStep::Return),
        (key, value).prop_map(|(k, v)| NodeStep::ReturnWith(k, v)),
        Just(NodeStep::Reconcile),
    ]
}

fn is_settled(node: &Node, record: Option<&Record>) -> bool {
    let case = case(Phase::Live, node, record, &policy());
    record.is_none_or(|record| RecordView::new(&case, record).is_settled())
}

proptest! {
    /// With every delete seen, whatever order the rest comes in: nothing lost, nothing undone, and
    /// it comes to rest.
    #[test]
    fn every_life_ends_with_the_labels_that_people_set(steps in proptest::collection::vec(step(), 1..40)) {
        let policy = policy();
        let name = |k: u8| format!("k{k}");
        let mut rv = 1;
        let mut uid = 1;
        let mut here = Some(node("u1", 1, ""));
        let mut record: Option<Record> = None;
        let mut wanted = std::collections::BTreeMap::new();

        let apply = |decision: Decision, here: &mut Option<Node>, record: &mut Option<Record>, rv: &mut u64| -> bool {
            match decision {
                Decision::Nothing(_) => false,
                Decision::WriteRecord(_, next) => {
                    assert!(next.sequence > record.as_ref().map_or(0, |r| r.sequence));
                    *record = Some(*next);
                    true
                }
                Decision::PatchNode(restore) => {
                    let mut next = after(here.as_ref().unwrap(), &restore);
                    *rv += 1;
                    next.resource_version = *rv;
                    *here = Some(next);
                    true
                }
            }
        };
        let settle = |here: &mut Option<Node>, record: &mut Option<Record>, rv: &mut u64| {
            let mut writes = 0;
            while let Some(now) = here.clone() {
                if !apply(live(&now, record.as_ref(), &policy), here, record, rv) { break }
                writes += 1;
                assert!(writes < 5, "never comes to rest");
            }
        };

        for step in steps {
            rv += 1;
            match (step, &mut here) {
                (NodeStep::Set(k, v), Some(now)) => {
                    // A value equal to one that is still to come is no decision that could be told
                    // (limit B).
                    let settled = is_settled(now, record.as_ref());
                    if settled {
                        now.labels.insert(name(k), v.to_string());
                        now.resource_version = rv;
                        wanted.insert(name(k), v.to_string());
                    }
                }
                (NodeStep::Remove(k), Some(now)) => {
                    let settled = is_settled(now, record.as_ref());
                    if settled {
                        now.labels.remove(&name(k));
                        now.resource_version = rv;
                        wanted.remove(&name(k));
                    }
                }
                (NodeStep::Leave, Some(now)) => {
                    let mut last = now.clone();
                    last.resource_version = rv;
                    let mut none = None;
                    apply(gone(&last, record.as_ref(), &policy), &mut none, &mut record, &mut rv);
                    prop_assert_eq!(&gone(&last, record.as_ref(), &policy), &gone(&last, record.as_ref(), &policy));
                    here = None;
                }
                (NodeStep::Return, None) => {
                    uid += 1;
                    here = Some(node(&format!("u{uid}"), rv, ""));
                }
                (NodeStep::ReturnWith(k, v), None) => {
                    uid += 1;
                    let mut came = node(&format!("u{uid}"), rv, "");
                    came.labels.insert(name(k), v.to_string());
                    wanted.insert(name(k), v.to_string());
                    here = Some(came);
                }
                (NodeStep::Reconcile, Some(_)) => settle(&mut here, &mut record, &mut rv),
                _ => {}
            }
        }
        if here.is_none() {
            rv += 1;
            here = Some(node("last", rv, ""));
        }
        settle(&mut here, &mut record, &mut rv);
        prop_assert_eq!(&here.unwrap().labels, &wanted);
    }

    /// Keys outside the policy are in no patch of a node, whatever is on it or in the record.
    #[test]
    fn foreign_keys_are_never_touched(
        on_node in proptest::collection::btree_map("k[0-4]", "[ab]", 0..5),
        in_record in proptest::collection::btree_map("k[0-4]", "[ab]", 0..5),
        kept_keys in proptest::collection::vec("k[0-4]", 1..4),
        overwrite in any::<bool>(),
    ) {
        let patterns: Vec<&str> = kept_keys.iter().map(String::as_str).collect();
        let mut policy = policy();
        policy.keep = crate::config::pattern::Patterns::of(&patterns);
        policy.merge = if overwrite { Merge::Overwrite } else { Merge::KeepExisting };
        let all = |map: std::collections::BTreeMap<String, String>| -> Kept {
            map.into_iter().map(|(k, v)| (Key::Label(k), v)).collect()
        };
        let seen = Node { labels: on_node, ..node("u2", 9, "") };
        let record = Record { kept: all(in_record), ..record_of(&node("u1", 5, "x=y")) };
        match live(&seen, Some(&record), &policy) {
            Decision::PatchNode(restore) => {
                prop_assert!(restore.set.keys().chain(&restore.remove).all(|key| policy.keeps(key)));
            }
            Decision::WriteRecord(_, next) => {
                for (key, value) in record.kept.iter().filter(|(key, _)| !policy.keeps(key)) {
                    prop_assert_eq!(next.kept.get(key), Some(value));
                }
            }
            Decision::Nothing(_) => {}
        }
    }
}

/// More labels than a mark can list.
fn thousands() -> String {
    use std::fmt::Write as _;
    (0..4000).fold(String::new(), |mut text, i| {
        let _ = write!(text, "example.com/some-label-{i}=value-{i} ");
        text
    })
}

fn mark_of(node: &Node) -> Mark {
    Mark::read(&node.annotations).unwrap()
}

#[test]
fn thousands_of_labels_are_given_and_then_left_alone() {
    let record = record_of(&node("u1", 5, &thousands()));
    let bare = node("u2", 8, "");
    let given = after(&bare, &restored(live(&bare, Some(&record), &policy())));
    assert!(mark_of(&given).unlisted);
    assert_eq!(live(&given, Some(&record), &policy()), Decision::Nothing(Reason::Current));
    let mut less = given.clone();
    less.labels.remove("example.com/some-label-7");
    less.resource_version += 1;
    let next = written(live(&less, Some(&record), &policy()), RecordWrite::Capture);
    assert_eq!(next.kept, kept_of(&less));
}

#[test]
fn thousands_of_labels_that_rode_in_a_kubelets_create_are_completed() {
    let record = record_of(&node("u1", 5, &format!("{ROLE}=yes {}", thousands())));
    let restore = create(&node("", 0, ""), &record, &policy(), true);
    let mut born = after(&node("u2", 8, ""), &restore);
    assert!(!mark_of(&born).complete);
    born.labels.remove("example.com/some-label-7");
    let rest = restored(live(&born, Some(&record), &policy()));
    assert_eq!(rest.set, kept(&format!("{ROLE}=yes")));
}

#[test]
fn a_record_that_moves_on_changes_nothing_where_the_mark_lists_nothing() {
    let record = record_of(&node("u1", 5, &thousands()));
    let bare = node("u2", 8, "");
    let given = after(&bare, &restored(live(&bare, Some(&record), &policy())));
    let moved = written(gone(&node("u1", 7, "team=db"), Some(&record), &policy()), RecordWrite::Capture);
    assert_eq!(written(live(&given, Some(&moved), &policy()), RecordWrite::Claim).kept, kept_of(&given));
}

/// Returns a node whose labels have these field managers.
fn managed(uid: &str, version: u64, pairs: &str, writers: &[(&str, &str)]) -> Node {
    Node {
        name: "n1".into(),
        uid: uid.into(),
        resource_version: version,
        labels: labels(pairs),
        writers: writers.iter().copied().collect(),
        ..Node::default()
    }
}

fn captured(decision: Decision) -> Record {
    match decision {
        Decision::WriteRecord(_, record) => *record,
        other => panic!("expected a capture, got {other:?}"),
    }
}

#[rstest]
#[case::a_controller(&[("nfd-master", "a")], "")]
#[case::two_controllers(&[("nfd-master", "a"), ("kubelet", "a")], "")]
#[case::a_person(&[("kubectl-label", "a")], "a=1")]
#[case::a_controller_and_a_person(&[("kubelet", "a"), ("kubectl-edit", "a")], "a=1")]
#[case::unknown(&[("kubelet", "b")], "a=1")]
fn a_label_that_only_controllers_write_is_not_captured(#[case] writers: &[(&str, &str)], #[case] expected: &str) {
    let mut all = writers.to_vec();
    all.push(("kubectl-label", "team"));

    let record = captured(live(&managed("u1", 5, "a=1 team=ml", &all), None, &policy()));

    assert_eq!(record.kept, kept(&format!("{expected} team=ml")));
    assert!(!policy().keeps(&Key::label("aws-node-termination-handler/action")));
}

/// The API server attributes labels that a webhook gives back to the client that creates the node.
#[test]
fn a_label_that_was_given_back_in_the_create_stays_the_persons() {
    let record = captured(live(&managed("u1", 5, "team=ml", &[("kubectl-label", "team")]), None, &policy()));
    let bare = managed("", 0, "pool=blue", &[("kubelet", "pool")]);

    let restore = create(&bare, &record, &policy(), true);
    let mut created = after(&bare, &restore);
    created.uid = "u2".into();
    created.resource_version = 9;
    created.writers = [("kubelet", "pool"), ("kubelet", "team")].into_iter().collect();

    assert_eq!(created.labels, labels("pool=blue team=ml"));
    assert_eq!(live(&created, Some(&record), &policy()), Decision::Nothing(Reason::Current), "no write");
    created.labels.insert("team".into(), "web".into());
    created.resource_version = 10;
    assert_eq!(captured(live(&created, Some(&record), &policy())).kept, kept("team=web"));
}

/// The record holds a label that the kubelet of the next incarnation sets to another value.
#[test]
fn a_value_of_a_controller_is_never_overwritten() {
    let record = captured(live(&managed("u1", 5, "pool=blue", &[("kubectl-label", "pool")]), None, &policy()));
    let next = managed("u2", 9, "pool=green", &[("kubelet", "pool")]);

    assert!(
        !matches!(live(&next, Some(&record), &policy()), Decision::PatchNode(restore) if !restore.changes_nothing())
    );
    assert!(create(&next, &record, &policy(), true).changes_nothing());
}

/// A patch with more annotations than the API server accepts would always be refused, and the node
/// never captured again.
#[test]
fn annotations_that_a_node_has_no_room_for_are_not_given() {
    let policy = Policy { annotations: Patterns::of(&["*"]), ..policy() };
    let big = |key: &str, kib: usize| (Key::Annotation(key.into()), "x".repeat(kib * 1024));
    let mut record = record_of(&node("u1", 5, "team=ml"));
    record.kept.extend([big("a", 40), big("b", 40), big("c", 20)]);
    let set = |node: &Node| restored(live(node, Some(&record), &policy)).set.into_keys().collect::<Vec<_>>();
    let annotation = |key: &str| Key::Annotation(key.into());

    let mut back = node("u2", 9, "");
    assert_eq!(set(&back), [Key::label("team"), annotation("a"), annotation("c")]);
    back.annotations.insert("own".into(), "x".repeat(30 * 1024));
    assert_eq!(set(&back), [Key::label("team"), annotation("c")], "its own annotations are kept first");
    back.annotations.insert("own".into(), "x".repeat(220 * 1024));
    assert_eq!(set(&back), [Key::label("team")]);
}
