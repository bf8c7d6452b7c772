//! The command line on a real Kubernetes.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failure here fails the test")]

mod answers;
mod check;
mod complete;
mod connections;
mod documented;
mod explain;
mod import_export;
mod pages;
mod read_only;
mod remedies;
mod roles;
mod runbooks;
mod uninstall;

/// Splits a table into cells, line by line.
fn cells(table: &str) -> Vec<Vec<&str>> {
    table.lines().map(|line| line.split_whitespace().collect()).collect()
}
