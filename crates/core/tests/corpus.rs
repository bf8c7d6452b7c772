//! A stable driver for fuzzing: every file of `corpus/` and thousands of mutations of it, which are
//! the same in every run, are decoded without a panic.
//!
//! An input that made a decoder fail is added to `corpus/TARGET`. `FUZZ_ROUNDS=1000000 cargo test
//! -p perennial-core --test corpus` searches for longer.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failure here fails the test")]

use std::{collections::BTreeSet, fs, path::Path};

use jiff::Timestamp;
use perennial_core::{
    admission_review,
    config::{Layers, Settings, load},
    keeper::{import::read_text, mark::Mark, policy::KeepPolicy, record::Record},
    placement::schedule::Schedule,
};
use perennial_testkit::prng::Prng;
use rstest::rstest;

/// Mutations of each file.
const ROUNDS: u64 = 3000;
/// Texts with a meaning in one of the formats.
const WORDS: [&[u8]; 16] = [
    b"{",
    b"}",
    b"[",
    b"]",
    b"\"",
    b":",
    b",",
    b"null",
    b"-1",
    b"18446744073709551616",
    b"1e999",
    b"\\u0000",
    b"\xff\xfe",
    b"../",
    b"*",
    b"\n- &a *a",
];

/// Changes a text a few times: bits, cuts, copies and words.
fn mutate(text: &[u8], prng: &mut Prng) -> Vec<u8> {
    let mut text = text.to_vec();
    for _ in 0..=prng.below(4) {
        let (at, to) = (prng.below(text.len() + 1), prng.below(text.len() + 1));
        let (from, end) = (at.min(to), at.max(to));
        match prng.below(6) {
            0 if from < text.len() => text[from] ^= 1 << prng.below(8),
            1 => text.truncate(from),
            2 => drop(text.drain(from..end)),
            3 => {
                let copy = text[from..end].to_vec();
                text.splice(from..from, copy.into_iter().cycle().take((end - from) * (1 + prng.below(20))));
            }
            _ => drop(text.splice(from..from, WORDS[prng.below(WORDS.len())].iter().copied())),
        }
        text.truncate(1 << 16);
    }
    text
}

/// Decodes a text as one target does. What is valid is also written and read again.
fn decode(target: &str, text: &[u8]) {
    if target == "review" {
        drop(admission_review::read(text));
        return;
    }
    let text = String::from_utf8_lossy(text);
    match target {
        "record" => {
            if let Ok(record) = Record::decode(&text) {
                let again = record.encode().map(|text| Record::decode(&text));
                assert!(again.is_ok_and(|again| again.is_ok_and(|again| again == record)), "{text}");
            }
        }
        "mark" => {
            if let Some(mark) = Mark::parse(&text) {
                assert!(Mark::parse(&mark.render()).is_some(), "{text}");
            }
        }
        "policy" => {
            if let Ok(spec) = serde_json::from_str(&text) {
                drop(KeepPolicy::parse("fuzzed", &spec, &Settings::default().keeper));
            }
        }
        "config" => drop(load(&Layers { file: Some(text.into_owned()), ..Layers::default() })),
        "import" => {
            for file in ["a.csv", "a.yaml", "a.json"] {
                drop(read_text(&text, file, &BTreeSet::new()));
            }
        }
        "cron" => {
            if let Ok(schedule) = Schedule::parse(&text) {
                let now = Timestamp::UNIX_EPOCH;
                assert!(schedule.next(now).is_some_and(|next| next > now), "{text}");
            }
        }
        _ => panic!("unknown target {target}"),
    }
}

#[rstest]
fn no_input_of_the_corpus_and_no_mutation_of_it_makes_a_decoder_fail(
    #[values("record", "mark", "review", "policy", "config", "import", "cron")] target: &str,
) {
    let rounds = std::env::var("FUZZ_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(ROUNDS);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus").join(target);
    let mut files: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() > 1, "the corpus of {target} is missing");
    let mut prng = Prng::new(1);
    for file in files {
        let text = fs::read(&file).unwrap();
        decode(target, &text);
        for _ in 0..rounds {
            let mutated = mutate(&text, &mut prng);
            decode(target, &mutated);
        }
    }
}
