use proptest::prelude::*;
use rstest::rstest;

use super::*;
use crate::keeper::{
    case::Phase,
    keys::Kept,
    record::Record,
    testing::{case, live, policy},
};

fn record(labels: &[(&str, &str)]) -> Record {
    let kept: Kept = labels.iter().map(|(k, v)| (Key::label(k), (*v).to_owned())).collect();
    let labels = BTreeMap::from([("placeholder".to_owned(), String::new())]);
    let node = Node { name: "n1".into(), uid: "u1".into(), resource_version: 5, labels, ..Node::default() };
    match live(&node, None, &policy()) {
        Decision::WriteRecord(_, record) => Record { kept, ..*record },
        other => panic!("{other:?}"),
    }
}

fn admit_node(object: &Value, node: &Node, record: Option<&Record>, by_kubelet: bool, gate: Gate) -> Admitted {
    admit(object, &case(Phase::Creating { by_kubelet }, node, record, &policy()), gate)
}

fn admit_bare(object: &Value, record: Option<&Record>, by_kubelet: bool, gate: Gate) -> Admitted {
    admit_node(object, &Node { name: "n1".into(), ..Node::default() }, record, by_kubelet, gate)
}

fn paths(admitted: &Admitted) -> Vec<&str> {
    admitted.patch.iter().filter_map(|op| op["path"].as_str()).collect()
}

#[test]
fn a_bare_create_gets_its_maps() {
    let record = record(&[("example.com/team", "ml")]);
    let admitted = admit_bare(&json!({"metadata": {"name": "n1"}}), Some(&record), false, Gate::Never);
    assert_eq!(paths(&admitted), ["/metadata/labels", "/metadata/annotations"]);
    assert_eq!(admitted.patch[0]["value"], json!({"example.com/team": "ml"}));
}

#[test]
fn maps_that_are_there_are_added_to() {
    let record = record(&[("team", "ml")]);
    let object = json!({"metadata": {"name": "n1", "labels": {"a": "b"}, "annotations": {"c": "d"}}});
    let admitted = admit_bare(&object, Some(&record), false, Gate::Never);
    assert_eq!(admitted.patch[0]["value"], json!({"a": "b", "team": "ml"}));
    assert_eq!(admitted.patch[1]["value"]["c"], "d");
    assert!(admitted.patch[1]["value"]["perennial.dev/restored"].is_string());
}

#[test]
fn a_node_without_a_record_passes_unchanged() {
    assert_eq!(admit_bare(&json!({"metadata": {"name": "n1"}}), None, true, Gate::Needed).patch, Vec::<Value>::new());
}

#[test]
fn a_mark_that_came_along_is_removed_where_there_is_nothing_to_give() {
    let mut node = Node { name: "n1".into(), ..Node::default() };
    node.annotations.insert(MARK.into(), "{}".into());
    let object = json!({"metadata": {"name": "n1", "annotations": {MARK: "{}"}}});
    let admitted = admit_node(&object, &node, None, false, Gate::Never);
    assert_eq!(admitted.patch, [json!({"op": "remove", "path": "/metadata/annotations/perennial.dev~1restored"})]);
}

#[test]
fn the_gate_is_put_in_only_where_something_is_still_to_come() {
    let record = record(&[("node-role.kubernetes.io/gpu", "")]);
    let object = json!({"metadata": {"name": "n1"}});
    let gated = |admitted: &Admitted| paths(admitted).contains(&"/spec/taints");
    assert!(gated(&admit_bare(&object, Some(&record), true, Gate::Needed)));
    assert!(!gated(&admit_bare(&object, Some(&record), false, Gate::Needed)));
    assert!(!gated(&admit_bare(&object, Some(&record), true, Gate::Never)));
    assert!(gated(&admit_bare(&object, None, false, Gate::Always)));
}

#[rstest]
#[case("team", true)]
#[case("example.com/team", true)]
#[case("node-role.kubernetes.io/worker", false)]
#[case("node-restriction.kubernetes.io/x", false)]
#[case("team.node-restriction.kubernetes.io/x", false)]
#[case("foo.k8s.io/x", false)]
#[case("k8s.io/x", false)]
#[case("kubernetes.io/hostname", true)]
#[case("kubernetes.io/other", false)]
#[case("kubelet.kubernetes.io/x", true)]
#[case("a.kubelet.kubernetes.io/x", true)]
#[case("node.kubernetes.io/x", true)]
#[case("notkubernetes.io/x", true)]
#[case("notnode.kubernetes.io/x", false)]
fn a_kubelet_may_set(#[case] key: &str, #[case] may: bool) {
    assert_eq!(kubelet_may_set(&Key::label(key)), may);
}

#[rstest]
#[case(json!(null))]
#[case(json!([]))]
#[case(json!({}))]
#[case(json!({"metadata": []}))]
#[case(json!({"metadata": {"labels": "x"}}))]
#[case(json!({"metadata": {"annotations": []}}))]
#[case(json!({"metadata": {}, "spec": 1}))]
fn a_malformed_object_passes_unchanged(#[case] object: Value) {
    let record = record(&[("team", "ml")]);
    assert!(admit_bare(&object, Some(&record), false, Gate::Always).patch.is_empty());
}

proptest! {
    #[test]
    fn a_kubelets_create_never_gets_keys_that_would_be_refused(keys in proptest::collection::vec("[a-z.]{0,6}(kubernetes.io|k8s.io|node-restriction.kubernetes.io|example.com)/[a-z]{1,4}", 1..6)) {
        let pairs: Vec<(&str, &str)> = keys.iter().map(|key| (key.as_str(), "v")).collect();
        let record = record(&pairs);
        let admitted = admit_bare(&json!({"metadata": {"name": "n1"}}), Some(&record), true, Gate::Never);
        let restore = admitted.restore.unwrap();
        prop_assert!(restore.set.keys().all(kubelet_may_set));
    }
}

#[test]
fn a_create_whose_annotations_would_be_too_large_passes_unchanged() {
    let many: Vec<String> = (0..1500).map(|i| format!("example.com/key-{i}")).collect();
    let record = record(&many.iter().map(|key| (key.as_str(), "value")).collect::<Vec<_>>());
    let with = |size: usize| {
        let object = json!({"metadata": {"name": "n1", "annotations": {"blob": "x".repeat(size)}}});
        admit_bare(&object, Some(&record), false, Gate::Never)
    };
    let size = |admitted: &Admitted| {
        let map = admitted.patch.iter().find(|op| op["path"] == "/metadata/annotations").unwrap()["value"].clone();
        map.as_object().unwrap().iter().map(|(key, value)| key.len() + value.as_str().unwrap().len()).sum::<usize>()
    };

    assert!(size(&with(210 * 1024)) <= 256 * 1024, "the list of given keys is left out");
    assert!(with(210 * 1024).restore.is_some());
    assert_eq!(with(256 * 1024 - 10), Admitted { patch: Vec::new(), restore: None });
}
