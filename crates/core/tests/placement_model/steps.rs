//! Successors of a state: steps of people, Kubernetes controllers and the operator.

use perennial_testkit::explorer::Successors;

use super::{
    rules::{Decision, Plan, Rules},
    spec,
    world::{ANY, Budget, Expected, NO_SLOT, ON_DEMAND, Pod, SPOT, Since, State},
};

pub(crate) fn successors(state: &State, rules: &Rules, out: &mut Successors<State>) {
    out.clear();
    people(state, rules, out);
    deployment_controller(state, rules, out);
    for set in 0..2 {
        replica_set_controller(state, rules, set, out);
    }
    scheduler_and_kubelets(state, out);
    operator(state, rules, out);
    out.states.iter_mut().for_each(State::normalise);
}

/// Returns the state with one unit of a budget spent.
fn spend(state: &State, part: impl FnOnce(&mut Budget) -> &mut u8) -> Option<State> {
    let mut next = *state;
    let left = part(&mut next.left);
    *left = left.checked_sub(1)?;
    Some(next)
}

/// Records an outside step: `as_one` is its kind if nothing else happened since rest.
fn happens(state: &mut State, as_one: Since) {
    let grows_on = state.since == Since::Growth && as_one == Since::Growth;
    state.since = if state.since == Since::Nothing || grows_on { as_one } else { Since::Anything };
    state.moves = 0;
}

fn people(state: &State, rules: &Rules, out: &mut Successors<State>) {
    let now = state.workload.replicas;
    for replicas in [now.wrapping_sub(1), now + 1] {
        if replicas == 0 || replicas > rules.config.most {
            continue;
        }
        if let Some(mut next) = spend(state, |left| &mut left.scales) {
            happens(&mut next, if replicas > now { Since::Growth } else { Since::OneChange });
            next.workload.replicas = replicas;
            out.push(next, || format!("a person scales to {replicas}"));
        }
    }
    if let Some(mut next) = spend(state, |left| &mut left.policies) {
        happens(&mut next, Since::Anything);
        next.workload.percentage = 1 - state.workload.percentage;
        out.push(next, || format!("a person sets {}%", rules.split(&next.workload).percentage()));
    }
    if let Some(mut next) = spend(state, |left| &mut left.rollouts) {
        happens(&mut next, Since::Rollout);
        next.workload.newest = 1;
        out.push(next, || "a person rolls out".into());
    }
    for index in (0..state.pods.len()).filter(|index| state.pods[*index].is_live() && state.pods[*index].node != ANY) {
        if let Some(mut next) = spend(state, |left| &mut left.losses) {
            happens(&mut next, Since::OneChange);
            next.pods[index].deleting = true;
            out.push(next, || format!("the node of {} is taken away", state.pods[index]));
        }
    }
}

/// Next step of the Deployment controller: the new replicas of a ReplicaSet. At most one pod more
/// than desired in a rollout, and no fewer available ones.
fn next_scale(state: &State, rules: &Rules) -> Option<(u8, u8)> {
    let workload = &state.workload;
    let (new, old) = (workload.newest, 1 - workload.newest);
    let (wanted_new, wanted_old) = (workload.wanted[new as usize], workload.wanted[old as usize]);
    if wanted_old == 0 && state.count(old) == 0 {
        return (wanted_new != workload.replicas).then_some((new, workload.replicas));
    }
    if wanted_new < workload.replicas && wanted_new + wanted_old < workload.replicas + 1 {
        return Some((new, wanted_new + 1));
    }
    let needed = workload.replicas - rules.config.max_unavailable.min(workload.replicas);
    let unready_new = wanted_new.saturating_sub(state.live(new).filter(|pod| pod.ready).count() as u8);
    let spare = (wanted_new + wanted_old).saturating_sub(needed + unready_new);
    (wanted_old > 0 && spare > 0 && state.truth()[2] > needed).then(|| (old, wanted_old - 1))
}

fn deployment_controller(state: &State, rules: &Rules, out: &mut Successors<State>) {
    if let Some((set, wanted)) = next_scale(state, rules) {
        let mut next = *state;
        next.workload.wanted[set as usize] = wanted;
        out.push(next, || format!("R{set} is to have {wanted} pods"));
    }
}

fn replica_set_controller(state: &State, rules: &Rules, set: u8, out: &mut Successors<State>) {
    let (wanted, have) = (state.workload.wanted[set as usize], state.count(set));
    if have < wanted && state.has_room() {
        create(state, rules, set, out);
    } else if have > wanted {
        let pods = state.pods.iter().enumerate().filter(|(_, pod)| pod.is_live() && pod.set == set);
        let rank = |pod: &Pod| {
            let cost = if pod.costs { -i32::from(pod.slot) } else { 0 };
            (pod.node != ANY, pod.ready, cost, u8::MAX - pod.uid)
        };
        let Some((index, pod)) = pods.min_by_key(|(_, pod)| rank(pod)) else { return };
        let mut next = *state;
        if pod.node == ANY {
            next.remove(index);
        } else {
            next.pods[index].deleting = true;
        }
        spec::judge_floor(&mut next, rules, state);
        out.push(next, || format!("R{set} removes {pod}"));
    }
}

