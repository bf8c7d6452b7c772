//! Rendering of every patch that placement sends: strategic merge patches of existing pods, the
//! JSON patch of a pod in admission and the merge patch of a workload's state.
//!
//! Decides nothing. Every patch of an existing object contains the resourceVersion that the
//! decision was based on.

use serde_json::{Map, Value, json};

use super::admission::{IncomingPod, Tolerations};
use super::decision::Action;
use super::node_labels::{NodeLabels, Selection};
use super::spec::Strength;
use super::state::PlacementState;
use super::workload::{Place, PodView, WorkloadView, deletion_cost};
use super::{CLASS, Class, DELETION_COST, FALLBACK, GATE, REFUSED, SELECTION, SLOT, STATE};

/// Renders the patch that assigns a gated pod its class and slot and removes the gate.
pub(super) fn place(pod: &PodView, place: Place, fallback: bool, selection: Selection) -> Value {
    let mut annotations = slot_annotations(pod, place.slot, fallback);
    annotations.insert(CLASS.to_owned(), json!(place.class.as_str()));
    remove_gate(pod, Some(selection), annotations)
}

/// Renders the patch that removes the gate of a pod whose class was refused, and marks it.
pub(super) fn ungate_refused(pod: &PodView, class: Class) -> Value {
    remove_gate(pod, None, Map::from_iter([(REFUSED.to_owned(), json!(class.as_str()))]))
}

/// Renders the patch that removes the gate and assigns a class, if there is one.
pub(super) fn ungate(pod: &PodView, class: Option<(Class, Selection)>) -> Value {
    let Some((class, selection)) = class else { return remove_gate(pod, None, Map::new()) };
    let annotations = Map::from_iter([(CLASS.to_owned(), json!(class.as_str()))]);
    remove_gate(pod, Some(selection), annotations)
}

fn remove_gate(pod: &PodView, selection: Option<Selection>, annotations: Map<String, Value>) -> Value {
    let mut spec = Map::new();
    match selection {
        Some(Selection::NodeSelector(labels)) => {
            spec.insert("nodeSelector".to_owned(), json!(labels));
        }
        Some(Selection::NodeAffinity(affinity)) => {
            spec.insert("affinity".to_owned(), json!({"nodeAffinity": affinity}));
        }
        None => {}
    }
    spec.insert("schedulingGates".to_owned(), json!([{"$patch": "delete", "name": GATE}]));
    let mut metadata = Map::from_iter([("resourceVersion".to_owned(), json!(pod.resource_version))]);
    if !annotations.is_empty() {
        metadata.insert("annotations".to_owned(), Value::Object(annotations));
    }
    json!({"metadata": metadata, "spec": spec})
}

pub(super) fn relabel(pod: &PodView, slot: u32, fallback: bool, reason: String) -> Action {
    let annotations = slot_annotations(pod, slot, fallback);
    let patch = json!({"metadata": {"resourceVersion": pod.resource_version, "annotations": annotations}});
    Action::Relabel { pod: pod.into(), slot, fallback, patch, reason }
}

/// Renders the annotations of a slot. The deletion cost is left out if another writer sets it.
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

pub(super) fn save(workload: &WorkloadView, state: &PlacementState, reason: impl Into<String>) -> Action {
    let metadata = json!({"resourceVersion": workload.resource_version, "annotations": {STATE: state.to_annotation()}});
    Action::Save { state: state.clone(), patch: json!({"metadata": metadata}), reason: reason.into() }
}

/// Class, slot and strength that a pod gets in admission.
#[derive(Debug, Clone, Copy)]
pub(super) struct Assigned {
    pub class: Class,
    pub slot: Option<u32>,
    pub strength: Strength,
    pub fallback: bool,
}

/// The JSON patch of a pod that is being created.
pub(super) struct AdmissionPatch<'a> {
    pod: &'a IncomingPod,
    operations: Vec<Value>,
}

impl<'a> AdmissionPatch<'a> {
    pub(super) fn new(pod: &'a IncomingPod) -> Self {
        Self { pod, operations: Vec::new() }
    }

    pub(super) fn into_operations(self) -> Vec<Value> {
        self.operations
    }

    /// Adds an operation. `add` on an existing path replaces it, so `value` is always the complete
    /// new value.
    fn add(&mut self, path: &str, value: &Value) {
        self.operations.push(json!({"op": "add", "path": path, "value": value}));
    }

    /// Sets the given annotations and drops Perennial's own ones that a template copied from
    /// another pod.
    pub(super) fn annotate(&mut self, set: &[(&str, &str)]) {
        let old = self.pod.metadata.annotations.clone().unwrap_or_default();
        let mut new = old.clone();
        for key in [SLOT, CLASS, FALLBACK, SELECTION, REFUSED] {
            new.remove(key);
        }
        new.extend(set.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())));
        if new != old {
            self.add("/metadata/annotations", &json!(new));
        }
    }

    pub(super) fn assign(&mut self, assigned: Assigned, labels: &NodeLabels, tolerations: &Tolerations) {
        let Assigned { class, slot, strength, fallback } = assigned;
        let mut annotations = vec![(CLASS, class.as_str())];
        if fallback {
            annotations.push((FALLBACK, "true"));
        }
        let (text, cost) = slot.map(|slot| (slot.to_string(), deletion_cost(slot))).unzip();
        annotations.extend(text.as_deref().map(|slot| (SLOT, slot)));
        // A deletion cost from the template or another webhook stays as it is.
        let unset = self.pod.annotation(DELETION_COST).is_none();
        annotations.extend(cost.as_deref().filter(|_| unset).map(|cost| (DELETION_COST, cost)));
        self.annotate(&annotations);
        let affinity = self.pod.spec.affinity.as_ref();
        match labels.select(class, strength, affinity.and_then(|affinity| affinity.get("nodeAffinity"))) {
            Selection::NodeSelector(labels) => {
                let mut selector = self.pod.spec.node_selector.clone().unwrap_or_default();
                selector.extend(labels);
                self.add("/spec/nodeSelector", &json!(selector));
            }
            Selection::NodeAffinity(node_affinity) => {
                let mut affinity = affinity.and_then(Value::as_object).cloned().unwrap_or_default();
                affinity.insert("nodeAffinity".to_owned(), node_affinity);
                self.add("/spec/affinity", &Value::Object(affinity));
            }
        }
        self.tolerate(match class {
            Class::Spot => tolerations.spot.iter(),
            Class::OnDemand => tolerations.on_demand.iter(),
        });
    }

    pub(super) fn tolerate<'t>(&mut self, wanted: impl Iterator<Item = &'t Value>) {
        let old = self.pod.spec.tolerations.clone().unwrap_or_default();
        let mut new = old.clone();
        for toleration in wanted {
            if !new.contains(toleration) {
                new.push(toleration.clone());
            }
        }
        if new.len() > old.len() {
            self.add("/spec/tolerations", &Value::Array(new));
        }
    }

    pub(super) fn gate(&mut self) {
        if !self.pod.is_gated() {
            let mut gates = self.pod.spec.scheduling_gates.clone().unwrap_or_default();
            gates.push(json!({"name": GATE}));
            self.add("/spec/schedulingGates", &Value::Array(gates));
        }
    }
}
