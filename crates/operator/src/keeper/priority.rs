//! Order in which the keeper works and spends its request budget.

use crate::runtime::budget::Urgency;

/// Purpose of work on a node, the most urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// Give a new node what its record contains.
    Restore,
    /// Write the last state of a deleted node to its record.
    LastState,
    /// Write the state of a live node to its record.
    Capture,
    /// Collect records, sign them again and report on policies.
    Collect,
}

impl From<Priority> for Urgency {
    fn from(priority: Priority) -> Self {
        match priority {
            Priority::Restore => Self::Immediate,
            Priority::LastState => Self::High,
            Priority::Capture => Self::Normal,
            Priority::Collect => Self::Low,
        }
    }
}