fn create(state: &State, rules: &Rules, set: u8, out: &mut Successors<State>) {
    let fresh = Pod { set, slot: NO_SLOT, ..Pod::default() };
    let (_, class, slot) = state.open[0];
    let given = rules.config.gives_places && class != ANY && state.open[0].0 == set;
    let free = state.expected.iter().position(|expected| !expected.on);
    if let (true, Some(at)) = (given, free) {
        let mut next = *state;
        next.open = [state.open[1], (0, 0, 0)];
        next.expected[at] = Expected { on: true, set, class, slot, refused: false };
        if let Some(mut refused) = spend(&next, |left| &mut left.refusals) {
            happens(&mut refused, Since::Anything);
            refused.expected[at].refused = true;
            out.push(refused, || format!("a pod of R{set} is given slot {slot}, and then refused by another webhook"));
        }
        next.add(Pod { choice: class, slot, costs: true, ..fresh });
        out.push(next, || format!("R{set} creates a pod, which is given slot {slot}"));
    } else {
        let mut next = *state;
        next.add(Pod { gated: true, ..fresh });
        out.push(next, || format!("R{set} creates a gated pod"));
    }
    if let Some(mut next) = spend(state, |left| &mut left.misses) {
        happens(&mut next, Since::Anything);
        next.add(fresh);
        out.push(next, || format!("R{set} creates a pod that the webhook does not see"));
    }
}

fn scheduler_and_kubelets(state: &State, out: &mut Successors<State>) {
    for (index, pod) in state.pods.iter().enumerate().filter(|(_, pod)| pod.uid != 0) {
        let mut next = *state;
        if pod.deleting {
            next.remove(index);
            out.push(next, || format!("{pod} is gone"));
        } else if pod.node == ANY && !pod.gated {
            for node in [SPOT, ON_DEMAND].into_iter().filter(|node| pod.choice == ANY || pod.choice == *node) {
                let mut next = next;
                next.pods[index].node = node;
                out.push(next, || format!("{} gets a node", next.pods[index]));
            }
        } else if pod.node != ANY && !pod.ready {
            next.pods[index].ready = true;
            out.push(next, || format!("{pod} is Ready"));
        }
    }
}

fn operator(state: &State, rules: &Rules, out: &mut Successors<State>) {
    if state.seen_pods != state.pods || state.expected.iter().any(|expected| expected.on && !expected.refused) {
        let mut next = *state;
        next.seen_pods = state.pods;
        for expected in next.expected.iter_mut().filter(|expected| !expected.refused) {
            *expected = Expected::default();
        }
        tidy(&mut next);
        out.push(next, || "the operator sees the pods".into());
    }
    let workload = state.reported(next_scale(state, rules).is_none());
    if state.seen_workload != workload {
        let mut next = *state;
        next.seen_workload = workload;
        out.push(next, || "the operator sees the Deployment".into());
    }
    if state.expected.iter().any(|expected| expected.refused) {
        let mut next = *state;
        next.expected.iter_mut().filter(|expected| expected.refused).for_each(|it| *it = Expected::default());
        tidy(&mut next);
        out.push(next, || "the operator gives up a pod that does not come".into());
    }
    if state.workload.cooling {
        let mut next = *state;
        next.workload.cooling = false;
        out.push(next, || "the cooldown is over".into());
    }
    if let Some(mut next) = spend(state, |left| &mut left.crashes) {
        happens(&mut next, Since::Anything);
        (next.seen_pods, next.seen_workload) = (state.pods, workload);
        (next.expected, next.open) = ([Expected::default(); 2], [(0, 0, 0); 2]);
        out.push(next, || "the operator crashes, and another one reads everything".into());
    }
    let plan = rules.look(state);
    let open = if rules.config.gives_places { open_after(state, &plan) } else { [(0, 0, 0); 2] };
    let looked = State { open, ..*state };
    if looked != *state {
        out.push(looked, || format!("the operator reconciles and prepares the next places: {open:?}"));
    }
    for decision in plan.decisions {
        carry_out(&looked, rules, decision, out);
    }
}

/// A decision replaces earlier places of the same ReplicaSet.
fn open_after(state: &State, plan: &Plan) -> [(u8, u8, u8); 2] {
    let former = state.open.iter().filter(|(set, ..)| !plan.said[*set as usize]);
    let mut open = [(0, 0, 0); 2];
    let all = plan.open.iter().chain(former).filter(|(_, class, _)| *class != ANY);
    for (at, place) in open.iter_mut().zip(all) {
        *at = *place;
    }
    open
}

fn tidy(state: &mut State) {
    if !state.expected[0].on {
        state.expected.swap(0, 1);
    }
}

/// Every write is conditional on the observed state. Its response is observed at once.
fn carry_out(state: &State, rules: &Rules, decision: Decision, out: &mut Successors<State>) {
    let (Decision::Place { uid, .. }
    | Decision::Free { uid, .. }
    | Decision::Relabel { uid, .. }
    | Decision::Evict { uid }) = decision;
    let Some(index) = state.pods.iter().position(|pod| pod.uid == uid) else { return };
    let Some(shown) = state.seen_pods.iter().position(|pod| pod.uid == uid) else { return };
    let mut next = *state;
    let pod = &mut next.pods[index];
    let same = *pod == state.seen_pods[shown];
    match decision {
        Decision::Place { class, slot, costs, .. } if same => {
            (pod.gated, pod.choice, pod.slot, pod.costs) = (false, class, slot, costs);
        }
        Decision::Free { class, .. } if same => (pod.gated, pod.choice) = (false, class),
        Decision::Relabel { slot, costs, .. } if same => (pod.slot, pod.costs) = (slot, costs),
        // The cooldown is written to the Deployment first, if it has not changed since.
        Decision::Evict { .. } if state.reported(next_scale(state, rules).is_none()) == state.seen_workload => {
            if !pod.is_live() {
                return;
            }
            pod.deleting = true;
            next.seen_pods[shown].evicted = true;
            spec::judge_move(&mut next, rules, state, index);
            next.workload.cooling = true;
            next.seen_workload.cooling = true;
            out.push(next, || format!("the operator evicts {}", state.pods[index]));
            return;
        }
        _ => return,
    }
    next.seen_pods[shown] = next.pods[index];
    out.push(next, || format!("the operator writes {}", next.pods[index]));
}
