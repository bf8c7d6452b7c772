//! Single rules, for failures that a simulation would not attribute.

use jiff::SignedDuration;
use rstest::rstest;
use serde_json::json;

use super::sim::Sim;
use crate::placement::Class;
use crate::placement::decide::decide;
use crate::placement::decision::{Action, PlacementDecision};
use crate::placement::node_labels::{Choice, NodeLabels};
use crate::placement::schedule::{Schedule, Window};
use crate::placement::slots::Split;
use crate::placement::spec::{AnnotationRules, Spec, Strength, parse};
use crate::placement::state::{LastMove, PlacementState};
use crate::placement::ungate::{UngateReason, bystander_ungates_at, ungate};
use crate::placement::workload::{NodeView, PdbView, PlacementSettings, Workload, WorkloadView};

fn sim(p: u8, m: u32, t: u32) -> Sim {
    let mut sim = Sim::new(Spec::new(Split::new(p, m)), t, 7);
    sim.settle();
    sim
}

/// Ten pods at 70% that should now be at 40%: three spot pods too many.
fn drifted() -> Sim {
    let mut sim = sim(70, 2, 10);
    sim.spec.split = Split::new(40, 2);
    sim.world();
    for action in sim.decide().actions.iter().filter(|action| matches!(action, Action::Relabel { .. })) {
        sim.execute(action);
    }
    sim
}

fn evicts(decision: &PlacementDecision) -> bool {
    decision.actions.iter().any(|action| matches!(action, Action::Evict { .. }))
}

fn waits(decision: &PlacementDecision) -> String {
    let reasons = decision.actions.iter().filter_map(|action| match action {
        Action::Wait { reason, .. } => Some(reason.as_str()),
        _ => None,
    });
    reasons.collect::<Vec<_>>().join("; ")
}

fn reports(decision: &PlacementDecision, reason: &str) -> bool {
    decision.actions.iter().any(|action| matches!(action, Action::Report(event) if event.reason == reason))
}

fn decide_with(sim: &Sim, change: impl FnOnce(&mut WorkloadView)) -> PlacementDecision {
    let mut workload = sim.workload();
    change(&mut workload.view);
    decide(&workload)
}

#[test]
fn a_pod_is_placed_by_one_conditional_patch() {
    let mut sim = Sim::new(Spec::new(Split::new(100, 0)), 1, 7);
    sim.world();
    let decision = sim.decide();
    let [.., Action::Place { patch, .. }] = &decision.actions[..] else { panic!("{:?}", decision.actions) };
    let expected = json!({
        "metadata": {
            "resourceVersion": sim.pods[0].resource_version,
            "annotations": {
                "perennial.dev/slot": "0",
                "perennial.dev/class": "spot",
                "controller.kubernetes.io/pod-deletion-cost": "0",
            },
        },
        "spec": {
            "nodeSelector": {"karpenter.sh/capacity-type": "spot"},
            "schedulingGates": [{"$patch": "delete", "name": "perennial.dev/placement"}],
        },
    });
    assert_eq!(*patch, expected);
}

/// Reservations keep the open places of the last decision until the next one replaces them.
#[test]
fn a_full_replica_set_revokes_its_open_places() {
    let sim = sim(50, 1, 4);
    let open = sim.decide().open;
    assert_eq!(open.len(), sim.sets.len());
    assert!(open.values().all(Vec::is_empty), "{open:?}");
}

#[test]
fn one_pod_moves_and_the_state_is_written_before() {
    let sim = drifted();
    let decision = sim.decide();
    let [.., Action::Save { state, .. }, Action::Evict { .. }] = &decision.actions[..] else {
        panic!("{:?}", decision.actions)
    };
    let LastMove { at, drift, stalled, .. } = state.last_move.clone().unwrap();
    assert_eq!((at, drift, stalled), (sim.now, 3, 0));
    assert_eq!(decision.counts.drift, 3);
}

#[test]
fn the_cooldown_starts_when_the_eviction_was_answered() {
    let mut sim = drifted();
    sim.pending.evicted_at = Some(sim.now);
    let decision = sim.decide();
    assert!(!evicts(&decision) && waits(&decision).contains("cooling down"), "{}", waits(&decision));
    sim.pending.evicted_at = None;
    assert!(evicts(&sim.decide()));
}

/// The cache may show a budget that allows a disruption although the API server refuses it.
#[test]
fn evictions_that_are_refused_do_not_lengthen_the_cooldown() {
    let mut sim = drifted();
    for round in 0..6 {
        let decision = sim.decide();
        let [.., save @ Action::Save { state, .. }, Action::Evict { .. }] = &decision.actions[..] else {
            panic!("round {round}: {:?}", decision.actions)
        };
        assert_eq!(state.last_move.as_ref().map(|last| last.stalled), Some(0), "round {round}");
        sim.execute(save);
        sim.now += sim.settings.cooldown;
    }
}

