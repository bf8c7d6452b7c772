//! Perennial's decisions. Nothing here does IO or reads a clock, the environment or a random
//! source: observations come in as values, decisions go out as values.

pub mod admission_review;
pub mod certs;
pub mod config;
pub mod coordination;
pub mod keeper;
pub mod placement;

/// Maximum difference between the local clock and the API server's before the local one is
/// corrected.
pub const CLOCK_TOLERANCE: jiff::SignedDuration = jiff::SignedDuration::from_secs(10);
