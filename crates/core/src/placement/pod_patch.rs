//! What the pod webhook does with a pod that is being created.
//!
//! Owns the answer to one admission request, from values that are in memory. Never waits for anyone and never refuses a pod: the worst
//! that happens to a pod here is that it is left as it is.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};

use super::fallback::State;
use super::labels::{Choice, NodeLabels, Selection};
use super::spec::{Spec, Strength};
use super::stateful::class_of;
use super::view::{Place, deletion_cost};
use super::{CLASS, Class, DELETION_COST, FALLBACK, GATE, PREFERRED, SELECTION, SLOT};

/// The part of an incoming pod that matters. Reads straight from the admission request's object.
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

/// Tolerations that pods of a class are given, as in a pod's spec.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct Tolerations {
    pub spot: Vec<Value>,
    pub on_demand: Vec<Value>,
}

/// The managed workload that the pod belongs to.
#[derive(Debug, Clone, Copy)]
pub enum Owner<'a> {
    Deployment(Fate),
    StatefulSet { start: u32, state: &'a State },
}

/// What is to become of a Deployment's pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// Whoever answers owns the workload and knows the place: nothing has to be written later.
    Placed(Place),
    /// Somebody else does, and is there: it waits for them.
    Gated,
    /// Nobody is there to place what is gated.
    Ownerless,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Mutation {
    /// A JSON patch.
    Patch { operations: Vec<Value>, reason: String },
    Nothing {
        reason: String,
        /// Worth an Event on the workload.
        tell: bool,
    },
}

fn nothing(reason: &str, tell: bool) -> Mutation {
    Mutation::Nothing { reason: reason.to_owned(), tell }
}

/// Why a pod is none of ours to place, or has its place already, if so.
pub fn left_alone(pod: &IncomingPod, strength: Strength, labels: &NodeLabels) -> Option<Mutation> {
    if pod.spec.node_name.as_deref().is_some_and(|node| !node.is_empty()) {
        return Some(nothing("it is bound to a node already", false));
    }
    let none = BTreeMap::new();
    let selector = pod.spec.node_selector.as_ref().unwrap_or(&none);
    let node_affinity = pod.spec.affinity.as_ref().and_then(|affinity| affinity.get("nodeAffinity"));
    let given = pod.annotation(CLASS).and_then(Class::parse);
    // Asked again, because another webhook has changed the pod after us.
    let again = || Some(nothing("it has been given its class", false));
    match labels.choice(selector, node_affinity) {
        Choice::Any if strength == Strength::Preferred => {
            given.filter(|class| labels.wishes_for(*class, node_affinity)).and_then(|_| again())
        }
        Choice::Any => None,
        Choice::Only(class) if given == Some(class) => again(),
        _ => Some(nothing("it selects or excludes a capacity type itself", true)),
    }
}

/// Decides about one pod of a managed workload.
pub fn mutate(
    pod: &IncomingPod,
    spec: &Spec,
    owner: Owner<'_>,
    labels: &NodeLabels,
    tolerations: &Tolerations,
) -> Mutation {
    if let Some(nothing) = left_alone(pod, spec.strength, labels) {
        return nothing;
    }
    let mut patch = Patch { pod, operations: Vec::new() };
    let reason = match owner {
        Owner::Deployment(Fate::Placed(Place { class, slot })) => {
            patch.class(class, Some(slot), spec.strength, false, labels, tolerations);
            format!("slot {slot} is {class}")
        }
        Owner::Deployment(Fate::Gated) => {
            // Which class it will be is not known yet, and tolerations could only be added later at the cost of a larger patch:
            // it gets those of both, and its selector keeps it where it belongs.
            // Whoever frees it one day may know nothing of its workload.
            let wish = (spec.strength == Strength::Preferred).then_some((SELECTION, PREFERRED));
            patch.annotate(wish.as_slice());
            patch.tolerate(tolerations.spot.iter().chain(&tolerations.on_demand));
            patch.gate();
            "gated until its slot is known".to_owned()
        }
        Owner::Deployment(Fate::Ownerless) => {
            patch.class(Class::OnDemand, None, spec.strength, false, labels, tolerations);
            "nobody is there to place it: on-demand".to_owned()
        }
        Owner::StatefulSet { start, state } => {
            let Some(slot) = ordinal(pod).and_then(|ordinal| ordinal.checked_sub(start)) else {
                return nothing("its name does not end in an ordinal of its StatefulSet", true);
            };
            let (class, fallback) = class_of(slot, spec.split, state);
            patch.class(class, None, spec.strength, fallback, labels, tolerations);
            if fallback {
                format!("slot {slot} is spot, but spot capacity is short")
            } else {
                format!("slot {slot} is {class}")
            }
        }
    };
    Mutation::Patch { operations: patch.operations, reason }
}

