use serde_json::json;

use super::*;
use crate::keeper::{
    case::Phase,
    decide::{Decision, Reason, RecordWrite, decide},
    machine::Machine,
    mark::MARK,
    policy_set::PolicySet,
    stored_record::Stored,
    testing::{Defaults, keep_policies, kept, labels},
};

const ZONE: &str = "topology.kubernetes.io/zone";

/// A policy that selects by a label which no policy keeps, and keeps annotations and taints.
fn zoned() -> PolicySet {
    keep_policies(&[(
        "zoned",
        json!({
            "nodeSelector": {"matchLabels": {ZONE: "a"}},
            "annotations": ["owner"],
            "taints": ["dedicated"],
            "retention": "2160h",
        }),
    )])
}

fn node(uid: &str, rv: u64, pairs: &str) -> Node {
    let machine = Machine { provider_id: "p".into(), system_uuid: "s".into(), machine_id: "m".into() };
    Node { name: "n1".into(), uid: uid.into(), resource_version: rv, labels: labels(pairs), machine, ..Node::default() }
}

fn owned(mut node: Node) -> Node {
    node.annotations.insert("owner".into(), "ada".into());
    node
}

fn case(phase: Phase, node: &Node, record: Option<&Record>, policies: &PolicySet) -> Case {
    let stored = record.map(|record| std::sync::Arc::new(Stored::Good(Box::new(record.clone()))));
    Case::new(phase, Some(node.clone()), stored, Vec::new(), &Defaults(policies.clone()).context())
}

fn live(node: &Node, record: Option<&Record>, policies: &PolicySet) -> Decision {
    decide(&case(Phase::Live, node, record, policies))
}

fn written(decision: Decision) -> Record {
    match decision {
        Decision::WriteRecord(_, record) => *record,
        other => panic!("{other:?}"),
    }
}

/// Applies a restore of labels and annotations.
fn given(node: &Node, decision: Decision) -> Node {
    let Decision::PatchNode(restore) = decision else { panic!("{decision:?}") };
    let mut node = node.clone();
    for (key, value) in &restore.set {
        match key {
            Key::Label(key) => drop(node.labels.insert(key.clone(), value.clone())),
            Key::Annotation(key) => drop(node.annotations.insert(key.clone(), value.clone())),
            other => panic!("{other:?}"),
        }
    }
    assert!(restore.remove.is_empty(), "{:?}", restore.remove);
    node.annotations.insert(MARK.to_owned(), restore.mark.render());
    node.resource_version += 1;
    node
}

fn owner() -> Key {
    Key::Annotation("owner".into())
}

fn config_only() -> PolicySet {
    keep_policies(&[])
}

#[test]
fn a_record_without_policies_is_written_as_before() {
    let record = written(live(&node("u1", 5, "team=ml"), None, &config_only()));
    assert_eq!(record.provenance, Provenance::default());
    assert!(!record.encode().unwrap().contains("capturedUnder"));
}

#[test]
fn a_record_holds_its_policy_and_the_labels_that_select_it() {
    let record = written(live(&owned(node("u1", 5, &format!("team=ml {ZONE}=a"))), None, &zoned()));
    let read = Record::decode(&record.encode().unwrap()).unwrap();
    assert_eq!(read, record);
    assert_eq!(read.provenance.policy_name(), "zoned");
    assert_eq!(read.provenance.retention(), Duration::from_hours(2160));
    assert_eq!(read.provenance.selectors, [(ZONE.to_owned(), Some("a".to_owned()))].into());
    assert!(!read.kept.contains_key(&Key::label(ZONE)), "a label that is not kept stays out of the content");
}

#[test]
fn a_version_without_provenance_reads_the_rest() {
    let record = written(live(&owned(node("u1", 5, &format!("team=ml {ZONE}=a"))), None, &zoned()));
    let mut value: serde_json::Value = serde_json::from_str(&record.encode().unwrap()).unwrap();
    assert!(value.as_object_mut().unwrap().remove("capturedUnder").is_some());
    let read = Record::decode(&value.to_string()).unwrap();
    assert_eq!(read, Record { provenance: Provenance::default(), ..record });
}

#[test]
fn a_damaged_provenance_is_not_believed() {
    let record = written(live(&owned(node("u1", 5, &format!("team=ml {ZONE}=a"))), None, &zoned()));
    let text = record.encode().unwrap().replace("\"zoned\"", "\"other\"");
    assert_eq!(Record::decode(&text).unwrap().provenance, Provenance::default());
}

#[test]
fn a_selector_label_that_arrives_late_loses_nothing() {
    let policies = zoned();
    let record = written(live(&owned(node("u1", 5, &format!("{ZONE}=a"))), None, &policies));
    let bare = node("u2", 8, "");
    let back = given(&bare, live(&bare, Some(&record), &policies));
    assert_eq!(back.annotations["owner"], "ada");
    assert_eq!(live(&back, Some(&record), &policies), Decision::Nothing(Reason::Current));

    // Captured before the label arrives: the record still expects it.
    let changed = Node { labels: labels("team=ml"), resource_version: 10, ..back };
    let record = written(live(&changed, Some(&record), &policies));
    assert_eq!(record.provenance.expected, labels(&format!("{ZONE}=a")));
    assert_eq!(record.provenance.policy_name(), "zoned");
    assert_eq!(live(&changed, Some(&record), &policies), Decision::Nothing(Reason::Current));

    let mut removed = changed.clone();
    removed.annotations.remove("owner");
    removed.resource_version = 11;
    let next = written(live(&removed, Some(&record), &policies));
    assert!(!next.kept.contains_key(&owner()), "a removal from a node that had the key is captured");

    let arrived = Node { labels: labels(&format!("team=ml {ZONE}=a")), resource_version: 12, ..changed };
    assert_eq!(live(&arrived, Some(&record), &policies), Decision::Nothing(Reason::Current));
}

