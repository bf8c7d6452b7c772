//! The answer to the admission of a Node CREATE: the part of the record that is set in the create
//! request itself.
//!
//! # Guarantees
//! A create never fails because of the answer. Keys that NodeRestriction rejects from a kubelet are
//! left to the controller, and a malformed object passes unchanged.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{
    case::Case,
    decide::{Decision, Reason, Restore, decide},
    keys::{Key, Taint},
    mark::{ANNOTATIONS_LIMIT, MARK},
    node_patch::taints,
    pending::with_version,
    selection::{GATE_EFFECT, GATE_TAINT, Node},
};
use crate::config::settings::Gate;

/// Group of all kubelets.
pub const KUBELETS: &str = "system:nodes";

/// The answer to a create request.
#[derive(Clone, Debug, PartialEq)]
pub struct Admitted {
    /// Operations of a JSON patch. Empty: the create passes unchanged.
    pub patch: Vec<Value>,
    /// The keys that were set, if there was a record.
    pub restore: Option<Restore>,
}

/// Returns the answer to a create request. `object` is the Node as the API server sent it, `case`
/// the same Node in [`Phase::Creating`](super::case::Phase::Creating).
pub fn admit(object: &Value, case: &Case, gate: Gate) -> Admitted {
    answer(object, case, gate, |restore| restore)
}

/// Returns the same for a case whose record is not written yet, see
/// [`restore_before_write`](super::pending::restore_before_write).
pub fn admit_before_write(object: &Value, case: &Case, gate: Gate) -> Admitted {
    answer(object, case, gate, |restore| with_version(case, restore))
}

fn answer(object: &Value, case: &Case, gate: Gate, marked: impl FnOnce(Restore) -> Restore) -> Admitted {
    let unchanged = Admitted { patch: Vec::new(), restore: None };
    let Some(shape) = Shape::of(object) else { return unchanged };
    let restore = match decide(case) {
        Decision::Nothing(Reason::Ignored | Reason::NewerRecord) => return unchanged,
        Decision::PatchNode(restore) => Some(marked(restore)),
        Decision::Nothing(_) | Decision::WriteRecord(..) => None,
    };
    // The API server would refuse the create.
    if restore.as_ref().is_some_and(|restore| shape.annotations(restore).1 > ANNOTATIONS_LIMIT) {
        return unchanged;
    }
    let more_to_come = restore.as_ref().is_some_and(|restore| !restore.mark.complete);
    let gated = match gate {
        Gate::Never => false,
        Gate::Needed => more_to_come,
        Gate::Always => true,
    };
    Admitted { patch: shape.patch(&case.node, restore.as_ref(), gated), restore }
}

/// Whether NodeRestriction permits a kubelet to set this key on its own Node. Taints and
/// annotations are not checked on create.
pub fn kubelet_may_set(key: &Key) -> bool {
    let Key::Label(key) = key else { return true };
    let Some((domain, _)) = key.split_once('/') else { return true };
    let within = |parent: &str| domain == parent || domain.strip_suffix(parent).is_some_and(|rest| rest.ends_with('.'));
    if !within("kubernetes.io") && !within("k8s.io") {
        return true;
    }
    KUBELET_LABELS.contains(&key.as_str()) || within("kubelet.kubernetes.io") || within("node.kubernetes.io")
}

/// Keys in reserved domains that a kubelet may set.
const KUBELET_LABELS: &[&str] = &[
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "beta.kubernetes.io/instance-type",
    "node.kubernetes.io/instance-type",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
];

/// A Node object whose maps may be missing: a patch adds to them or creates them.
struct Shape<'a> {
    object: &'a Value,
}

