//! States of the identity model, and calls of the real rules. A rule under test is left out.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{Hash, Hasher},
    sync::Arc,
};

use jiff::Timestamp;
use perennial_core::{
    config::settings::{Identity, Settings},
    keeper::{
        case::{Case, CaseContext, Phase, Rival},
        decide::{Decision, Restore, decide},
        identity::Identified,
        keys::Key,
        machine::Machine,
        mark::MARK,
        policy_set::PolicySet,
        record::Record,
        selection::{Node, Policy},
        stored_record::Stored,
    },
};
use perennial_testkit::state_hash::Fast;

pub(crate) const NAMES: [&str; 2] = ["a", "b"];
pub(crate) const MACHINES: [u8; 2] = [1, 2];
pub(crate) const KEY: &str = "team";

/// A rule that is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Without {
    Nothing,
    /// Records belong to names, not to machines.
    Identity,
    /// Several nodes that claim one machine are all served.
    Refusal,
    /// The same, in creates only.
    RefusalInCreates,
    /// The owner of the record is refused as well.
    CaptureOfTheOwner,
    /// The last state of one of several claimants is written.
    RefusalOfLastStates,
    /// A machine that returns under another name is reconciled before its last state under the
    /// former name.
    OrderAcrossNames,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct World {
    pub(crate) without: Without,
    pub(crate) webhooks: bool,
    pub(crate) creates: u8,
    pub(crate) deletes: u8,
    pub(crate) changes: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Want {
    Is(Option<String>),
    /// Two nodes claimed the machine, or a node was labelled before it reported its machine.
    Unclear,
}

impl Default for Want {
    fn default() -> Self {
        Self::Is(None)
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct State {
    /// By name.
    pub(crate) nodes: [Option<Node>; 2],
    /// Pending last states.
    pub(crate) last: [Option<Node>; 2],
    pub(crate) records: BTreeMap<String, Record>,
    /// The record was captured from this incarnation.
    pub(crate) captured: [bool; 2],
    /// Expected label, by machine.
    pub(crate) want: [Want; 2],
    pub(crate) born: u8,
    pub(crate) deleted: u8,
    pub(crate) changed: u8,
    pub(crate) writes: u8,
    pub(crate) broken: Option<String>,
}

pub(crate) fn hardware(node: &Node) -> u8 {
    node.machine.machine_id.parse().expect("a machine of the model")
}

pub(crate) fn value(node: &Node) -> Option<String> {
    node.labels.get(KEY).cloned()
}

pub(crate) fn held(record: Option<&Record>) -> Option<String> {
    record.and_then(|record| record.kept.get(&Key::label(KEY)).cloned())
}

pub(crate) struct Rules {
    pub(crate) world: World,
    pub(crate) policy: Policy,
    policies: PolicySet,
}

impl Rules {
    pub(crate) fn new(world: World) -> Self {
        let mut policy = Policy::from_settings(&Settings::default().keeper);
        policy.identity = if world.without == Without::Identity { Identity::Name } else { Identity::ProviderId };
        policy.history = 0;
        Self { world, policies: policy.clone().into(), policy }
    }

    pub(crate) fn identity(&self, node: &Node) -> Option<Identified> {
        Identified::of(&self.policy.identity, node)
    }

    /// Decides about a node with its record. `rivals`: other live nodes with the same identity.
    fn decide(&self, phase: Phase, node: &Node, record: Option<&Record>, rivals: Vec<Rival>) -> Decision {
        let context = CaseContext { policies: &self.policies, now: Timestamp::UNIX_EPOCH, by: "model" };
        let stored = record.map(|record| Arc::new(Stored::Good(Box::new(record.clone()))));
        decide(&Case::new(phase, Some(node.clone()), stored, rivals, &context))
    }

    /// The rivals of a node, as in the cache of the operator.
    fn rivals(&self, state: &State, node: &Node, record: Option<&Record>) -> Vec<Rival> {
        let holds = |other: &Node| record.is_some_and(|record| record.node.uid == other.uid);
        let others = self.others(state, node);
        others.map(|other| Rival { name: other.name.clone(), holds_record: holds(other) }).collect()
    }

    /// Returns the other live nodes that claim the same machine.
    pub(crate) fn others<'a>(&'a self, state: &'a State, node: &'a Node) -> impl Iterator<Item = &'a Node> {
        let same = move |other: &&Node| other.name != node.name && self.identity(other) == self.identity(node);
        state.nodes.iter().flatten().filter(same)
    }

    /// Writes the record of a node that is being deleted, or was.
    pub(crate) fn leave(&self, state: &mut State, node: &Node) {
        let Some(identity) = self.identity(node) else { return };
        let name = identity.record_name().0;
        let record = state.records.get(&name);
        let mut rivals = self.rivals(state, node, record);
        if self.world.without == Without::RefusalOfLastStates {
            rivals.clear();
        }
        if let Decision::WriteRecord(_, next) = self.decide(Phase::Gone, node, record, rivals) {
            state.records.insert(name, *next);
            state.writes += 1;
        }
    }

    /// Reconciles a live node.
    pub(crate) fn settle(&self, state: &mut State, at: usize) {
        let Some(node) = state.nodes[at].clone() else { return };
        let Some(identity) = self.identity(&node) else { return };
        let name = identity.record_name().0;
        let record = state.records.get(&name).cloned();
        let left = state.last.iter().flatten().any(|last| self.identity(last).as_ref() == Some(&identity));
        if left && self.world.without != Without::OrderAcrossNames {
            return;
        }
        let mut rivals = self.rivals(state, &node, record.as_ref());
        match self.world.without {
            Without::Refusal => rivals.clear(),
            Without::CaptureOfTheOwner if !rivals.is_empty() => return,
            _ => {}
        }
        match self.decide(Phase::Live, &node, record.as_ref(), rivals) {
            Decision::Nothing(_) => {}
            Decision::WriteRecord(_, next) => {
                state.captured[at] = true;
                state.records.insert(name, *next);
                state.writes += 1;
            }
            Decision::PatchNode(restore) => {
                let mut next = given(state, &node, &restore);
                next.resource_version = state.next_version();
                if state.captured[at] && value(&next) != value(&node) {
                    state.breaks(format!("G2: node {} was captured, and then changed by us", node.name));
                }
                state.nodes[at] = Some(next);
                state.writes += 1;
            }
        }
    }

    pub(crate) fn create(&self, state: &mut State, at: usize, mut node: Node) {
        if let Some(identity) = self.identity(&node).filter(|_| self.world.webhooks) {
            let record = state.records.get(&identity.record_name().0);
            let mut rivals = self.rivals(state, &node, record);
            if matches!(self.world.without, Without::Refusal | Without::RefusalInCreates) {
                rivals.clear();
            }
            let phase = Phase::Creating { by_kubelet: false };
            if let Decision::PatchNode(restore) = self.decide(phase, &node, record, rivals) {
                node = given(state, &node, &restore);
            }
        }
        node.resource_version = state.next_version();
        state.captured[at] = false;
        state.nodes[at] = Some(node);
    }
}

/// Returns a node with its restored labels.
pub(crate) fn given(state: &mut State, node: &Node, restore: &Restore) -> Node {
    let mut next = node.clone();
    for (key, value) in &restore.set {
        next.labels.insert(key.to_string(), value.clone());
    }
    next.labels.retain(|key, _| !restore.remove.contains(&Key::label(key)));
    next.annotations.insert(MARK.to_owned(), restore.mark.render());
    if let Some(given) = value(&next).filter(|given| value(node).as_ref() != Some(given)) {
        let mine = given.starts_with(&hardware(node).to_string());
        let claimed = state.nodes.iter().flatten().any(|other| {
            other.name != node.name && !node.machine.provider_id.is_empty() && other.machine == node.machine
        });
        if !mine {
            state.breaks(format!("G4: node {} was given {given}, which is another machine's", node.name));
        } else if claimed {
            state.breaks(format!("G4: node {} was given {given} while another one claims its machine", node.name));
        }
    }
    next
}

impl State {
    pub(crate) fn breaks(&mut self, what: String) {
        self.broken.get_or_insert(what);
    }

    pub(crate) fn versions(&mut self) -> impl Iterator<Item = &mut u64> {
        let nodes = self.nodes.iter_mut().chain(&mut self.last).flatten().map(|node| &mut node.resource_version);
        nodes.chain(self.records.values_mut().map(|record| &mut record.node.resource_version))
    }

    pub(crate) fn next_version(&mut self) -> u64 {
        self.versions().map(|version| *version).max().unwrap_or_default() + 1
    }

    /// Initial state: the first machine under the first name, captured.
    pub(crate) fn first(rules: &Rules) -> Self {
        let node = Node {
            name: NAMES[0].to_owned(),
            uid: "u0".to_owned(),
            resource_version: 1,
            labels: [(KEY.to_owned(), "1x".to_owned())].into(),
            machine: machine(1, true),
            ..Node::default()
        };
        let mut state = Self {
            nodes: [Some(node), None],
            want: [Want::Is(Some("1x".to_owned())), Want::Is(None)],
            ..Self::default()
        };
        rules.settle(&mut state, 0);
        state.writes = 0;
        state
    }

    /// Normalises versions and sequences.
    pub(crate) fn normalise(&mut self) {
        let used: BTreeSet<u64> = self.versions().map(|version| *version).collect();
        let rank: BTreeMap<u64, u64> = used.into_iter().zip(1..).collect();
        for version in self.versions() {
            *version = rank[&*version];
        }
        for record in self.records.values_mut() {
            record.sequence = 1;
        }
    }
}

/// Ignores sequences and histories of records.
impl Hash for State {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        for node in self.nodes.iter().chain(&self.last) {
            let seen = node.as_ref().map(|n| (&n.uid, n.resource_version, &n.labels, &n.annotations, &n.machine));
            seen.hash(hasher);
        }
        self.records.len().hash(hasher);
        for (name, record) in &self.records {
            let origin = &record.node;
            (name, &origin.uid, origin.resource_version, &origin.mark, &origin.machine).hash(hasher);
            (&record.kept, &record.before, record.folded, record.withheld.len()).hash(hasher);
        }
        (self.captured, &self.want, self.born, self.deleted, self.changed, self.writes).hash(hasher);
        self.broken.hash(hasher);
    }
}

impl State {
    pub(crate) fn differs_from(&self, other: &Self) -> bool {
        Fast::wide(self) != Fast::wide(other)
    }
}

/// A person labels a node. The value is expected if no other node claims the machine and the node
/// reports it. Removing a key from a node before its restore decides nothing (limit B).
pub(crate) fn person_wants(state: &mut State, at: usize, node: &Node, value: Option<String>) {
    let mine = usize::from(hardware(node) - 1);
    let mut others = state.nodes.iter().flatten().filter(|other| other.name != node.name);
    let alone = others.all(|other| hardware(other) != hardware(node));
    if state.want[mine] != Want::Unclear {
        let settled = state.captured[at] || node.annotations.contains_key(MARK);
        let clear = alone && !node.machine.provider_id.is_empty() && (settled || value.is_some());
        state.want[mine] = if clear { Want::Is(value) } else { Want::Unclear };
    }
}

pub(crate) fn machine(number: u8, reported: bool) -> Machine {
    let provider_id = if reported { format!("p{number}") } else { String::new() };
    Machine { provider_id, system_uuid: format!("s{number}"), machine_id: number.to_string() }
}
