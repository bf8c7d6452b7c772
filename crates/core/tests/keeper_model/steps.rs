//! Successors of a state: steps of people, the API server and admission.

use perennial_testkit::explorer::Successors;

use super::{
    audit, replica,
    rules::{Decision, Rules},
    spec,
    world::{
        Budget, Creation, Deletion, KEYS, Labels, Mark, NAMES, Node, Phase, REPORTS_ALL, Read, Record, State, show,
    },
};

/// A step of another actor: the writes of the operator are counted again from zero.
pub(crate) fn outside(out: &mut Successors<State>, mut state: State, name: impl FnOnce() -> String) {
    state.writes = 0;
    out.push(state, name);
}

pub(crate) fn successors(state: &State, rules: &Rules, out: &mut Successors<State>) {
    out.clear();
    people(state, rules, out);
    deletion(state, rules, out);
    zombie(state, rules, out);
    creation(state, rules, out);
    audit::steps(state, rules, out);
    for index in 0..rules.config.replicas {
        replica::steps(state, rules, index, out);
    }
    for next in &mut out.states {
        next.normalise(rules.config.replicas);
    }
}

/// Returns the state with one unit of a budget spent.
pub(crate) fn spend(state: &State, part: impl FnOnce(&mut Budget) -> &mut u8) -> Option<State> {
    let mut next = *state;
    let left = part(&mut next.left);
    *left = left.checked_sub(1)?;
    Some(next)
}

fn people(state: &State, rules: &Rules, out: &mut Successors<State>) {
    let here = state.node.uid != 0;
    if here && !state.log_is_full() {
        for key in 0..KEYS {
            for value in (0..=rules.config.values[key]).filter(|value| *value != state.node.labels[key]) {
                let Some(mut next) = spend(state, |left| &mut left.changes) else { continue };
                spec::person_changes(&mut next, rules, key, value);
                next.node.labels[key] = value;
                next.node.rv = state.next_rv();
                next.announce(false, next.node);
                outside(out, next, || format!("a person sets {}={value}", NAMES[key]));
            }
        }
        if state.node.reported < REPORTS_ALL {
            let mut next = *state;
            next.node.reported += 1;
            next.node.rv = state.next_rv();
            next.announce(false, next.node);
            outside(out, next, || format!("the node reports more of its machine: {}", next.node));
        }
    }
    if here
        && state.saved.uid == 0
        && let Some(mut next) = spend(state, |left| &mut left.saves)
    {
        next.saved = Node { uid: 1, rv: 0, ..state.node };
        outside(out, next, || format!("a person saves the manifest of {}", state.node));
    }
    if state.record.present
        && let Some(mut next) = spend(state, |left| &mut left.forgets)
    {
        spec::record_is_deleted(&mut next, rules);
        next.record = Record::default();
        next.outdate_reads();
        outside(out, next, || "a person deletes the record".into());
    }
    if let Some(mut next) = spend(state, |left| &mut left.policies) {
        next.policy = 1 - state.policy;
        spec::policy_changes(&mut next, rules, state.policy);
        outside(out, next, || format!("the policy becomes {}", ["wide", "narrow"][next.policy as usize]));
    }
}

fn deletion(state: &State, rules: &Rules, out: &mut Successors<State>) {
    if !state.deletion.on {
        if state.node.uid != 0 && state.left.deletes > 0 {
            let mut next = *state;
            next.deletion = Deletion { on: true, node: state.node, ..Deletion::default() };
            outside(out, next, || format!("DELETE: admission is called with {}", state.node));
        }
        return;
    }
    match state.deletion.phase {
        Phase::Called => {
            if rules.config.delete_webhook {
                let mut next = *state;
                next.deletion.read = Read { done: true, fresh: true, record: state.record };
                next.deletion.phase = Phase::Decided;
                out.push(next, || format!("DELETE admission reads {}", state.record));
            }
            let failed =
                if rules.config.delete_webhook { spend(state, |left| &mut left.delete_failures) } else { Some(*state) };
            if let Some(mut next) = failed {
                next.deletion.phase = Phase::FailedOpen;
                outside(out, next, || "DELETE admission fails open".into());
            }
        }
        Phase::Decided => admit_delete(state, rules, out),
        Phase::Allowed | Phase::FailedOpen => commit_delete(state, out),
    }
}

fn admit_delete(state: &State, rules: &Rules, out: &mut Successors<State>) {
    let Deletion { node, read, .. } = state.deletion;
    let decision = rules.gone(&node, &read.record, state.policy);
    let mut next = *state;
    next.deletion.read = Read::default();
    if decision == Decision::Nothing {
        next.deletion.phase = Phase::Allowed;
        out.push(next, || "DELETE admission has nothing to write and allows".into());
    } else if replica::may_write(read, rules) {
        replica::write(&mut next, rules, decision);
        next.deletion.phase = Phase::Allowed;
        out.push(next, || format!("DELETE admission writes {} and allows", next.record));
    } else if rules.mutation == super::mutation::Mutation::NoRetryInDelete {
        next.deletion.phase = Phase::Allowed;
        out.push(next, || "DELETE admission: 409, and allows".into());
    } else {
        next.deletion.phase = Phase::Called;
        out.push(next, || "DELETE admission: 409, decides again".into());
    }
    if let Some(mut next) = spend(state, |left| &mut left.delete_failures) {
        next.deletion.phase = Phase::FailedOpen;
        next.deletion.read = Read::default();
        if rules.config.zombies && !state.zombie.on {
            next.zombie = state.deletion;
        }
        outside(out, next, || "DELETE admission times out (its handler still runs)".into());
    }
}

