//! Perennial's decisions. Nothing here does IO, reads a clock, the environment or a random source: what is known
//! comes in as values, what is to be done goes out as values.

pub mod admission_review;
pub mod certs;
pub mod config;
pub mod coordination;
pub mod keeper;
pub mod placement;

/// By how much our clock and the API server's may differ before ours is set right. What is told by both agrees to this.
pub const CLOCK_TOLERANCE: jiff::SignedDuration = jiff::SignedDuration::from_secs(10);
