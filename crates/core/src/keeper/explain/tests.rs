use std::{collections::BTreeMap, sync::Arc};

use super::*;
use crate::keeper::{
    case::Rival,
    node_patch::node_patch,
    selection::{IGNORE, Node},
    testing::{Defaults, policy},
};

fn live(node: &Node, stored: Option<&Arc<Stored>>) -> Case {
    Case::live(node.clone(), stored.cloned(), Vec::new(), &Defaults::default().context())
}

fn node(uid: &str, rv: u64, labels: &str) -> Node {
    let labels = labels.split_whitespace().filter_map(|p| p.split_once('=')).map(|(k, v)| (k.into(), v.into()));
    let machine = Machine { system_uuid: "s".into(), ..Machine::default() };
    Node {
        name: "n1".into(),
        uid: uid.into(),
        resource_version: rv,
        labels: labels.collect(),
        machine,
        ..Node::default()
    }
}

fn capture(node: &Node, before: Option<&Arc<Stored>>) -> Arc<Stored> {
    match decide(&live(node, before)) {
        Decision::WriteRecord(_, record) => Arc::new(Stored::Good(record)),
        other => panic!("{other:?}"),
    }
}

/// Returns the node after its restore.
fn restored(node: &Node, stored: &Arc<Stored>) -> Node {
    let Decision::PatchNode(restore) = decide(&live(node, Some(stored))) else { panic!("nothing to restore") };
    let patch = node_patch(node, &restore);
    let strings = |value: &serde_json::Value| -> BTreeMap<String, String> {
        serde_json::from_value(value.clone()).unwrap_or_default()
    };
    let mut next = Node { resource_version: node.resource_version + 1, ..node.clone() };
    next.labels.extend(strings(&patch["metadata"]["labels"]));
    next.annotations.extend(strings(&patch["metadata"]["annotations"]));
    next
}

fn why(key: &str, node: Option<&Node>, stored: Option<&Arc<Stored>>) -> Cause {
    let case = match node {
        Some(node) => live(node, stored),
        None => Case::absent(stored.cloned(), &Defaults::default().context()),
    };
    explain(&Key::label(key), &case)
}

#[test]
fn a_key_that_is_kept_and_one_that_was_given() {
    let first = node("u1", 5, "team=ml");
    let stored = capture(&first, None);
    assert_eq!(why("team", Some(&first), Some(&stored)), Cause::Kept { value: "ml".into(), given: false });
    let back = node("u2", 7, "");
    assert_eq!(why("team", Some(&back), Some(&stored)), Cause::ToGive { value: "ml".into() });
    let back = restored(&back, &stored);
    assert_eq!(why("team", Some(&back), Some(&stored)), Cause::Kept { value: "ml".into(), given: true });
    assert_eq!(why("team", None, Some(&stored)), Cause::Waits { value: "ml".into(), protected: false });
}

#[test]
fn patterns_are_named() {
    let here = node("u1", 5, "");
    let dropped = why("topology.kubernetes.io/zone", Some(&here), None);
    assert!(
        matches!(&dropped, Cause::Dropped { policy, pattern } if policy == "config" && pattern.matches("topology.kubernetes.io/zone"))
    );
    assert_eq!(why("perennial.dev/x", Some(&here), None), Cause::OurDomain);
    let narrow =
        Policy { keep: crate::config::pattern::Patterns::of(&["example.com/"]), name: "gpu".into(), ..policy() };
    let narrowed = Case::live(here, None, Vec::new(), &Defaults(narrow.into()).context());
    let cause = explain(&Key::label("team"), &narrowed);
    assert_eq!(cause, Cause::NotKept { policy: "gpu".into() });
}

#[test]
fn a_removal_is_distinguished_from_a_key_that_never_existed() {
    let stored = capture(&node("u1", 5, "team=ml rack=r1"), None);
    let now = node("u1", 6, "team=ml");
    assert_eq!(why("rack", Some(&now), Some(&stored)), Cause::BeingRemoved { value: "r1".into() });
    let stored = capture(&now, Some(&stored));
    assert!(
        matches!(why("rack", Some(&now), Some(&stored)), Cause::Removed { value, sequence: 1, .. } if value == "r1")
    );
    assert_eq!(why("other", Some(&now), Some(&stored)), Cause::NeverSeen);
}

#[test]
fn a_value_of_the_nodes_own_wins_and_is_captured() {
    let stored = capture(&node("u1", 5, "team=ml disk=x"), None);
    let back = restored(&node("u2", 7, "team=web"), &stored);
    assert_eq!(
        why("team", Some(&back), Some(&stored)),
        Cause::OwnValue { node: Some("web".into()), record: Some("ml".into()), rollback_to: None }
    );
    let stored = capture(&back, Some(&stored));
    assert_eq!(
        why("team", Some(&back), Some(&stored)),
        Cause::OwnValue { node: Some("web".into()), record: Some("ml".into()), rollback_to: Some(1) },
        "once the record has followed, only its history has the other value"
    );
}

#[test]
fn a_value_that_was_set_after_the_restore_is_not_a_restored_one() {
    let stored = capture(&node("u1", 5, "team=ml"), None);
    let mut back = restored(&node("u2", 7, ""), &stored);
    back.labels.insert("team".into(), "ops".into());
    back.resource_version += 1;
    let stored = capture(&back, Some(&stored));
    assert_eq!(why("team", Some(&back), Some(&stored)), Cause::Kept { value: "ops".into(), given: false });
}

#[test]
fn machines_are_compared() {
    let stored = capture(&node("u1", 5, "node-role.kubernetes.io/gpu=x"), None);
    let key = "node-role.kubernetes.io/gpu";
    let mut other = node("u2", 7, "");
    other.machine.system_uuid = "t".into();
    assert!(matches!(why(key, Some(&other), Some(&stored)), Cause::AnotherMachine { .. }));
    other.machine.system_uuid.clear();
    assert!(matches!(why(key, Some(&other), Some(&stored)), Cause::MachineUnknown { .. }));
}

#[test]
fn ignored_contested_and_bad_records() {
    let stored = capture(&node("u1", 5, "team=ml"), None);
    let back = node("u2", 7, "");
    let mut shy = back.clone();
    shy.annotations.insert(IGNORE.into(), "true".into());
    assert_eq!(why("team", Some(&shy), Some(&stored)), Cause::Ignored);
    let rivals = vec![Rival { name: "n2".into(), holds_record: false }];
    let contested = Case::live(back.clone(), Some(stored), rivals, &Defaults::default().context());
    let cause = explain(&Key::label("team"), &contested);
    assert_eq!(cause, Cause::Contested { rivals: vec!["n2".into()] });
    let bad = |fault: RecordFault| Arc::new(Stored::Bad { fault, good: Substitute::Nothing });
    assert!(matches!(why("team", Some(&back), Some(&bad(RecordFault::Checksum))), Cause::Quarantined { .. }));
    assert!(matches!(why("team", Some(&back), Some(&bad(RecordFault::Version("9".into())))), Cause::Newer { .. }));
}

#[test]
fn a_contested_node_without_a_record_is_not_about_to_be_captured() {
    let rivals = vec![Rival { name: "n2".into(), holds_record: false }];
    let case = Case::live(node("u1", 5, "team=ml"), None, rivals, &Defaults::default().context());
    assert!(matches!(decide(&case), Decision::Nothing(_)));

    assert_eq!(explain(&Key::label("team"), &case), Cause::Contested { rivals: vec!["n2".into()] });
    assert_eq!(explain(&Key::label("rack"), &case), Cause::NeverSeen);
}
