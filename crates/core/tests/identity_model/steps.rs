//! Successors of a state: steps of people, machines and the operator.

use perennial_core::keeper::selection::Node;

use super::world::{KEY, MACHINES, NAMES, Rules, State, Want, hardware, machine, person_wants, value};

/// Returns the successors of a state, with names.
pub(crate) fn successors(state: &State, rules: &Rules) -> Vec<(String, State)> {
    let mut all = outside(state, rules);
    for (_, next) in &mut all {
        next.writes = 0;
    }
    all.extend(operator(state, rules));
    for (_, next) in &mut all {
        next.normalise();
    }
    all
}

fn outside(state: &State, rules: &Rules) -> Vec<(String, State)> {
    let world = rules.world;
    let mut all = Vec::new();
    for (at, name) in NAMES.into_iter().enumerate() {
        let Some(node) = &state.nodes[at] else {
            if state.born < world.creates {
                all.extend(creates(state, rules, at));
            }
            continue;
        };
        let values = [None, Some(format!("{}x", hardware(node))), Some(format!("{}y", hardware(node)))];
        for wanted in values.into_iter().filter(|wanted| *wanted != value(node) && state.changed < world.changes) {
            let mut next = state.clone();
            next.changed += 1;
            person_wants(&mut next, at, node, wanted.clone());
            let mut changed = Node { resource_version: next.next_version(), ..node.clone() };
            changed.labels = wanted.clone().map(|value| (KEY.to_owned(), value)).into_iter().collect();
            next.nodes[at] = Some(changed);
            all.push((format!("a person makes {KEY} of {name} {wanted:?}"), next));
        }
        if node.machine.provider_id.is_empty() {
            let mut next = state.clone();
            let resource_version = next.next_version();
            next.nodes[at] = Some(Node { machine: machine(hardware(node), true), resource_version, ..node.clone() });
            all.push((format!("{name} reports that it is machine {}", hardware(node)), next));
        }
        if state.deleted < world.deletes && state.last[at].is_none() {
            let mut next = state.clone();
            next.deleted += 1;
            if world.webhooks {
                rules.leave(&mut next, node);
            }
            let resource_version = next.next_version();
            next.last[at] = Some(Node { resource_version, ..node.clone() });
            (next.nodes[at], next.captured[at]) = (None, false);
            all.push((format!("{name} is deleted"), next));
        }
    }
    all
}

/// Creates a node on each machine, with and without a label, with and without a providerID.
fn creates(state: &State, rules: &Rules, at: usize) -> Vec<(String, State)> {
    let mut all = Vec::new();
    for number in MACHINES {
        for (reported, own) in [(true, false), (true, true), (false, false)] {
            let mut next = state.clone();
            next.born += 1;
            let own = own.then(|| format!("{number}x"));
            let node = Node {
                name: NAMES[at].to_owned(),
                uid: format!("u{}", next.born),
                labels: own.clone().map(|value| (KEY.to_owned(), value)).into_iter().collect(),
                machine: machine(number, reported),
                ..Node::default()
            };
            if own.is_some() {
                person_wants(&mut next, at, &node, own.clone());
            }
            if next.nodes.iter().flatten().any(|other| hardware(other) == number) {
                next.want[usize::from(number - 1)] = Want::Unclear;
            }
            rules.create(&mut next, at, node);
            all.push((format!("{} comes on machine {number} with {own:?}, reported {reported}", NAMES[at]), next));
        }
    }
    all
}

pub(crate) fn operator(state: &State, rules: &Rules) -> Vec<(String, State)> {
    let mut all = Vec::new();
    for (at, name) in NAMES.into_iter().enumerate() {
        let mut next = state.clone();
        let step = if let Some(last) = &state.last[at] {
            rules.leave(&mut next, last);
            next.last[at] = None;
            "deals with the last state of"
        } else {
            rules.settle(&mut next, at);
            "works on"
        };
        if next.differs_from(state) {
            all.push((format!("the operator {step} {name}"), next));
        }
    }
    all
}
