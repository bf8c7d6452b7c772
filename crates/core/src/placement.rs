//! Placement: how many replicas of a workload run on spot capacity and how many on-demand, and
//! which pod is which.
//!
//! Owns the vocabulary, the arithmetic and every decision of placement. Contains no IO: the
//! operator fills a [`workload::Workload`] from its cache, calls [`decide::decide`] and executes
//! the actions of the [`decision::Decision`]. For a pod that is being created it calls
//! [`admission::admit`].

pub mod admission;
mod assign;
pub mod decide;
pub mod decision;
pub mod explain;
mod hold;
mod moves;
pub mod node_labels;
mod occupancy;
mod pod_patch;
mod relabel;
pub mod schedule;
pub mod slots;
pub mod spec;
pub mod state;
mod stateful;
pub mod supply;
pub mod ungate;
mod volumes;
pub mod workload;

#[cfg(test)]
mod tests;

use std::fmt;

use serde::{Deserialize, Serialize};

/// Scheduling gate that the webhook adds and the owner of the workload removes.
pub const GATE: &str = "perennial.dev/placement";
/// Pod annotation: the slot of the pod.
pub const SLOT: &str = "perennial.dev/slot";
/// Pod annotation: the class that the pod was assigned.
pub const CLASS: &str = "perennial.dev/class";
/// Pod annotation: the pod runs on-demand in a spot slot because spot capacity was short.
pub const FALLBACK: &str = "perennial.dev/fallback";
/// Annotation of a pod that was gated: [`PREFERRED`] if its workload prefers the class instead of
/// requiring it.
pub const SELECTION: &str = "perennial.dev/selection";
pub const PREFERRED: &str = "preferred";
/// Pod annotation: the class that the API server refused for this pod, which runs without one. While
/// such a pod exists, no pod of its workload is moved to that class.
pub const REFUSED: &str = "perennial.dev/refused";
/// Workload annotation: [`state::PlacementState`].
pub const STATE: &str = "perennial.dev/placement-state";
/// Pod annotation that orders scale-in within a ReplicaSet: the lowest cost goes first.
pub const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";

/// Capacity type of a replica.
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
