//! Untrusted input causes no panic, no hang and no unbounded memory. The inputs are nearly valid,
//! since entirely invalid ones are rejected early.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "whatever fails here fails the test")]

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::Timestamp;
use perennial_core::{
    admission_review,
    config::{Gate, Layers, Settings, load},
    keeper::{
        admission::admit,
        case::{Case, CaseContext, Phase},
        collect::{Candidate, NodeList, collect},
        decide::{Decision, decide},
        import::read_text,
        keys::{Kept, Key},
        mark::{MARK, Mark},
        policy_set::PolicySet,
        record::{RECORD_KEY, RECOVERED_KEY, Record},
        selection::{Node, Policy},
        stored_record::Stored,
    },
    placement::spec,
};
use proptest::prelude::*;
use serde_json::{Value, json};

fn now() -> Timestamp {
    "2026-06-01T12:00:00Z".parse().unwrap()
}

/// Numbers at the limits of arithmetic, and ordinary ones.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(0),
        Just(1),
        Just(u64::MAX),
        Just(u64::MAX - 1),
        Just(1 << 63),
        Just(1 << 53),
        any::<u64>(),
        0..100u64
    ]
}

fn word() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z]{0,6}",
        "[a-z.]{1,12}/[a-zA-Z_.-]{0,12}",
        Just("node-restriction.kubernetes.io/x".to_owned()),
        Just("kubernetes.io/hostname".to_owned()),
        Just(String::new()),
        Just("\u{0}\u{202e}\"\\".to_owned()),
        "\\PC{0,80}",
        "a{250,300}",
    ]
}

/// Any JSON with values of the expected types.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        number().prop_map(Value::from),
        any::<f64>().prop_map(|f| serde_json::Number::from_f64(f).map_or(Value::Null, Value::Number)),
        word().prop_map(Value::from),
        Just(json!("2026-06-01T12:00:00Z")),
        Just(json!("-009999-01-02T01:59:59Z")),
        Just(json!("9999-12-30T22:00:00.999999999Z")),
    ];
    leaf.prop_recursive(4, 48, 6, |inner| {
        let names = prop_oneof![
            word(),
            Just("labels".to_owned()),
            Just("annotations".to_owned()),
            Just("metadata".to_owned()),
            Just("sequence".to_owned()),
            Just("history".to_owned()),
            Just("key".to_owned()),
            Just("effect".to_owned()),
        ];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::vec((names, inner), 0..6).prop_map(|pairs| Value::Object(pairs.into_iter().collect())),
        ]
    })
}

fn kept() -> impl Strategy<Value = Kept> {
    let key = prop_oneof![word().prop_map(Key::Label), word().prop_map(Key::Annotation)];
    prop::collection::btree_map(key, word(), 0..6)
}

/// A forged record with a valid checksum.
fn forged() -> impl Strategy<Value = Record> {
    let time = prop_oneof![Just(Timestamp::MIN), Just(Timestamp::MAX), Just(now()), Just(Timestamp::UNIX_EPOCH)];
    (number(), number(), word(), word(), kept(), kept(), any::<bool>(), time, number()).prop_map(
        |(sequence, version, name, uid, kept, before, folded, captured_at, older)| {
            let text = json!({"version": 1, "sequence": 1, "node": {}, "capturedAt": now(), "checksum": ""});
            let mut record = Record::from_value(text).unwrap();
            record.kept = before.clone();
            record.sequence = older;
            let entry = record.entry();
            record.sequence = sequence;
            record.node.name = name;
            record.node.uid = uid;
            record.node.resource_version = version;
            record.kept = kept;
            record.before = before;
            record.folded = folded;
            record.captured_at = captured_at;
            record.history = vec![entry];
            record
        },
    )
}

fn node() -> impl Strategy<Value = Node> {
    let words = || prop::collection::btree_map(word(), word(), 0..5);
    let mark = prop_oneof![Just(None), word().prop_map(Some), any_json().prop_map(|json| Some(json.to_string()))];
    (word(), word(), number(), words(), words(), mark).prop_map(|(name, uid, version, labels, annotations, mark)| {
        let mut node = Node { name, uid, resource_version: version, labels, annotations, ..Node::default() };
        node.annotations.extend(mark.map(|mark| (MARK.to_owned(), mark)));
        node
    })
}

