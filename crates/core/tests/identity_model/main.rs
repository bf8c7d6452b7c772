//! Explicit-state model of identity: every state of a small world whose nodes are identified by
//! machine.
//!
//! Two names, two machines and one label. Machines leave and return under either name, report their
//! providerID late, and two nodes may
//! claim one machine at once. The real `Case` and `decide` decide, identities and rivals included.
//! Stale views, crashes and lost answers are in `keeper_model`, where there is one name.

// A state that the model cannot represent is an error in the model.
#![allow(clippy::expect_used)]

mod steps;
mod world;

use perennial_core::keeper::selection::Node;
use perennial_testkit::explorer::{Judged, Model, Successors, assert_needed, assert_safe};

use steps::{operator, successors};
use world::{MACHINES, Rules, State, Want, Without, World, hardware, held, machine, value};

/// Maximum number of states to explore, well above what the worlds have.
const STATES: usize = 10_000_000;

/// Maximum number of writes without an outside step; more are an endless loop.
const WRITES_TO_REST: u8 = 6;

/// Returns the guarantee that a state violates.
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

impl Model for Rules {
    type State = State;

    fn name(&self) -> &'static str {
        if self.world.webhooks { "with webhooks" } else { "without webhooks" }
    }

    fn limit(&self) -> usize {
        STATES
    }

    fn start(&self) -> State {
        State::first(self)
    }

    fn look(&self, state: &mut State, out: &mut Successors<State>) -> Judged {
        let at_rest = operator(state, self).is_empty();
        out.clear();
        for (step, next) in successors(state, self) {
            out.push(next, || step);
        }
        Judged { at_rest, violation: violation(state, self, at_rest) }
    }

    fn show(&self, state: &State) -> String {
        let nodes = state.nodes.iter().flatten().map(|node| format!("{} on machine {}", node.name, hardware(node)));
        format!("{}, wanted {:?}", nodes.collect::<Vec<_>>().join(", "), state.want)
    }
}

fn worlds(without: Without) -> [Rules; 2] {
    [true, false].map(|webhooks| Rules::new(World { without, webhooks, creates: 2, deletes: 2, changes: 1 }))
}

#[test]
fn a_machine_is_itself_under_every_name() {
    assert_safe(worlds(Without::Nothing));
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
    assert_needed(&rules, worlds);
}
