//! Table tests of the answers, and the property that "needs nothing" implies that `decide` returns
//! nothing.

use std::sync::Arc;

use proptest::prelude::*;
use rstest::rstest;
use serde_json::json;

use super::*;
use crate::{
    config::pattern::Patterns,
    keeper::{
        admission::gate,
        case::{Case, Phase},
        commands::rollback,
        decide::{Decision, decide},
        machine::Machine,
        record::RecordFault,
        selection::{IGNORE, Policy},
        stored_record::Substitute,
        testing::{Defaults, after, case, keep_policies, labels, live, policy},
    },
};

const ROLE: &str = "node-role.kubernetes.io/gpu";

fn machine(text: &str) -> Machine {
    let mut parts = text.split(',').map(str::to_owned);
    let mut next = || parts.next().unwrap_or_default();
    Machine { provider_id: next(), system_uuid: next(), machine_id: next() }
}

fn node(uid: &str, rv: u64, pairs: &str) -> Node {
    let (name, machine) = ("n1".into(), machine("p,s,m"));
    Node { name, uid: uid.into(), resource_version: rv, labels: labels(pairs), machine, ..Node::default() }
}

fn record_of(node: &Node) -> Record {
    match live(node, None, &policy()) {
        Decision::WriteRecord(_, record) => *record,
        other => panic!("{other:?}"),
    }
}

fn restored(node: &Node, record: &Record) -> Node {
    match live(node, Some(record), &policy()) {
        Decision::PatchNode(restore) => after(node, &restore),
        other => panic!("{other:?}"),
    }
}

fn fingerprint(node: &Node) -> NodeFingerprint {
    NodeFingerprint::new(node, &policy().into())
}

fn of_record(record: &Record) -> RecordFingerprint {
    RecordFingerprint::new(&Stored::Good(Box::new(record.clone())))
}

#[rstest]
#[case::bare("", Need::Nothing)]
#[case::labelled("team=ml", Need::Capture)]
#[case::only_dropped_labels("kubernetes.io/os=linux", Need::Nothing)]
fn a_node_without_a_record_needs(#[case] pairs: &str, #[case] need: Need) {
    assert_eq!(fingerprint(&node("u1", 5, pairs)).need(None), need);
    assert_eq!(fingerprint(&node("u1", 5, pairs)).last_state_may_need_write(None), need == Need::Capture);
}

#[rstest]
#[case::unchanged("u1", 6, "team=ml", Need::Nothing, false)]
#[case::changed("u1", 6, "team=db", Need::Capture, true)]
#[case::an_older_state("u1", 4, "team=db", Need::Nothing, false)]
#[case::returned_bare("u2", 9, "", Need::Restore, true)]
#[case::returned_with_everything("u2", 9, "team=ml", Need::Restore, true)]
fn a_node_with_a_record_needs(
    #[case] uid: &str,
    #[case] rv: u64,
    #[case] pairs: &str,
    #[case] need: Need,
    #[case] last: bool,
) {
    let record = of_record(&record_of(&node("u1", 5, "team=ml")));
    let now = fingerprint(&node(uid, rv, pairs));
    assert_eq!((now.need(Some(&record)), now.last_state_may_need_write(Some(&record))), (need, last));
}

#[test]
fn a_restored_node_needs_nothing_until_it_changes() {
    let record = record_of(&node("u1", 5, "team=ml rack=r1"));
    let full = restored(&node("u2", 9, ""), &record);
    assert_eq!(fingerprint(&full).need(Some(&of_record(&record))), Need::Nothing);
    assert!(!fingerprint(&full).last_state_may_need_write(Some(&of_record(&record))));
    let mut changed = full.clone();
    changed.labels.insert("team".into(), "db".into());
    assert_eq!(fingerprint(&changed).need(Some(&of_record(&record))), Need::Capture);
}

#[test]
fn a_node_that_is_ignored_or_not_identified_needs_nothing() {
    let record = of_record(&record_of(&node("u1", 5, "team=ml")));
    let mut hidden = node("u2", 9, "");
    hidden.annotations.insert(IGNORE.into(), "true".into());
    assert_eq!(fingerprint(&hidden).need(Some(&record)), Need::Nothing);
    let unnamed = Node { name: String::new(), ..node("u2", 9, "team=ml") };
    assert_eq!(fingerprint(&unnamed).need(None), Need::Nothing);
    assert!(!fingerprint(&unnamed).last_state_may_need_write(None));
}

