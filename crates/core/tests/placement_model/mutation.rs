//! Rules switched off one at a time, by altering what the real `plan` is told and what it answers.

use perennial_core::placement::workload::{PodView, ReplicaSetView, WorkloadView};

use super::{rules::Decision, world::SPOT};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mutation {
    None,
    /// Pods that are going count as if they stayed.
    CountTerminating,
    /// Pods that were given their place as they were created do not count until they are seen.
    ForgetExpected,
    /// A pod without a choice is of no class, wherever it runs.
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
    /// That no place is open any more is not said.
    SilentWhenFull,
    /// No pod counts as Ready, so that nothing is below the floor by giving one up.
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

    /// Alters what the rules are told.
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

    /// Whether it is said that so many places are open.
    pub(crate) fn says(self, open: usize) -> bool {
        open > 0 || self != Self::SilentWhenFull
    }

    /// Alters what the rules answer.
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