impl IncomingPod {
    /// It has our gate already.
    pub fn is_gated(&self) -> bool {
        self.spec.scheduling_gates.iter().flatten().any(|gate| gate["name"] == GATE)
    }

    fn annotation(&self, key: &str) -> Option<&str> {
        self.metadata.annotations.as_ref()?.get(key).map(String::as_str)
    }
}

fn ordinal(pod: &IncomingPod) -> Option<u32> {
    pod.metadata.name.as_deref()?.rsplit_once('-')?.1.parse().ok()
}

struct Patch<'a> {
    pod: &'a IncomingPod,
    operations: Vec<Value>,
}

impl Patch<'_> {
    /// `add` on a path that exists replaces it: the value given is always the whole of what is to be there.
    fn add(&mut self, path: &str, value: &Value) {
        self.operations.push(json!({"op": "add", "path": path, "value": value}));
    }

    /// Sets our annotations and drops those that a template has copied from another pod.
    fn annotate(&mut self, set: &[(&str, &str)]) {
        let old = self.pod.metadata.annotations.clone().unwrap_or_default();
        let mut new = old.clone();
        for key in [SLOT, CLASS, FALLBACK, SELECTION] {
            new.remove(key);
        }
        new.extend(set.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())));
        if new != old {
            self.add("/metadata/annotations", &json!(new));
        }
    }

    fn class(
        &mut self,
        class: Class,
        slot: Option<u32>,
        strength: Strength,
        fallback: bool,
        labels: &NodeLabels,
        tolerations: &Tolerations,
    ) {
        let mut annotations = vec![(CLASS, class.as_str())];
        if fallback {
            annotations.push((FALLBACK, "true"));
        }
        let (text, cost) = slot.map(|slot| (slot.to_string(), deletion_cost(slot))).unzip();
        annotations.extend(text.as_deref().map(|slot| (SLOT, slot)));
        // Somebody else's stays as it is.
        let ours = self.pod.annotation(DELETION_COST).is_none();
        annotations.extend(cost.as_deref().filter(|_| ours).map(|cost| (DELETION_COST, cost)));
        self.annotate(&annotations);
        let affinity = self.pod.spec.affinity.as_ref();
        match labels.select(class, strength, affinity.and_then(|affinity| affinity.get("nodeAffinity"))) {
            Selection::NodeSelector(label) => {
                let mut selector = self.pod.spec.node_selector.clone().unwrap_or_default();
                selector.insert(label.key, label.value);
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

    fn tolerate<'t>(&mut self, wanted: impl Iterator<Item = &'t Value>) {
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

    fn gate(&mut self) {
        if !self.pod.is_gated() {
            let mut gates = self.pod.spec.scheduling_gates.clone().unwrap_or_default();
            gates.push(json!({"name": GATE}));
            self.add("/spec/schedulingGates", &Value::Array(gates));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::fallback::Breaker;
    use super::super::slots::Split;
    use super::*;

    const FRESH: Owner<'_> = Owner::Deployment(Fate::Gated);

    fn pod(value: Value) -> IncomingPod {
        serde_json::from_value(value).unwrap()
    }

    fn spec() -> Spec {
        Spec::new(Split::new(70, 1))
    }

    fn run(value: Value, spec: &Spec, owner: Owner<'_>) -> Mutation {
        let tolerations = Tolerations { spot: vec![json!({"key": "spot", "operator": "Exists"})], on_demand: vec![] };
        mutate(&pod(value), spec, owner, &NodeLabels::default(), &tolerations)
    }

    fn operations(mutation: Mutation) -> Vec<Value> {
        match mutation {
            Mutation::Patch { operations, .. } => operations,
            Mutation::Nothing { reason, .. } => panic!("nothing: {reason}"),
        }
    }

    #[test]
    fn a_deployment_pod_is_gated_and_keeps_the_gates_it_has() {
        let done =
            operations(run(json!({"metadata": {}, "spec": {"schedulingGates": [{"name": "other"}]}}), &spec(), FRESH));
        assert_eq!(
            done[1],
            json!({"op": "add", "path": "/spec/schedulingGates", "value": [{"name": "other"}, {"name": GATE}]})
        );
        assert_eq!(done[0]["path"], "/spec/tolerations");
        assert_eq!(done.len(), 2);
    }

    #[test]
    fn with_a_stale_lease_it_goes_on_demand_without_a_gate() {
        let stale = Owner::Deployment(Fate::Ownerless);
        let done = operations(run(json!({"spec": {"nodeSelector": {"disk": "ssd"}}}), &spec(), stale));
        assert_eq!(done[1]["value"], json!({"disk": "ssd", "karpenter.sh/capacity-type": "on-demand"}));
        assert!(done.iter().all(|operation| operation["path"] != "/spec/schedulingGates"));
    }

    #[test]
    fn where_the_place_is_known_it_is_given_at_once() {
        let placed = Owner::Deployment(Fate::Placed(Place { class: Class::Spot, slot: 2 }));
        let done = operations(run(json!({"metadata": {"annotations": {"team": "ml"}}}), &spec(), placed));
        let annotations = json!({"team": "ml", CLASS: "spot", SLOT: "2", DELETION_COST: "-2"});
        assert_eq!(done[0], json!({"op": "add", "path": "/metadata/annotations", "value": annotations}));
        assert_eq!(done[1]["value"], json!({"karpenter.sh/capacity-type": "spot"}));
        assert_eq!(done[2]["path"], "/spec/tolerations");
        assert_eq!(done.len(), 3);
    }

    #[test]
    fn somebody_elses_deletion_cost_stays() {
        let placed = Owner::Deployment(Fate::Placed(Place { class: Class::Spot, slot: 2 }));
        let done = operations(run(json!({"metadata": {"annotations": {DELETION_COST: "7"}}}), &spec(), placed));
        assert_eq!(done[0]["value"], json!({CLASS: "spot", SLOT: "2", DELETION_COST: "7"}));
    }

    #[test]
    fn asked_again_about_the_same_pod_it_says_nothing() {
        let pod = json!({"metadata": {"annotations": {CLASS: "spot", SLOT: "2"}},
            "spec": {"nodeSelector": {"karpenter.sh/capacity-type": "spot"}}});
        assert!(matches!(run(pod, &spec(), FRESH), Mutation::Nothing { tell: false, .. }));
    }

    /// A pod as it is after what was answered.
    fn patched(mut pod: Value, operations: Vec<Value>) -> Value {
        for operation in operations {
            let path = operation["path"].as_str().unwrap().to_owned();
            let [_, parent, field] = path.split('/').collect::<Vec<_>>()[..] else { panic!("{path}") };
            pod[parent][field] = operation["value"].clone();
        }
        pod
    }

    #[test]
    fn asked_again_about_a_wish_it_says_nothing() {
        let soft = Spec { strength: Strength::Preferred, ..spec() };
        let placed = |class, slot| Owner::Deployment(Fate::Placed(Place { class, slot }));
        let new = json!({"metadata": {"annotations": {"team": "ml"}}, "spec": {"affinity": {"podAffinity": {"x": 1}}}});
        let once = patched(new.clone(), operations(run(new, &soft, placed(Class::Spot, 2))));
        for fate in [placed(Class::OnDemand, 5), FRESH, Owner::Deployment(Fate::Ownerless)] {
            assert!(matches!(run(once.clone(), &soft, fate), Mutation::Nothing { tell: false, .. }), "{fate:?}");
        }

        // A wish of the template's own, or for another class than was noted, is no answer of ours.
        let mut theirs = once.clone();
        theirs["metadata"]["annotations"] = json!({});
        assert!(matches!(run(theirs, &soft, FRESH), Mutation::Patch { .. }));
        let mut other = once;
        other["metadata"]["annotations"][CLASS] = json!("on-demand");
        assert!(matches!(run(other, &soft, FRESH), Mutation::Patch { .. }));
    }

    #[test]
    fn a_gated_pod_says_itself_that_its_class_is_a_wish() {
        let soft = Spec { strength: Strength::Preferred, ..spec() };
        let done = operations(run(json!({"metadata": {}}), &soft, FRESH));
        assert_eq!(done[0], json!({"op": "add", "path": "/metadata/annotations", "value": {SELECTION: PREFERRED}}));
        let again = patched(json!({"metadata": {}, "spec": {}}), done);
        assert!(operations(run(again.clone(), &soft, FRESH)).is_empty());
        let copied = operations(run(again, &spec(), FRESH));
        assert_eq!(copied[0]["value"], json!({}), "from a template: not what its workload asks for");
    }

    #[test]
    fn a_stateful_pod_is_placed_by_its_ordinal_alone() {
        let state = State::default();
        let split = spec().split;
        for ordinal in 5..25 {
            let owner = Owner::StatefulSet { start: 5, state: &state };
            let done = operations(run(json!({"metadata": {"name": format!("db-{ordinal}")}}), &spec(), owner));
            let class = split.class(ordinal - 5);
            assert_eq!(done[0]["value"][CLASS], class.as_str());
            assert_eq!(done[1]["value"]["karpenter.sh/capacity-type"], class.as_str());
            assert_eq!(done.len(), if class == Class::Spot { 3 } else { 2 });
        }
    }

    #[test]
    fn a_stateful_slot_that_has_fallen_back_is_on_demand_while_the_breaker_is_open() {
        let now = jiff::Timestamp::UNIX_EPOCH;
        let mut state = State { fallen: vec![2], ..State::default() };
        let class = |state: &State| {
            let owner = Owner::StatefulSet { start: 0, state };
            operations(run(json!({"metadata": {"name": "db-2"}}), &spec(), owner))[0]["value"].clone()
        };
        assert_eq!(class(&state), json!({CLASS: "spot"}));
        state.breaker = Breaker::Open { since: now, probe: now, attempt: 0 };
        assert_eq!(class(&state), json!({CLASS: "on-demand", FALLBACK: "true"}));
    }

    #[test]
    fn a_pod_that_chooses_for_itself_or_is_bound_is_left_alone() {
        let chooses = json!({"spec": {"nodeSelector": {"karpenter.sh/capacity-type": "spot"}}});
        assert!(matches!(run(chooses, &spec(), FRESH), Mutation::Nothing { tell: true, .. }));
        let bound = json!({"spec": {"nodeName": "n1"}});
        assert!(matches!(run(bound, &spec(), FRESH), Mutation::Nothing { tell: false, .. }));
        let nameless = Owner::StatefulSet { start: 0, state: &State::default() };
        assert!(matches!(run(json!({"metadata": {"name": "db"}}), &spec(), nameless), Mutation::Nothing { .. }));
    }

    #[test]
    fn annotations_copied_from_another_pod_are_dropped() {
        let copied = json!({"metadata": {"annotations": {SLOT: "4", "team": "ml"}}});
        let done = operations(run(copied, &spec(), FRESH));
        assert_eq!(done[0], json!({"op": "add", "path": "/metadata/annotations", "value": {"team": "ml"}}));
    }

    #[test]
    fn a_wish_is_written_as_a_wish() {
        let soft = Spec { strength: Strength::Preferred, ..spec() };
        let owner = Owner::StatefulSet { start: 0, state: &State::default() };
        let pod = json!({"metadata": {"name": "db-2"}, "spec": {"affinity": {"podAffinity": {"x": 1}}}});
        let done = operations(run(pod, &soft, owner));
        assert_eq!(done[1]["path"], "/spec/affinity");
        assert_eq!(done[1]["value"]["podAffinity"], json!({"x": 1}));
        let wish = &done[1]["value"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"][0];
        assert_eq!(wish["preference"]["matchExpressions"][0]["values"], json!(["spot"]));
    }
}
