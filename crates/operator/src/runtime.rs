//! What every part of the operator stands on and none is about: a budget, a queue, watches, leases, faults, metrics, logs.

pub mod budget;
pub mod client;
pub mod clock;
pub mod connection_limit;
pub mod coordinator;
pub mod error_category;
pub mod error_chain;
pub mod events;
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
mod process;
pub mod queue;
pub mod reconciler;
pub mod reporter;
pub mod request;
pub mod traces;
pub mod watch;
pub mod watch_value;