/// The record is from a version that does not hold selector labels.
#[test]
fn a_key_that_the_node_was_never_given_is_not_removed_from_the_record() {
    let policies = zoned();
    let record = written(live(&owned(node("u1", 5, &format!("{ZONE}=a"))), None, &policies));
    let record = Record { provenance: Provenance::default(), ..record };
    // Nothing to give under the configuration: the node becomes the owner of the record.
    let bare = node("u2", 8, "");
    let record = written(live(&bare, Some(&record), &policies));
    assert_eq!(record.provenance.ungiven, [owner()].into());
    assert_eq!(live(&bare, Some(&record), &policies), Decision::Nothing(Reason::Current));

    let arrived = Node { resource_version: 9, ..node("u2", 8, &format!("{ZONE}=a")) };
    let gone = decide(&case(Phase::Gone, &arrived, Some(&record), &policies));
    assert!(matches!(&gone, Decision::Nothing(_)) || written(gone.clone()).kept.contains_key(&owner()), "{gone:?}");
    let back = given(&arrived, live(&arrived, Some(&record), &policies));
    assert_eq!(back.annotations["owner"], "ada");
    let at_rest = live(&back, Some(&record), &policies);
    let record = match at_rest {
        Decision::WriteRecord(RecordWrite::Capture, record) => *record,
        other => panic!("the record takes note of its policy: {other:?}"),
    };
    assert!(record.provenance.ungiven.is_empty());
    assert_eq!(live(&back, Some(&record), &policies), Decision::Nothing(Reason::Current));
}

#[test]
fn a_policy_that_is_missing_for_a_while_changes_nothing_that_was_kept_under_it() {
    let policies = zoned();
    let first = owned(node("u1", 5, &format!("team=ml {ZONE}=a")));
    let record = written(live(&first, None, &policies));
    assert_eq!(live(&first, Some(&record), &config_only()), Decision::Nothing(Reason::Current));

    // The node returns and changes while the policy is missing.
    let bare = node("u2", 8, "");
    let back = given(&bare, live(&bare, Some(&record), &config_only()));
    let changed = Node { labels: labels("team=db"), resource_version: 10, ..back };
    let next = written(live(&changed, Some(&record), &config_only()));
    assert_eq!(next.kept[&owner()], "ada");
    assert_eq!(next.provenance.policy_name(), "zoned");
    assert_eq!(next.provenance.retention(), Duration::from_hours(2160));
    assert_eq!(live(&changed, Some(&next), &config_only()), Decision::Nothing(Reason::Current));

    // The policy is back.
    let back = given(&changed, live(&changed, Some(&next), &policies));
    assert_eq!(back.annotations["owner"], "ada");
}

#[test]
fn a_policy_that_comes_to_select_a_node_is_written_into_its_record_once() {
    let plain = node("u1", 5, &format!("team=ml {ZONE}=a"));
    let record = written(live(&plain, None, &config_only()));
    let next = written(live(&plain, Some(&record), &zoned()));
    assert_eq!(next.provenance.policy_name(), "zoned");
    assert_eq!(next.kept, kept("team=ml"));
    assert_eq!(live(&plain, Some(&next), &zoned()), Decision::Nothing(Reason::Current));
    let elsewhere = node("u1", 5, "team=ml");
    assert_eq!(live(&elsewhere, Some(&record), &zoned()), Decision::Nothing(Reason::Current), "it is not affected");
}

#[test]
fn a_selector_label_that_a_person_removed_does_not_select_again() {
    let policies = keep_policies(&[(
        "gpu",
        json!({"nodeSelector": {"matchLabels": {"pool": "gpu"}}, "keep": ["pool", "team"], "annotations": ["owner"]}),
    )]);
    let config = keep_policies_over(&["team"], &policies);
    let first = owned(node("u1", 5, "pool=gpu team=ml"));
    let record = written(live(&first, None, &config));
    let removed = Node { labels: labels("team=ml"), resource_version: 6, ..first };
    let record = written(live(&removed, Some(&record), &config));
    assert_eq!(record.kept[&Key::label("pool")], "gpu", "the policy in force does not keep it");
    assert_eq!(record.provenance.selectors, [("pool".to_owned(), None)].into());
    let bare = node("u2", 9, "");
    let back = given(&bare, live(&bare, Some(&record), &config));
    assert_eq!(back.labels, labels("team=ml"));
}

/// The same policies over a configuration that keeps only these keys.
fn keep_policies_over(keep: &[&str], policies: &PolicySet) -> PolicySet {
    let default = Policy { keep: crate::config::pattern::Patterns::of(keep), ..crate::keeper::testing::policy() };
    policies.over(default)
}