#[rstest]
#[case::not_observed(|w: &mut WorkloadView| w.generation = 2, "has not observed the latest change")]
#[case::scaling(|w: &mut WorkloadView| w.current = 9, "scaling or rolling out")]
#[case::rolling(|w: &mut WorkloadView| w.updated = 9, "scaling or rolling out")]
#[case::unavailable(|w: &mut WorkloadView| w.available = 9, "only 9 of 10 replicas are available")]
fn nothing_moves_while_the_workload_is_not_at_rest(#[case] change: fn(&mut WorkloadView), #[case] reason: &str) {
    let decision = decide_with(&drifted(), change);
    assert!(decision.is_quiet());
    assert!(waits(&decision).contains(reason), "{}", waits(&decision));
}

#[test]
fn a_crash_looping_pod_within_max_unavailable_does_not_stop_repair() {
    let mut sim = drifted();
    sim.max_unavailable = 2;
    sim.pods[4].ready = false;
    assert!(evicts(&sim.decide()));
}

#[test]
fn every_budget_must_allow_the_eviction_and_several_on_one_pod_are_reported() {
    let mut sim = drifted();
    sim.pdbs = vec![PdbView { name: "web".to_owned(), disruptions_allowed: 0 }];
    let decision = sim.decide();
    assert!(decision.is_quiet() && waits(&decision).contains("PodDisruptionBudget web"));
    sim.pdbs[0].disruptions_allowed = 1;
    assert!(evicts(&sim.decide()));
    sim.pdbs.push(PdbView { name: "all".to_owned(), disruptions_allowed: 1 });
    let decision = sim.decide();
    assert!(decision.is_quiet() && reports(&decision, "SeveralBudgets"));
}

#[test]
fn outside_the_window_nothing_moves_and_the_next_decision_is_when_it_opens() {
    let mut sim = drifted();
    let (schedule, duration) = (Schedule::parse("0 2 * * *").unwrap(), SignedDuration::from_hours(1));
    sim.spec.window = Some(Window { schedule: schedule.clone(), duration });
    let decision = sim.decide();
    assert!(decision.is_quiet());
    assert_eq!(decision.revisit, schedule.next(sim.now));
    sim.now = decision.revisit.unwrap();
    assert!(evicts(&sim.decide()));
}

#[test]
fn paused_moves_nothing_and_still_places() {
    let mut sim = drifted();
    sim.spec.paused = true;
    assert!(sim.decide().is_quiet());
    sim.replicas = 12;
    sim.world();
    assert_eq!(sim.decide().actions.iter().filter(|action| matches!(action, Action::Place { .. })).count(), 2);
}

#[test]
fn the_cooldown_is_read_from_the_workload_and_doubles_while_moves_change_nothing() {
    let mut sim = drifted();
    let mut pauses = Vec::new();
    for _ in 0..4 {
        // Without the webhook the replacement is on spot again, and the next decision finds the
        // same drift.
        let decision = sim.decide();
        let Some(Action::Save { state, .. }) = decision.actions.iter().find(|a| matches!(a, Action::Save { .. }))
        else {
            panic!()
        };
        sim.state = Some(state.to_annotation());
        let cooling = sim.decide();
        assert!(cooling.is_quiet());
        let until = cooling.revisit.unwrap();
        pauses.push(until.duration_since(sim.now).as_secs());
        sim.now = until;
        let Some(Action::Evict { pod, .. }) = decision.actions.last() else { panic!() };
        let moved = sim.pods.iter_mut().find(|known| known.uid == pod.uid).unwrap();
        moved.uid = format!("{}-replaced", moved.uid);
    }
    assert_eq!(pauses, [30, 60, 120, 240]);
}

#[test]
fn a_removed_pod_does_not_count_while_it_is_still_in_the_cache() {
    let mut sim = drifted();
    let decision = sim.decide();
    let Some(Action::Evict { pod, .. }) = decision.actions.last() else { panic!() };
    // The watch delivers its replacement before its deletion.
    let ghost = sim.pods.iter().find(|p| p.uid == pod.uid).unwrap().clone();
    sim.execute(decision.actions.last().unwrap());
    sim.world();
    sim.pods.push(ghost);
    sim.pending.removed.insert(pod.uid.clone());
    let next = sim.decide();
    let placed: Vec<_> = next.actions.iter().filter(|action| matches!(action, Action::Place { .. })).collect();
    let [Action::Place { class: Class::OnDemand, slot, .. }] = placed[..] else { panic!("{:?}", next.actions) };
    assert_eq!(Some(*slot), sim.pods.last().unwrap().slot, "it takes the slot that became free");
    assert!(!evicts(&next));
}

