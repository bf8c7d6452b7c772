//! Perennial as it is installed: its permissions, its manifests, its chart, and what watches it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "whatever fails here fails the test")]

mod adopt;
mod chart;
mod debian;
mod dry_run;
mod lifecycle;
mod manifests;
mod monitoring;
mod mounted;
mod neighbours;
mod packages;
mod permissions;
mod traces;
