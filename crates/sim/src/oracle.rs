//! Checks every guarantee by name, from the log of the API server only.

pub mod expected_labels;
pub mod keeper;
pub mod observed;
pub mod placement;
mod writes;

use std::{fmt, time::Duration};

/// A guarantee that did not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    pub guarantee: &'static str,
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.guarantee, self.what)
    }
}

/// Points of a history that the oracle checks.
#[derive(Clone, Debug)]
pub struct Marks {
    /// No faults are injected after this.
    pub calm_at: Duration,
    /// ResourceVersions at which everything was at rest.
    pub rests: Vec<u64>,
    /// Nodes that left and returned unchanged, each between two resourceVersions.
    pub probes: Vec<(String, u64, u64)>,
    /// True if the history came to rest.
    pub rested: bool,
}
