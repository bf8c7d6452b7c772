//! Everything that comes from outside and is decoded. What is valid is also decided about, written
//! and read again.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::Timestamp;
use perennial_core::{
    admission_review::{self, AdmissionResponse, Review},
    config::{Gate, Layers, Settings, load},
    keeper::{
        admission::admit,
        case::{Case, CaseContext, Phase},
        decide::{Decision, decide},
        import::{read_json_labels, read_text},
        mark::{MARK, Mark},
        policy::KeepPolicy,
        policy_set::PolicySet,
        record::{RECORD_KEY, RECOVERED_KEY, Record},
        selection::{Node, Policy},
        stored_record::Stored,
    },
    placement::{
        schedule::{Schedule, Window},
        spec,
        state::PlacementState,
    },
};
use serde_json::{Value, json};

/// Decodes bytes as a target does. The corpus has a folder for each target.
pub(crate) fn run(target: &str, bytes: &[u8]) {
    if target == "review" {
        return review(bytes);
    }
    let text = String::from_utf8_lossy(bytes);
    match target {
        "record" => record(&text),
        "mark" => mark(&text),
        "policy" => policy(&text),
        "config" => drop(load(&Layers { file: Some(text.into_owned()), ..Layers::default() })),
        "import" => import(&text),
        "cron" => cron(&text),
        "workload" => workload(&text),
        _ => panic!("unknown target {target}"),
    }
}

fn now() -> Timestamp {
    Timestamp::from_second(1_780_000_000).unwrap_or_default()
}

fn policies() -> PolicySet {
    Policy::from_settings(&Settings::default().keeper).into()
}

/// A record with or without a valid checksum, which anyone who may write records can compute.
fn record(text: &str) {
    if let Ok(record) = Record::decode(text) {
        assert_same(&record);
    }
    let Ok(value) = serde_json::from_str::<Value>(text) else { return };
    if let Ok(record) = Record::from_value(value) {
        assert_same(&record);
        let text = record.to_value().to_string();
        for key in [RECORD_KEY, RECOVERED_KEY] {
            decide_about(Stored::read(&BTreeMap::from([(key.to_owned(), text.clone())]), |_| true), &record);
        }
    }
    decide_about(
        Stored::read(&BTreeMap::from([(RECORD_KEY.to_owned(), text.to_owned())]), |_| true),
        &Record::from_value(json!({"version": 1, "sequence": 1, "node": {}, "capturedAt": now()})).expect("a record"),
    );
}

/// A record that is written is read as the same one.
fn assert_same(record: &Record) {
    let Ok(text) = record.encode() else { return };
    let again = Record::decode(&text);
    assert!(again.as_ref().is_ok_and(|again| again.to_value() == record.to_value()), "{text}\n{again:?}");
}

/// Decides about a node of the record's name with some other state.
fn decide_about(stored: Stored, record: &Record) {
    let (policies, stored) = (policies(), Arc::new(stored));
    let context = CaseContext { policies: &policies, now: now(), by: "fuzz" };
    let labels: BTreeMap<String, String> =
        record.before.iter().map(|(key, value)| (key.to_string(), value.clone())).collect();
    for uid in [record.node.uid.as_str(), "another"] {
        let node = Node {
            name: record.node.name.clone(),
            uid: uid.to_owned(),
            resource_version: record.node.resource_version.saturating_add(1),
            labels: labels.clone(),
            ..Node::default()
        };
        for phase in [Phase::Live, Phase::Gone, Phase::Creating { by_kubelet: true }] {
            let case = Case::new(phase, Some(node.clone()), Some(Arc::clone(&stored)), Vec::new(), &context);
            if let Decision::WriteRecord(_, next) = decide(&case) {
                let before = case.record().map_or(0, |record| record.sequence);
                assert!(next.sequence > before, "sequences only grow: {} after {before}", next.sequence);
                assert_same(&next);
            }
        }
    }
}

