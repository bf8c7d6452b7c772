//! Specification: the guarantees by name.

use perennial_testkit::explorer::Successors;

use super::{
    rules::{Rules, compact_class},
    world::{Broken, Pod, SPOT, Since, State},
};

/// Maximum number of evictions without an outside step; more are a loop.
const MOVES_TO_REST: u8 = 3;

/// The operator evicts a pod.
pub(crate) fn judge_move(next: &mut State, rules: &Rules, before: &State, index: usize) {
    let left = next.ready_on_demand();
    next.broken = if before.pods[index].is_ready_on_demand() && left < rules.floor(&next.workload) {
        Broken::FloorByMove
    } else if before.workload.cooling {
        Broken::MovedWhileCooling
    } else if before.moved && before.truth()[2] + rules.config.max_unavailable < before.workload.replicas {
        Broken::MovedTwoAtOnce
    } else if matches!(before.since, Since::Growth | Since::OneChange | Since::Nothing) {
        Broken::MovedForNothing
    } else {
        before.broken
    };
    next.moved = true;
    next.moves = before.moves.saturating_add(1);
}

/// A ReplicaSet removed a pod: the floor holds in a rollout without disturbance.
pub(crate) fn judge_floor(next: &mut State, rules: &Rules, before: &State) {
    let floor = rules.floor(&next.workload);
    if before.since == Since::Rollout && next.ready_on_demand() < floor && before.ready_on_demand() >= floor {
        next.broken = Broken::FloorInRollout;
    }
}

/// Returns whether only outside steps are possible.
pub(crate) fn is_at_rest(state: &State, out: &Successors<State>) -> bool {
    // Outside steps spend a budget.
    out.states.iter().all(|next| next.left != state.left)
}

/// Returns the guarantee that this state violates.
pub(crate) fn violation(state: &State, rules: &Rules, at_rest: bool) -> Option<String> {
    let floor = rules.floor(&state.workload);
    match state.broken {
        Broken::Nothing => {}
        Broken::FloorByMove => return Some(format!("G10: a move left fewer than {floor} Ready on-demand pods")),
        Broken::FloorInRollout => return Some(format!("G10: fewer than {floor} Ready on-demand pods in a rollout")),
        Broken::MovedWhileCooling => return Some("G10: a move right after another".into()),
        Broken::MovedTwoAtOnce => return Some("G10: a move before the last one is replaced".into()),
        Broken::MovedForNothing => return Some("G10: a move although nothing called for one".into()),
    }
    if state.moves > MOVES_TO_REST {
        return Some(format!("G7: more than {MOVES_TO_REST} moves while nothing happens outside"));
    }
    if !at_rest {
        return None;
    }
    if let Some(gated) = state.pods.iter().find(|pod| pod.gated) {
        return Some(format!("G8: {gated} stays gated"));
    }
    let workload = &state.workload;
    let split = rules.split(workload);
    let pods: Vec<&Pod> = state.pods.iter().filter(|pod| pod.is_live()).collect();
    let (spot, all) = (pods.iter().filter(|pod| pod.class() == SPOT).count(), pods.len());
    let exact = split.spot(workload.replicas.into()) as usize;
    if all != usize::from(workload.replicas) || spot != exact {
        return Some(format!("G10: {spot} of {all} pods are spot, and {exact} of {} should be", workload.replicas));
    }
    // Each pod is in a slot of its class, so that scale-in from the top stays exact.
    for slot in 0..workload.replicas {
        let class = compact_class(split.class(slot.into()));
        if !pods.iter().any(|pod| pod.slot == slot && pod.costs && pod.class() == class) {
            return Some(format!("G10: no pod in slot {slot} as scale-in needs it"));
        }
    }
    None
}