/// A random place in a document.
fn replace(value: &mut Value, path: &[usize], with: Value) {
    let Some((first, rest)) = path.split_first() else {
        *value = with;
        return;
    };
    match value {
        Value::Object(map) if !map.is_empty() => {
            let at = first % map.len();
            let child = map.values_mut().nth(at).expect("within");
            replace(child, rest, with);
        }
        Value::Array(list) if !list.is_empty() => {
            let at = first % list.len();
            replace(&mut list[at], rest, with);
        }
        other => *other = with,
    }
}

fn policies() -> PolicySet {
    Policy::from_settings(&Settings::default().keeper).into()
}

/// Decides everything that is ever decided about a record and a node, and writes and reads the
/// result.
fn decide_all(stored: Stored, node: &Node) {
    let (policies, stored) = (policies(), Arc::new(stored));
    let context = CaseContext { policies: &policies, now: now(), by: "test" };
    let case = |phase| Case::new(phase, Some(node.clone()), Some(Arc::clone(&stored)), Vec::new(), &context);
    for phase in [Phase::Live, Phase::Gone] {
        let case = case(phase);
        if let Decision::WriteRecord(_, next) = decide(&case) {
            if let Some(record) = case.record() {
                assert!(
                    next.sequence > record.sequence,
                    "sequences only grow: {} after {}",
                    next.sequence,
                    record.sequence
                );
            }
            if let Ok(text) = next.encode() {
                assert_eq!(Record::decode(&text).map(|read| read.sequence).ok(), Some(next.sequence), "{text}");
            }
        }
    }
    drop(decide(&case(Phase::Creating { by_kubelet: false })));
    let object = json!({"metadata": {"name": node.name, "labels": node.labels, "annotations": node.annotations}});
    drop(admit(&object, &case(Phase::Creating { by_kubelet: true }), Gate::Always));
    let absent = Candidate::new(&Case::absent(Some(Arc::clone(&stored)), &context), &BTreeMap::new());
    let retention = std::time::Duration::MAX;
    let _ = collect(
        &Candidate { absent_since: Some(absent.captured_at), retention, ..absent },
        now(),
        &NodeList::TRUSTED,
        false,
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, ..ProptestConfig::default() })]

    #[test]
    fn a_record_that_is_nearly_right_does_no_harm(
        good in forged(),
        path in prop::collection::vec(any::<usize>(), 0..5),
        with in any_json(),
        node in node(),
        beside in any::<bool>(),
    ) {
        let mut value = good.to_value();
        replace(&mut value, &path, with);
        let mut data = BTreeMap::from([(RECORD_KEY.to_owned(), value.to_string())]);
        if beside {
            data.insert(RECOVERED_KEY.to_owned(), good.to_value().to_string());
        }
        decide_all(Stored::read(&data, |_| true), &node);
    }

    /// Checksums are not secret: anyone who may write records can forge one.
    #[test]
    fn a_record_with_a_right_checksum_and_anything_in_it_does_no_harm(record in forged(), node in node(), torn in any::<bool>()) {
        let mut text = record.to_value();
        if torn {
            // Its history is used instead.
            text["folded"] = json!(!record.folded);
        }
        let data = BTreeMap::from([(RECORD_KEY.to_owned(), text.to_string())]);
        decide_all(Stored::read(&data, |_| true), &node);
    }

    #[test]
    fn a_mark_is_read_or_not(text in prop_oneof![word(), any_json().prop_map(|json| json.to_string())]) {
        if let Some(mark) = Mark::parse(&text) {
            let rendered = mark.render();
            prop_assert_eq!(Mark::parse(&rendered).map(|mark| mark.render()), Some(rendered));
        }
    }

    #[test]
    fn a_review_that_is_nearly_right_is_answered_or_refused(
        path in prop::collection::vec(any::<usize>(), 0..6),
        with in any_json(),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut review = json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "request": {
                "uid": "u", "operation": "CREATE", "name": "n", "namespace": "", "dryRun": false,
                "userInfo": {"username": "system:node:n", "groups": ["system:nodes"]},
                "object": {"metadata": {"name": "n", "labels": {"a": "b"}, "annotations": {"c": "d"}}, "spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}},
                "oldObject": null,
            },
        });
        replace(&mut review, &path, with);
        let mut bytes = review.to_string().into_bytes();
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        if let admission_review::Review::Request(request) = admission_review::read(&bytes) {
            prop_assert!(!request.uid.is_empty());
            if let Some(object) = &request.object {
                let policies = policies();
                let context = CaseContext { policies: &policies, now: now(), by: "test" };
                let phase = Phase::Creating { by_kubelet: false };
                let case = Case::new(phase, Some(Node::default()), None, Vec::new(), &context);
                drop(admit(object, &case, Gate::Always));
            }
        }
        let _ = admission_review::read_uid(&bytes);
    }

    #[test]
    fn annotations_of_workloads_are_obeyed_or_refused(
        asked in prop::collection::btree_map(
            prop::sample::select(vec![
                "spot-percentage", "min-on-demand", "fallback-after", "fallback-budget", "disruption-schedule", "disruption-duration",
                "paused", "ignore", "enabled", "strength", "move-stateful",
            ]),
            prop_oneof![
                word(),
                "[0-9]{1,25}%?",
                "-?[0-9]{1,6}(\\.[0-9]+)?(ns|us|ms|s|m|h|d|%)?",
                "([0-9*/,-]{1,8} ){4}[0-9*/,-]{1,8}",
                "(([0-9]{1,3}|\\*)(/[0-9]{1,3})? ){4}([A-Z]{3}|\\*)",
                Just("true".to_owned()),
                Just("@reboot".to_owned()),
                Just("0 0 30 2 *".to_owned()),
            ],
            0..8,
        ),
        replicas in prop_oneof![Just(0u32), Just(u32::MAX), any::<u32>(), 0..50u32],
    ) {
        let workload: BTreeMap<String, String> =
            asked.into_iter().map(|(name, value)| (format!("perennial.dev/{name}"), value)).collect();
        if let Ok(Some(spec)) = spec::parse(&spec::AnnotationRules::of(&["perennial.dev"]), &BTreeMap::new(), &workload) {
            let spot = spec.split.spot(replicas);
            prop_assert!(spot <= replicas);
            prop_assert!(spec.fallback_budget.of(spot) <= spot);
            drop(spec.notes(replicas));
            if let Some(window) = &spec.window {
                for at in [Timestamp::MIN, Timestamp::UNIX_EPOCH, now(), Timestamp::MAX] {
                    let _ = window.state(at);
                }
            }
        }
    }

    #[test]
    fn a_config_file_that_is_nearly_right_is_read_or_refused(
        path in prop::collection::vec(any::<usize>(), 0..5),
        with in any_json(),
    ) {
        let file = perennial_core::config::render(&Settings::default());
        let mut tree: Value = serde_saphyr::from_str(&file).unwrap();
        replace(&mut tree, &path, with);
        let _ = load(&Layers { file: Some(tree.to_string()), ..Layers::default() });
    }

    #[test]
    fn a_file_to_import_that_is_nearly_right_is_read_or_refused(
        which in 0..6usize,
        record in forged(),
        path in prop::collection::vec(any::<usize>(), 0..6),
        with in any_json(),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let known = BTreeSet::from(["worker-1".to_owned()]);
        let mut value = match which {
            0 => json!({"kind": "ConfigMap", "metadata": {"name": "node-worker-1"}, "data": {RECORD_KEY: record.to_value().to_string()}}),
            1 => json!({"kind": "ConfigMap", "metadata": {"name": "worker-1"}, "data": {"example.com-SLASH-team": "ml"}}),
            2 => json!({"kind": "ConfigMap", "metadata": {"name": "node-labels-worker-1"}, "data": {"state.json": "{\"nodeName\":\"worker-1\",\"labels\":{}}"}}),
            3 => json!({"kind": "List", "items": [{"kind": "Node", "metadata": {"name": "worker-1", "labels": {"a": "b"}}, "spec": {"taints": []}}]}),
            4 => json!({"worker-1": {"labels": {"a": "b"}}}),
            _ => json!({"kind": "RecordExport", "items": [{"node": "worker-1", "record": record.to_value()}]}),
        };
        replace(&mut value, &path, with);
        let mut text = value.to_string();
        if let Some(cut) = cut {
            let at = (0..=cut.index(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
            text.truncate(at);
        }
        let mut found = read_text(&text, "file", &known);
        found.settle();
        for entry in found.entries {
            prop_assert!(entry.record.is_none_or(|record| record.encode().is_ok()));
        }
    }
}

/// Returns the peak memory of this process in MiB.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
    line.trim().trim_end_matches("kB").trim().parse::<u64>().unwrap_or_default() / 1024
}

