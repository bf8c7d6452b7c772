//! The rules one by one, where a simulation would not show which of them failed.

use jiff::SignedDuration;
use rstest::rstest;
use serde_json::json;

use super::sim::Sim;
use crate::placement::Class;
use crate::placement::action::{Action, Plan};
use crate::placement::cron::{Cron, Window};
use crate::placement::fallback::{Moved, State};
use crate::placement::labels::{Choice, NodeLabels};
use crate::placement::rebalance::{Input, plan};
use crate::placement::release::{Why, bystander_frees_at, free};
use crate::placement::slots::Split;
use crate::placement::spec::{Spec, Strength};
use crate::placement::view::{NodeView, OwnWrite, PdbView, Settings, WorkloadView};

fn sim(p: u8, m: u32, t: u32) -> Sim {
    let mut sim = Sim::new(Spec::new(Split::new(p, m)), t, 7);
    sim.calm();
    sim
}

/// Ten pods at 70% that should now be at 40%: three spot pods too many.
fn drifted() -> Sim {
    let mut sim = sim(70, 2, 10);
    sim.spec.split = Split::new(40, 2);
    sim.world();
    for action in sim.look().actions.iter().filter(|action| matches!(action, Action::Relabel { .. })) {
        sim.execute(action);
    }
    sim
}

fn evicts(plan: &Plan) -> bool {
    plan.actions.iter().any(|action| matches!(action, Action::Evict { .. }))
}

fn waits(plan: &Plan) -> String {
    let reasons = plan.actions.iter().filter_map(|action| match action {
        Action::Wait { reason, .. } => Some(reason.as_str()),
        _ => None,
    });
    reasons.collect::<Vec<_>>().join("; ")
}

fn told(plan: &Plan, reason: &str) -> bool {
    plan.actions.iter().any(|action| matches!(action, Action::Tell(event) if event.reason == reason))
}

fn look_with(sim: &Sim, change: impl FnOnce(&mut WorkloadView)) -> Plan {
    let mut workload = sim.workload();
    change(&mut workload);
    plan(&Input {
        settings: &sim.settings,
        spec: &sim.spec,
        workload: &workload,
        replica_sets: &sim.sets,
        pods: &sim.pods,
        own: &sim.own,
        pdbs: &sim.pdbs,
        now: sim.now,
    })
}

