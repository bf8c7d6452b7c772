//! Admission of a pod that is being created: the decision about one request.
//!
//! Uses only values that are in memory. Never waits and never refuses a pod: in the worst case the
//! pod stays unchanged.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::node_labels::{Choice, NodeLabels};
use super::pod_patch::{AdmissionPatch, Assigned};
use super::spec::{Spec, Strength};
use super::state::PlacementState;
use super::stateful::class_of;
use super::workload::Place;
use super::{CLASS, Class, GATE, PREFERRED, REFUSED, SELECTION};

/// The fields of an incoming pod that matter. Deserialized from the object of the admission
/// request.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct IncomingPod {
    pub metadata: IncomingMetadata,
    pub spec: IncomingSpec,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct IncomingMetadata {
    pub name: Option<String>,
    pub annotations: Option<BTreeMap<String, String>>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct IncomingSpec {
    pub node_name: Option<String>,
    pub node_selector: Option<BTreeMap<String, String>>,
    pub affinity: Option<Value>,
    pub tolerations: Option<Vec<Value>>,
    pub scheduling_gates: Option<Vec<Value>>,
}

/// Tolerations that pods of a class get, as in a pod's spec.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct Tolerations {
    pub spot: Vec<Value>,
    pub on_demand: Vec<Value>,
}

/// The managed workload of the pod.
#[derive(Debug, Clone, Copy)]
pub enum PodOwner<'a> {
    Deployment(Assignment),
    StatefulSet { start: u32, state: &'a PlacementState },
}

/// Way in which a Deployment's pod is assigned its slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Assignment {
    /// This replica owns the workload and assigns the place in the create request. No later write
    /// is needed.
    Placed(Place),
    /// Another replica owns the workload: the pod is gated until that replica assigns its place.
    Gated,
    /// No replica would remove a gate.
    Ownerless,
}

/// The answer to an admission request.
#[derive(Debug, Clone, PartialEq)]
pub enum PodAdmission {
    /// A JSON patch.
    Patch { operations: Vec<Value>, reason: String },
    Unchanged {
        reason: String,
        /// The workload gets an Event.
        report: bool,
    },
}

fn unchanged(reason: &str, report: bool) -> PodAdmission {
    PodAdmission::Unchanged { reason: reason.to_owned(), report }
}

/// Returns the answer for a pod that Perennial does not place, or that already has its place.
pub fn left_alone(pod: &IncomingPod, strength: Strength, labels: &NodeLabels) -> Option<PodAdmission> {
    if pod.spec.node_name.as_deref().is_some_and(|node| !node.is_empty()) {
        return Some(unchanged("it is already bound to a node", false));
    }
    let none = BTreeMap::new();
    let selector = pod.spec.node_selector.as_ref().unwrap_or(&none);
    let node_affinity = pod.spec.affinity.as_ref().and_then(|affinity| affinity.get("nodeAffinity"));
    let assigned = pod.annotation(CLASS).and_then(Class::parse);
    // The API server calls the webhook again if another webhook changed the pod in between.
    let reinvoked = || Some(unchanged("its class is already assigned", false));
    match labels.choice(selector, node_affinity) {
        Choice::Any if strength == Strength::Preferred => {
            assigned.filter(|class| labels.prefers(*class, node_affinity)).and_then(|_| reinvoked())
        }
        Choice::Any => None,
        Choice::Only(class) if assigned == Some(class) => reinvoked(),
        _ => Some(unchanged("it selects or excludes a capacity type itself", true)),
    }
}

/// Decides about one pod of a managed workload.
pub fn admit(
    pod: &IncomingPod,
    spec: &Spec,
    owner: PodOwner<'_>,
    labels: &NodeLabels,
    tolerations: &Tolerations,
) -> PodAdmission {
    if let Some(unchanged) = left_alone(pod, spec.strength, labels) {
        return unchanged;
    }
    let mut patch = AdmissionPatch::new(pod);
    let strength = spec.strength;
    let reason = match owner {
        PodOwner::Deployment(Assignment::Placed(Place { class, slot })) => {
            patch.assign(Assigned { class, slot: Some(slot), strength, fallback: false }, labels, tolerations);
            format!("slot {slot} is {class}")
        }
        PodOwner::Deployment(Assignment::Gated) => {
            // The class is not known yet and later tolerations would need a larger patch: the pod
            // gets the tolerations of both classes, and its selector keeps it in its class. The
            // strength is stored on the pod because the replica that ungates it may not have its
            // workload in the cache.
            let preferred = (strength == Strength::Preferred).then_some((SELECTION, PREFERRED));
            patch.annotate(preferred.as_slice());
            patch.tolerate(tolerations.spot.iter().chain(&tolerations.on_demand));
            patch.gate();
            "gated until its slot is known".to_owned()
        }
        PodOwner::Deployment(Assignment::Ownerless) => {
            let class = Class::OnDemand;
            patch.assign(Assigned { class, slot: None, strength, fallback: false }, labels, tolerations);
            "no replica can place it: on-demand".to_owned()
        }
        PodOwner::StatefulSet { start, state } => {
            let Some(slot) = ordinal(pod).and_then(|ordinal| ordinal.checked_sub(start)) else {
                return unchanged("its name does not end in an ordinal of its StatefulSet", true);
            };
            let (class, fallback) = class_of(slot, spec.split, state);
            patch.assign(Assigned { class, slot: None, strength, fallback }, labels, tolerations);
            if fallback {
                format!("slot {slot} is spot, but spot capacity is short")
            } else {
                format!("slot {slot} is {class}")
            }
        }
    };
    PodAdmission::Patch { operations: patch.into_operations(), reason }
}

/// Returns the patch of a pod that is admitted without its class because creates with it do not
/// succeed: a mark, so that no pod is evicted for that class.
pub fn without_class(pod: &IncomingPod, class: Class) -> Vec<Value> {
    let mut patch = AdmissionPatch::new(pod);
    patch.annotate(&[(REFUSED, class.as_str())]);
    patch.into_operations()
}

impl IncomingPod {
    /// Returns whether the pod has the gate [`GATE`].
    pub fn is_gated(&self) -> bool {
        self.spec.scheduling_gates.iter().flatten().any(|gate| gate["name"] == GATE)
    }

    pub(super) fn annotation(&self, key: &str) -> Option<&str> {
        self.metadata.annotations.as_ref()?.get(key).map(String::as_str)
    }
}

/// Returns the ordinal of a StatefulSet pod and the class that it gets.
pub fn ordinal_class(pod: &IncomingPod, start: u32, spec: &Spec, state: &PlacementState) -> Option<(u32, Class)> {
    let ordinal = ordinal(pod)?;
    Some((ordinal, class_of(ordinal.checked_sub(start)?, spec.split, state).0))
}

fn ordinal(pod: &IncomingPod) -> Option<u32> {
    pod.metadata.name.as_deref()?.rsplit_once('-')?.1.parse().ok()
}

#[cfg(test)]
mod tests;
