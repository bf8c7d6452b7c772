use std::time::Duration;

use serde_json::json;

use super::*;
use crate::keeper::{
    case::Case,
    commands::migrate,
    decide::{Decision, decide},
    machine::Machine,
    provenance::Provenance,
    stored_record::Stored,
    testing::{Defaults, keep_policies, labels},
};

const ZONE: &str = "topology.kubernetes.io/zone";

impl PolicySet {
    /// Returns the same KeepPolicies over another configuration.
    pub(crate) fn over(&self, default: Policy) -> Self {
        Self::new(Arc::new(default), self.policies.clone())
    }
}

fn policies() -> PolicySet {
    let spec = json!({"nodeSelector": {"matchLabels": {ZONE: "a"}}, "identity": "providerID", "retention": "2160h"});
    keep_policies(&[("zoned", spec)])
}

fn record() -> Record {
    let machine = Machine { provider_id: "p".into(), ..Machine::default() };
    let labels = labels(&format!("team=ml {ZONE}=a"));
    let node = Node { name: "n1".into(), uid: "u1".into(), resource_version: 5, labels, machine, ..Node::default() };
    match decide(&Case::live(node, None, Vec::new(), &Defaults(policies()).context())) {
        Decision::WriteRecord(_, record) => *record,
        other => panic!("{other:?}"),
    }
}

fn moved(record: &Record, policies: &PolicySet) -> Option<Record> {
    let stored = Arc::new(Stored::Good(Box::new(record.clone())));
    migrate(&Case::absent(Some(stored), &Defaults(policies.clone()).context()), policies)
}

#[test]
fn an_absent_node_is_selected_by_labels_that_are_not_kept() {
    let policy = policies().for_record(Some(&record()));
    assert_eq!((policy.name.as_str(), policy.retention), ("zoned", Duration::from_hours(2160)));
    assert_eq!(moved(&record(), &policies()), None);
}

#[test]
fn the_record_of_a_missing_policy_stays_where_it_is_for_as_long_as_it_was_to_be_kept() {
    let policy = keep_policies(&[]).for_record(Some(&record()));
    assert_eq!((policy.name.as_str(), policy.retention), ("zoned", Duration::from_hours(2160)));
    assert_eq!(moved(&record(), &keep_policies(&[])), None);
}

#[test]
fn the_record_of_a_changed_policy_moves() {
    let spec = json!({"nodeSelector": {"matchLabels": {ZONE: "a"}}, "identity": "name"});
    let moved = moved(&record(), &keep_policies(&[("zoned", spec)])).unwrap();
    assert_eq!(moved.name().0, "node-n1");
    assert_eq!(moved.provenance, record().provenance);
}

#[test]
fn a_record_of_an_earlier_version_stays_where_a_policy_looks_for_it() {
    let old = Record { provenance: Provenance::default(), ..record() };
    assert_eq!(moved(&old, &policies()), None, "the label that selects it is not known");
    assert_eq!(moved(&old, &keep_policies(&[])).unwrap().name().0, "node-n1");
}

fn policies_with(more: &[(&str, serde_json::Value)]) -> PolicySet {
    let spec = json!({"nodeSelector": {"matchLabels": {ZONE: "a"}}, "identity": "providerID", "retention": "2160h"});
    let all: Vec<_> = std::iter::once(("zoned", spec)).chain(more.iter().cloned()).collect();
    keep_policies(&all)
}

fn everyone() -> (&'static str, serde_json::Value) {
    ("everyone", json!({"identity": "name", "retention": "1h", "priority": -1}))
}

#[test]
fn another_policy_that_matches_does_not_judge_the_record_of_a_missing_one() {
    for policies in [keep_policies(&[everyone()]), policies_with(&[everyone()])] {
        let policy = policies.for_record(Some(&record()));
        assert_eq!((policy.name.as_str(), policy.retention), ("zoned", Duration::from_hours(2160)));
        assert_eq!(moved(&record(), &policies), None);
    }
}

