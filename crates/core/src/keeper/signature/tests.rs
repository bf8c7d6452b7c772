use proptest::prelude::*;

use super::*;

const HERE: SignedLocation<'_> = SignedLocation { namespace: "ours", name: "node-n1", key: RECORD_KEY };

fn keys(names: &[&str]) -> Keys {
    Keys::new(names.iter().map(|name| ((*name).to_owned(), name.repeat(32).into_bytes()))).unwrap()
}

/// The value that any other implementation of HMAC-SHA-256 gives for these parts.
#[test]
fn the_signature_is_the_same_in_every_version() {
    let signature = keys(&["k"]).sign(&HERE, "{}").unwrap();
    assert_eq!(signature, "k:ff1e599d10e180937c2147b724da7e9dde05617fb892fa279b2af292e7499730");
}

#[test]
fn the_last_key_by_name_signs_and_all_verify() {
    let old = keys(&["2026-01"]);
    let both = keys(&["2026-01", "2026-02"]);
    let before = old.sign(&HERE, "text").unwrap();
    let after = both.sign(&HERE, "text").unwrap();
    assert!(before.starts_with("2026-01:") && after.starts_with("2026-02:"));
    assert_eq!(both.verify(Mode::Require, &HERE, "text", Some(&before)), Ok(()));
    assert!(!both.is_current(Some(&before)) && both.is_current(Some(&after)) && !both.is_current(None));
    assert_eq!(
        old.verify(Mode::Require, &HERE, "text", Some(&after)),
        Err(RecordFault::UnknownKey("2026-02".to_owned()))
    );
}

#[test]
fn the_mode_decides_about_records_without_a_signature() {
    let keys = keys(&["k"]);
    assert_eq!(keys.verify(Mode::None, &HERE, "text", Some("k:00")), Ok(()));
    assert_eq!(keys.verify(Mode::Sign, &HERE, "text", None), Ok(()));
    assert_eq!(keys.verify(Mode::Sign, &HERE, "text", Some("k:00")), Err(RecordFault::Forged("k".to_owned())));
    assert_eq!(keys.verify(Mode::Require, &HERE, "text", None), Err(RecordFault::Unsigned));
}

#[test]
fn keys_that_are_too_short_are_refused() {
    assert_eq!(Keys::new([]), Err(BadKeys::None));
    let short = Keys::new([("a".to_owned(), vec![0; 31])]);
    assert_eq!(short, Err(BadKeys::Short { name: "a".to_owned(), bytes: 31 }));
}

#[test]
fn keys_are_not_printed() {
    let keys = Keys::new([("name".to_owned(), b"secret-secret-secret-secret-secret".to_vec())]).unwrap();
    assert_eq!(format!("{keys:?}"), "[\"name\"]");
}

#[test]
fn a_replayed_record_is_distinguished_from_a_late_event() {
    let at = |uid: &str, resource_version, sequence, second| Newest {
        uid: hash(uid),
        resource_version,
        sequence,
        captured_at: jiff::Timestamp::from_second(second).unwrap(),
        captured_by: hash("a"),
    };
    let mut newest = at("u", 10, 5, 1000);
    assert_eq!(newest.see(at("u", 9, 4, 900)), Ok(()), "late news");
    assert_eq!(newest.see(at("u", 11, 5, 1000)), Ok(()), "another annotation");
    assert_eq!(newest.see(at("u", 12, 4, 900)), Err(RecordFault::Replayed { found: 4, seen: 5 }));
    assert_eq!(newest.see(at("u", 13, 6, 1100)), Ok(()));
    let replayed = Err(RecordFault::Replayed { found: 4, seen: 6 });
    assert_eq!(newest.see(at("v", 14, 4, 900)), replayed, "deleted, and created from an older copy");
    assert_eq!(newest.see(at("v", 15, 4, 900)), replayed, "and read again");
    assert_eq!(newest.see(at("v", 16, 6, 1100)), Ok(()), "created from the newest copy");
    assert_eq!(newest.see(at("w", 17, 1, 1200)), Ok(()), "deleted and created again");
    assert_eq!(newest.see(at("v", 16, 6, 1100)), Ok(()), "late news of the deleted one");
    assert_eq!(newest, at("w", 17, 1, 1200));
    newest.sequence = 7;
    let by_other = Newest { captured_by: hash("b"), ..at("x", 18, 1, 1195) };
    assert_eq!(newest.see(by_other), Ok(()), "created again by a replica whose clock is behind");
    assert_eq!(newest.sequence, 1);
}

#[test]
fn faults_are_short_however_long_the_signature_is() {
    let (keys, long) = (keys(&["k"]), "x".repeat(1 << 20));
    for signature in [format!("{long}:00"), long.clone(), format!("k:{long}")] {
        let fault = keys.verify(Mode::Require, &HERE, "text", Some(&signature)).unwrap_err();
        assert!(fault.to_string().len() < 300, "{}", fault.to_string().len());
    }
}

proptest! {
    /// Whatever is changed, in the bytes, in the place or in the signature: it does not verify.
    #[test]
    fn only_the_same_bytes_in_the_same_place_verify(
        text in ".{0,60}", other in ".{0,60}", part in 0..4usize, parts in prop::array::uniform3("[a-z0-9.-]{1,12}"),
        flip in 0..64usize,
    ) {
        let keys = keys(&["a", "b"]);
        let place = SignedLocation { namespace: &parts[0], name: &parts[1], key: &parts[2] };
        let signature = keys.sign(&place, &text).unwrap();
        prop_assert_eq!(keys.verify(Mode::Require, &place, &text, Some(&signature)), Ok(()));

        let (mut moved, mut changed) = (place, text.as_str());
        match part {
            0 => moved.namespace = &other,
            1 => moved.name = &other,
            2 => moved.key = &other,
            _ => changed = &other,
        }
        let same = (moved.namespace, moved.name, moved.key, changed)
            == (place.namespace, place.name, place.key, text.as_str());
        prop_assert_eq!(keys.verify(Mode::Require, &moved, changed, Some(&signature)).is_ok(), same);

        let mut digits: Vec<char> = signature.chars().collect();
        digits[2 + flip] = if digits[2 + flip] == '0' { '1' } else { '0' };
        let bent: String = digits.into_iter().collect();
        prop_assert!(keys.verify(Mode::Sign, &place, &text, Some(&bent)).is_err());
    }

    /// Parts do not run together: what leaves one and enters the next is another place.
    #[test]
    fn a_place_cannot_be_shifted(name in "[a-z]{2,20}", cut in 1..10usize) {
        let cut = cut.min(name.len() - 1);
        let keys = keys(&["k"]);
        let (front, back) = name.split_at(cut);
        let one = SignedLocation { namespace: front, name: back, key: RECORD_KEY };
        let two = SignedLocation { namespace: &name, name: "", key: RECORD_KEY };
        prop_assert_ne!(keys.sign(&one, "x"), keys.sign(&two, "x"));
    }

    #[test]
    fn any_signature_is_read_or_refused(signature in ".{0,80}") {
        prop_assert!(keys(&["k"]).verify(Mode::Require, &HERE, "text", Some(&signature)).is_err());
    }
}
