//! Perennial on a real Kubernetes: what people are promised, one file for each kind of promise.
//!
//! One binary, so that all tests share the control planes.

mod incarnations;
mod labels;
mod mass;
mod restarts;
mod story;
