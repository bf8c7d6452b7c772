//! The keeper on a real Kubernetes, one file per subject.
//!
//! One binary, so that all tests share the control planes.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failure here fails the test")]

mod bad_records;
mod command_line;
mod labels;
mod mass;
mod operability;
mod outages;
mod permissions;
mod restarts;
mod serving;
mod sharding;
mod versions;
