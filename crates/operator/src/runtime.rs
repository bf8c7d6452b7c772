//! The base of every part of the operator: client, budget, queue, reconciler, watches, Leases,
//! metrics and logs.
//!
//! Contains nothing of nodes, records, workloads or pods.

pub mod budget;
pub mod client;
pub mod clock;
pub mod connection_limit;
pub mod coordinator;
pub mod environment;
pub mod error_category;
pub mod error_chain;
pub mod events;
pub mod health;
pub mod history;
pub mod http;
pub mod jitter;
pub mod labels;
pub mod lease;
pub mod lease_metadata;
pub mod lease_observer;
pub mod logging;
pub mod map;
pub mod metrics;
pub mod ownership;
pub mod pages;
mod process;
pub mod queue;
pub mod rate;
pub mod reconciler;
pub mod reporter;
pub mod request;
pub mod tasks;
pub mod traces;
pub mod watch;
pub mod watch_backoff;
pub mod watch_value;
#[cfg(unix)]
pub(crate) mod watchdog;
