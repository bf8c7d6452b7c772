//! The command line on a real Kubernetes: what people type, and what they are told.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "whatever fails here fails the test")]

mod check;
mod complete;
mod explain;
mod look;
mod pages;
mod transfer;

/// The cells of a table, line by line.
fn cells(table: &str) -> Vec<Vec<&str>> {
    table.lines().map(|line| line.split_whitespace().collect()).collect()
}
