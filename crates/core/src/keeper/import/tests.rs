use proptest::prelude::*;
use rstest::rstest;
use serde_json::json;

use std::sync::Arc;

use super::{
    decide::{ImportDecision, ImportWrite, SkipReason, decide_import},
    *,
};
use crate::keeper::{
    collect::HOLD,
    decide::Decision,
    selection,
    stored_record::Stored,
    testing::{Defaults, create, live, policy},
};

fn known(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

fn read(text: &str) -> ImportInput {
    let mut found = read_text(text, "file", &known(&["worker-1"]));
    found.settle();
    found
}

fn kept(pairs: &[(&str, &str)]) -> Kept {
    pairs.iter().map(|(key, value)| (Key::label(key), (*value).to_owned())).collect()
}

fn config_map(name: &str, data: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "old"}, "data": data})
}

fn hash(node: &str) -> String {
    config_map::sha256(node)
}

#[rstest]
#[case::slash(config_map("worker-1", &json!({"example.com-SLASH-team": "ml", "rack": "r1"})).to_string(), Format::SlashKeys)]
#[case::long_slash(config_map("worker-1", &json!({"example.com---SLASH---team": "ml", "rack": "r1"})).to_string(), Format::SlashKeys)]
#[case::slash_prefix(config_map("label_storage.worker-1", &json!({"example.com-SLASH-team": "ml", "rack": "r1"})).to_string(), Format::SlashKeys)]
#[case::slash_bookkeeping(config_map("worker-1", &json!({"example.com---SLASH---team": "ml", "rack": "r1", "label_version": "7",
    "resource_version": "9", "last_store_resource_version": "8", "node_name": "worker-1", "transaction_type": "deleted"})).to_string(), Format::SlashKeys)]
#[case::state(config_map("node-labels-worker-1", &json!({"state.json":
    json!({"nodeName": "worker-1", "labels": {"example.com/team": "ml", "rack": "r1"}, "capturedAt": "2026-01-02T03:04:05Z"}).to_string()})).to_string(), Format::StateJson)]
#[case::preserved(config_map(&format!("node-labels-{}", hash("worker-1")), &json!({"preserved_labels_json":
    json!({"example.com/team": "ml", "rack": "r1"}).to_string()})).to_string(), Format::PreservedLabels)]
#[case::resource(json!({"apiVersion": "labels.example.com/v1", "kind": "NodeLabelState", "metadata": {"name": "x"},
    "spec": {"nodeName": "worker-1", "labels": {"example.com/team": "ml", "rack": "r1"}}}).to_string(), Format::NodeLabelState)]
#[case::node("apiVersion: v1\nkind: List\nitems:\n- kind: Node\n  metadata: {name: worker-1, labels: {example.com/team: ml, rack: r1}}\n".to_owned(), Format::Node)]
#[case::yaml("worker-1:\n  example.com/team: ml\n  rack: r1\n".to_owned(), Format::Plain)]
#[case::nested("worker-1: {labels: {example.com/team: ml, rack: r1}}".to_owned(), Format::Plain)]
#[case::json(json!([{"node": "worker-1", "labels": {"example.com/team": "ml", "rack": "r1"}}]).to_string(), Format::Plain)]
#[case::csv_triples("node,key,value\nworker-1,example.com/team,ml\nworker-1,rack,r1\n".to_owned(), Format::Csv)]
#[case::csv_wide("node,example.com/team,rack,other\nworker-1,ml,r1,\n".to_owned(), Format::Csv)]
#[case::csv_packed("node,labels\nworker-1,\"example.com/team=ml,rack=r1\"\n".to_owned(), Format::Csv)]
fn each_shape_is_known(#[case] text: String, #[case] format: Format) {
    let found = read(&text);
    assert_eq!((found.refused.as_slice(), found.unknown), ([].as_slice(), 0), "{found:?}");
    let [entry] = found.entries.as_slice() else { panic!("{found:?}") };
    assert_eq!((entry.node.as_str(), entry.format), ("worker-1", format));
    assert_eq!(entry.kept, kept(&[("example.com/team", "ml"), ("rack", "r1")]));
}

