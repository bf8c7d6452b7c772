//! Checks the guarantees of the keeper from the log.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use perennial_core::{
    config::Gate,
    keeper::{collect::ABSENT_SINCE, record::Record},
};
use serde_json::Value;

use super::{
    Marks, Violation,
    expected_labels::{ExpectedLabels, Slot, slot, slots},
    observed::{Label, Node, label, record, recorded},
    writes,
};
use crate::{
    history::Outcome,
    keeper::{
        node_workload::{KEYS, MARK, NAMESPACE, PROTECTED},
        scenario::Plan,
    },
    server::{
        authn::User,
        fault_plan::Counts,
        kinds::{CONFIG_MAPS, NODES},
        store::{Admission, Change, What, version},
        world::{EPOCH, State},
    },
    story::subject,
};

/// Time in which an operator without faults processes a last state.
const PROCESSED: Duration = Duration::from_secs(3);
/// Longest backoff that a fault can cause.
const AFTERMATH: Duration = Duration::from_secs(90);
/// Time in which a new process acquires its leases.
const SETTLED_IN: Duration = Duration::from_mins(1);

/// State of one node name while the log is read.
struct Name {
    expected: ExpectedLabels,
    node: Option<Node>,
    object: Option<Arc<Value>>,
    /// The record that holds the newest state of the node.
    record: Option<Record>,
    /// All records of the node, by the name of the ConfigMap. Several while one is moved.
    records: BTreeMap<String, Record>,
    /// Deleted incarnations, with the version of their last state.
    gone: BTreeMap<String, u64>,
    ever: BTreeMap<Slot, BTreeSet<Label>>,
    away_since: Option<Duration>,
}

struct Judge<'a> {
    plan: &'a Plan,
    names: BTreeMap<String, Name>,
    violations: Vec<Violation>,
    seen: Counts,
}

/// Checks a history.
pub fn judge(state: &mut State, plan: &Plan, marks: &Marks) -> Outcome {
    let fresh = |_: &String| Name {
        expected: ExpectedLabels::new(plan.merge),
        node: None,
        object: None,
        record: None,
        records: BTreeMap::new(),
        gone: BTreeMap::new(),
        ever: BTreeMap::new(),
        away_since: None,
    };
    let names = plan.names.iter().map(|name| (name.clone(), fresh(name))).collect();
    let mut judge = Judge { plan, names, violations: Vec::new(), seen: Counts::default() };
    let mut processed = processed(state, plan);
    for change in &state.store.log {
        while processed.first_key_value().is_some_and(|((at, _), _)| *at < change.at) {
            if let Some((_, (name, uid))) = processed.pop_first() {
                judge.is_processed(&name, &uid);
            }
        }
        judge.take(state, change);
        if marks.rests.contains(&change.rv) {
            judge.rest(state, change.rv);
        }
    }
    for (name, from, to) in &marks.probes {
        judge.probe(state, name, *from, *to);
    }
    if !marks.rested {
        judge.fail("G7", "the operator keeps writing although nothing changes".to_owned());
    }
    writes::judge(state, plan, marks, &mut judge.violations);
    let mut excuses = Counts::default();
    for name in judge.names.values() {
        excuses.merge(&name.expected.excuses);
    }
    Outcome { violations: judge.violations, seen: judge.seen, excuses, ..Outcome::default() }
}

/// Returns when which last states were surely processed, by an operator without faults.
fn processed(state: &State, plan: &Plan) -> BTreeMap<(Duration, u64), (String, String)> {
    let mut all = BTreeMap::new();
    for delivery in &state.journal.deliveries {
        let User::Operator(id) = delivery.who else { continue };
        let Some((start, end)) = state.journal.lives.get(&id) else { continue };
        let (from, at) = (delivery.at.saturating_sub(AFTERMATH), delivery.at + PROCESSED);
        let faults = state.journal.faults.get(&id).map_or(&[][..], Vec::as_slice);
        let disturbed = faults.iter().any(|fault| from <= *fault && *fault <= at);
        let lives = *start + SETTLED_IN <= delivery.at && end.is_none_or(|end| end > at);
        if disturbed || !lives || plan.election && plan.operators > 1 {
            continue;
        }
        if let Some(change) = state.store.between(delivery.rv - 1, delivery.rv).first() {
            all.insert((at, change.rv), (change.name().to_owned(), change.uid().to_owned()));
        }
    }
    all
}

