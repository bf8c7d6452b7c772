//! Specification: the expected labels, and the guarantees by name.

use super::{
    audit,
    rules::{Decision, Rules},
    world::{Broken, KEYS, Labels, Mark, NAMES, Node, RECORD_DELETED, REPORTS_ALL, Record, SLOTS, State},
};

/// Maximum number of writes without an outside step; more are a livelock.
const WRITES_TO_REST: u8 = 7;

pub(crate) fn bit(value: u8) -> u8 {
    1 << value
}

/// Returns the slot of a key on a machine.
pub(crate) fn slot(rules: &Rules, key: usize, hardware: u8) -> usize {
    if key == 1 && rules.config.machines > 1 && hardware == 2 { 2 } else { key }
}

fn place(slot: usize) -> (usize, u8) {
    [(0, 1), (1, 1), (1, 2)][slot]
}

fn recorded(record: &Record, slot: usize) -> u8 {
    let (key, hardware) = place(slot);
    record.kept_for(key, hardware)
}

/// Terms of the design, to tell its documented limits from violations.
fn is_owner(node: &Node, record: &Record) -> bool {
    record.uid == node.uid && !record.folded && record.mark == node.mark
}

fn content_for(node: &Node, record: &Record) -> Labels {
    if record.folded && record.uid == node.uid { record.before } else { record.labels }
}

fn is_settled(node: &Node, record: &Record) -> bool {
    let content = content_for(node, record);
    let spoken_of = (0..KEYS).all(|key| content[key] == 0 || node.mark.base[key] != 0);
    let given = node.mark.present && node.mark.complete && node.mark.from == content && spoken_of;
    let owner = is_owner(node, record) && record.ungiven == [false; KEYS];
    !record.present || owner || given
}

/// Returns the last value that node and record agreed on.
fn base(node: &Node, record: &Record) -> Labels {
    if record.present && is_owner(node, record) { record.labels } else { node.mark.base }
}

/// A person sets or removes a key of the live node.
pub(crate) fn person_changes(state: &mut State, rules: &Rules, key: usize, value: u8) {
    let (node, record) = (state.node, state.record);
    let slot = slot(rules, key, node.hardware);
    let expected = &mut state.expected;
    let settled = is_settled(&node, &record);
    // Equal to the record is no decision while an older last state is unprocessed.
    let equal = record.present
        && value == recorded(&record, slot)
        && value != 0
        && expected.unsure != 0
        && !is_owner(&node, &record);
    // A change back to what was given cannot be told from "untouched" (limit B).
    let back = value == base(&node, &record)[key] && (!settled || expected.unsure != 0 || state.creation.on);
    // The record takes precedence until the node is settled.
    let overwritten = rules.config.overwrite && (!settled || expected.unsure != 0);
    // A protected key on a node that has not reported its machine.
    let unsaid = key == 1 && rules.config.protects_second_key() && node.reported < REPORTS_ALL;
    if equal || back || overwritten || unsaid {
        expected.want[slot] |= bit(value) | expected.seen[slot];
        if record.present {
            expected.want[slot] |= bit(recorded(&record, slot));
            if record.folded {
                expected.want[slot] |= bit(record.before[key]);
            }
        }
    } else {
        expected.want[slot] = bit(value);
        expected.is_certain(slot);
    }
    expected.seen[slot] |= expected.want[slot];
}

/// A DELETE commits. `looked`: admission has processed this very state.
pub(crate) fn node_is_deleted(state: &mut State, looked: bool) {
    let record = state.record;
    let expected = &mut state.expected;
    if looked {
        expected.seen = expected.want;
        return;
    }
    expected.unsure |= bit(state.node.uid);
    for slot in 0..SLOTS {
        expected.or[slot] |= expected.seen[slot];
        if record.present {
            expected.or[slot] |= bit(recorded(&record, slot));
        }
    }
}

/// The last state of an incarnation is processed: strict again, unless a later one was captured
/// first.
pub(crate) fn last_state_is_processed(state: &mut State, rules: &Rules, last: &Node) {
    let config = &rules.config;
    // A single replica that never fails must not cause that.
    let excusable = config.replicas > 1 || config.delete_webhook || config.budget.faults > 0;
    let expected = &mut state.expected;
    let overtaken = excusable && state.record.present && state.record.rv > last.rv;
    if expected.unsure & bit(last.uid) != 0 && !overtaken {
        expected.unsure &= !bit(last.uid);
        if expected.unsure == 0 {
            expected.or = [0; SLOTS];
        }
    }
}

/// Returns every value on the node, in a cache, an event or a request that may still take effect.
fn on_the_way(state: &State, rules: &Rules) -> [u8; SLOTS] {
    let log = state.log[..state.events as usize].iter().map(|event| event.node);
    let views = state.replicas.iter().flat_map(|replica| [replica.cache, replica.last]);
    let requests = [state.creation.node, state.deletion.node, state.zombie.node, state.node];
    let mut values = [0; SLOTS];
    for node in log.chain(views).chain(requests).filter(|node| node.uid != 0) {
        for key in 0..KEYS {
            values[slot(rules, key, node.hardware)] |= bit(node.labels[key]);
        }
    }
    for recall in state.replicas.iter().map(|replica| replica.recall).filter(|recall| recall.present) {
        for which in 0..SLOTS {
            values[which] |= bit(recorded(&recall, which));
        }
    }
    values
}

