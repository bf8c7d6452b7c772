//! What every part of the operator stands on and none is about: a budget, a queue, watches, faults, metrics, logs.

pub mod budget;
pub mod client;
pub mod clock;
pub mod events;
pub mod fault;
pub mod labels;
pub mod logging;
pub mod metrics;
mod process;
pub mod queue;
pub mod random;
pub mod watch;