impl Judge<'_> {
    fn fail(&mut self, guarantee: &'static str, what: String) {
        self.violations.push(Violation { guarantee, what });
    }

    fn is_processed(&mut self, name: &str, uid: &str) {
        if let Some(name) = self.names.get_mut(name) {
            name.expected.last_state_is_processed(uid, name.record.as_ref());
        }
    }

    fn take(&mut self, state: &State, change: &Change) {
        if std::ptr::eq(change.kind, &NODES) {
            self.take_node(change);
        } else if std::ptr::eq(change.kind, &CONFIG_MAPS) && change.namespace() == NAMESPACE {
            self.take_record(state, change);
        }
    }

    fn take_node(&mut self, change: &Change) {
        let Some(name) = self.names.get_mut(change.name()) else { return };
        let now = Node::read(&change.object);
        let own = (PROTECTED, now.hardware);
        let was_own = name.ever.get(&own).is_some_and(|values| values.contains(&label(&change.object, PROTECTED)));
        for key in KEYS {
            name.ever.entry(slot(key, now.hardware)).or_default().insert(label(&change.object, key));
        }
        let record = name.record.as_ref();
        match change.what {
            What::Added => {
                name.away_since = None;
                if let Admission::Create { came, answered } = &change.admission {
                    let came_node = Node::read(came);
                    let believed = came["metadata"]["annotations"].get(MARK).is_some() && !answered;
                    name.expected.node_is_created(&now, &came_node, record, believed);
                    if now.labels != came_node.labels {
                        self.seen.add("restores in the create");
                    }
                }
            }
            What::Modified if change.by.is_operator() => {
                self.seen.add("restores by patch");
                let before = name.node.clone();
                let mut undone = Vec::new();
                for key in KEYS {
                    let (was, is) = (before.as_ref().and_then(|node| node.labels.get(key)), now.labels.get(key));
                    // Judged at once, unlike other keys: those are given by the record, which may
                    // be replaced at any moment, and are corrected then.
                    if was != is && is.is_some() && key == PROTECTED && !was_own {
                        undone.push(format!("{} was given {key} of another machine", change.name()));
                    }
                    if was != is && name.expected.firm.contains_key(key) {
                        undone.push(format!(
                            "{} of {} was {}, set by a person, and the operator changed it to {}",
                            key,
                            change.name(),
                            was.map_or("-", String::as_str),
                            is.map_or("-", String::as_str)
                        ));
                    }
                }
                let (name, object) = (change.name().to_owned(), Arc::clone(&change.object));
                for what in undone {
                    self.fail("G2", what);
                }
                if let Some(name) = self.names.get_mut(&name) {
                    name.node = Some(now);
                    name.object = Some(object);
                }
                return;
            }
            What::Modified => {
                let Some(before) = name.node.clone() else { return };
                for key in KEYS {
                    let (was, is) = (before.labels.get(key), now.labels.get(key));
                    if was != is {
                        name.expected.person_changes((&before, now.rv), record, key, &is.cloned());
                    }
                }
            }
            What::Deleted => {
                let looked = matches!(change.admission, Admission::Delete { looked: true });
                let last = change.before.as_ref().map_or(0, |before| version(before));
                name.expected.node_is_deleted(&now, change.rv, record, looked);
                name.gone.insert(now.uid.clone(), last);
                name.node = None;
                name.away_since = Some(change.at);
                name.object = None;
                self.seen.add("nodes deleted");
                return;
            }
        }
        name.node = Some(now);
        name.object = Some(Arc::clone(&change.object));
    }

    fn take_record(&mut self, state: &State, change: &Change) {
        let subject = subject(change);
        let Some(name) = self.names.get_mut(&subject) else { return };
        let before = name.record.take();
        if !change.by.is_operator() {
            let ever = name.ever.clone();
            name.expected.record_is_gone(before.as_ref(), &ever);
            name.record = if change.what == What::Deleted { None } else { record(&change.object).or(before) };
            name.records = name.record.iter().map(|record| (change.name().to_owned(), record.clone())).collect();
            return;
        }
        if change.what == What::Deleted {
            name.records.remove(change.name());
            name.record = newest(&name.records);
            if name.record.is_some() {
                self.seen.add("records moved");
                return;
            }
            let away = name.away_since.map(|since| change.at.saturating_sub(since));
            let (who, tombstone) = (change.name().to_owned(), before.is_none_or(|record| record.is_tombstone()));
            name.expected.record_is_collected();
            self.seen.add("records collected");
            let early = away.is_none_or(|away| away + Duration::from_secs(1) < self.plan.settings.keeper.retention);
            if early && !tombstone {
                // Known weakness: a return between two audits does not clear the note of an earlier
                // absence.
                if away.is_some() && noted_for(change) + 1 >= self.plan.settings.keeper.retention.as_secs() {
                    self.seen.add("records collected early, after a return between two audits");
                } else {
                    self.fail("G1", format!("{who} was collected although its node was away for {away:?} only"));
                }
            }
            return;
        }
        let Some(next) = record(&change.object) else {
            name.record = before;
            return;
        };
        let act = match &before {
            _ if next.is_tombstone() => "tombstones",
            None => "first captures",
            Some(_) if next.folded => "folds",
            Some(before) if before.sequence == next.sequence && !name.records.contains_key(change.name()) => "copies",
            Some(before) if before.sequence == next.sequence => "absences noted",
            Some(before) if before.kept == next.kept && before.node.uid != next.node.uid => "claims",
            Some(_) => "captures",
        };
        self.seen.add(act);
        if !next.withheld.is_empty() {
            self.seen.add("records with keys of another machine");
        }
        let uid = next.node.uid.clone();
        if let Some(last) = name.gone.get(&uid).copied() {
            if next.node.resource_version >= last {
                name.expected.last_state_is_processed(&uid, Some(&next));
            } else if looked_at(state, change, &subject, next.node.resource_version) {
                name.expected.old_state_lands(&next);
            }
        }
        if !next.folded && name.node.as_ref().is_some_and(|node| node.uid == next.node.uid) {
            name.expected.node_is_recorded(&next);
        }
        name.records.insert(change.name().to_owned(), next);
        name.record = newest(&name.records);
    }

    /// Checks the labels at rest.
    fn rest(&mut self, state: &State, rv: u64) {
        let alive: BTreeSet<usize> =
            state.journal.lives.iter().filter(|(_, (_, end))| end.is_none()).map(|(id, _)| *id).collect();
        // Operators that received a last state. With an election only one of them acts on it, so
        // all must have it.
        let mut reached: BTreeMap<u64, BTreeSet<usize>> = BTreeMap::new();
        for delivery in state.journal.deliveries.iter().filter(|delivery| delivery.rv <= rv) {
            if let User::Operator(id) = delivery.who {
                reached.entry(delivery.rv).or_default().insert(id);
            }
        }
        let elects = self.plan.election && self.plan.operators > 1;
        reached.retain(|_, who| if elects { alive.is_subset(who) } else { !alive.is_disjoint(who) });
        let mut found = Vec::new();
        for (name, known) in &mut self.names {
            let changes = reached.keys().filter_map(|rv| state.store.between(rv - 1, *rv).first());
            for change in changes.filter(|change| change.name() == name) {
                known.expected.last_state_is_processed(change.uid(), known.record.as_ref());
            }
            for slot in slots() {
                let (key, hardware) = slot;
                let here = known.node.as_ref().filter(|node| key != PROTECTED || node.hardware == hardware);
                let waits = |node: &&Node| key == PROTECTED && !node.whole && !node.labels.contains_key(key);
                let have = match here.filter(|node| !waits(node)) {
                    Some(node) => node.labels.get(key).cloned(),
                    None => known.record.as_ref().and_then(|record| recorded(record, key, hardware)),
                };
                if let Some((guarantee, what)) = known.expected.unmet_at_rest(slot, &have) {
                    found.push((guarantee, format!("{name}: {what}")));
                }
            }
            let taints = known.object.as_ref().and_then(|object| object["spec"]["taints"].as_array().cloned());
            if taints.into_iter().flatten().any(|taint| taint["key"] == "perennial.dev/restoring") {
                found.push(("G8", format!("{name} still has our taint")));
            }
        }
        for (guarantee, what) in found {
            self.fail(guarantee, what);
        }
    }

    /// Counts the writes for a node that left and returned unchanged.
    fn probe(&mut self, state: &State, name: &str, from: u64, to: u64) {
        let ours = |change: &&Change| {
            change.by.is_operator() && (std::ptr::eq(change.kind, &NODES) || std::ptr::eq(change.kind, &CONFIG_MAPS))
        };
        let changes = state.store.between(from, to);
        let mine = changes.iter().filter(ours).filter(|change| subject(change) == name);
        // An audit in between notes the absence, and the return clears the note.
        let cost = mine.filter(|change| !is_note(change)).count();
        let Some(left) = changes.iter().find(|change| change.what == What::Deleted && change.name() == name) else {
            return;
        };
        let protected = label(&left.object, PROTECTED).is_some();
        // With gate `always`, removing the taint costs a write.
        let opens = self.plan.settings.keeper.gate == Gate::Always;
        let rides = self.plan.registered.node_create && !protected && !opens;
        let whole = left.object["spec"].get("providerID").is_some();
        let allowed = usize::from(!rides);
        if cost > allowed && whole && !self.plan.beyond_limits && !self.plan.collects {
            self.fail("G7", format!("{name} left and returned unchanged, which cost {cost} writes"));
        }
        if cost == 0 {
            self.seen.add("returns without a write");
        }
    }
}

