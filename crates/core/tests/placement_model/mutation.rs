//! Broken rules: each alters the input or the output of the real `plan`.

use perennial_core::placement::workload::{PodView, ReplicaSetView, WorkloadView};

use super::{rules::Decision, world::SPOT};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mutation {
    None,
    /// Terminating pods count as running.
    CountTerminating,
    /// Pods that admission placed do not count until they are observed.
    ForgetExpected,
    /// A pod without a nodeSelector has no class, whatever its node.
    IgnoreNodes,
    /// Every pod is spot.
    AlwaysSpot,
    /// Spot pods of a rollout do not wait for its on-demand pods.
    NoHold,
    /// Slots of running pods stay as they are.
    NoRelabel,
    /// Slots are written without their deletion cost.
    NoCost,
    /// Pods that are not available are no reason to wait.
    MoveUnready,
    /// The last move is forgotten.
    NoCooldown,
    /// Closed places are not reported.
    SilentWhenFull,
    /// No pod counts as Ready, so that no eviction violates the floor.
    BlindToReadiness,
}

impl Mutation {
    pub(crate) const ALL: [Self; 11] = [
        Self::CountTerminating,
        Self::ForgetExpected,
        Self::IgnoreNodes,
        Self::AlwaysSpot,
        Self::NoHold,
        Self::NoRelabel,
        Self::NoCost,
        Self::MoveUnready,
        Self::NoCooldown,
        Self::SilentWhenFull,
        Self::BlindToReadiness,
    ];

    /// Alters the input of the rules.
    pub(crate) fn blur(self, workload: &mut WorkloadView, sets: &mut Vec<ReplicaSetView>, pods: &mut Vec<PodView>) {
        match self {
            Self::CountTerminating => pods.iter_mut().for_each(|pod| pod.deleting = false),
            Self::ForgetExpected => pods.retain(|pod| !pod.expected),
            Self::IgnoreNodes => {
                for pod in pods {
                    if let Some(node) = &mut pod.node {
                        node.class = None;
                    }
                }
            }
            Self::NoHold => {
                let newest: Vec<String> = sets.iter().filter(|set| set.newest).map(|set| set.uid.clone()).collect();
                sets.retain(|set| set.newest);
                pods.retain(|pod| newest.contains(&pod.owner));
            }
            Self::MoveUnready => workload.available = workload.replicas,
            Self::NoCooldown => workload.state = None,
            Self::BlindToReadiness => pods.iter_mut().for_each(|pod| pod.ready = false),
            Self::None | Self::AlwaysSpot | Self::NoRelabel | Self::NoCost | Self::SilentWhenFull => {}
        }
    }

    /// Returns whether this number of open places is reported.
    pub(crate) fn reports(self, open: usize) -> bool {
        open > 0 || self != Self::SilentWhenFull
    }

    /// Alters the output of the rules.
    pub(crate) fn distort(self, decision: Decision) -> Option<Decision> {
        match (self, decision) {
            (Self::NoRelabel, Decision::Relabel { .. }) => None,
            (Self::AlwaysSpot, Decision::Place { uid, slot, costs, .. }) => {
                Some(Decision::Place { uid, class: SPOT, slot, costs })
            }
            (Self::NoCost, Decision::Place { uid, class, slot, .. }) => {
                Some(Decision::Place { uid, class, slot, costs: false })
            }
            (Self::NoCost, Decision::Relabel { uid, slot, .. }) => Some(Decision::Relabel { uid, slot, costs: false }),
            (_, decision) => Some(decision),
        }
    }
}
