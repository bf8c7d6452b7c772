use serde_json::json;

use super::*;
use crate::keeper::{
    case::Case,
    decide::{Decision, decide},
    machine::Machine,
    testing::{Defaults, keep_policies, labels},
};

/// The policy of the documentation: selected by a label that people set, identified by the machine.
fn policies() -> PolicySet {
    let spec = json!({"nodeSelector": {"matchLabels": {"pool": "gpu"}}, "identity": "systemUUID"});
    keep_policies(&[("gpu", spec)])
}

fn node(uid: &str, rv: u64, on: &str, pairs: &str) -> Node {
    let machine = Machine { system_uuid: on.into(), ..Machine::default() };
    Node { name: "n1".into(), uid: uid.into(), resource_version: rv, labels: labels(pairs), machine, ..Node::default() }
}

fn captured(node: Node) -> (Identified, Arc<Stored>) {
    match decide(&Case::live(node, None, Vec::new(), &Defaults(policies()).context())) {
        Decision::WriteRecord(_, record) => (Identified::of_record(&record), Arc::new(Stored::Good(record))),
        other => panic!("{other:?}"),
    }
}

fn chosen(node: &Node, found: &[(Identified, Arc<Stored>)]) -> Option<usize> {
    policies().choose_record(node, None, found)
}

#[test]
fn a_bare_node_is_looked_up_under_every_identity_in_use() {
    let names = |policies: &PolicySet, in_use: &BTreeSet<Identity>| -> Vec<String> {
        let bare = node("u2", 9, "x", "");
        policies.identities_of(&bare, in_use).iter().map(|identity| identity.kind().to_string()).collect()
    };
    assert_eq!(names(&policies(), &BTreeSet::new()), ["name", "systemUUID"]);
    assert_eq!(names(&keep_policies(&[]), &BTreeSet::from([Identity::Name])), ["name"], "once");
    assert_eq!(names(&keep_policies(&[]), &BTreeSet::from([Identity::SystemUuid])), ["name", "systemUUID"]);
    assert_eq!(names(&keep_policies(&[]), &BTreeSet::from([Identity::ProviderId])), ["name"]);
}

#[test]
fn a_bare_node_finds_the_record_of_its_machine() {
    let gpu = captured(node("u1", 5, "x", "pool=gpu"));
    assert_eq!(chosen(&node("u2", 9, "x", ""), std::slice::from_ref(&gpu)), Some(0));
    // Another machine had the name since.
    let other = captured(node("u3", 20, "y", "team=web"));
    assert_eq!(chosen(&node("u4", 30, "x", ""), &[other.clone(), gpu.clone()]), Some(1));
    // The machine itself was taken out of the pool since: its record by name is the later one.
    let left = captured(node("u3", 20, "x", "team=web"));
    assert_eq!(chosen(&node("u4", 30, "x", ""), &[left, gpu]), Some(0));
}

#[test]
fn the_record_of_this_incarnation_comes_first() {
    let gpu = captured(node("u1", 5, "x", "pool=gpu"));
    let removed = node("u1", 6, "x", "");
    assert_eq!(chosen(&removed, std::slice::from_ref(&gpu)), Some(0), "it moves with its next write");
    let relabelled = node("u9", 9, "x", "pool=web");
    assert_eq!(chosen(&relabelled, std::slice::from_ref(&gpu)), Some(0), "the same machine under the same name");
    let renamed = Node { name: "n2".into(), ..relabelled };
    assert_eq!(chosen(&renamed, &[gpu]), None, "its own labels select a policy that identifies it by name");
}

/// A move that ended between its two writes leaves a copy of the record under the former identity.
#[test]
fn a_later_record_of_the_machine_comes_before_a_copy_that_this_incarnation_wrote() {
    let copy = captured(node("u1", 5, "x", "team=web"));
    let later = captured(node("u2", 20, "x", "pool=gpu"));
    assert_eq!(chosen(&node("u1", 9, "x", "team=ml"), &[copy.clone(), later.clone()]), Some(1));
    assert_eq!(chosen(&node("u1", 9, "x", "team=ml"), &[later, copy]), Some(0));
}

#[test]
fn a_node_with_labels_of_its_own_is_looked_up_by_its_policy_first() {
    let labelled = node("u2", 9, "x", "pool=gpu");
    let first = policies().identities_of(&labelled, &BTreeSet::new()).remove(0);
    assert_eq!(first.kind(), &Identity::SystemUuid);
}

#[test]
fn a_machine_is_found_in_every_spelling_of_its_identity() {
    let uuid = "4c4c4544-0042-4a10-8053-b7c04f4b3732";
    let reported = |text: &str| node("u2", 9, text, "pool=gpu");
    let usual = policies().identify(&reported(uuid)).unwrap();
    for spelling in [
        uuid.to_uppercase(),
        "44454C4C-4200-104A-8053-B7C04F4B3732".to_owned(),
        uuid.replace('-', ""),
        format!(" {uuid}\n"),
        "44454C4C4200104A8053B7C04F4B3732".to_owned(),
    ] {
        let found = policies().identities_of(&reported(&spelling), &BTreeSet::new());
        assert!(found.contains(&usual), "{spelling}: {found:?}");
        let gpu = captured(node("u1", 5, uuid, "pool=gpu"));
        assert_eq!(chosen(&reported(&spelling), &[gpu]), Some(0), "{spelling}");
    }
}

/// On AWS the provider sets the providerID after the kubelet has created the node.
#[test]
fn a_record_from_before_the_node_was_identified_gives_way_to_that_of_its_machine() {
    let policies = keep_policies(&[]);
    let on = |uid: &str, rv: u64, provider: &str, pairs: &str| {
        let machine = Machine { provider_id: provider.into(), ..Machine::default() };
        Node { machine, ..node(uid, rv, "", pairs) }
    };
    let record = |node: Node| match decide(&Case::live(node, None, Vec::new(), &Defaults(policies.clone()).context())) {
        Decision::WriteRecord(_, record) => (Identified::of_record(&record), Arc::new(Stored::Good(record))),
        other => panic!("{other:?}"),
    };
    let instance = record(on("u1", 5, "aws:///eu-1a/i-1", "team=ml"));
    let early = record(on("u2", 9, "", "own=1"));
    let known = on("u2", 10, "aws:///eu-1a/i-1", "own=1");
    assert_eq!(policies.choose_record(&known, None, &[early.clone(), instance]), Some(1));
    assert_eq!(
        policies.choose_record(&known, None, std::slice::from_ref(&early)),
        Some(0),
        "it moves with its next write"
    );
    let other = on("u3", 12, "aws:///eu-1a/i-2", "");
    assert_eq!(policies.choose_record(&other, None, &[early]), None, "another instance with the same address");
}