#[test]
fn a_pod_is_placed_by_one_conditional_patch() {
    let mut sim = Sim::new(Spec::new(Split::new(100, 0)), 1, 7);
    sim.world();
    let plan = sim.look();
    let [.., Action::Place { patch, .. }] = &plan.actions[..] else { panic!("{:?}", plan.actions) };
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

/// Whoever gives places away goes by the last look: one that says nothing would leave the former ones standing.
#[test]
fn that_no_place_is_open_is_said() {
    let sim = sim(50, 1, 4);
    let open = sim.look().open;
    assert_eq!(open.len(), sim.sets.len());
    assert!(open.values().all(Vec::is_empty), "{open:?}");
}

#[test]
fn one_pod_moves_and_the_state_is_written_before() {
    let sim = drifted();
    let plan = sim.look();
    let [.., Action::Save { state, .. }, Action::Evict { .. }] = &plan.actions[..] else {
        panic!("{:?}", plan.actions)
    };
    assert_eq!(state.moved, Some(Moved { at: sim.now, drift: 3, stalled: 0 }));
    assert_eq!(plan.counts.drift, 3);
}

#[rstest]
#[case::not_observed(|w: &mut WorkloadView| w.generation = 2, "has not seen the latest change")]
#[case::scaling(|w: &mut WorkloadView| w.current = 9, "scaling or rolling out")]
#[case::rolling(|w: &mut WorkloadView| w.updated = 9, "scaling or rolling out")]
#[case::unavailable(|w: &mut WorkloadView| w.available = 9, "only 9 of 10 replicas are available")]
fn nothing_moves_while_the_workload_is_not_at_rest(#[case] change: fn(&mut WorkloadView), #[case] reason: &str) {
    let plan = look_with(&drifted(), change);
    assert!(plan.is_quiet());
    assert!(waits(&plan).contains(reason), "{}", waits(&plan));
}

#[test]
fn a_crash_looping_pod_within_max_unavailable_does_not_stop_repair() {
    let mut sim = drifted();
    sim.max_unavailable = 2;
    sim.pods[4].ready = false;
    assert!(evicts(&sim.look()));
}

#[test]
fn every_budget_has_to_agree_and_several_on_one_pod_are_told() {
    let mut sim = drifted();
    sim.pdbs = vec![PdbView { name: "web".to_owned(), disruptions_allowed: 0 }];
    let plan = sim.look();
    assert!(plan.is_quiet() && waits(&plan).contains("PodDisruptionBudget web"));
    sim.pdbs[0].disruptions_allowed = 1;
    assert!(evicts(&sim.look()));
    sim.pdbs.push(PdbView { name: "all".to_owned(), disruptions_allowed: 1 });
    let plan = sim.look();
    assert!(plan.is_quiet() && told(&plan, "SeveralBudgets"));
}

#[test]
fn outside_the_window_nothing_moves_and_the_next_look_is_when_it_opens() {
    let mut sim = drifted();
    let (schedule, duration) = (Cron::parse("0 2 * * *").unwrap(), SignedDuration::from_hours(1));
    sim.spec.window = Some(Window { schedule: schedule.clone(), duration });
    let plan = sim.look();
    assert!(plan.is_quiet());
    assert_eq!(plan.again, schedule.next(sim.now));
    sim.now = plan.again.unwrap();
    assert!(evicts(&sim.look()));
}

#[test]
fn paused_moves_nothing_and_still_places() {
    let mut sim = drifted();
    sim.spec.paused = true;
    assert!(sim.look().is_quiet());
    sim.replicas = 12;
    sim.world();
    assert_eq!(sim.look().actions.iter().filter(|action| matches!(action, Action::Place { .. })).count(), 2);
}

#[test]
fn the_cooldown_is_read_from_the_workload_and_doubles_while_moves_change_nothing() {
    let mut sim = drifted();
    let mut pauses = Vec::new();
    for _ in 0..4 {
        // The webhook is off: the replacement comes back on spot, and the pass after it finds the same drift.
        let plan = sim.look();
        let Some(Action::Save { state, .. }) = plan.actions.iter().find(|a| matches!(a, Action::Save { .. })) else {
            panic!()
        };
        sim.state = Some(state.to_annotation());
        let cooling = sim.look();
        assert!(cooling.is_quiet());
        let until = cooling.again.unwrap();
        pauses.push(until.duration_since(sim.now).as_secs());
        sim.now = until;
    }
    assert_eq!(pauses, [30, 60, 120, 240]);
}

#[test]
fn a_pod_that_was_removed_counts_no_more_before_the_cache_shows_it() {
    let mut sim = drifted();
    let plan = sim.look();
    let Some(Action::Evict { pod, .. }) = plan.actions.last() else { panic!() };
    // Its replacement is seen before its own deletion is.
    let ghost = sim.pods.iter().find(|p| p.uid == pod.uid).unwrap().clone();
    sim.execute(plan.actions.last().unwrap());
    sim.world();
    sim.pods.push(ghost);
    sim.own.pods.insert(pod.uid.clone(), OwnWrite::Removed);
    let next = sim.look();
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
    assert!(sim.look().is_quiet());
}

#[test]
fn a_template_that_chooses_is_counted_told_and_left_alone() {
    let mut sim = drifted();
    sim.pods[0].gated = true;
    sim.pods[0].choice = Choice::Only(Class::Spot);
    let plan = look_with(&sim, |workload| workload.template = Choice::Only(Class::Spot));
    assert!(told(&plan, "ChoosesCapacityItself"));
    let free = plan.actions.iter().filter(|action| matches!(action, Action::Free { class: None, .. })).count();
    assert_eq!(free, 1, "a pod that is gated all the same is let go as it is");
    assert!(!evicts(&plan));
}

#[test]
fn a_deletion_cost_of_someone_else_is_left_and_told() {
    let mut sim = sim(70, 2, 10);
    (sim.pods[3].cost, sim.pods[3].slot) = (Some("100".to_owned()), None);
    let plan = sim.look();
    assert!(told(&plan, "ForeignDeletionCost"));
    let [Action::Relabel { patch, .. }] = &plan.actions[1..] else { panic!("{:?}", plan.actions) };
    assert!(patch["metadata"]["annotations"].get("controller.kubernetes.io/pod-deletion-cost").is_none());
    sim.execute(&plan.actions[1]);
    assert!(sim.look().is_quiet());
}

#[test]
fn a_pod_without_a_known_class_blocks_nothing() {
    let mut sim = sim(70, 2, 10);
    let pod = &mut sim.pods[5];
    (pod.choice, pod.node, pod.slot, pod.cost, pod.class) = (Choice::Any, None, None, None, None);
    assert!(sim.look().is_quiet());
    assert_eq!(sim.look().counts.unknown, 1);
    // Once it is bound it is taken in by where it runs.
    sim.pods[5].node = Some(NodeView { class: Some(Class::Spot), leaving: false });
    assert!(sim.look().actions.iter().any(|action| matches!(action, Action::Relabel { .. })));
}

#[test]
fn spot_pods_of_a_rollout_wait_for_the_floor_and_not_for_ever() {
    let mut sim = sim(70, 2, 10);
    (sim.max_surge, sim.max_unavailable) = (10, 0);
    sim.start_ticks.insert(Class::OnDemand, 1_000);
    sim.rollout();
    sim.run(3);
    let held = |plan: &Plan| plan.actions.iter().filter(|action| matches!(action, Action::Hold { .. })).count();
    assert_eq!(held(&sim.last), 7);
    let until = sim.last.again.unwrap();
    sim.now = until;
    let plan = sim.look();
    assert_eq!(held(&plan), 0);
    assert!(told(&plan, "HoldTimedOut"));
    assert_eq!(plan.actions.iter().filter(|action| matches!(action, Action::Place { .. })).count(), 7);
}

#[test]
fn a_bystander_never_cuts_a_hold_short() {
    let settings = Settings::default();
    let created = jiff::Timestamp::UNIX_EPOCH;
    assert_eq!(bystander_frees_at(created, false, &settings).as_second(), 30);
    assert_eq!(bystander_frees_at(created, true, &settings).as_second(), 330);
}

#[rstest]
#[case(Why::Timeout, Strength::Required, Some(Class::OnDemand))]
#[case(Why::Uninstall, Strength::Required, Some(Class::OnDemand))]
#[case(Why::Unmanaged, Strength::Required, None)]
#[case(Why::Timeout, Strength::Preferred, None)]
fn freeing_is_on_demand_where_a_class_is_ours_to_give(
    #[case] why: Why,
    #[case] strength: Strength,
    #[case] expected: Option<Class>,
) {
    let mut sim = Sim::new(Spec::new(Split::new(70, 0)), 1, 7);
    sim.world();
    let Action::Free { class, patch, on_refusal, .. } = free(&sim.pods[0], why, strength, &sim.settings) else {
        panic!()
    };
    assert_eq!(class, expected);
    assert_eq!(patch["spec"].get("nodeSelector").is_some(), expected.is_some());
    assert_eq!(on_refusal.is_some(), expected.is_some(), "what the API server may refuse has a second try");
    assert_eq!(patch["metadata"]["resourceVersion"], sim.pods[0].resource_version.as_str());
}

#[test]
fn wishes_are_counted_as_they_were_given_and_never_moved_for_where_they_run() {
    let mut sim = Sim::new(Spec { strength: Strength::Preferred, ..Spec::new(Split::new(70, 2)) }, 10, 7);
    sim.calm();
    sim.assert_exact();
    assert_eq!(sim.evictions, 0);
    for pod in &mut sim.pods {
        assert_eq!(pod.choice, Choice::Any);
        pod.node = Some(NodeView { class: Some(Class::OnDemand), leaving: false });
    }
    assert!(sim.look().is_quiet());
}

#[test]
fn several_labels_are_an_affinity_on_top_of_the_pods_own() {
    let labels = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
    let mut sim = Sim::new(Spec::new(Split::new(100, 0)), 1, 7);
    sim.settings.labels = NodeLabels::new(labels(&["cap=spot", "cap=cheap"]), labels(&["cap=od"])).unwrap();
    sim.world();
    let zone = json!({"key": "zone", "operator": "In", "values": ["a"]});
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    sim.pods[0].node_affinity = Some(json!({required: {"nodeSelectorTerms": [{"matchExpressions": [zone]}]}}));
    let plan = sim.look();
    let Some(Action::Place { patch, .. }) = plan.actions.last() else { panic!() };
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
    let plan = sim.look();
    let Some(Action::Evict { pod, .. }) = plan.actions.last() else { panic!() };
    assert_eq!(pod.name, name);
}

#[test]
fn a_state_that_cannot_be_read_is_told_and_counts_as_none() {
    let mut sim = drifted();
    sim.state = Some("{]".to_owned());
    let plan = sim.look();
    assert!(told(&plan, "StateUnreadable") && evicts(&plan));
    assert_eq!(State::read(sim.state.as_deref()).0, State::default());
}

#[test]
fn many_moves_are_told_with_the_faster_way() {
    let mut sim = sim(100, 0, 40);
    sim.spec.split = Split::new(0, 0);
    sim.run(2);
    sim.state = None;
    sim.calm();
    assert_eq!(sim.evictions, 40);
    let mut again = self::sim(100, 0, 40);
    again.spec.split = Split::new(0, 0);
    again.world();
    let plan = again.look();
    for action in plan.actions.iter().filter(|action| matches!(action, Action::Relabel { .. })) {
        again.execute(action);
    }
    assert!(told(&again.look(), "ManyMoves"));
}