#[test]
fn a_gated_node_and_a_quarantined_record_always_need_a_look() {
    let current = node("u1", 5, "team=ml");
    let record = record_of(&current);
    let gated = Node { taints: vec![gate()], ..current.clone() };
    assert_eq!(fingerprint(&gated).need(Some(&of_record(&record))), Need::Restore);
    assert_eq!(fingerprint(&Node { labels: labels(""), ..gated }).need(None), Need::Restore);
    let bad = RecordFingerprint::new(&Stored::Bad { fault: RecordFault::Checksum, good: Substitute::Nothing });
    assert_eq!(fingerprint(&current).need(Some(&bad)), Need::Restore);
    assert!(bad.is_bad() && fingerprint(&current).last_state_may_need_write(Some(&bad)));
}

#[test]
fn a_machine_that_reports_more_fields_completes_its_record() {
    let early = Node { machine: machine(",s,m"), ..node("u1", 5, "team=ml") };
    let record = of_record(&record_of(&early));
    assert_eq!(fingerprint(&early).need(Some(&record)), Need::Nothing);
    assert_eq!(fingerprint(&node("u1", 6, "team=ml")).need(Some(&record)), Need::Capture);
}

#[test]
fn keys_withheld_for_the_machine_of_the_node_need_a_look() {
    let first = record_of(&node("u1", 5, &format!("team=ml {ROLE}=yes")));
    let other = Node { machine: machine("q,t,n"), ..node("u2", 8, "team=ml") };
    let Decision::WriteRecord(_, record) = live(&other, Some(&first), &policy()) else { panic!() };
    let back = node("u3", 12, "team=ml");
    let rolled = rollback(&case(Phase::Live, &back, Some(&record), &policy()), &record, &record.entry()).record;
    assert!(matches!(
        live(&Node { resource_version: 20, ..back.clone() }, Some(&rolled), &policy()),
        Decision::PatchNode(_)
    ));
    assert_ne!(fingerprint(&back).need(Some(&of_record(&rolled))), Need::Nothing);
}

#[rstest]
#[case::current("u1", "team=ml", false, KeepState::Current)]
#[case::changed("u1", "team=db", false, KeepState::Pending)]
#[case::returned("u2", "", false, KeepState::Unsettled)]
#[case::contested("u2", "", true, KeepState::Contested)]
#[case::contested_owner("u1", "team=ml", true, KeepState::Current)]
fn the_state_of_a_node_is(#[case] uid: &str, #[case] pairs: &str, #[case] contested: bool, #[case] state: KeepState) {
    let record = of_record(&record_of(&node("u1", 5, "team=ml")));
    assert_eq!(fingerprint(&node(uid, 9, pairs)).state(Some(&record), contested, false), state);
}

#[test]
fn the_state_without_a_record_and_after_a_decision() {
    let record = of_record(&record_of(&node("u1", 5, "team=ml")));
    assert_eq!(fingerprint(&node("u1", 5, "")).state(None, false, false), KeepState::NoRecord);
    assert_eq!(fingerprint(&node("u1", 5, "team=ml")).state(None, false, false), KeepState::Pending);
    assert_eq!(fingerprint(&node("u2", 5, "")).state(Some(&record), false, true), KeepState::Waiting);
}

#[test]
fn only_what_a_decision_reads_changes_the_fingerprint() {
    let before = node("u1", 5, "team=ml");
    let mut after = Node { resource_version: 9, created: 7, terminating: true, ..before.clone() };
    assert!(fingerprint(&before).has_content_of(&after) && fingerprint(&before).decides_like(&fingerprint(&after)));
    after.annotations.insert("other.example/heartbeat".into(), "1".into());
    assert!(!fingerprint(&before).has_content_of(&after), "another policy may keep it");
    assert!(fingerprint(&before).decides_like(&fingerprint(&after)));
    after.labels.insert("team".into(), "db".into());
    assert!(!fingerprint(&before).decides_like(&fingerprint(&after)));
}

/// One step in the life of a name.
#[derive(Clone, Debug)]
enum LifeStep {
    Set(usize, u8),
    Remove(usize),
    Delete,
    /// A node appears on a machine with some labels, through the webhook (by a kubelet or not) or
    /// past it.
    Create(usize, Vec<(usize, u8)>, Option<bool>),
    /// The machine of the node reports all of its fields.
    Complete,
    Policy(usize),
    Reconcile,
}

/// The last one selects a policy and is kept by none.
const KEYS: [&str; 4] = ["team", "rack", ROLE, "topology.kubernetes.io/zone"];
const MACHINES: [&str; 4] = ["p,s,m", ",s,m", "q,t,n", ",,"];

fn policies() -> [PolicySet; 4] {
    let narrow = |keep: &str| Policy { keep: Patterns::of(&[keep]), ..policy() };
    let zoned = json!({"nodeSelector": {"matchLabels": {KEYS[3]: "1"}}, "keep": ["rack"]});
    [policy().into(), narrow("rack").into(), narrow(ROLE).into(), keep_policies(&[("zoned", zoned)])]
}

