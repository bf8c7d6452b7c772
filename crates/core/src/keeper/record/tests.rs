use proptest::prelude::*;

use super::{
    super::keys::{Key, digest},
    *,
};

fn kept(pairs: &[(&str, &str)]) -> Kept {
    pairs.iter().map(|(k, v)| (Key::label(k), (*v).to_owned())).collect()
}

fn record() -> Record {
    let mut record = Record {
        sequence: 6,
        node: Origin {
            name: "n1".into(),
            uid: "u1".into(),
            resource_version: 41,
            mark: String::new(),
            machine: Machine { provider_id: "p".into(), system_uuid: "s".into(), machine_id: "m".into() },
        },
        identity: None,
        provenance: Provenance::default(),
        kept: kept(&[("team", "old")]),
        folded: false,
        before: Kept::new(),
        withheld: Vec::new(),
        captured_at: "2026-01-02T03:04:05Z".parse().unwrap(),
        captured_by: "watch".into(),
        history: Vec::new(),
    };
    let entry = record.entry();
    record.sequence = 7;
    record.kept = kept(&[("team", "ml"), ("example.com/rack", "r1")]);
    record.history = vec![entry];
    record
}

#[test]
fn a_record_has_the_documented_shape() {
    let text = record().encode().unwrap();
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    for field in [
        "version",
        "sequence",
        "node",
        "labels",
        "annotations",
        "taints",
        "unschedulable",
        "folded",
        "before",
        "capturedAt",
        "capturedBy",
        "checksum",
        "history",
    ] {
        assert!(value.get(field).is_some(), "{field} in {text}");
    }
    for field in ["name", "uid", "resourceVersion", "mark", "providerID", "systemUUID", "machineID"] {
        assert!(value["node"][field].is_string(), "{field} in {text}");
    }
    assert_eq!(value["labels"]["team"], "ml");
    assert_eq!(value["node"]["resourceVersion"], "41");
}

#[test]
fn a_record_reads_as_it_was_written() {
    assert_eq!(Record::decode(&record().encode().unwrap()), Ok(record()));
}

#[test]
fn a_changed_label_is_noticed_and_history_serves() {
    let text = record().encode().unwrap().replace("\"ml\"", "\"evil\"");
    let invalid = Record::decode(&text).unwrap_err();
    assert_eq!(invalid.why, RecordFault::Checksum);
    assert_eq!(invalid.good.map(|e| Kept::from(e.content.clone())), Some(kept(&[("team", "old")])));
}

#[test]
fn a_changed_history_entry_is_not_believed() {
    let text = record().encode().unwrap().replace("\"old\"", "\"evil\"");
    assert!(Record::decode(&text).unwrap().history.is_empty());
    let both = text.replace("\"ml\"", "\"evil\"");
    assert_eq!(Record::decode(&both).unwrap_err(), Invalid { why: RecordFault::Checksum, good: None });
}

#[test]
fn other_versions_are_distinguished() {
    let newer = record().encode().unwrap().replace("\"version\":1", "\"version\":2");
    let fault = Record::decode(&newer).unwrap_err().why;
    assert_eq!(fault, RecordFault::Version("2".into()));
    assert!(fault.is_newer());
    for older in ["{}", "{\"version\":0}", "{\"version\":\"1\"}", "{\"version\":-1}"] {
        assert!(!Record::decode(older).unwrap_err().why.is_newer(), "{older}");
    }
}

#[test]
fn history_goes_before_labels_when_there_is_no_room() {
    let mut big = record();
    big.kept = (0..6_000).map(|i| (Key::Label(format!("example.com/key-{i}")), "v".repeat(60))).collect();
    big.history = vec![big.entry(), big.entry()];
    let back = Record::decode(&big.encode().unwrap()).unwrap();
    assert_eq!(digest(&back.kept), digest(&big.kept));
    assert!(back.history.len() < 2);
}

#[test]
fn a_record_that_cannot_fit_is_refused() {
    let mut big = record();
    big.kept = (0..20_000).map(|i| (Key::Label(format!("example.com/key-{i}")), "v".repeat(60))).collect();
    assert!(big.encode().is_err());
}

proptest! {
    #[test]
    fn any_text_is_a_record_or_a_fault(text in ".*") {
        let _ = Record::decode(&text);
    }

    #[test]
    fn any_flipped_byte_is_noticed(at in 0usize..2000, with in 0x20u8..0x7f) {
        let good = record();
        let mut bytes = good.encode().unwrap().into_bytes();
        let at = at % bytes.len();
        bytes[at] = with;
        // Either its content is the same (white space, an equal byte, an entry of history dropped),
        // or it is refused.
        if let Ok(read) = Record::decode(&String::from_utf8(bytes).unwrap()) {
            prop_assert_eq!(Record { history: vec![], ..read }, Record { history: vec![], ..good });
        }
    }
}

#[test]
fn faults_are_short_however_long_the_texts_of_a_record_are() {
    let long = "ä".repeat(100_000);
    for text in [format!("{{\"version\": \"{long}\"}}"), format!("{{\"version\": 1, \"sequence\": \"{long}\"}}")] {
        let fault = Record::decode(&text).unwrap_err().why;
        assert!(fault.to_string().len() < 500, "{}", fault.to_string().len());
    }
}