/// The policy was renamed while the node was away, and the node returns bare.
#[test]
fn the_stand_in_of_a_missing_policy_keeps_what_the_labels_of_the_record_select() {
    let spec = json!({"nodeSelector": {"matchLabels": {ZONE: "a"}}, "annotations": ["example.com/owner"]});
    let renamed = keep_policies(&[("renamed", spec), everyone()]);
    let machine = Machine { provider_id: "p".into(), ..Machine::default() };
    let bare = Node { name: "n2".into(), uid: "u2".into(), resource_version: 9, machine, ..Node::default() };
    for policy in [renamed.for_node_with_record(&bare, None, &record()), renamed.for_record(Some(&record()))] {
        assert!(policy.keeps(&Key::Annotation("example.com/owner".into())), "{policy:?}");
        assert_eq!((&policy.identity, policy.retention), (&Identity::ProviderId, Duration::from_hours(2160)));
    }
}

#[test]
fn a_selector_that_was_edited_does_not_change_the_policy_of_an_absent_node() {
    let spec = json!({"nodeSelector": {"matchLabels": {ZONE: "b"}}, "identity": "providerID", "retention": "2160h"});
    for policies in [keep_policies(&[("zoned", spec.clone())]), keep_policies(&[("zoned", spec), everyone()])] {
        let policy = policies.for_record(Some(&record()));
        assert_eq!((policy.name.as_str(), policy.retention), ("zoned", Duration::from_hours(2160)));
        assert_eq!(moved(&record(), &policies), None);
    }
}

#[test]
fn a_node_that_returns_bare_has_the_policy_of_its_record_until_its_own_labels_select_one() {
    let db = ("db", json!({"nodeSelector": {"matchLabels": {"db": "yes"}}}));
    let machine = Machine { provider_id: "p".into(), ..Machine::default() };
    let bare = Node { name: "n1".into(), uid: "u2".into(), resource_version: 9, machine, ..Node::default() };
    let edited = json!({"nodeSelector": {"matchLabels": {ZONE: "b"}}, "identity": "providerID"});
    let is_under =
        |policies: &PolicySet, node: &Node| policies.for_node_with_record(node, None, &record()).name.clone();

    for policies in [
        keep_policies(&[everyone(), db.clone()]),
        policies_with(&[everyone(), db.clone()]),
        keep_policies(&[("zoned", edited), everyone(), db.clone()]),
    ] {
        assert_eq!(is_under(&policies, &bare), "zoned");
        let selected = Node { labels: labels("db=yes"), ..bare.clone() };
        assert_eq!(is_under(&keep_policies(&[everyone(), db.clone()]), &selected), "db");
    }
    let whole = Node { labels: labels(&format!("team=ml {ZONE}=a")), ..bare };
    assert_eq!(is_under(&keep_policies(&[everyone(), db]), &whole), "everyone", "its own labels decide");
}

#[test]
fn the_summary_of_a_record_without_a_node_names_the_policy_that_judges_it() {
    let under = |policy: &str| {
        let provenance = Provenance { policy: policy.to_owned(), ..record().provenance };
        Record { provenance, ..record() }
    };
    let records = [record(), under(CONFIG_POLICY), under("everyone"), under("")];
    let sets = [policies(), keep_policies(&[]), keep_policies(&[everyone()]), policies_with(&[everyone()])];
    for (set, record) in sets.iter().flat_map(|set| records.iter().map(move |record| (set, record))) {
        let captured = CapturedUnder { policy: &record.provenance.policy, retention: record.provenance.retention() };
        let judged = set.for_record(Some(record));
        assert_eq!(
            set.summary(&record.selecting_labels(), Some(captured), false),
            (judged.name.clone(), judged.retention),
            "{:?} under {set:?}",
            record.provenance
        );
    }
}

#[test]
fn the_summary_of_a_node_is_selected_by_its_labels_unless_the_policy_of_its_record_is_missing() {
    let record = record();
    let captured = CapturedUnder { policy: &record.provenance.policy, retention: record.provenance.retention() };
    let of = |set: &PolicySet, text: &str| set.summary(&labels(text), Some(captured), true).0;
    assert_eq!(of(&policies(), &format!("{ZONE}=a")), "zoned");
    assert_eq!(of(&policies(), "team=ml"), CONFIG_POLICY);
    assert_eq!(of(&keep_policies(&[]), "team=ml"), "zoned");
    assert_eq!(of(&keep_policies(&[everyone()]), "team=ml"), "everyone");
}