fn step() -> impl Strategy<Value = LifeStep> {
    let pair = (0..KEYS.len(), 0u8..2);
    prop_oneof![
        3 => pair.clone().prop_map(|(key, value)| LifeStep::Set(key, value)),
        1 => (0..KEYS.len()).prop_map(LifeStep::Remove),
        2 => Just(LifeStep::Delete),
        4 => (0..MACHINES.len(), proptest::collection::vec(pair, 0..3), any::<Option<bool>>())
            .prop_map(|(machine, labels, webhook)| LifeStep::Create(machine, labels, webhook)),
        1 => Just(LifeStep::Complete),
        1 => (0..4usize).prop_map(LifeStep::Policy),
        5 => Just(LifeStep::Reconcile),
    ]
}

/// One name, its record and every state that a late event may still deliver.
struct World {
    node: Option<Node>,
    record: Option<Record>,
    past: Vec<Node>,
    policies: [PolicySet; 4],
    policy: usize,
    version: u64,
    born: u64,
}

impl World {
    fn policies(&self) -> &PolicySet {
        &self.policies[self.policy]
    }

    fn decide(&self, phase: Phase, node: &Node) -> Decision {
        let stored = self.record.clone().map(|record| Arc::new(Stored::Good(Box::new(record))));
        let defaults = Defaults(self.policies().clone());
        decide(&Case::new(phase, Some(node.clone()), stored, Vec::new(), &defaults.context()))
    }

    fn next_version(&mut self) -> u64 {
        self.version += 1;
        self.version
    }

    fn change(&mut self, change: impl FnOnce(&mut Node)) {
        let version = self.next_version();
        if let Some(node) = &mut self.node {
            change(node);
            node.resource_version = version;
            self.past.push(node.clone());
        }
    }

    fn apply(&mut self, decision: Decision) {
        match decision {
            Decision::Nothing(_) => {}
            Decision::WriteRecord(_, record) => self.record = Some(*record),
            Decision::PatchNode(restore) => self.change(|node| *node = after(node, &restore)),
        }
    }

    fn step(&mut self, step: LifeStep) {
        match step {
            LifeStep::Set(key, value) => self.change(|node| {
                node.labels.insert(KEYS[key].to_owned(), value.to_string());
            }),
            LifeStep::Remove(key) => self.change(|node| {
                node.labels.remove(KEYS[key]);
            }),
            LifeStep::Complete => self.change(|node| node.machine = machine("p,s,m")),
            LifeStep::Policy(policy) => self.policy = policy,
            LifeStep::Delete => {
                let version = self.next_version();
                if let Some(node) = self.node.take() {
                    let last = Node { resource_version: version, ..node };
                    self.apply(self.decide(Phase::Gone, &last));
                    self.past.push(last);
                }
            }
            LifeStep::Create(on, pairs, webhook) if self.node.is_none() => {
                self.born += 1;
                let (uid, version) = (format!("u{}", self.born), self.next_version());
                let mut born = Node { machine: machine(MACHINES[on]), ..node("", version, "") };
                born.labels = pairs.into_iter().map(|(key, value)| (KEYS[key].to_owned(), value.to_string())).collect();
                if let Some(by_kubelet) = webhook
                    && let Decision::PatchNode(restore) = self.decide(Phase::Creating { by_kubelet }, &born)
                {
                    born = after(&born, &restore);
                }
                self.node = Some(Node { uid, resource_version: version, ..born });
                self.past.extend(self.node.clone());
            }
            LifeStep::Reconcile => {
                if let Some(node) = self.node.clone() {
                    self.apply(self.decide(Phase::Live, &node));
                }
            }
            LifeStep::Create(..) => {}
        }
    }

    /// Compares the fingerprints of every state with the decision about it.
    fn check(&self) -> Result<(), TestCaseError> {
        let record = self.record.as_ref();
        let packed = record.map(of_record);
        for node in &self.past {
            let found = NodeFingerprint::new(node, self.policies());
            if found.need(packed.as_ref()) == Need::Nothing {
                let decision = self.decide(Phase::Live, node);
                prop_assert!(matches!(decision, Decision::Nothing(_)), "live {node:?}, {record:?}: {decision:?}");
            }
            if !found.last_state_may_need_write(packed.as_ref()) {
                let decision = self.decide(Phase::Gone, node);
                prop_assert!(matches!(decision, Decision::Nothing(_)), "gone {node:?}, {record:?}: {decision:?}");
            }
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn a_fingerprint_that_needs_nothing_implies_that_nothing_is_decided(
        steps in proptest::collection::vec(step(), 1..30),
    ) {
        let mut world = World {
            node: None,
            record: None,
            past: Vec::new(),
            policies: policies(),
            policy: 0,
            version: 1,
            born: 0,
        };
        for step in steps {
            world.step(step);
            world.check()?;
        }
    }
}
