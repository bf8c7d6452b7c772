//! The guarantees of Perennial on a real Kubernetes, one file each, with webhooks on and off.
//!
//! `docs/explain/guarantees.md` lists these tests; `page` checks the list.

// clippy does not recognise helpers as tests, but they fail by panics as well.
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
mod g8_fails_open;
mod gate;
mod identity;
mod kept_fields;
mod last_states;
mod page;
mod policy;
mod policy_changes;
mod policy_of_record;
mod races;