/// A person deletes the record: the order of changes is lost (limit E), so that any pending value
/// may become the new record.
pub(crate) fn record_is_deleted(state: &mut State, rules: &Rules) {
    state.expected.unsure |= RECORD_DELETED;
    let on_the_way = on_the_way(state, rules);
    for which in 0..SLOTS {
        let (key, _) = place(which);
        let here = state.node.uid != 0 && !state.deletion.on && slot(rules, key, state.node.hardware) == which;
        let expected = &mut state.expected;
        let only_here = here && state.node.labels[key] != 0 && on_the_way[which] == bit(state.node.labels[key]);
        expected.want[which] |= on_the_way[which] | u8::from(!only_here);
        expected.or[which] |= on_the_way[which];
        expected.seen[which] |= expected.want[which];
    }
}

/// The record is collected. Correct only if the node was absent for the whole retention; a return
/// between two audits is the known exception.
pub(crate) fn record_is_collected(state: &mut State, rules: &Rules) {
    let tombstone = state.record.is_tombstone();
    let early = state.away < 2 && !state.returned || state.node.uid != 0;
    if early && !tombstone {
        state.broken = Broken::CollectedEarly;
    }
    record_is_deleted(state, rules);
    for want in &mut state.expected.want {
        *want |= 1;
    }
}

/// A CREATE with labels commits.
pub(crate) fn node_is_created(state: &mut State, rules: &Rules, own: Labels, believed: bool) {
    let (node, record) = (state.node, state.record);
    for key in (0..KEYS).filter(|_| believed) {
        let slot = slot(rules, key, node.hardware);
        state.expected.want[slot] |= bit(own[key]);
        state.expected.seen[slot] |= bit(own[key]);
    }
    for key in (0..KEYS).filter(|key| own[*key] != 0) {
        let slot = slot(rules, key, node.hardware);
        let expected = &mut state.expected;
        let brought = bit(own[key]);
        let certain = expected.want[slot] & 1 == 0 && expected.or[slot] == 0;
        let marked = node.mark.present && node.mark.base[key] == own[key];
        let equal = record.present && expected.unsure != 0 && recorded(&record, slot) == own[key];
        if rules.config.overwrite && certain {
            // The record takes precedence.
        } else if rules.config.overwrite || marked || equal {
            expected.want[slot] |= brought;
        } else {
            expected.want[slot] = brought;
            expected.is_certain(slot);
        }
        expected.seen[slot] |= expected.want[slot];
    }
}

/// The policy keeps a key again. The value on the node is correct; otherwise the recorded one, or a
/// pending change.
pub(crate) fn policy_changes(state: &mut State, rules: &Rules, was: u8) {
    let on_the_way = on_the_way(state, rules);
    for which in 0..SLOTS {
        let (key, _) = place(which);
        if rules.keeps(was, key) || !rules.keeps(state.policy, key) {
            continue;
        }
        let here = state.node.uid != 0 && slot(rules, key, state.node.hardware) == which;
        let live = if here { state.node.labels[key] } else { 0 };
        let theirs = !rules.config.overwrite && live != 0 && state.node.mark.base[key] != live && !state.deletion.on;
        let expected = &mut state.expected;
        let mut set = bit(live);
        if !theirs {
            set |= expected.want[which] | expected.seen[which] | on_the_way[which] | 1;
            if state.record.present {
                set |= bit(recorded(&state.record, which));
            }
            expected.or[which] |= set;
        }
        expected.want[which] = set;
        expected.seen[which] |= set;
    }
}

/// Marks the state as broken if this write removes a key that the policy does not keep.
pub(crate) fn judge_write(state: &mut State, rules: &Rules, next: &Record) {
    let old = state.record;
    for key in (0..KEYS).filter(|key| old.present && !rules.keeps(state.policy, *key)) {
        for hardware in 1..=rules.config.machines {
            let (was, is) = (old.kept_for(key, hardware), next.kept_for(key, hardware));
            if is != was && !(old.folded && is == old.before[key]) {
                state.broken = Broken::PolicyErased;
            }
        }
    }
}

/// Marks the state as broken if a node is given a key that is not for it.
pub(crate) fn judge_gift(state: &mut State, rules: &Rules, before: &Labels, node: &Node) {
    for key in (0..KEYS).filter(|key| node.labels[*key] != before[*key]) {
        if !rules.keeps(state.policy, key) {
            state.broken = Broken::ForeignKey;
        }
        let slot = slot(rules, key, node.hardware);
        let known = state.expected.want[slot] | state.expected.or[slot] | state.expected.seen[slot];
        if key == 1 && rules.config.machines > 1 && node.labels[key] != 0 && known & bit(node.labels[key]) == 0 {
            state.broken = Broken::WrongMachine;
        }
    }
}

