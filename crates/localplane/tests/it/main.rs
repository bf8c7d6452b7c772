//! Tests of localplane from outside: where programs come from, what planes bear, what the commands do.
//!
//! Those with a real plane take the programs from wherever the environment says, and build them if need be.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail as tests do")]

mod cli;
mod faults;
mod identities;
mod lifetime;
mod sources;
mod support;
