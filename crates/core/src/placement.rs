//! Placement: how many replicas of a workload run on spot capacity and how many on-demand, and which pod is which.
//!
//! Owns the words, the arithmetic and every decision of placement. Never talks to a cluster: the operator fills the views
//! in [`view`], calls [`pod_patch::mutate`] for a pod that is being created and [`rebalance::plan`] for a workload, and executes the
//! plain values that come back.

pub mod action;
mod assign;
pub mod cron;
pub mod explain;
pub mod fallback;
pub mod labels;
mod moves;
mod occupancy;
pub mod pod_patch;
pub mod rebalance;
mod relabel;
pub mod release;
pub mod slots;
pub mod spec;
mod stateful;
mod values;
pub mod view;

#[cfg(test)]
mod tests;

use std::fmt;

use serde::{Deserialize, Serialize};

/// The scheduling gate that the webhook adds and the owner of the workload removes.
pub const GATE: &str = "perennial.dev/placement";
/// On a pod: the slot that it fills.
pub const SLOT: &str = "perennial.dev/slot";
/// On a pod: the class that it was given.
pub const CLASS: &str = "perennial.dev/class";
/// On a pod: it runs on-demand in a spot slot, because spot capacity was short.
pub const FALLBACK: &str = "perennial.dev/fallback";
/// On a pod that was gated: [`PREFERRED`] where its workload asks for a wish.
pub const SELECTION: &str = "perennial.dev/selection";
pub const PREFERRED: &str = "preferred";
/// On a workload: [`fallback::State`], what must outlive a restart.
pub const STATE: &str = "perennial.dev/placement-state";
/// Orders scale-in within a ReplicaSet: the lowest cost goes first.
pub const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";

/// The kind of capacity that a replica runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    OnDemand,
    Spot,
}

impl Class {
    pub fn as_str(self) -> &'static str {
        match self {
            Class::OnDemand => "on-demand",
            Class::Spot => "spot",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "on-demand" => Some(Class::OnDemand),
            "spot" => Some(Class::Spot),
            _ => None,
        }
    }

    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Class::OnDemand => Class::Spot,
            Class::Spot => Class::OnDemand,
        }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
