//! Integration tests of localplane: sources of programs, faults of planes, and the command line.
//!
//! Tests with a real plane use the programs configured in the environment, and build them if
//! needed.

#![expect(clippy::unwrap_used, clippy::panic, reason = "test helpers may panic")]

mod cli;
mod faults;
mod identities;
mod lifetime;
mod real_nodes;
mod sources;
mod support;
