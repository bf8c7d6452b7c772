//! Placement's rules, explored: every state that a small world can reach, with the real `plan` deciding.
//!
//! A world has one Deployment with two ReplicaSets and up to six pods, the controllers of Kubernetes one step at a time, an
//! operator whose view of the pods and of the Deployment is late, each by itself, and people, each with a budget. The guarantees are checked by
//! name in every state, and the shortest way to a violation is printed.
//!
//! Left out: a shortage of spot nodes, StatefulSets, timeouts, and whatever falls between writing down a cooldown and the eviction that it is for.

// States are kept in bytes.
#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::trivially_copy_pass_by_ref)]
#![allow(clippy::struct_excessive_bools, clippy::needless_range_loop)]
// What the model cannot hold is an error in the model.
#![allow(clippy::expect_used)]

mod config;
mod explore;
#[path = "../keeper_model/hash.rs"]
mod hash;
mod mutation;
mod rules;
mod spec;
mod steps;
mod world;

use std::fmt::Write as _;

use explore::explore;
use mutation::Mutation;

#[test]
fn the_guarantees_hold_in_small_worlds() {
    // What a missing rule breaks must hold with it.
    let mut configs = config::small();
    for config in Mutation::ALL.map(config::that_needs) {
        if !configs.contains(&config) {
            configs.push(config);
        }
    }
    let (mut violations, mut total) = (String::new(), 0);
    for config in configs {
        let explored = explore(config, Mutation::None);
        let explore::Explored { states, depth, at_rest, seconds, .. } = &explored;
        println!("{}: {states} states, {depth} deep, {at_rest} at rest, {seconds:.1} s", config.name);
        total += states;
        if let Some(found) = &explored.found {
            let _ = writeln!(violations, "{}: {}\n{}", config.name, found.violation, found.trace);
        } else if !explored.exhausted {
            let _ = writeln!(violations, "{}: more than {} states", config.name, config.limit);
        }
        assert!(*at_rest > 0 || explored.found.is_some(), "{}: nothing ever comes to rest", config.name);
    }
    println!("{total} states in all");
    assert!(violations.is_empty(), "{violations}");
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
