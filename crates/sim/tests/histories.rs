//! A few histories of every kind, in every test run. `make test` plays thousands more, optimized.

use perennial_core::mutation::Mutation;
use perennial_sim::{batch, history};

#[test]
fn a_seed_plays_the_same_history_again() {
    for seed in [1, 2, 3, 4, 9] {
        let first = history::play(seed, false).unwrap();
        let again = std::thread::spawn(move || history::play(seed, false).unwrap()).join().unwrap();
        assert_eq!(first.digest, again.digest, "SEED={seed}");
        assert_eq!(first.faults, again.faults, "SEED={seed}");
    }
}

#[test]
fn every_guarantee_holds_in_every_history() {
    let summary = batch::run(1030..1060, None, 2, |_| {}, |_| false).unwrap();
    println!("{}", summary.report());
    assert!(summary.failed.is_empty(), "{}", summary.report());
    assert!(summary.faults.0.len() > 15, "few kinds of faults were injected: {}", summary.report());
}

#[test]
fn a_broken_rule_is_noticed() {
    for broken in [Mutation::CaptureUnsettled, Mutation::SequenceStands, Mutation::EverySecondIsSpot] {
        let summary = batch::run(0..100, Some(broken), 2, |_| {}, |summary| !summary.failed.is_empty()).unwrap();
        assert!(!summary.failed.is_empty(), "{broken:?} was not noticed");
    }
}