#[rstest]
#[case::no_key("worker-1: {'not a key': x}", "not a key")]
#[case::no_value("worker-1: {team: 'not a value'}", "not a value")]
#[case::a_number("worker-1: {count: 3}", "put it in quotes")]
#[case::no_name("'Not A Node': {team: ml}", "is not a node's name")]
#[case::twice("[{node: a, labels: {x: '1'}}, {node: a, labels: {x: '2'}}]", "more than once")]
#[case::short_line("node,key,value\na,team\n", "expected 3 columns, got 2")]
#[case::no_effect(
    "{kind: Node, metadata: {name: a}, spec: {taints: [{key: dedicated, value: ml, effect: NoSchedul}]}}",
    r#""NoSchedul" is not the effect of a taint: expected one of NoSchedule, PreferNoSchedule, NoExecute for dedicated"#
)]
#[case::an_empty_effect(
    "{kind: Node, metadata: {name: a}, spec: {taints: [{key: dedicated, effect: ''}]}}",
    "not the effect"
)]
#[case::a_taint_twice(
    "{kind: Node, metadata: {name: a}, spec: {taints: [{key: k, value: a, effect: NoSchedule}, {key: k, value: b, effect: NoSchedule}]}}",
    "taint:k:NoSchedule is listed twice"
)]
#[case::no_annotation_key("{kind: Node, metadata: {name: a, annotations: {'a/b/c': x}}}", "is not a key")]
#[case::no_taint_key(
    "{kind: Node, metadata: {name: a}, spec: {taints: [{key: 'A/b c', effect: NoExecute}]}}",
    "is not a key"
)]
#[case::no_taint_value(
    "{kind: Node, metadata: {name: a}, spec: {taints: [{key: k, value: 'a b', effect: NoExecute}]}}",
    "is not a value"
)]
#[case::not_yaml("{", "neither JSON, YAML nor CSV")]
fn bad_entries_are_refused_whole(#[case] text: &str, #[case] why: &str) {
    let found = read(text);
    assert!(found.entries.is_empty(), "{found:?}");
    assert!(found.refused.iter().any(|refused| refused.why.contains(why)), "{found:?}");
}

#[test]
fn a_bad_entry_does_not_hide_good_ones() {
    let found = read("good: {team: ml}\nbad: {team: 'no value'}\n");
    assert_eq!((found.entries.len(), found.refused.len()), (1, 1));
    assert_eq!(found.refused[0].origin, "file, bad");
    let found = read("node,key,value\ngood,team,ml\nbad,team,ml\nbad,team,web\n");
    assert_eq!((found.entries.len(), found.entries[0].node.as_str(), found.refused.len()), (1, "good", 1));
}

#[test]
fn other_objects_are_left_alone() {
    let other = config_map("kube-root-ca.crt", &json!({"ca.crt": "-----BEGIN"})).to_string();
    let found = read(&format!("{other}\n---\nworker-1: {{team: ml}}\n"));
    assert_eq!((found.unknown, found.entries.len(), found.refused.len()), (1, 1, 0));
}

#[rstest]
#[case::empty("")]
#[case::comment("# nothing\n")]
#[case::null("---\nnull\n")]
#[case::text("this is not a backup")]
#[case::other("kind: Pod\nmetadata: {name: x}\n")]
#[case::empty_list("kind: List\nitems: []\n")]
#[case::header_only("node,key,value\n")]
fn a_file_without_entries_is_refused(#[case] text: &str) {
    let found = read(text);
    assert_eq!((found.entries.len(), found.refused.len()), (0, 1), "{found:?}");
    assert_eq!(found.refused[0].origin, "file");
}

#[test]
fn the_export_of_a_cluster_without_records_is_no_error() {
    let found = read("apiVersion: perennial.dev/v1\nkind: RecordExport\nitems: []\n");
    assert_eq!((found.entries.len(), found.refused.len()), (0, 0), "{found:?}");
}

/// Decides about an entry at resourceVersion 60 of the cluster.
fn import(
    entry: &ImportEntry,
    node: Option<&selection::Node>,
    stored: Option<&Arc<Stored>>,
    force: bool,
) -> ImportDecision {
    let case = entry.case(node.cloned(), stored.cloned(), &Defaults::default().context());
    decide_import(entry, &case, force, 60)
}

fn captured(node: &selection::Node, record: Option<&Record>) -> Box<Record> {
    match live(node, record, &policy()) {
        Decision::WriteRecord(_, record) => record,
        other => panic!("{other:?}"),
    }
}

fn node(uid: &str, rv: u64, labels: &[(&str, &str)]) -> selection::Node {
    let labels = labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    selection::Node {
        name: "worker-1".into(),
        uid: uid.into(),
        resource_version: rv,
        labels,
        ..selection::Node::default()
    }
}

