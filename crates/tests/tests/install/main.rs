//! Installation: permissions, manifests, chart, packages and monitoring.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failure here fails the test")]

mod adopt;
mod chart;
mod debian;
mod documented;
mod dry_run;
mod gitops;
mod lifecycle;
mod manifests;
mod monitoring;
mod mounted_certificates;
mod packages;
mod permissions;
mod release;
mod third_party_crds;
mod traces;
