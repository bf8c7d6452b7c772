//! What is to be done, as plain values.
//!
//! Owns the shapes of actions and the exact patches. Executing them is the operator's: in order, stopping the pass when a
//! [`Action::Save`] fails, since what follows rests on it.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::fallback::State;
use super::labels::Selection;
use super::view::{Place, PodView, WorkloadView, deletion_cost};
use super::{CLASS, Class, DELETION_COST, FALLBACK, GATE, SLOT, STATE};

/// One pod, as it was when the decision was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PodRef {
    pub name: String,
    pub uid: String,
}

impl From<&PodView> for PodRef {
    fn from(pod: &PodView) -> Self {
        Self { name: pod.name.clone(), uid: pod.uid.clone() }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "action", rename_all = "camelCase")]
pub enum Action {
    /// Write the workload's state (merge patch on the workload).
    Save { state: State, patch: Value, reason: String },
    /// Give a gated pod its class and slot and remove the gate (strategic merge patch on the pod). 409: plan again. Refused: free it.
    Place { pod: PodRef, class: Class, slot: u32, fallback: bool, patch: Value, reason: String },
    /// Leave a gated pod gated for now.
    Hold { pod: PodRef, slot: u32, until: Timestamp, reason: String },
    /// Remove the gate without a slot (strategic merge patch); `on_refusal` is the patch to try after a refusal.
    Free { pod: PodRef, class: Option<Class>, patch: Value, on_refusal: Option<Value>, reason: String },
    /// Rewrite slot and deletion cost (strategic merge patch, annotations only).
    Relabel { pod: PodRef, slot: u32, fallback: bool, patch: Value, reason: String },
    /// Eviction API with the UID as precondition. 429: leave it; the cooldown has been written already.
    Evict { pod: PodRef, reason: String },
    /// Delete with the UID as precondition: a pod that never ran.
    Delete { pod: PodRef, reason: String },
    /// Something is wanted that may not be done yet. Without a time, a change that is watched ends the wait.
    Wait { until: Option<Timestamp>, reason: String },
    /// Tell the people, as an Event on the workload. Repeats carry the same reason and message.
    Tell(Event),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Event {
    pub warning: bool,
    /// CamelCase, from a fixed set.
    pub reason: &'static str,
    pub message: String,
    /// It is how things stand, and every look finds it again; otherwise something has happened.
    #[serde(skip)]
    pub standing: bool,
}

impl Event {
    pub(super) fn normal(reason: &'static str, message: impl Into<String>) -> Action {
        Action::Tell(Self { warning: false, reason, message: message.into(), standing: false })
    }

    pub(super) fn warning(reason: &'static str, message: impl Into<String>) -> Action {
        Action::Tell(Self { warning: true, reason, message: message.into(), standing: false })
    }

    /// How things stand, legal but perhaps not meant.
    pub(super) fn remark(reason: &'static str, message: impl Into<String>) -> Action {
        Action::Tell(Self { warning: false, reason, message: message.into(), standing: true })
    }

    /// How things stand, and it is not good.
    pub(super) fn grievance(reason: &'static str, message: impl Into<String>) -> Self {
        Self { warning: true, reason, message: message.into(), standing: true }
    }
}

/// How many there are and how many there should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Counts {
    pub replicas: u32,
    pub desired_spot: u32,
    pub desired_on_demand: u32,
    pub spot: u32,
    /// Fallback pods included.
    pub on_demand: u32,
    pub ready_on_demand: u32,
    /// On-demand pods in spot slots because spot is short.
    pub fallback: u32,
    pub gated: u32,
    /// Pods whose class is not known yet.
    pub unknown: u32,
    /// How many replicas run in the wrong class. Fallback pods are not among them as long as spot is short.
    pub drift: u32,
}

/// The outcome of looking at one workload.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Plan {
    pub actions: Vec<Action>,
    pub counts: Counts,
    /// When to look again even if nothing changes.
    pub again: Option<Timestamp>,
    /// By UID of a ReplicaSet: the places that its next pods take, in this order.
    #[serde(skip)]
    pub open: BTreeMap<String, Vec<Place>>,
}

impl Plan {
    /// Nothing in it changes anything: holds, waits and events only.
    pub fn is_quiet(&self) -> bool {
        self.actions.iter().all(|a| matches!(a, Action::Hold { .. } | Action::Wait { .. } | Action::Tell(_)))
    }

    pub(super) fn by(&mut self, time: Timestamp) {
        self.again = Some(self.again.map_or(time, |known| known.min(time)));
    }
}

/// The one patch that places a gated pod.
pub(super) fn place_patch(pod: &PodView, class: Class, slot: u32, fallback: bool, selection: Selection) -> Value {
    let mut annotations = slot_annotations(pod, slot, fallback);
    annotations.insert(CLASS.to_owned(), json!(class.as_str()));
    let mut patch = ungate_patch(pod, Some(selection));
    patch["metadata"]["annotations"] = Value::Object(annotations);
    patch
}

/// Removes the gate and nothing else, or adds a selection as well.
pub(super) fn ungate_patch(pod: &PodView, selection: Option<Selection>) -> Value {
    let mut spec = Map::new();
    match selection {
        Some(Selection::NodeSelector(label)) => {
            spec.insert("nodeSelector".to_owned(), json!({label.key: label.value}));
        }
        Some(Selection::NodeAffinity(affinity)) => {
            spec.insert("affinity".to_owned(), json!({"nodeAffinity": affinity}));
        }
        None => {}
    }
    spec.insert("schedulingGates".to_owned(), json!([{"$patch": "delete", "name": GATE}]));
    json!({"metadata": {"resourceVersion": pod.resource_version}, "spec": spec})
}

pub(super) fn relabel(pod: &PodView, slot: u32, fallback: bool, reason: String) -> Action {
    let annotations = slot_annotations(pod, slot, fallback);
    let patch = json!({"metadata": {"resourceVersion": pod.resource_version, "annotations": annotations}});
    Action::Relabel { pod: pod.into(), slot, fallback, patch, reason }
}

/// The deletion cost goes with the slot, unless someone else writes it.
fn slot_annotations(pod: &PodView, slot: u32, fallback: bool) -> Map<String, Value> {
    let mut annotations = Map::new();
    annotations.insert(SLOT.to_owned(), json!(slot.to_string()));
    if !pod.foreign_cost() {
        annotations.insert(DELETION_COST.to_owned(), json!(deletion_cost(slot)));
    }
    if fallback {
        annotations.insert(FALLBACK.to_owned(), json!("true"));
    } else if pod.fallback {
        annotations.insert(FALLBACK.to_owned(), Value::Null);
    }
    annotations
}

pub(super) fn save(workload: &WorkloadView, state: &State, reason: impl Into<String>) -> Action {
    let metadata = json!({"resourceVersion": workload.resource_version, "annotations": {STATE: state.to_annotation()}});
    Action::Save { state: state.clone(), patch: json!({"metadata": metadata}), reason: reason.into() }
}