/// Returns the record that holds the newest state.
fn newest(records: &BTreeMap<String, Record>) -> Option<Record> {
    records.values().max_by_key(|record| (record.node.resource_version, record.sequence)).cloned()
}

/// Returns whether a write changed only the absence note of a record.
pub fn is_note(change: &Change) -> bool {
    let noted = |object: &Value| object["metadata"]["annotations"].get(ABSENT_SINCE).cloned();
    let Some(before) = change.before.as_ref().filter(|_| std::ptr::eq(change.kind, &CONFIG_MAPS)) else { return false };
    noted(before) != noted(&change.object) && before["data"] == change.object["data"]
}

/// Returns for how many seconds the node of a record was noted as absent.
fn noted_for(change: &Change) -> u64 {
    let noted = change.object["metadata"]["annotations"].get(ABSENT_SINCE).and_then(Value::as_str);
    let Some(noted) = noted.and_then(|text| text.parse::<jiff::Timestamp>().ok()) else { return 0 };
    let since = noted.as_second() - EPOCH;
    change.at.as_secs().saturating_sub(u64::try_from(since).unwrap_or_default())
}

/// Returns whether the last read of the node by the writer returned the very state that it wrote.
fn looked_at(state: &State, change: &Change, name: &str, rv: u64) -> bool {
    let node_reads = state.journal.node_reads.iter().rev();
    let mut of_writer = node_reads.filter(|look| look.who == change.by && look.node == name && look.at <= change.sent);
    of_writer.next().is_some_and(|look| look.rv == rv)
}
