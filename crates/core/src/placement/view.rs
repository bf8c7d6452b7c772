//! What a decision needs to know of the cluster, trimmed.
//!
//! Owns the shapes only: the operator fills them from its caches, tests fill them from a simulator.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::Class;
use super::fallback::State;
use super::labels::{Choice, NodeLabels};
use super::spec::Strength;

/// What the operator was configured with.
#[derive(Debug, Clone)]
pub struct Settings {
    pub labels: NodeLabels,
    /// The least time between two moves of one workload.
    pub cooldown: SignedDuration,
    /// After this a gated pod is freed by anyone, if its owner's Lease is stale, and damping ends.
    pub gate_timeout: SignedDuration,
    /// How long spot pods of a rollout wait for its on-demand pods to be Ready.
    pub hold_timeout: SignedDuration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            labels: NodeLabels::default(),
            cooldown: SignedDuration::from_secs(30),
            gate_timeout: SignedDuration::from_secs(30),
            hold_timeout: SignedDuration::from_mins(5),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Deployment,
    StatefulSet {
        /// `spec.ordinals.start`.
        start: u32,
    },
}

/// A Deployment or a StatefulSet.
#[derive(Debug, Clone)]
pub struct WorkloadView {
    pub kind: Kind,
    pub resource_version: String,
    /// A StatefulSet owns its pods by this; a Deployment's pods are owned by its ReplicaSets.
    pub uid: String,
    pub generation: i64,
    pub observed_generation: i64,
    /// `spec.replicas`.
    pub replicas: u32,
    /// `status.replicas`, `status.updatedReplicas`, `status.availableReplicas`.
    pub current: u32,
    pub updated: u32,
    pub available: u32,
    /// `maxUnavailable` as a number, rounded down as the Deployment controller does. 0 for a StatefulSet.
    pub max_unavailable: u32,
    /// What the pod template's own constraints leave open.
    pub template: Choice,
    /// The annotation [`super::STATE`], as found.
    pub state: Option<String>,
}

#[derive(Debug, Clone)]
pub struct ReplicaSetView {
    pub uid: String,
    /// `spec.replicas`.
    pub replicas: u32,
    /// It has the Deployment's present template.
    pub newest: bool,
    /// Its status has seen its spec.
    pub observed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeView {
    pub class: Option<Class>,
    /// It is being drained or disrupted, or is already gone.
    pub leaving: bool,
}

#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts about a pod, each read on its own")]
pub struct PodView {
    pub name: String,
    pub uid: String,
    pub resource_version: String,
    /// UID of its controller.
    pub owner: String,
    pub created: Timestamp,
    pub deleting: bool,
    /// Failed or Succeeded.
    pub finished: bool,
    /// It has the gate [`super::GATE`].
    pub gated: bool,
    pub ready: bool,
    /// What its own constraints, ours included, leave open: [`NodeLabels::choice`].
    pub choice: Choice,
    /// The annotations [`super::CLASS`], [`super::SLOT`], [`super::FALLBACK`] and [`super::DELETION_COST`].
    pub class: Option<Class>,
    pub slot: Option<u32>,
    pub fallback: bool,
    pub cost: Option<String>,
    /// Where it is bound.
    pub node: Option<NodeView>,
    /// Since when it is bound, and since when the scheduler has found no place for it.
    pub scheduled: Option<Timestamp>,
    pub unschedulable: Option<Timestamp>,
    /// `spec.affinity.nodeAffinity`; needed for gated pods only.
    pub node_affinity: Option<Value>,
    /// A StatefulSet pod's ordinal.
    pub ordinal: Option<u32>,
    /// It was given its place as it was created, and nobody has seen it yet.
    pub expected: bool,
}

/// How long a pod that was given its place as it was created is waited for. Its creation may have been refused after that.
pub const EXPECTED_FOR: SignedDuration = SignedDuration::from_secs(10);

impl PodView {
    /// A pod that is on its way: its ReplicaSet, the place that it was given, and when.
    pub fn expected(owner: &str, place: Place, since: Timestamp) -> Self {
        Self {
            name: String::new(),
            uid: format!("expected/{owner}/{}", place.slot),
            resource_version: String::new(),
            owner: owner.to_owned(),
            created: since,
            deleting: false,
            finished: false,
            gated: false,
            ready: false,
            choice: Choice::Only(place.class),
            class: Some(place.class),
            slot: Some(place.slot),
            fallback: false,
            cost: None,
            node: None,
            scheduled: None,
            unschedulable: None,
            node_affinity: None,
            ordinal: None,
            expected: true,
        }
    }

    /// It fills a place of its workload.
    pub fn occupies(&self) -> bool {
        !self.deleting && !self.finished
    }

    /// The class that it counts for: what it demands, else (where wishes are enough) what it was given, else where it runs.
    pub fn counts_as(&self, strength: Strength) -> Option<Class> {
        let given = if strength == Strength::Preferred { self.class } else { None };
        self.choice.class().or(given).or(self.node.and_then(|node| node.class))
    }

    /// Someone else writes its deletion cost. Ours is always the slot's.
    pub fn foreign_cost(&self) -> bool {
        self.cost.as_deref().is_some_and(|cost| self.slot.is_none_or(|slot| cost != deletion_cost(slot)))
    }
}

pub(super) fn deletion_cost(slot: u32) -> String {
    (-i64::from(slot)).to_string()
}

/// A slot and its class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    pub class: Class,
    pub slot: u32,
}

/// A PodDisruptionBudget that selects the workload's pods.
#[derive(Debug, Clone)]
pub struct PdbView {
    pub name: String,
    pub disruptions_allowed: u32,
}

/// A write of ours that the cache does not show yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnWrite {
    Placed {
        class: Class,
        slot: u32,
        fallback: bool,
    },
    Freed {
        class: Option<Class>,
    },
    Relabelled {
        slot: u32,
        fallback: bool,
    },
    /// Evicted or deleted.
    Removed,
}

/// What was written and is not yet seen: by pod UID, and the workload's state.
#[derive(Debug, Clone, Default)]
pub struct OwnWrites {
    pub pods: BTreeMap<String, OwnWrite>,
    pub state: Option<State>,
}
