//! The guarantees of Perennial on a real Kubernetes, one file for each, in both modes: webhooks on and off.
//!
//! `docs/guarantees.md` names these tests; `page` checks that it names what exists.

// Helpers are not recognised as tests by clippy's settings, but a panic is how they fail, too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod admission;
mod collection;
mod commands;
mod g1_nothing_lost;
mod g2_nothing_undone;
mod g3_nothing_foreign;
mod g4_the_right_machine;
mod g5_quarantine;
mod g6_conditional;
mod g7_quiet;
mod g8_in_nobodys_way;
mod identity;
mod kept;
mod page;
mod policy;
mod races;
