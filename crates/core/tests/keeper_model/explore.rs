//! Breadth-first exploration of every state that can be reached, with the shortest trace to a violation.

use std::{collections::HashSet, fmt::Write as _, hash::BuildHasherDefault, time::Instant};

use super::{
    config::Config,
    hash::Fast,
    mutation::Mutation,
    rules::Rules,
    spec,
    steps::{Successors, successors},
    world::{Audit, Creation, Deletion, Event, LOG, Mark, Node, Record, Replica, SAYS_ALL, SLOTS, State, Wishes},
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

const PREDECESSOR: u8 = 7;

fn start(config: &Config) -> State {
    let labels = config.first_labels;
    let mut node =
        Node { uid: 1, rv: 1, labels, hardware: 1, says: config.born_saying.max(SAYS_ALL), ..Node::default() };
    let present = labels != [0, 0];
    let mut record = if present {
        Record { present, uid: 1, rv: 1, labels, machine: node.machine(), ..Record::default() }
    } else {
        Record::default()
    };
    if config.returned {
        record.uid = PREDECESSOR;
        node.rv = 2;
        node.mark = Mark { present: true, complete: true, from: labels, base: labels };
    }
    let mut replicas = [Replica::default(); 2];
    for replica in &mut replicas[..config.replicas] {
        *replica = Replica { synced: true, cache: node, ..Replica::default() };
    }
    let mut want = [1; SLOTS];
    for (want, label) in want.iter_mut().zip(labels) {
        *want = spec::bit(label);
    }
    State {
        node,
        record,
        log: [Event::default(); LOG],
        events: 0,
        replicas,
        deletion: Deletion::default(),
        zombie: Deletion::default(),
        creation: Creation::default(),
        audit: Audit::default(),
        away: 0,
        returned: false,
        saved: Node::default(),
        policy: 0,
        left: config.budget,
        wishes: Wishes { want, seen: want, ..Wishes::default() },
        writes: 0,
        broken: super::world::Broken::Nothing,
    }
}

pub(crate) fn explore(config: Config, mutation: Mutation) -> Explored {
    let begun = Instant::now();
    let rules = Rules::new(config, mutation);
    let first = start(&config);
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
        for (parent, state) in &frontier {
            successors(state, &rules, &mut out);
            for (choice, state) in out.states.iter().enumerate() {
                if !seen.insert(Fast::wide(state)) {
                    continue;
                }
                let index = parents.len() as u32;
                parents.push((*parent, choice as u16));
                let rests = spec::is_at_rest(state, &rules);
                at_rest += usize::from(rests);
                if let Some(violation) = spec::violation(state, &rules, rests) {
                    found = Some(Found { violation, trace: trace(&first, &rules, &parents, index) });
                    break 'search;
                }
                next.push((index, *state));
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
    let mut text = format!("  start: {}, {}\n", state.node, state.record);
    let mut out = Successors { with_names: true, ..Successors::default() };
    for choice in choices.into_iter().rev() {
        successors(&state, rules, &mut out);
        state = out.states[choice as usize];
        let _ = writeln!(text, "  {}", out.names[choice as usize]);
    }
    let _ = writeln!(text, "  end: {}, {}, {:?}", state.node, state.record, state.wishes);
    text
}