/// Deeply nested text.
fn deep() -> [String; 4] {
    const DEPTH: usize = 200_000;
    [
        "[".repeat(DEPTH),
        r#"{"a":"#.repeat(DEPTH),
        format!("{}1{}", "[".repeat(DEPTH), "]".repeat(DEPTH)),
        (0..2000).map(|depth| format!("{}a:\n", " ".repeat(depth))).collect::<Vec<_>>().concat(),
    ]
}

/// Each line repeats the previous one ten times: ten lines exceed any memory.
fn bomb() -> String {
    let line = |line: usize| {
        let ten = vec![if line == 0 { "x".to_owned() } else { format!("*a{}", line - 1) }; 10];
        format!("a{line}: &a{line} [{}]\n", ten.join(", "))
    };
    (0..12).map(line).collect::<Vec<_>>().concat()
}

#[test]
fn deeply_nested_input_is_refused() {
    for text in deep() {
        assert!(Record::decode(&text).is_err());
        assert!(Mark::parse(&text).is_none());
        assert!(load(&Layers { file: Some(text.clone()), ..Layers::default() }).is_err());
        assert!(read_text(&text, "file", &BTreeSet::new()).entries.is_empty());
        assert!(!matches!(admission_review::read(text.as_bytes()), admission_review::Review::Request(_)));
        let review = format!(r#"{{"request":{{"uid":"u","object":{text}}}}}"#);
        assert!(!matches!(admission_review::read(review.as_bytes()), admission_review::Review::Request(_)));
    }
}

#[test]
fn input_that_expands_when_it_is_read_is_refused() {
    let text = bomb();
    assert!(load(&Layers { file: Some(text.clone()), ..Layers::default() }).is_err());
    let found = read_text(&text, "file", &BTreeSet::new());
    assert!(found.entries.is_empty());
    assert!(peak() < 1024, "{} MiB", peak());
}

#[test]
fn large_input_is_read_in_time() {
    let known = BTreeSet::new();
    let many = (0..20_000).map(|i| format!("node-{i},team,ml\n")).collect::<Vec<_>>().concat();
    assert_eq!(read_text(&format!("node,key,value\n{many}"), "file", &known).entries.len(), 20_000);
    drop(read_text(&format!("node,key,value\n{}", "\"".repeat(1 << 20)), "file", &known));
    drop(read_text(&"- \n".repeat(200_000), "file", &known));
    drop(read_text(&"---\n".repeat(100_000), "file", &known));
    drop(Record::decode(&"9".repeat(1 << 20)));
    drop(Record::decode(&format!("\"{}\"", "\\u0000".repeat(1 << 17))));
    for name in ["spot-percentage", "min-on-demand", "fallback-after", "disruption-schedule"] {
        let asked = [
            ("spot-percentage", "50".to_owned()),
            (name, "9h".repeat(1 << 18)),
            ("disruption-duration", "1h".to_owned()),
        ];
        let asked = asked.into_iter().map(|(name, value)| (format!("perennial.dev/{name}"), value)).collect();
        assert!(
            spec::parse(&spec::AnnotationRules::of(&["perennial.dev"]), &BTreeMap::new(), &asked).is_err(),
            "{name}"
        );
    }
}
