//! Identity, explored: every state that a small world can reach in which nodes are known by their machine and not by their name.
//!
//! There are two names, two machines and one label. Machines leave and return under either name, say late who they are, and two nodes may
//! claim one machine at once. The real `Case` and `decide` decide, identities and rivals included.
//! Stale views, crashes and lost answers are in `keeper_model`, where there is one name.

// What the model cannot hold is an error in the model.
#![allow(clippy::expect_used)]

mod steps;
mod world;

use std::collections::HashSet;

use perennial_core::keeper::selection::Node;

use steps::{operator, successors};
use world::{MACHINES, Rules, State, Want, Without, World, held, machine, value};

/// More writes than this while nothing happens outside are an endless loop.
const WRITES_TO_REST: u8 = 6;

/// The guarantee that does not hold.
fn violation(state: &State, rules: &Rules, at_rest: bool) -> Option<String> {
    if state.broken.is_some() {
        return state.broken.clone();
    }
    if state.writes > WRITES_TO_REST {
        return Some(format!("G7: more than {WRITES_TO_REST} writes while nothing happens outside"));
    }
    if !at_rest {
        return None;
    }
    let record = |node: &Node| rules.identity(node).and_then(|it| state.records.get(&it.record_name().0));
    for (node, captured) in state.nodes.iter().zip(state.captured) {
        if let Some(node) = node.as_ref().filter(|node| captured && held(record(node)) != value(node)) {
            return Some(format!("G1: {} is not captured any more", node.name));
        }
    }
    for (number, want) in MACHINES.into_iter().zip(&state.want) {
        let Want::Is(want) = want else { continue };
        let there = state.nodes.iter().flatten().find(|node| node.machine == machine(number, true));
        let absent = Node { machine: machine(number, true), ..Node::default() };
        let have = there.map_or_else(|| held(record(&absent)), value);
        if have != *want {
            return Some(format!("G1: machine {number} has {have:?}, and {want:?} is wanted"));
        }
    }
    None
}

struct Explored {
    states: usize,
    at_rest: usize,
    /// The violation, and the shortest way to it.
    found: Option<String>,
}

fn explore(world: World) -> Explored {
    let rules = Rules::new(world);
    let first = State::first(&rules);
    let mut seen = HashSet::from([first.key()]);
    let mut way = vec![(0, String::new())];
    let mut frontier = vec![(0, first)];
    let mut at_rest = 0;
    while !frontier.is_empty() {
        let mut next = Vec::new();
        for (index, state) in frontier {
            let rests = operator(&state, &rules).is_empty();
            at_rest += usize::from(rests);
            if let Some(what) = violation(&state, &rules, rests) {
                let found = Some(format!("{what}\n{}", told(&way, index)));
                return Explored { states: way.len(), at_rest, found };
            }
            for (step, state) in successors(&state, &rules) {
                if seen.insert(state.key()) || state.broken.is_some() {
                    next.push((way.len(), state));
                    way.push((index, step));
                }
            }
        }
        frontier = next;
    }
    Explored { states: way.len(), at_rest, found: None }
}

fn told(way: &[(usize, String)], mut index: usize) -> String {
    let mut steps = Vec::new();
    while index != 0 {
        let (before, step) = &way[index];
        steps.push(format!("  {step}\n"));
        index = *before;
    }
    steps.into_iter().rev().collect()
}

fn worlds(without: Without) -> [World; 2] {
    [true, false].map(|webhooks| World { without, webhooks, creates: 2, deletes: 2, changes: 1 })
}

#[test]
fn a_machine_is_itself_under_every_name() {
    for world in worlds(Without::Nothing) {
        let explored = explore(world);
        println!("webhooks {}: {} states, {} at rest", world.webhooks, explored.states, explored.at_rest);
        assert!(explored.found.is_none(), "webhooks {}: {}", world.webhooks, explored.found.unwrap_or_default());
        assert!(explored.at_rest > 0);
    }
}

#[test]
fn without_any_one_rule_a_guarantee_breaks() {
    use Without as W;
    let rules = [
        W::Identity,
        W::Refusal,
        W::RefusalInCreates,
        W::CaptureOfTheOwner,
        W::RefusalOfLastStates,
        W::OrderAcrossNames,
    ];
    let mut missed = Vec::new();
    for rule in rules {
        match worlds(rule).into_iter().find_map(|world| explore(world).found) {
            Some(found) => println!("{rule:?}: {}", found.lines().next().unwrap_or_default()),
            None => missed.push(rule),
        }
    }
    println!("caught {} of {} mutations", rules.len() - missed.len(), rules.len());
    assert!(missed.is_empty(), "not caught: {missed:?}");
}
