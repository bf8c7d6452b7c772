//! Steps of one replica of the operator: watch, decide, write.

use perennial_testkit::explorer::Successors;

use super::{
    mutation::Mutation,
    rules::{Decision, Rules},
    spec,
    steps::outside,
    world::{KEYS, MACHINES, Node, Read, Record, Replica, State},
};

/// Returns whether a conditional write is accepted.
pub(crate) fn may_write(read: Read, rules: &Rules) -> bool {
    read.fresh || rules.mutation == Mutation::UnconditionalWrite
}

/// Returns whether a live node is read again before its capture.
pub(crate) fn looks_again(rules: &Rules) -> bool {
    rules.mutation != Mutation::NoLiveCheck
}

/// Writes the record.
pub(crate) fn write(state: &mut State, rules: &Rules, decision: Decision) {
    match decision {
        Decision::Write(_, next) => {
            spec::judge_write(state, rules, &next);
            state.write_record(next);
        }
        Decision::DeleteRecord => state.write_record(Record::default()),
        Decision::Nothing | Decision::Patch(..) => {}
    }
}

pub(crate) fn steps(state: &State, rules: &Rules, index: usize, out: &mut Successors<State>) {
    let replica = state.replicas[index];
    if !replica.synced {
        let mut next = *state;
        next.replicas[index] =
            Replica { synced: true, cache: state.node, position: state.events, ..Replica::default() };
        out.push(next, || format!("R{index} starts and lists {}", state.node));
        return;
    }
    watch(state, rules, index, out);
    faults(state, rules, index, out);
    let last = replica.last.uid != 0 && !prefers_successor(state, rules, &replica);
    let node = if last { replica.last } else { replica.cache };
    if node.uid == 0 {
        return;
    }
    if replica.read.done {
        act(state, rules, index, (&node, last), out);
    } else {
        decide(state, rules, index, (&node, last), out);
    }
}

fn prefers_successor(state: &State, rules: &Rules, replica: &Replica) -> bool {
    let record = if replica.read.done { &replica.read.record } else { &state.record };
    rules.mutation == Mutation::SuccessorFirst && rules.live(&replica.cache, record, state.policy) != Decision::Nothing
}

fn watch(state: &State, rules: &Rules, index: usize, out: &mut Successors<State>) {
    let replica = state.replicas[index];
    if replica.position >= state.events {
        return;
    }
    let event = state.log[replica.position as usize];
    if event.deleted && replica.last.uid != 0 {
        return;
    }
    let mut next = *state;
    let it = &mut next.replicas[index];
    it.position += 1;
    if event.deleted {
        it.last = event.node;
        it.guessed = false;
        it.cache = Node::default();
        it.read = Read::default();
        it.recall = Record::default();
    } else {
        let changed = (it.cache.labels, it.cache.mark, it.cache.reported)
            != (event.node.labels, event.node.mark, event.node.reported);
        if it.cache.uid != 0 && changed {
            it.recall = Record::default();
        }
        it.cache = event.node;
        forget_read(it, rules);
    }
    let kind = if event.deleted { "DELETED" } else { "ADDED or MODIFIED" };
    out.push(next, || format!("R{index} watches {kind} {}", event.node));
}

/// A record is compared only with a node that was observed before the record was read.
fn forget_read(replica: &mut Replica, rules: &Rules) {
    let about_cache = replica.last.uid == 0 || rules.mutation == Mutation::SuccessorFirst;
    if about_cache && rules.mutation != Mutation::RecordReadBeforeNode {
        replica.read = Read::default();
    }
}

fn faults(state: &State, rules: &Rules, index: usize, out: &mut Successors<State>) {
    let replica = state.replicas[index];
    if state.left.faults == 0 {
        return;
    }
    let mut next = *state;
    next.left.faults -= 1;
    next.replicas[index] = Replica::default();
    outside(out, next, || format!("R{index} crashes"));
    if replica.position >= state.events {
        return;
    }
    let mut next = *state;
    next.left.faults -= 1;
    let it = &mut next.replicas[index];
    it.position = state.events;
    let vanished = replica.cache.uid != 0 && replica.cache.uid != state.node.uid && replica.last.uid == 0;
    if vanished && rules.mutation == Mutation::CaptureFromRelist {
        it.last = replica.cache;
        it.guessed = true;
        it.read = Read::default();
    }
    it.cache = state.node;
    it.recall = Record::default();
    forget_read(it, rules);
    outside(out, next, || format!("R{index} loses its watch and lists {}", state.node));
}

