//! Breadth-first exploration of every state that can be reached, with the shortest trace to a violation.

use std::{collections::HashSet, fmt::Write as _, hash::BuildHasherDefault, time::Instant};

use perennial_core::placement::Class;

use super::{
    config::Config,
    hash::Fast,
    mutation::Mutation,
    rules::Rules,
    spec,
    steps::{Successors, successors},
    world::{Broken, Expected, ON_DEMAND, PODS, Pod, SPOT, Since, State, Workload},
};

pub(crate) struct Found {
    pub(crate) violation: String,
    pub(crate) trace: String,
}

pub(crate) struct Explored {
    pub(crate) states: usize,
    pub(crate) depth: usize,
    pub(crate) at_rest: usize,
    pub(crate) seconds: f32,
    /// Every state that can be reached was seen.
    pub(crate) exhausted: bool,
    pub(crate) found: Option<Found>,
}

/// A Deployment that has what it asks for, and everybody knows it.
fn start(config: &Config, rules: &Rules) -> State {
    let workload = Workload { replicas: config.replicas, wanted: [config.replicas, 0], ..Workload::default() };
    let split = rules.split(&workload);
    let mut pods = [Pod::default(); PODS];
    for (slot, pod) in (0..config.replicas).zip(&mut pods) {
        let class = if split.class(slot.into()) == Class::Spot { SPOT } else { ON_DEMAND };
        *pod = Pod { uid: slot + 1, choice: class, slot, costs: true, node: class, ready: true, ..Pod::default() };
    }
    let mut state = State {
        pods,
        workload,
        seen_pods: pods,
        seen_workload: workload,
        expected: [Expected::default(); 2],
        open: [(0, 0, 0); 2],
        moved: false,
        moves: 0,
        since: Since::Anything,
        left: config.budget,
        broken: Broken::Nothing,
    };
    state.seen_workload = state.reported(true);
    state
}

pub(crate) fn explore(config: Config, mutation: Mutation) -> Explored {
    let begun = Instant::now();
    let rules = Rules::new(config, mutation);
    let first = start(&config, &rules);
    let mut seen: HashSet<u128, BuildHasherDefault<Fast>> = HashSet::default();
    seen.insert(Fast::wide(&first));
    // For each state the one it came from and which of its successors it is.
    let mut parents: Vec<(u32, u16)> = vec![(0, 0)];
    let mut frontier: Vec<(u32, State)> = vec![(0, first)];
    let mut out = Successors::default();
    let (mut depth, mut at_rest) = (0, 0);
    let mut found = None;
    'search: while !frontier.is_empty() && parents.len() <= config.limit {
        depth += 1;
        let mut next = Vec::new();
        for (index, state) in &frontier {
            let mut state = *state;
            successors(&state, &rules, &mut out);
            let rests = spec::is_at_rest(&state, &out);
            at_rest += usize::from(rests);
            if let Some(violation) = spec::violation(&state, &rules, rests) {
                found = Some(Found { violation, trace: trace(&first, &rules, &parents, *index) });
                break 'search;
            }
            if rests && state.since != Since::Nothing {
                state.since = Since::Nothing;
                state.moves = 0;
                successors(&state, &rules, &mut out);
            }
            for (choice, state) in out.states.iter().enumerate() {
                if seen.insert(Fast::wide(state)) {
                    next.push((parents.len() as u32, *state));
                    parents.push((*index, choice as u16));
                }
            }
        }
        frontier = next;
    }
    let exhausted = found.is_none() && frontier.is_empty();
    Explored { states: parents.len(), depth, at_rest, seconds: begun.elapsed().as_secs_f32(), exhausted, found }
}

fn trace(first: &State, rules: &Rules, parents: &[(u32, u16)], mut index: u32) -> String {
    let mut choices = Vec::new();
    while index != 0 {
        let (parent, choice) = parents[index as usize];
        choices.push(choice);
        index = parent;
    }
    let mut state = *first;
    let mut text = String::new();
    let mut out = Successors { with_names: true, ..Successors::default() };
    for choice in choices.into_iter().rev() {
        successors(&state, rules, &mut out);
        if spec::is_at_rest(&state, &out) {
            (state.since, state.moves) = (Since::Nothing, 0);
            successors(&state, rules, &mut out);
        }
        state = out.states[choice as usize];
        let _ = writeln!(text, "  {}", out.names[choice as usize]);
    }
    let pods: Vec<String> = state.pods.iter().filter(|pod| pod.uid != 0).map(ToString::to_string).collect();
    let _ = writeln!(text, "  end: {}; {:?}", pods.join(", "), state.workload);
    text
}
