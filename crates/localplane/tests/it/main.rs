//! Tests of localplane from outside: where programs come from, what planes bear, what the commands do.
//!
//! Those with a real plane take the programs from wherever the environment says, and build them if need be.

mod cli;
mod faults;
mod identities;
mod lifetime;
mod sources;
mod support;
