//! What every part of the operator runs on.

pub mod announcement;
pub mod chain;
pub mod lease;
pub mod members;
pub mod ownership;
