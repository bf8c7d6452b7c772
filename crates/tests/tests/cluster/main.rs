//! Perennial on a real Kubernetes: what people are promised, one file for each kind of promise.
//!
//! One binary, so that all tests share the control planes.

mod bad_records;
mod command_line;
mod incarnations;
mod labels;
mod mass;
mod outages;
mod permissions;
mod quiet;
mod restarts;
mod serving;
mod story;
