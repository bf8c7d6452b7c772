//! What every part of the operator stands on.

pub mod labels;
pub mod logging;
pub mod metrics;
mod process;
