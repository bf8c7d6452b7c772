//! The result of a decision about one workload, as plain values.
//!
//! Owns the shapes of actions, Events and counts. The operator executes the actions in order and
//! stops when an [`Action::Save`] fails, because the actions after it depend on the saved state.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;
use serde_json::Value;

use super::Class;
use super::state::PlacementState;
use super::supply::Breaker;
use super::ungate::after;
use super::workload::{Place, PodView};

/// One pod, as it was when the decision was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PodRef {
    pub name: String,
    pub uid: String,
    /// Condition of deletions: the pod has not been bound since.
    #[serde(skip)]
    pub resource_version: String,
}

impl From<&PodView> for PodRef {
    fn from(pod: &PodView) -> Self {
        Self { name: pod.name.clone(), uid: pod.uid.clone(), resource_version: pod.resource_version.clone() }
    }
}

/// One step towards the requested placement. The serialized names are part of `workloads -o json`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "action", rename_all = "camelCase")]
pub enum Action {
    /// Merge patch of the workload that stores its state.
    Save { state: PlacementState, patch: Value, reason: String },
    /// Strategic merge patch that gives a gated pod its class and slot and removes the gate. On a
    /// conflict the workload is decided again; a refused pod is ungated without a class.
    Place { pod: PodRef, class: Class, slot: u32, fallback: bool, patch: Value, reason: String },
    /// A gated pod stays gated for now.
    Hold { pod: PodRef, slot: u32, until: Timestamp, reason: String },
    /// Strategic merge patch that removes the gate without assigning a slot. `on_refusal` is the
    /// patch to send if the API server refuses the first one.
    #[serde(rename = "free")]
    Ungate { pod: PodRef, class: Option<Class>, patch: Value, on_refusal: Option<Value>, reason: String },
    /// Strategic merge patch that rewrites slot and deletion cost (annotations only).
    Relabel { pod: PodRef, slot: u32, fallback: bool, patch: Value, reason: String },
    /// Eviction with the UID as precondition. On 429 the pod stays; the cooldown is already saved.
    Evict { pod: PodRef, reason: String },
    /// Deletion of a pod that never ran, with its UID and resourceVersion as preconditions.
    Delete { pod: PodRef, reason: String },
    /// A move is due and blocked. Without `until`, a watched change ends the wait.
    Wait { until: Option<Timestamp>, reason: String },
    /// Event on the workload. Repeats have the same reason and message.
    #[serde(rename = "tell")]
    Report(WorkloadEvent),
}

/// An Event on the workload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WorkloadEvent {
    pub warning: bool,
    /// CamelCase, from a fixed set.
    pub reason: &'static str,
    pub message: String,
    /// The Event describes a lasting condition, which every decision reports again. Otherwise it
    /// describes one occurrence.
    #[serde(skip)]
    pub lasting: bool,
}

impl WorkloadEvent {
    pub(super) fn normal(reason: &'static str, message: impl Into<String>) -> Action {
        Action::Report(Self { warning: false, reason, message: message.into(), lasting: false })
    }

    pub(super) fn warning(reason: &'static str, message: impl Into<String>) -> Action {
        Action::Report(Self { warning: true, reason, message: message.into(), lasting: false })
    }

    /// Reports a condition that is legal but possibly unintended.
    pub(super) fn lasting_note(reason: &'static str, message: impl Into<String>) -> Action {
        Action::Report(Self { warning: false, reason, message: message.into(), lasting: true })
    }

    /// Builds the Event of a condition that needs attention.
    pub(super) fn lasting_warning(reason: &'static str, message: impl Into<String>) -> Self {
        Self { warning: true, reason, message: message.into(), lasting: true }
    }
}

/// Replicas by class, observed and requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Counts {
    pub replicas: u32,
    pub desired_spot: u32,
    pub desired_on_demand: u32,
    pub spot: u32,
    /// Includes fallback pods.
    pub on_demand: u32,
    pub ready_on_demand: u32,
    /// On-demand pods in spot slots because spot is short.
    pub fallback: u32,
    pub gated: u32,
    /// Pods on nodes of neither class, and pods without a node and a class.
    pub unknown: u32,
    /// Pods of each class for which the scheduler found no node.
    pub unplaced_spot: u32,
    pub unplaced_on_demand: u32,
    /// Replicas in the wrong class or on nodes of neither. Fallback pods do not count while spot is
    /// short.
    pub drift: u32,
}

impl Counts {
    /// Returns whether every replica exists, has a node and is in its class.
    pub(super) fn is_exact(&self) -> bool {
        let placed = self.spot == self.desired_spot && self.on_demand == self.desired_on_demand;
        placed && self.unplaced() == 0 && self.drift + self.fallback + self.gated + self.unknown == 0
    }

    /// Number of pods for which the scheduler found no node.
    pub fn unplaced(&self) -> u32 {
        self.unplaced_spot + self.unplaced_on_demand
    }
}

/// Everything to be done about one workload.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PlacementDecision {
    pub actions: Vec<Action>,
    pub counts: Counts,
    /// Time of the next decision if nothing changes before.
    pub revisit: Option<Timestamp>,
    /// By UID of a ReplicaSet: the places of its next pods, in order. An empty list revokes the
    /// places of earlier decisions.
    pub open: BTreeMap<String, Vec<Place>>,
    /// An eviction waits for evidence that a node has room.
    pub room_search: Option<RoomSearch>,
    /// Pods whose volumes must be read before the decision is executed.
    pub volume_checks: Vec<PodRef>,
}

/// Minimum time between two searches for room for one workload.
pub const ROOM_PERIOD: SignedDuration = SignedDuration::from_secs(55);

/// A search for room on existing nodes of a class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoomSearch {
    pub class: Class,
    /// A pod like the one that needs the room.
    pub pod: PodRef,
    /// A node whose room was the reason for an earlier eviction counts too. Otherwise only room
    /// that appeared since then does: the scheduler may have had a reason not to use it.
    pub again: bool,
}

impl PlacementDecision {
    /// Returns whether no action changes anything: holds, waits and Events only.
    pub fn is_quiet(&self) -> bool {
        self.actions.iter().all(|a| matches!(a, Action::Hold { .. } | Action::Wait { .. } | Action::Report(_)))
    }

    /// Returns whether a running pod is evicted.
    pub fn evicts(&self) -> bool {
        self.actions.iter().any(|action| matches!(action, Action::Evict { .. }))
    }

    /// Returns the pod that is evicted because a node of the class became usable.
    pub fn evicted_on_evidence(&self, before: &PlacementState) -> Option<&PodRef> {
        let saved = self.actions.iter().find_map(|action| match action {
            Action::Save { state, .. } => Some(state),
            _ => None,
        });
        let evident = matches!(saved.unwrap_or(before).breaker, Breaker::Probing { evidence: true, .. });
        self.actions.iter().find_map(|action| match action {
            Action::Evict { pod, .. } if evident => Some(pod),
            _ => None,
        })
    }

    pub(super) fn revisit_at(&mut self, time: Timestamp) {
        self.revisit = Some(self.revisit.map_or(time, |known| known.min(time)));
    }

    /// Adds a search for room, which is repeated while it is needed.
    pub(super) fn search_room(&mut self, search: Option<RoomSearch>, now: Timestamp) {
        if let Some(search) = search {
            self.revisit_at(after(now, ROOM_PERIOD));
            self.room_search = Some(search);
        }
    }
}
