//! The keeper's rules, explored: every state that a small world can reach, with the real `decide`.
//!
//! A world has one node name with two label keys, its record, the watch log, one or two replicas
//! with stale caches, DELETE and CREATE requests in admission, people, other machines and changing
//! policies, each with a budget. The guarantees are checked by name in every state. The shortest
//! trace to a violation is printed.
//!
//! `cargo test` explores the small worlds and shows for each rule that the guarantees break without
//! it. The large ones take minutes in a release build: `cargo test --release -p perennial-core
//! --test keeper_model -- --ignored --nocapture` (`PERENNIAL_MODEL=part of a name` chooses).

// States are kept in bytes.
#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::trivially_copy_pass_by_ref)]
#![allow(clippy::struct_excessive_bools, clippy::needless_range_loop)]
// A state that the model cannot represent is an error in the model.
#![allow(clippy::expect_used)]

mod audit;
mod config;
mod explore;
mod mutation;
mod replica;
mod rules;
mod spec;
mod steps;
mod world;

use config::Config;
use mutation::Mutation;
use perennial_testkit::explorer::{assert_needed, assert_safe};
use rules::Rules;

fn with_all_rules(configs: Vec<Config>) -> impl Iterator<Item = Rules> {
    configs.into_iter().map(|config| Rules::new(config, Mutation::None))
}

#[test]
fn the_guarantees_hold_in_small_worlds() {
    // Configurations that break without a rule must hold with it.
    let mut configs = config::small();
    for config in Mutation::ALL.map(config::that_needs) {
        if !configs.contains(&config) {
            configs.push(config);
        }
    }
    assert_safe(with_all_rules(configs));
}

#[test]
#[ignore = "minutes, in a release build"]
fn the_guarantees_hold_in_large_worlds() {
    let wanted = std::env::var("PERENNIAL_MODEL").unwrap_or_default();
    assert_safe(with_all_rules(config::full()).filter(|rules| rules.config.name.contains(&wanted)));
}

#[test]
fn without_any_one_rule_a_guarantee_breaks() {
    assert_needed(&Mutation::ALL, |rule| [Rules::new(config::that_needs(rule), rule)]);
}
