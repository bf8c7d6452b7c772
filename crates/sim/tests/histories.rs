//! A few histories of every kind, those that once failed, and a check that every broken rule is
//! noticed. `make test` plays thousands more. Run it with `--profile sim`.

use std::io::Write as _;

use perennial_sim::{
    batch,
    broken_rule::{self, BrokenRule},
    history,
    once_failed::{ONCE_FAILED, ONCE_FAILED_VARIED},
};

/// Number of histories to play if the known one no longer detects a broken rule.
const SEARCHED: u64 = 400;

/// Writes a line to stderr, which is shown for passing tests too.
fn tell(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

fn threads() -> usize {
    std::thread::available_parallelism().map_or(2, usize::from)
}

#[test]
fn a_seed_plays_the_same_history_again() {
    for seed in [1, 2, 3, 4, 6, 9, 14, 16] {
        let first = history::play(seed, false).unwrap();
        let again = std::thread::spawn(move || history::play(seed, false).unwrap()).join().unwrap();
        assert_eq!(first.digest, again.digest, "SEED={seed}");
        assert_eq!(first.faults, again.faults, "SEED={seed}");
    }
}

#[test]
fn every_guarantee_holds_in_every_history() {
    let summary = batch::run(1030..1060, None, threads(), |_| {}, |_| false).unwrap();
    println!("{}", summary.report());
    let (histories, faults) = (summary.histories, summary.faults.0.values().sum::<u64>());
    tell(&format!("{histories} histories played, with {faults} faults of {} kinds", summary.faults.0.len()));
    assert!(summary.failed.is_empty(), "{}", summary.report());
    assert!(summary.faults.0.len() > 15, "few kinds of faults were injected: {}", summary.report());
}

#[test]
fn no_history_that_once_failed_fails_again() {
    let failed: Vec<String> = ONCE_FAILED
        .iter()
        .chain(ONCE_FAILED_VARIED)
        .filter_map(|(seed, bug)| {
            let violations = history::play(*seed, false).unwrap().violations;
            (!violations.is_empty()).then(|| format!("SEED={seed} ({bug}): {violations:?}"))
        })
        .collect();
    assert!(failed.is_empty(), "{failed:#?}");
}

#[test]
fn every_broken_rule_is_noticed() {
    let mut missed = Vec::new();
    for rule in BrokenRule::ALL.iter().copied() {
        match broken_rule::noticed(rule, 0..SEARCHED, threads()).unwrap() {
            Some(outcome) => println!("{rule:?}: SEED={} {}", outcome.seed, outcome.violations[0]),
            None => missed.push(rule),
        }
    }
    let all = BrokenRule::ALL.len();
    tell(&format!("{} of {all} broken rules noticed", all - missed.len()));
    assert!(missed.is_empty(), "not noticed in {SEARCHED} histories: {missed:?}");
}