fn written(decision: ImportDecision) -> ImportWrite {
    match decision {
        ImportDecision::Write(written) => *written,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_first_record_unsettles_a_live_node_and_its_own_values_stay() {
    let found = read("worker-1: {team: ml, rack: r1, kubernetes.io/os: linux}");
    let here = node("u1", 50, &[("team", "web")]);
    let written = written(import(&found.entries[0], Some(&here), None, false));
    assert_eq!((written.left_out, &written.record.kept), (1, &kept(&[("team", "ml"), ("rack", "r1")])));
    match live(&here, Some(&written.record), &policy()) {
        Decision::PatchNode(restore) => assert_eq!(restore.set, kept(&[("rack", "r1")])),
        other => panic!("{other:?}"),
    }
}

#[test]
fn imported_keys_are_set_in_the_create_of_their_node() {
    let found = read("worker-1: {team: ml}");
    let written = written(import(&found.entries[0], None, None, false));
    // A node has no UID while it is being created.
    let given = create(&node("", 0, &[]), &written.record, &policy(), false);
    assert_eq!((given.set, given.mark.complete), (kept(&[("team", "ml")]), true));
}

#[test]
fn a_record_that_is_there_is_overruled_only_on_request() {
    let found = read("worker-1: {team: ml}");
    let here = node("u1", 50, &[("team", "web"), ("rack", "r1")]);
    let stored = Arc::new(Stored::Good(captured(&here, None)));
    let skip = import(&found.entries[0], Some(&here), Some(&stored), false);
    assert_eq!(skip, ImportDecision::Skip(SkipReason::HasRecord { sequence: 1 }));
    let written = written(import(&found.entries[0], Some(&here), Some(&stored), true));
    assert_eq!((written.set, written.remove.len(), written.record.sequence), (kept(&[("team", "ml")]), 0, 2));
    assert_eq!(written.record.kept, kept(&[("team", "ml"), ("rack", "r1")]));
    let same = read("worker-1: {team: web}");
    assert_eq!(import(&same.entries[0], Some(&here), Some(&stored), false), ImportDecision::Skip(SkipReason::Same));
}

#[test]
fn an_export_is_imported_unchanged_into_a_cluster_with_other_versions() {
    let record = captured(&node("u1", 5_000, &[("team", "ml")]), None);
    let record = captured(&node("u1", 5_001, &[("team", "web")]), Some(&record));
    let export =
        json!({"apiVersion": export::API_VERSION, "kind": export::KIND, "items": [export::item(&record, true)]});

    let found = read(&export.to_string());
    let entry = &found.entries[0];
    assert!(entry.hold);
    let written = written(import(entry, None, None, false));
    assert_eq!(export::item(&written.record, true), export["items"][0]);
    assert_eq!(written.record.node.resource_version, 60, "numbers of another cluster mean nothing here");
    assert_eq!(written.record.history.len(), 1);
    // A node of this cluster is younger than that, and what people change on it counts.
    let back = node("u2", 61, &[("team", "db")]);
    assert!(matches!(live(&back, Some(&written.record), &policy()), Decision::WriteRecord(..)));
}

#[test]
fn a_backup_of_records_is_imported_unless_it_cannot_be_trusted() {
    let record = captured(&node("u1", 5, &[("team", "ml")]), None);
    let text = record.encode().unwrap();
    let mut held = config_map("node-worker-1", &json!({"record.json": text}));
    held["metadata"]["annotations"] = json!({HOLD: "true"});

    let found = read(&held.to_string());

    let [entry] = found.entries.as_slice() else { panic!("{found:?}") };
    assert_eq!((entry.format, entry.hold, entry.captured_at), (Format::Record, true, Some(record.captured_at)));
    assert_eq!((entry.kept.clone(), entry.record.as_deref()), (kept(&[("team", "ml")]), Some(&*record)));
    let spoilt = text.replace("\"ml\"", "\"web\"");
    let recovered =
        read(&config_map("node-worker-1", &json!({"record.json": spoilt, "recovered.json": text})).to_string());
    assert_eq!(recovered.entries[0].record.as_deref(), Some(&*record), "written since the other was quarantined");
    let refused = read(&config_map("node-worker-1", &json!({"record.json": spoilt})).to_string());
    assert!(refused.entries.is_empty() && refused.refused[0].why.contains("cannot be trusted"), "{refused:?}");
}

#[test]
fn a_backup_of_a_node_has_all_that_could_be_kept_and_the_machine() {
    let found = read(
        "kind: Node\nmetadata: {name: worker-1, labels: {team: ml}, annotations: {example.com/note: hello}}\n\
         spec: {providerID: p, unschedulable: true, taints: [{key: dedicated, value: ml, effect: NoSchedule}]}\n\
         status: {nodeInfo: {systemUUID: s, machineID: m}}\n",
    );

    let [entry] = found.entries.as_slice() else { panic!("{found:?}") };
    let taint = Key::Taint { key: "dedicated".into(), effect: "NoSchedule".into() };
    let more = [(Key::Annotation("example.com/note".into()), "hello"), (taint, "ml"), (Key::Cordon, TRUE)];
    let mut all = kept(&[("team", "ml")]);
    all.extend(more.map(|(key, value)| (key, value.to_owned())));
    assert_eq!(entry.kept, all);
    let machine = Machine { provider_id: "p".into(), system_uuid: "s".into(), machine_id: "m".into() };
    assert_eq!(entry.machine, Some(machine));
}

/// The domain of an annotation may have upper-case letters, that of a label may not.
#[test]
fn annotations_follow_the_rule_of_annotations() {
    let found = read("{kind: Node, metadata: {name: a, annotations: {Example.COM/Owner: 'any text: ÄÖÜ'}}}");
    let [entry] = found.entries.as_slice() else { panic!("{found:?}") };
    assert_eq!(entry.kept[&Key::Annotation("Example.COM/Owner".into())], "any text: ÄÖÜ");
    assert!(read("a: {Example.COM/owner: x}").entries.is_empty());
}

#[rstest]
#[case::state(config_map("node-labels-a", &json!({"state.json":
    json!({"nodeName": "a", "labels": {}, "capturedAt": "2026-01-02T03:04:05Z"}).to_string()})))]