fn mark(text: &str) {
    let Some(mark) = Mark::parse(text) else { return };
    let rendered = mark.render();
    assert_eq!(Mark::parse(&rendered).map(|mark| mark.render()), Some(rendered), "{text}");
    let policies = policies();
    let context = CaseContext { policies: &policies, now: now(), by: "fuzz" };
    let annotations = BTreeMap::from([(MARK.to_owned(), text.to_owned())]);
    let node = Node { name: "n1".to_owned(), uid: "u".to_owned(), annotations, ..Node::default() };
    for phase in [Phase::Live, Phase::Gone] {
        drop(decide(&Case::new(phase, Some(node.clone()), None, Vec::new(), &context)));
    }
}

fn review(bytes: &[u8]) {
    let uid = admission_review::read_uid(bytes);
    match admission_review::read(bytes) {
        Review::Request(request) => {
            assert_eq!(uid.as_ref(), Some(&request.uid), "both ways to read the uid agree");
            let written = admission_review::write(&request.uid, &AdmissionResponse::allowed());
            let answer: Value = serde_json::from_slice(&written).expect("a response");
            assert_eq!(answer["response"]["uid"], request.uid.as_str());
            // 4,096 values of a body of 3 MiB.
            assert!(request.footprint() <= 64 * bytes.len() + (1 << 20), "{} bytes", request.footprint());
            let policies = policies();
            let context = CaseContext { policies: &policies, now: now(), by: "fuzz" };
            for object in [&request.object, &request.old_object].into_iter().flatten() {
                let phase = Phase::Creating { by_kubelet: false };
                let case = Case::new(phase, Some(Node::default()), None, Vec::new(), &context);
                drop(admit(object, &case, Gate::Always));
            }
        }
        Review::Malformed { uid: read } => assert_eq!(uid, Some(read)),
        Review::Unreadable => assert_eq!(uid, None),
    }
}

fn policy(text: &str) {
    if let Ok(spec) = serde_json::from_str(text) {
        drop(KeepPolicy::parse("fuzzed", &spec, &Settings::default().keeper));
    }
}

fn import(text: &str) {
    for file in ["a.csv", "a.yaml", "a.json"] {
        drop(read_text(text, file, &BTreeSet::from(["n1".to_owned()])));
    }
    drop(read_json_labels(text, "a.json"));
}

fn cron(text: &str) {
    let Ok(schedule) = Schedule::parse(text) else { return };
    let next = schedule.next(now());
    assert!(next.is_none_or(|next| next > now()), "{text}");
    if let Some(next) = next {
        assert_eq!(schedule.last(next), Some(next), "{text}: a match is its own last match");
    }
    let window = Window { schedule, duration: jiff::SignedDuration::from_hours(1) };
    for at in [Timestamp::MIN, Timestamp::UNIX_EPOCH, now(), Timestamp::MAX] {
        let _ = window.state(at);
    }
}

/// Annotations of a workload, as a JSON object.
fn workload(text: &str) {
    let (state, is_readable) = PlacementState::read(Some(text));
    if is_readable {
        assert_eq!(PlacementState::read(Some(&state.to_annotation())), (state, true), "{text}");
    }
    let Ok(annotations) = serde_json::from_str::<BTreeMap<String, String>>(text) else { return };
    let rules = spec::AnnotationRules::of(&["perennial.dev", "spotalis.io"]);
    if let Ok(Some(spec)) = spec::parse(&rules, &BTreeMap::new(), &annotations) {
        for replicas in [0, 1, 7, 1000, u32::MAX] {
            let spot = spec.split.spot(replicas);
            assert!(spot <= replicas && spec.fallback_budget.of(spot) <= spot, "{text}: {spot} of {replicas}");
            drop(spec.notes(replicas));
        }
        if let Some(window) = &spec.window {
            let _ = window.state(now());
        }
    }
}
