//! Every file of `corpus/` and thousands of mutations of it, which are the same in every run, are
//! decoded without a panic.
//!
//! An input that made a decoder fail is added to `corpus/TARGET`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failure here fails the test")]

#[path = "corpus/targets.rs"]
mod targets;

use std::{fs, path::Path};

use perennial_testkit::prng::Prng;
use rstest::rstest;

/// Mutations of all files of a target.
const ROUNDS: usize = 9000;
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

#[rstest]
fn no_input_of_the_corpus_and_no_mutation_of_it_makes_a_decoder_fail(
    #[values("record", "mark", "review", "policy", "config", "import", "cron", "workload")] target: &str,
) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus").join(target);
    let mut files: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() > 1, "the corpus of {target} is missing");
    let mut prng = Prng::new(1);
    let rounds = ROUNDS / files.len();
    for file in files {
        let text = fs::read(&file).unwrap();
        targets::run(target, &text);
        for _ in 0..rounds {
            let mutated = mutate(&text, &mut prng);
            targets::run(target, &mutated);
        }
    }
}