fn commit_delete(state: &State, out: &mut Successors<State>) {
    let mut next = *state;
    next.deletion = Deletion::default();
    if state.node.uid != state.deletion.node.uid {
        out.push(next, || "DELETE: not found".into());
    } else if state.node.rv != state.deletion.node.rv {
        next.deletion = Deletion { on: true, node: state.node, ..Deletion::default() };
        out.push(next, || format!("DELETE: the node changed, admission is called again with {}", state.node));
    } else if !state.log_is_full() {
        spec::node_is_deleted(&mut next, state.deletion.phase == Phase::Allowed);
        next.left.deletes -= 1;
        next.announce(true, Node { rv: state.next_rv(), ..state.node });
        next.node = Node::default();
        audit::node_leaves(&mut next);
        outside(out, next, || format!("DELETE commits: {} is gone", state.node));
    }
    if let Some(mut next) = spend(state, |left| &mut left.refusals) {
        next.deletion = Deletion::default();
        outside(out, next, || "DELETE is refused by someone else".into());
    }
}

/// A DELETE handler that the API server has timed out.
fn zombie(state: &State, rules: &Rules, out: &mut Successors<State>) {
    let Deletion { on: true, node, read, .. } = state.zombie else { return };
    let decision = rules.gone(&node, &read.record, state.policy);
    let mut next = *state;
    next.zombie = Deletion::default();
    let still_so = state.node.uid != node.uid || state.node.labels == node.labels || !replica::looks_again(rules);
    if decision != Decision::Nothing && replica::may_write(read, rules) && still_so {
        replica::write(&mut next, rules, decision);
        out.push(next, || format!("the timed-out DELETE handler writes late: {}", next.record));
    } else {
        out.push(next, || "the timed-out DELETE handler gives up".into());
    }
}

fn creation(state: &State, rules: &Rules, out: &mut Successors<State>) {
    let room = state.node.uid == 0 && state.left.deletes > 0 || state.deletion.on && state.left.deletes > 1;
    if !state.creation.on && room {
        let mut manifests: Vec<(Labels, Mark)> =
            vec![([0, 0], Mark::default()), ([rules.config.values[0], 0], Mark::default())];
        if state.saved.uid != 0 {
            manifests.push((state.saved.labels, state.saved.mark));
        }
        for hardware in 1..=rules.config.machines {
            for (labels, mark) in &manifests {
                let node = Node {
                    uid: u8::MAX,
                    labels: *labels,
                    mark: *mark,
                    hardware,
                    reported: rules.config.first_report,
                    rv: 0,
                };
                begin_create(state, rules, node, out);
            }
        }
    }
    if state.creation.on {
        finish_create(state, rules, out);
    }
}

fn begin_create(state: &State, rules: &Rules, node: Node, out: &mut Successors<State>) {
    let own = node.labels;
    if rules.config.create_webhook {
        // A replica that has seen the predecessor go need not read the record, however late it is,
        // unless a key in it is protected.
        let protected = |record: &Record| rules.config.protects_second_key() && record.labels[1] != 0;
        let late = state
            .replicas
            .iter()
            .filter(|replica| replica.recall.present && replica.cache.uid == 0 && !protected(&replica.recall));
        for record in std::iter::once(state.record).chain(late.map(|replica| replica.recall)) {
            let mut next = *state;
            let (labels, mark) = rules.create(&node, &record, state.policy);
            let answered = Node { labels, mark, ..node };
            next.creation = Creation { on: true, own, node: answered, believed: false };
            spec::judge_gift(&mut next, rules, &own, &answered);
            outside(out, next, || {
                format!(
                    "CREATE with {} {} on M{}: admission reads or recalls {record} and answers {answered}",
                    show(&own),
                    node.mark,
                    node.hardware,
                )
            });
        }
    }
    let failed =
        if rules.config.create_webhook { spend(state, |left| &mut left.create_failures) } else { Some(*state) };
    if let Some(mut next) = failed {
        next.creation = Creation { on: true, own, node, believed: node.mark.present };
        outside(out, next, || format!("CREATE with {} {} on M{}: no admission", show(&own), node.mark, node.hardware));
    }
}

fn finish_create(state: &State, rules: &Rules, out: &mut Successors<State>) {
    let mut next = *state;
    next.creation = Creation::default();
    if state.node.uid != 0 {
        outside(out, next, || "CREATE: already exists".into());
    } else if !state.log_is_full() {
        let uid = rules.config.budget.deletes - state.left.deletes + 1;
        next.node = Node { uid, rv: state.next_rv(), ..state.creation.node };
        spec::node_is_created(&mut next, rules, state.creation.own, state.creation.believed);
        audit::node_returns(&mut next);
        next.announce(false, next.node);
        outside(out, next, || format!("CREATE commits: {}", next.node));
    }
    if let Some(mut next) = spend(state, |left| &mut left.faults) {
        next.creation = Creation::default();
        outside(out, next, || "CREATE fails after admission".into());
    }
}