/// Returns whether nothing is pending.
pub(crate) fn is_at_rest(state: &State, rules: &Rules) -> bool {
    if state.deletion.on || state.creation.on || state.zombie.on {
        return false;
    }
    if state.audit.on || audit::clears(state, rules) {
        return false;
    }
    state.replicas[..rules.config.replicas].iter().all(|replica| {
        replica.synced
            && replica.position == state.events
            && replica.last.uid == 0
            && !replica.read.done
            && rules.live(&replica.cache, &state.record, state.policy) == Decision::Nothing
    })
}

/// Returns the guarantee that this state violates.
pub(crate) fn violation(state: &State, rules: &Rules, at_rest: bool) -> Option<String> {
    match state.broken {
        Broken::Nothing => {}
        Broken::PolicyErased => {
            return Some("G1: a key that the policy does not keep was taken out of the record".into());
        }
        Broken::WrongMachine => return Some("G4: a protected key was given to another machine".into()),
        Broken::CollectedEarly => {
            return Some("G1: a record was collected before its node was away for long enough".into());
        }
        Broken::ForeignKey => return Some("G3: a key that the policy does not keep was written to a node".into()),
    }
    if state.writes > WRITES_TO_REST {
        return Some(format!("G7: more than {WRITES_TO_REST} writes of ours while nothing happens outside"));
    }
    if !at_rest {
        return None;
    }
    if state.node.uid != 0 && state.record.noted != 0 {
        return Some("G1: a node that is there is noted as absent".into());
    }
    (0..SLOTS).find_map(|slot| unmet_wish(state, rules, slot)).or_else(|| leave_and_return(state, rules))
}

fn unmet_wish(state: &State, rules: &Rules, which: usize) -> Option<String> {
    let (key, hardware) = place(which);
    if which == 2 && rules.config.machines == 1 || !rules.keeps(state.policy, key) {
        return None;
    }
    let node = &state.node;
    let here = node.uid != 0 && slot(rules, key, node.hardware) == which;
    // A protected key is withheld until the node reports its machine.
    let waits = key == 1 && rules.config.protects_second_key() && node.reported < REPORTS_ALL && node.labels[1] == 0;
    let have = if here && !waits {
        node.labels[key]
    } else if state.record.present {
        recorded(&state.record, which)
    } else {
        0
    };
    if (state.expected.want[which] | state.expected.or[which]) & bit(have) != 0 {
        return None;
    }
    let wanted = state.expected.want[which];
    let name = match (have, wanted) {
        (0, _) => "G1: lost",
        (_, 1) => "G2: a removal undone",
        _ => "G2: newer overwritten by older",
    };
    Some(format!("{name}: key {} (machine {hardware}) is {have}, wanted is one of {wanted:03b}", NAMES[key]))
}

/// G7: a node that leaves and returns unchanged costs at most one write.
fn leave_and_return(state: &State, rules: &Rules) -> Option<String> {
    let mut node = state.node;
    let reports_less = rules.config.protects_second_key() && node.reported < REPORTS_ALL;
    // A key that the policy keeps again may be in the record and not on the node.
    let policy_changed = state.left.policies != rules.config.budget.policies;
    if node.uid == 0 || reports_less || policy_changed {
        return None;
    }
    let (mut record, mut writes) = (state.record, 0);
    let mut write = |decision, record: &mut Record| match decision {
        Decision::Write(_, next) => {
            *record = next;
            writes += 1;
        }
        Decision::DeleteRecord => {
            *record = Record::default();
            writes += 1;
        }
        _ => {}
    };
    if rules.config.delete_webhook {
        write(rules.gone(&node, &record, state.policy), &mut record);
    }
    node.rv = state.next_rv();
    write(rules.gone(&node, &record, state.policy), &mut record);
    let had = node.labels;
    node = Node { uid: node.uid + 1, rv: node.rv + 1, labels: [0; KEYS], mark: Mark::default(), ..node };
    if rules.config.create_webhook {
        (node.labels, node.mark) = rules.create(&node, &record, state.policy);
    }
    let mut patches = 0;
    for _ in 0..6 {
        match rules.live(&node, &record, state.policy) {
            Decision::Nothing => break,
            Decision::Patch(labels, mark) => {
                node = Node { labels, mark, rv: node.rv + 1, ..node };
                patches += 1;
            }
            other => write(other, &mut record),
        }
    }
    let rides = rules.config.create_webhook && !(rules.config.kubelet_creates && had[1] != 0);
    let allowed = i32::from(!rides);
    if writes + patches > allowed {
        return Some(format!("G7: an unchanged node that leaves and returns costs {} writes", writes + patches));
    }
    let same = (0..KEYS).all(|key| !rules.keeps(state.policy, key) || node.labels[key] == had[key]);
    (!same).then(|| format!("G1: a node that leaves with {had:?} returns with {:?}", node.labels))
}
