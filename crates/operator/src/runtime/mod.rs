//! What every part of the operator stands on and none is about: a budget, a queue, watches, leases, faults, metrics, logs.

pub mod announcement;
pub mod attendance;
pub mod budget;
pub mod chain;
pub mod client;
pub mod clock;
pub mod events;
pub mod fault;
pub mod labels;
pub mod latest;
pub mod lease;
pub mod logging;
pub mod map;
pub mod members;
pub mod metrics;
pub mod ownership;
mod process;
pub mod queue;
pub mod random;
pub mod request;
pub mod traces;
pub mod watch;
