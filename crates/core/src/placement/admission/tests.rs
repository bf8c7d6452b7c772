//! Answers to admission requests.

use serde_json::json;

use super::*;
use crate::placement::slots::Split;
use crate::placement::supply::Breaker;
use crate::placement::{DELETION_COST, FALLBACK, SLOT};

const FRESH: PodOwner<'_> = PodOwner::Deployment(Assignment::Gated);

fn pod(value: Value) -> IncomingPod {
    serde_json::from_value(value).unwrap()
}

fn spec() -> Spec {
    Spec::new(Split::new(70, 1))
}

fn run(value: Value, spec: &Spec, owner: PodOwner<'_>) -> PodAdmission {
    let tolerations = Tolerations { spot: vec![json!({"key": "spot", "operator": "Exists"})], on_demand: vec![] };
    admit(&pod(value), spec, owner, &NodeLabels::default(), &tolerations)
}

fn operations(admission: PodAdmission) -> Vec<Value> {
    match admission {
        PodAdmission::Patch { operations, .. } => operations,
        PodAdmission::Unchanged { reason, .. } => panic!("unchanged: {reason}"),
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
    let stale = PodOwner::Deployment(Assignment::Ownerless);
    let done = operations(run(json!({"spec": {"nodeSelector": {"disk": "ssd"}}}), &spec(), stale));
    assert_eq!(done[1]["value"], json!({"disk": "ssd", "karpenter.sh/capacity-type": "on-demand"}));
    assert!(done.iter().all(|operation| operation["path"] != "/spec/schedulingGates"));
}

#[test]
fn a_known_place_is_assigned_in_the_create_request() {
    let placed = PodOwner::Deployment(Assignment::Placed(Place { class: Class::Spot, slot: 2 }));
    let done = operations(run(json!({"metadata": {"annotations": {"team": "ml"}}}), &spec(), placed));
    let annotations = json!({"team": "ml", CLASS: "spot", SLOT: "2", DELETION_COST: "-2"});
    assert_eq!(done[0], json!({"op": "add", "path": "/metadata/annotations", "value": annotations}));
    assert_eq!(done[1]["value"], json!({"karpenter.sh/capacity-type": "spot"}));
    assert_eq!(done[2]["path"], "/spec/tolerations");
    assert_eq!(done.len(), 3);
}

#[test]
fn a_deletion_cost_of_another_writer_stays() {
    let placed = PodOwner::Deployment(Assignment::Placed(Place { class: Class::Spot, slot: 2 }));
    let done = operations(run(json!({"metadata": {"annotations": {DELETION_COST: "7"}}}), &spec(), placed));
    assert_eq!(done[0]["value"], json!({CLASS: "spot", SLOT: "2", DELETION_COST: "7"}));
}

#[test]
fn a_reinvocation_leaves_an_assigned_pod_unchanged() {
    let pod = json!({"metadata": {"annotations": {CLASS: "spot", SLOT: "2"}},
        "spec": {"nodeSelector": {"karpenter.sh/capacity-type": "spot"}}});
    assert!(matches!(run(pod, &spec(), FRESH), PodAdmission::Unchanged { report: false, .. }));
}

/// Applies the operations of an answer to a pod.
fn patched(mut pod: Value, operations: Vec<Value>) -> Value {
    for operation in operations {
        let path = operation["path"].as_str().unwrap().to_owned();
        let [_, parent, field] = path.split('/').collect::<Vec<_>>()[..] else { panic!("{path}") };
        pod[parent][field] = operation["value"].clone();
    }
    pod
}

#[test]
fn a_reinvocation_leaves_a_pod_with_a_preferred_class_unchanged() {
    let soft = Spec { strength: Strength::Preferred, ..spec() };
    let placed = |class, slot| PodOwner::Deployment(Assignment::Placed(Place { class, slot }));
    let new = json!({"metadata": {"annotations": {"team": "ml"}}, "spec": {"affinity": {"podAffinity": {"x": 1}}}});
    let once = patched(new.clone(), operations(run(new, &soft, placed(Class::Spot, 2))));
    for assignment in [placed(Class::OnDemand, 5), FRESH, PodOwner::Deployment(Assignment::Ownerless)] {
        assert!(
            matches!(run(once.clone(), &soft, assignment), PodAdmission::Unchanged { report: false, .. }),
            "{assignment:?}"
        );
    }

    // A preferred affinity from the template, or for another class than the annotation, is not
    // Perennial's.
    let mut theirs = once.clone();
    theirs["metadata"]["annotations"] = json!({});
    assert!(matches!(run(theirs, &soft, FRESH), PodAdmission::Patch { .. }));
    let mut other = once;
    other["metadata"]["annotations"][CLASS] = json!("on-demand");
    assert!(matches!(run(other, &soft, FRESH), PodAdmission::Patch { .. }));
}

#[test]
fn a_gated_pod_of_a_preferred_workload_is_marked_as_preferred() {
    let soft = Spec { strength: Strength::Preferred, ..spec() };
    let done = operations(run(json!({"metadata": {}}), &soft, FRESH));
    assert_eq!(done[0], json!({"op": "add", "path": "/metadata/annotations", "value": {SELECTION: PREFERRED}}));
    let again = patched(json!({"metadata": {}, "spec": {}}), done);
    assert!(operations(run(again.clone(), &soft, FRESH)).is_empty());
    let copied = operations(run(again, &spec(), FRESH));
    assert_eq!(copied[0]["value"], json!({}), "copied from a template, not requested by the workload");
}

#[test]
fn a_stateful_pod_is_placed_by_its_ordinal_alone() {
    let state = PlacementState::default();
    let split = spec().split;
    for ordinal in 5..25 {
        let owner = PodOwner::StatefulSet { start: 5, state: &state };
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
    let mut state = PlacementState { fallback_slots: vec![2], ..PlacementState::default() };
    let class = |state: &PlacementState| {
        let owner = PodOwner::StatefulSet { start: 0, state };
        operations(run(json!({"metadata": {"name": "db-2"}}), &spec(), owner))[0]["value"].clone()
    };
    assert_eq!(class(&state), json!({CLASS: "spot"}));
    state.breaker = Breaker::Open { since: now, probe: now, attempt: 0 };
    assert_eq!(class(&state), json!({CLASS: "on-demand", FALLBACK: "true"}));
}

#[test]
fn a_pod_that_selects_its_capacity_or_is_bound_is_unchanged() {
    let chooses = json!({"spec": {"nodeSelector": {"karpenter.sh/capacity-type": "spot"}}});
    assert!(matches!(run(chooses, &spec(), FRESH), PodAdmission::Unchanged { report: true, .. }));
    let bound = json!({"spec": {"nodeName": "n1"}});
    assert!(matches!(run(bound, &spec(), FRESH), PodAdmission::Unchanged { report: false, .. }));
    let nameless = PodOwner::StatefulSet { start: 0, state: &PlacementState::default() };
    assert!(matches!(run(json!({"metadata": {"name": "db"}}), &spec(), nameless), PodAdmission::Unchanged { .. }));
}

#[test]
fn annotations_copied_from_another_pod_are_dropped() {
    let copied = json!({"metadata": {"annotations": {SLOT: "4", "team": "ml"}}});
    let done = operations(run(copied, &spec(), FRESH));
    assert_eq!(done[0], json!({"op": "add", "path": "/metadata/annotations", "value": {"team": "ml"}}));
}

#[test]
fn a_preferred_class_becomes_a_preferred_affinity() {
    let soft = Spec { strength: Strength::Preferred, ..spec() };
    let owner = PodOwner::StatefulSet { start: 0, state: &PlacementState::default() };
    let pod = json!({"metadata": {"name": "db-2"}, "spec": {"affinity": {"podAffinity": {"x": 1}}}});
    let done = operations(run(pod, &soft, owner));
    assert_eq!(done[1]["path"], "/spec/affinity");
    assert_eq!(done[1]["value"]["podAffinity"], json!({"x": 1}));
    let preferred = &done[1]["value"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"][0];
    assert_eq!(preferred["preference"]["matchExpressions"][0]["values"], json!(["spot"]));
}
