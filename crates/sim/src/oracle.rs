//! What people may expect, checked by name from the log of what really happened. Nothing here asks the operator.

pub mod facts;
pub mod keeper;
pub mod placement;
pub mod wishes;
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

/// The points of a history at which something is known to be so.
#[derive(Clone, Debug)]
pub struct Marks {
    /// From here on nothing is disturbed any more.
    pub calm_at: Duration,
    /// ResourceVersions at which everything was at rest.
    pub rests: Vec<u64>,
    /// Nodes that left and returned unchanged, between two resourceVersions.
    pub probes: Vec<(String, u64, u64)>,
    /// It came to rest at all.
    pub rested: bool,
}