#[test]
fn pods_of_other_owners_are_ignored() {
    let mut sim = sim(70, 2, 10);
    let mut orphan = sim.pods[0].clone();
    (orphan.owner, orphan.uid, orphan.gated) = ("someone".to_owned(), "orphan".to_owned(), true);
    sim.pods.push(orphan);
    assert!(sim.decide().is_quiet());
}

#[test]
fn a_template_that_selects_capacity_is_counted_reported_and_left_alone() {
    let mut sim = drifted();
    sim.pods[0].gated = true;
    sim.pods[0].choice = Choice::Only(Class::Spot);
    let decision = decide_with(&sim, |workload| workload.template = Choice::Only(Class::Spot));
    assert!(reports(&decision, "ChoosesCapacityItself"));
    let free = decision.actions.iter().filter(|action| matches!(action, Action::Ungate { class: None, .. })).count();
    assert_eq!(free, 1, "a gated pod is ungated without a class");
    assert!(!evicts(&decision));
}

#[test]
fn a_deletion_cost_of_another_writer_is_kept_and_reported() {
    let mut sim = sim(70, 2, 10);
    (sim.pods[3].cost, sim.pods[3].slot) = (Some("100".to_owned()), None);
    let decision = sim.decide();
    assert!(reports(&decision, "ForeignDeletionCost"));
    let [Action::Relabel { patch, .. }] = &decision.actions[1..] else { panic!("{:?}", decision.actions) };
    assert!(patch["metadata"]["annotations"].get("controller.kubernetes.io/pod-deletion-cost").is_none());
    sim.execute(&decision.actions[1]);
    assert!(sim.decide().is_quiet());
}

#[test]
fn a_pod_of_unknown_class_blocks_nothing() {
    let mut sim = sim(70, 2, 10);
    let pod = &mut sim.pods[5];
    (pod.choice, pod.node, pod.slot, pod.cost, pod.class) = (Choice::Any, None, None, None, None);
    assert!(sim.decide().is_quiet());
    assert_eq!(sim.decide().counts.unknown, 1);
    // Once it is bound it counts for the class of its node.
    sim.pods[5].node = Some(NodeView { class: Some(Class::Spot), leaving: false });
    assert!(sim.decide().actions.iter().any(|action| matches!(action, Action::Relabel { .. })));
}

#[test]
fn spot_pods_of_a_rollout_wait_for_the_floor_up_to_a_limit() {
    let mut sim = sim(70, 2, 10);
    (sim.max_surge, sim.max_unavailable) = (10, 0);
    sim.start_ticks.insert(Class::OnDemand, 1_000);
    sim.rollout();
    sim.run(3);
    let held = |decision: &PlacementDecision| {
        decision.actions.iter().filter(|action| matches!(action, Action::Hold { .. })).count()
    };
    assert_eq!(held(&sim.last), 7);
    let until = sim.last.revisit.unwrap();
    sim.now = until;
    let decision = sim.decide();
    assert_eq!(held(&decision), 0);
    assert!(reports(&decision, "HoldTimedOut"));
    assert_eq!(decision.actions.iter().filter(|action| matches!(action, Action::Place { .. })).count(), 7);
}

#[test]
fn another_replica_never_cuts_a_hold_short() {
    let settings = PlacementSettings::default();
    let created = jiff::Timestamp::UNIX_EPOCH;
    assert_eq!(bystander_ungates_at(created, false, &settings).as_second(), 30);
    assert_eq!(bystander_ungates_at(created, true, &settings).as_second(), 330);
}

#[rstest]
#[case(UngateReason::Timeout, Strength::Required, Some(Class::OnDemand))]
#[case(UngateReason::Uninstall, Strength::Required, Some(Class::OnDemand))]
#[case(UngateReason::Unmanaged, Strength::Required, None)]
#[case(UngateReason::Timeout, Strength::Preferred, None)]
fn a_pod_is_ungated_on_demand_where_perennial_may_set_a_class(
    #[case] reason: UngateReason,
    #[case] strength: Strength,
    #[case] expected: Option<Class>,
) {
    let mut sim = Sim::new(Spec::new(Split::new(70, 0)), 1, 7);
    sim.world();
    let Action::Ungate { class, patch, on_refusal, .. } = ungate(&sim.pods[0], reason, strength, &sim.settings) else {
        panic!()
    };
    assert_eq!(class, expected);
    assert_eq!(patch["spec"].get("nodeSelector").is_some(), expected.is_some());
    let annotated = patch.pointer("/metadata/annotations/perennial.dev~1class");
    assert_eq!(annotated.and_then(|class| class.as_str()), expected.map(Class::as_str), "the class is ours");
    assert_eq!(on_refusal.is_some(), expected.is_some(), "a patch that may be refused has an alternative");
    assert_eq!(patch["metadata"]["resourceVersion"], sim.pods[0].resource_version.as_str());
}