fn ask(rules: &Rules, node: &Node, last: bool, record: &Record, policy: u8) -> Decision {
    if last { rules.gone(node, record, policy) } else { rules.live(node, record, policy) }
}

/// Reads the record and decides.
fn decide(state: &State, rules: &Rules, index: usize, (node, last): (&Node, bool), out: &mut Successors<State>) {
    let decision = ask(rules, node, last, &state.record, state.policy);
    let mut next = *state;
    if decision != Decision::Nothing {
        next.replicas[index].read = Read { done: true, fresh: true, record: state.record };
        out.push(next, || format!("R{index} decides on {node} and {}: {decision:?}", state.record));
    } else if last {
        finish_last(&mut next, rules, index, node);
        out.push(next, || format!("R{index} has nothing to write for the last state of U{}", node.uid));
    }
    if !last {
        decide_from_recall(state, rules, index, node, out);
    }
}

/// Restores a successor from its predecessor without reading the record.
fn decide_from_recall(state: &State, rules: &Rules, index: usize, node: &Node, out: &mut Successors<State>) {
    let recall = state.replicas[index].recall;
    if !recall.present || !matches!(rules.live(node, &recall, state.policy), Decision::Patch(..)) {
        return;
    }
    let mut next = *state;
    next.replicas[index].read = Read { done: true, fresh: false, record: recall };
    out.push(next, || format!("R{index} decides on {node} by what its predecessor had: {recall}"));
}

fn finish_last(state: &mut State, rules: &Rules, index: usize, node: &Node) {
    let record = state.record;
    let it = &mut state.replicas[index];
    it.last = Node::default();
    let alike = record.labels == node.labels && record.machine == node.machine();
    let whole = record.withheld == [0; MACHINES] && record.ungiven == [false; KEYS];
    if record.present && !record.folded && alike && whole {
        it.recall = Record { noted: 0, ..record };
    }
    if !it.guessed {
        spec::last_state_is_processed(state, rules, node);
    }
}

/// Applies a decision.
fn act(state: &State, rules: &Rules, index: usize, (node, last): (&Node, bool), out: &mut Successors<State>) {
    let read = state.replicas[index].read;
    let decision = ask(rules, node, last, &read.record, state.policy);
    let mut next = *state;
    next.replicas[index].read = Read::default();
    match decision {
        Decision::Nothing => out.push(next, || format!("R{index} has nothing to do any more")),
        Decision::Write(..) | Decision::DeleteRecord => {
            let same = state.node.uid == node.uid && state.node.labels == node.labels;
            if !may_write(read, rules) || !last && !same && looks_again(rules) {
                out.push(next, || format!("R{index} may not write: the record or the node is another by now"));
                return;
            }
            write(&mut next, rules, decision);
            if last {
                if state.left.faults > 0 {
                    let mut unanswered = next;
                    unanswered.left.faults -= 1;
                    out.push(unanswered, || format!("R{index} writes {}, and the answer is lost", unanswered.record));
                }
                finish_last(&mut next, rules, index, node);
            } else if same {
                next.expected.seen = next.expected.want;
            }
            out.push(next, || format!("R{index} writes {}", next.record));
        }
        Decision::Patch(labels, mark) => {
            let same = state.node.uid == node.uid && state.node.rv == node.rv;
            let lands = same || state.node.uid != 0 && rules.mutation == Mutation::UnconditionalPatch;
            if state.log_is_full() {
            } else if lands {
                let patched = Node { labels, mark, rv: state.next_rv(), ..state.node };
                spec::judge_gift(&mut next, rules, &node.labels, &patched);
                next.node = patched;
                next.announce(false, patched);
                next.writes += 1;
                out.push(next, || format!("R{index} patches the node to {patched}"));
            } else {
                out.push(next, || format!("R{index} may not patch: the node is another by now"));
            }
        }
    }
}