impl<'a> Shape<'a> {
    /// Returns `None` for an object that is not a Node. The API server rejects it.
    fn of(object: &'a Value) -> Option<Self> {
        let is_map = |pointer: &str| object.pointer(pointer).is_none_or(|value| value.is_object() || value.is_null());
        let whole = object.pointer("/metadata").is_some_and(Value::is_object)
            && is_map("/metadata/labels")
            && is_map("/metadata/annotations")
            && is_map("/spec");
        whole.then_some(Self { object })
    }

    /// Renders few large operations: the API server processes the whole object for each of them.
    fn patch(&self, node: &Node, restore: Option<&Restore>, gated: bool) -> Vec<Value> {
        let mut patch = Vec::new();
        let mut labels = BTreeMap::new();
        let mut annotations = BTreeMap::new();
        let mut cordon = false;
        for (key, value) in restore.iter().flat_map(|restore| &restore.set) {
            match key {
                Key::Label(key) => drop(labels.insert(key.as_str(), value.clone())),
                Key::Cordon => cordon = true,
                Key::Annotation(_) | Key::Taint { .. } => {}
            }
        }
        if let Some(restore) = restore {
            annotations = self.annotations(restore).0;
        } else if node.annotations.contains_key(MARK) {
            // An incoming mark describes another incarnation.
            patch.push(json!({"op": "remove", "path": pointer("/metadata/annotations", MARK)}));
        }
        self.add(&mut patch, "/metadata/labels", labels);
        self.add(&mut patch, "/metadata/annotations", annotations);

        let mut wanted = restore.map_or_else(|| node.taints.clone(), |restore| taints(&node.taints, restore));
        if gated && !wanted.iter().any(is_gate) {
            wanted.push(gate());
        }
        if wanted != node.taints || cordon {
            if !self.object.pointer("/spec").is_some_and(Value::is_object) {
                patch.push(json!({"op": "add", "path": "/spec", "value": {}}));
            }
            if wanted != node.taints {
                patch.push(json!({"op": "add", "path": "/spec/taints", "value": wanted}));
            }
            if cordon {
                patch.push(json!({"op": "add", "path": "/spec/unschedulable", "value": true}));
            }
        }
        patch
    }

    /// Returns the annotations that a restore sets, with the mark, and the size of all annotations
    /// of the node with them.
    fn annotations<'r>(&self, restore: &'r Restore) -> (BTreeMap<&'r str, String>, usize) {
        let mut set = BTreeMap::new();
        for (key, value) in &restore.set {
            if let Key::Annotation(key) = key {
                set.insert(key.as_str(), value.clone());
            }
        }
        let (mark, size) = {
            let present = self.object.pointer("/metadata/annotations").and_then(Value::as_object).into_iter().flatten();
            let present = present.filter_map(|(key, value)| Some((key.as_str(), value.as_str()?)));
            let present = present.filter(|(key, _)| !set.contains_key(*key));
            restore.mark.render_beside(present.chain(set.iter().map(|(key, value)| (*key, value.as_str()))))
        };
        set.insert(MARK, mark);
        (set, size)
    }

    /// Adds pairs to a map, keeping its content.
    fn add(&self, patch: &mut Vec<Value>, place: &str, pairs: BTreeMap<&str, String>) {
        if pairs.is_empty() {
            return;
        }
        let mut map = self.object.pointer(place).and_then(Value::as_object).cloned().unwrap_or_default();
        map.extend(pairs.into_iter().map(|(key, value)| (key.to_owned(), Value::String(value))));
        patch.push(json!({"op": "add", "path": place, "value": map}));
    }
}

fn pointer(parent: &str, key: &str) -> String {
    format!("{parent}/{}", key.replace('~', "~0").replace('/', "~1"))
}

/// Returns the taint that keeps pods off a node until it is restored.
pub fn gate() -> Taint {
    Taint { key: GATE_TAINT.to_owned(), value: String::new(), effect: GATE_EFFECT.to_owned(), time_added: None }
}

pub fn is_gate(taint: &Taint) -> bool {
    taint.key == GATE_TAINT
}

#[cfg(test)]
mod tests;
