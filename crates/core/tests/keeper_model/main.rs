//! The keeper's rules, explored: every state that a small world can reach, with the real `decide`.
//!
//! A world has one node name with two label keys, its record, the watch log, one or two replicas with stale caches,
//! DELETE and CREATE requests on their way through admission, people, other machines and changing policies, each with
//! a budget. The guarantees are checked by name in every state, and the shortest way to a violation is printed.
//!
//! `cargo test` explores the small worlds and shows for each rule that the guarantees break without it. The large ones
//! take minutes in a release build:
//! `cargo test --release -p perennial-core --test keeper_model -- --ignored --nocapture`
//! (`PERENNIAL_MODEL=part of a name` chooses).

// States are kept in bytes.
#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::trivially_copy_pass_by_ref)]
#![allow(clippy::struct_excessive_bools, clippy::needless_range_loop)]
// What the model cannot hold is an error in the model.
#![allow(clippy::expect_used)]

mod audit;
mod config;
mod explore;
mod hash;
mod mutation;
mod replica;
mod rules;
mod spec;
mod steps;
mod world;

use std::fmt::Write as _;

use config::Config;
use explore::{Explored, explore};
use mutation::Mutation;

fn report(config: &Config, explored: &Explored) -> String {
    let Explored { states, depth, at_rest, seconds, exhausted, .. } = explored;
    let which = if *exhausted { "all" } else { "the first" };
    format!("{}: {which} {states} states, {depth} deep, {at_rest} at rest, {seconds:.1} s", config.name)
}

/// Explores worlds and fails with the traces of all violations.
fn assert_safe(configs: Vec<Config>) {
    let mut violations = String::new();
    let mut total = 0;
    for config in configs {
        let explored = explore(config, Mutation::None);
        println!("{}", report(&config, &explored));
        total += explored.states;
        if let Some(found) = &explored.found {
            let _ = writeln!(violations, "{}: {}\n{}", config.name, found.violation, found.trace);
        } else if !explored.exhausted {
            let _ = writeln!(violations, "{}: more than {} states", config.name, config.limit);
        }
    }
    println!("{total} states in all");
    assert!(violations.is_empty(), "{violations}");
}

#[test]
fn the_guarantees_hold_in_small_worlds() {
    // What a missing rule breaks must hold with it.
    let mut configs = config::small();
    for config in Mutation::ALL.map(config::that_needs) {
        if !configs.contains(&config) {
            configs.push(config);
        }
    }
    assert_safe(configs);
}

#[test]
#[ignore = "minutes, in a release build"]
fn the_guarantees_hold_in_large_worlds() {
    let wanted = std::env::var("PERENNIAL_MODEL").unwrap_or_default();
    assert_safe(config::full().into_iter().filter(|config| config.name.contains(&wanted)).collect());
}

#[test]
fn without_any_one_rule_a_guarantee_breaks() {
    let mut missed = Vec::new();
    for mutation in Mutation::ALL {
        let explored = explore(config::that_needs(mutation), mutation);
        match &explored.found {
            Some(found) => println!("{mutation:?}: {} ({} states)", found.violation, explored.states),
            None => missed.push(mutation),
        }
    }
    println!("caught {} of {} mutations", Mutation::ALL.len() - missed.len(), Mutation::ALL.len());
    assert!(missed.is_empty(), "not caught: {missed:?}");
}
