//! Explicit-state model of placement: every state of a small world, with the real `plan`.
//!
//! A world has one Deployment with two ReplicaSets and up to six pods, the controllers of
//! Kubernetes one step at a time, an operator with separately stale caches of pods and Deployment,
//! and people with a budget. The guarantees are checked by name in every state. The shortest trace
//! to a violation is printed.
//!
//! Not modelled: shortage of spot nodes, StatefulSets, timeouts, and faults between the write of a
//! cooldown and its eviction.

// States are kept in bytes.
#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::trivially_copy_pass_by_ref)]
#![allow(clippy::struct_excessive_bools, clippy::needless_range_loop)]
// A state that the model cannot represent is an error in the model.
#![allow(clippy::expect_used)]

mod config;
mod explore;
mod mutation;
mod rules;
mod spec;
mod steps;
mod world;

use mutation::Mutation;
use perennial_testkit::explorer::{assert_needed, assert_safe};
use rules::Rules;

#[test]
fn the_guarantees_hold_in_small_worlds() {
    // Configurations that break without a rule must hold with it.
    let mut configs = config::small();
    for config in Mutation::ALL.map(config::that_needs) {
        if !configs.contains(&config) {
            configs.push(config);
        }
    }
    assert_safe(configs.into_iter().map(|config| Rules::new(config, Mutation::None)));
}

#[test]
fn without_any_one_rule_a_guarantee_breaks() {
    assert_needed(&Mutation::ALL, |rule| [Rules::new(config::that_needs(rule), rule)]);
}