#[test]
fn preferred_pods_count_for_their_assigned_class_and_are_never_moved() {
    let mut sim = Sim::new(Spec { strength: Strength::Preferred, ..Spec::new(Split::new(70, 2)) }, 10, 7);
    sim.settle();
    sim.assert_exact();
    assert_eq!(sim.evictions, 0);
    for pod in &mut sim.pods {
        assert_eq!(pod.choice, Choice::Any);
        pod.node = Some(NodeView { class: Some(Class::OnDemand), leaving: false });
    }
    assert!(sim.decide().is_quiet());
}

#[test]
fn several_labels_become_an_affinity_beside_the_pods_own() {
    let labels = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
    let mut sim = Sim::new(Spec::new(Split::new(100, 0)), 1, 7);
    sim.settings.labels = NodeLabels::new(labels(&["cap=spot", "cap=cheap"]), labels(&["cap=od"])).unwrap();
    sim.world();
    let zone = json!({"key": "zone", "operator": "In", "values": ["a"]});
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    sim.pods[0].node_affinity = Some(json!({required: {"nodeSelectorTerms": [{"matchExpressions": [zone]}]}}));
    let decision = sim.decide();
    let Some(Action::Place { patch, .. }) = decision.actions.last() else { panic!() };
    let terms = &patch["spec"]["affinity"]["nodeAffinity"][required]["nodeSelectorTerms"];
    let class = json!({"key": "cap", "operator": "In", "values": ["spot", "cheap"]});
    assert_eq!(*terms, json!([{"matchExpressions": [zone, class]}]));
}

#[test]
fn a_pod_on_a_leaving_node_is_the_one_to_move() {
    let mut sim = drifted();
    let low = sim.pods.iter_mut().filter(|pod| pod.class == Some(Class::Spot)).min_by_key(|pod| pod.slot).unwrap();
    low.node = Some(NodeView { class: Some(Class::Spot), leaving: true });
    let name = low.name.clone();
    let decision = sim.decide();
    let Some(Action::Evict { pod, .. }) = decision.actions.last() else { panic!() };
    assert_eq!(pod.name, name);
}

#[test]
fn an_unreadable_state_is_reported_and_counts_as_none() {
    let mut sim = drifted();
    sim.state = Some("{]".to_owned());
    let decision = sim.decide();
    assert!(reports(&decision, "StateUnreadable") && evicts(&decision));
    assert_eq!(PlacementState::read(sim.state.as_deref()).0, PlacementState::default());
}

#[test]
fn many_moves_are_reported_with_the_faster_way() {
    let mut sim = sim(100, 0, 40);
    sim.spec.split = Split::new(0, 0);
    sim.run(2);
    sim.state = None;
    sim.settle();
    assert_eq!(sim.evictions, 40);
    let mut again = self::sim(100, 0, 40);
    again.spec.split = Split::new(0, 0);
    again.world();
    let decision = again.decide();
    for action in decision.actions.iter().filter(|action| matches!(action, Action::Relabel { .. })) {
        again.execute(action);
    }
    assert!(reports(&again.decide(), "ManyMoves"));
}

#[test]
fn an_unmanaged_workload_has_its_gated_pods_ungated_without_a_class() {
    let mut sim = Sim::new(Spec::new(Split::new(70, 0)), 2, 7);
    sim.world();
    let decision = decide(&Workload { spec: Ok(None), ..sim.workload() });
    let ungated = |action: &&Action| matches!(action, Action::Ungate { class: None, .. });
    assert_eq!(decision.actions.iter().filter(ungated).count(), 2);
    assert_eq!(decision.actions.len(), 2);
}

#[test]
fn invalid_annotations_are_reported_and_the_gated_pods_ungated() {
    let mut sim = Sim::new(Spec::new(Split::new(70, 0)), 1, 7);
    sim.world();
    let annotations = [("perennial.dev/spot-percentage".to_owned(), "140".to_owned())].into();
    let spec = parse(&AnnotationRules::of(&["perennial.dev"]), &[].into(), &annotations);
    let decision = decide(&Workload { spec, ..sim.workload() });
    assert!(reports(&decision, "InvalidPlacement"));
    assert!(matches!(decision.actions.last(), Some(Action::Ungate { class: None, .. })));
}

#[test]
fn a_pod_that_forbids_evictions_is_never_moved() {
    let mut sim = drifted();
    sim.pods.iter_mut().for_each(|pod| pod.protected = true);
    let decision = sim.decide();
    assert!(decision.is_quiet() && waits(&decision).contains("karpenter.sh/do-not-disrupt"), "{}", waits(&decision));
    sim.pods.iter_mut().filter(|pod| pod.class == Some(Class::Spot)).last().unwrap().protected = false;
    assert!(evicts(&sim.decide()));
}