#[case::resource(json!({"kind": "NodeLabelState", "spec": {"nodeName": "a", "labels": {}, "capturedAt": "2026-01-02T03:04:05Z"}}))]
#[case::updated(json!({"kind": "NodeLabelState", "spec": {"nodeName": "a", "labels": {}, "lastUpdated": "2026-01-02T03:04:05Z"}}))]
#[case::listed(json!([{"node": "a", "labels": {}, "capturedAt": "2026-01-02T03:04:05Z"}]))]
fn the_capture_time_is_imported_if_the_source_has_it(#[case] object: Value) {
    let found = read(&object.to_string());
    assert_eq!(found.entries[0].captured_at, Some("2026-01-02T03:04:05Z".parse().unwrap()), "{found:?}");
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in ".{0,400}") {
        read(&text);
    }

    #[test]
    fn any_table_is_read_or_refused(text in "node,(key|labels|a/b|\"\"),?(value)?\n([a-z\",=\n;é ]{0,12}){0,12}") {
        let found = read(&text);
        for entry in found.entries {
            prop_assert!(entry.kept.keys().all(|key| matches!(key, Key::Label(key) if is_label_key(key))));
        }
    }

    #[test]
    fn any_object_is_read_or_refused(
        kind in "ConfigMap|Node|NodeLabelState|RecordExport|List|NodeList|Pod",
        key in "record.json|state.json|preserved_labels_json|a-SLASH-b|spec|labels|nodeName|items",
        text in "\\{\"(nodeName|labels|node|version)\":(1|\"x\"|\\{\"a\":(\"b\"|1|null)\\}|null|\\[\\])\\}|.{0,20}",
        nested in any::<bool>(),
    ) {
        let inner: Value = serde_json::from_str(&text).unwrap_or(Value::String(text.clone()));
        let data = if nested { json!({key.as_str(): inner}) } else { json!({key.as_str(): text}) };
        let object = json!({"kind": kind, "apiVersion": export::API_VERSION, "metadata": {"name": "node-labels-worker-1", "labels": inner, "annotations": inner},
            "data": data, "spec": data, "items": [data, inner]});
        let mut found = ImportInput::default();
        read_object(&object, &known(&["worker-1"]), &mut found);
        read(&object.to_string());
    }
}

#[rstest]
#[case::key_per_node("all", json!({"worker-1": r#"{"team":"ml"}"#, "worker-2.json": r#"{"team":"web"}"#}), &[("worker-1", "ml"), ("worker-2", "web")])]
#[case::map_per_node("worker-1", json!({"labels": r#"{"team":"ml"}"#}), &[("worker-1", "ml")])]
#[case::nested("x", json!({"state.json": r#"{"nodeName":"worker-1","labels":{"team":"ml"}}"#}), &[("worker-1", "ml")])]
fn labels_as_json_are_read_on_request(
    #[case] name: &str,
    #[case] data: serde_json::Value,
    #[case] expected: &[(&str, &str)],
) {
    let text = json!({"kind": "List", "items": [config_map(name, &data)]}).to_string();

    let found = read_json_labels(&text, "file");

    let read: Vec<(&str, &str)> =
        found.entries.iter().map(|entry| (entry.node.as_str(), entry.kept[&Key::label("team")].as_str())).collect();
    assert_eq!((read.as_slice(), found.refused.len()), (expected, 0), "{found:?}");
}

#[test]
fn invalid_json_is_refused_with_its_position() {
    let text = config_map("labels", &json!({"worker-1": "team=ml", "worker-2": r#"{"team":7}"#})).to_string();
    let found = read_json_labels(&text, "file");
    assert_eq!((found.entries.len(), found.refused.len()), (0, 2), "{found:?}");
    assert!(found.refused[0].origin.contains("labels, worker-1"), "{found:?}");
    assert_eq!(read_json_labels("kind: Pod\n", "file").refused.len(), 1);
}
