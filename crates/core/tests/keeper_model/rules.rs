//! The adapter to the real rules: compact states go in, [`decide`] decides, compact decisions come
//! out. Nothing is nothing.

use std::{cell::RefCell, collections::BTreeSet, sync::Arc};

use jiff::Timestamp;
use perennial_core::{
    config::{
        pattern::Patterns,
        settings::{Merge, Settings},
    },
    keeper::{
        case::{Case, CaseContext, Phase},
        decide::{self, RecordWrite, Restore, decide},
        hash::Digest,
        keys::{Content, Kept, Key, digest},
        machine::Machine as RealMachine,
        mark::{MARK, Mark as RealMark},
        policy_set::PolicySet,
        provenance::Provenance,
        record::{Origin, Record as RealRecord, Withheld},
        selection::{Node as RealNode, Policy},
        stored_record::Stored,
    },
};
use perennial_testkit::state_hash::FastMap;

use super::{
    config::Config,
    mutation::{Mutation, Outcome},
    world::{KEYS, Labels, MACHINES, Mark, NAMES, Node, OWN, Record, SAME},
};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Decision {
    Nothing,
    Write(RecordWrite, Record),
    /// Only mutations do this.
    DeleteRecord,
    Patch(Labels, Mark),
}

pub(crate) struct Rules {
    pub(crate) config: Config,
    pub(crate) mutation: Mutation,
    policies: [Policy; 2],
    policy_sets: [PolicySet; 2],
    keys: [Key; KEYS],
    memo: RefCell<FastMap<(Phase, Node, Record, u8), Decision>>,
}

const SEQUENCE: u64 = 7;

impl Rules {
    pub(crate) fn new(config: Config, mutation: Mutation) -> Self {
        let second = if config.protects_second_key() { "node-role.kubernetes.io/b" } else { NAMES[1] };
        let names = [NAMES[0], second];
        let merge = if config.overwrite { Merge::Overwrite } else { Merge::KeepExisting };
        let wide = Policy { merge, ..Policy::from_settings(&Settings::default().keeper) };
        let narrow = Policy { drop: Patterns::of(&[names[config.unkept_key]]), ..wide.clone() };
        let keys = names.map(Key::label);
        let policy_sets = [wide.clone().into(), narrow.clone().into()];
        Self { config, mutation, policies: [wide, narrow], policy_sets, keys, memo: RefCell::default() }
    }

    pub(crate) fn keeps(&self, policy: u8, key: usize) -> bool {
        self.policies[policy as usize].keeps(&self.keys[key])
    }

    /// Decides about a live node.
    pub(crate) fn live(&self, node: &Node, record: &Record, policy: u8) -> Decision {
        if node.uid == 0 { Decision::Nothing } else { self.ask(Phase::Live, node, record, policy) }
    }

    /// Decides about the last state of a node.
    pub(crate) fn gone(&self, node: &Node, record: &Record, policy: u8) -> Decision {
        self.ask(Phase::Gone, node, record, policy)
    }

    /// Decides about the create of a node.
    pub(crate) fn create(&self, node: &Node, record: &Record, policy: u8) -> (Labels, Mark) {
        let phase = Phase::Creating { by_kubelet: self.config.kubelet_creates };
        match self.ask(phase, node, record, policy) {
            Decision::Patch(labels, mark) => (labels, mark),
            other => unreachable!("a create is answered with {other:?}"),
        }
    }

    /// Caches decisions: only the order of versions and the equality of UIDs matter.
    fn ask(&self, phase: Phase, node: &Node, record: &Record, policy: u8) -> Decision {
        let (mut asked_node, mut asked_record) = (*node, *record);
        asked_node.uid = 1;
        asked_record.noted = 0;
        asked_record.uid = if !record.present {
            0
        } else if record.uid == node.uid {
            1
        } else {
            2
        };
        asked_node.rv = 2;
        asked_record.rv =
            if record.present { 2 + u8::from(record.rv > node.rv) - u8::from(record.rv < node.rv) } else { 0 };
        let key = (phase, asked_node, asked_record, policy);
        let known = self.memo.borrow().get(&key).copied();
        let decision = known.unwrap_or_else(|| {
            let decision = self.decide(phase, &asked_node, &asked_record, policy);
            self.memo.borrow_mut().insert(key, decision);
            decision
        });
        match decision {
            Decision::Write(kind, next) => Decision::Write(kind, Record { uid: node.uid, rv: node.rv, ..next }),
            other => other,
        }
    }

    fn decide(&self, phase: Phase, node: &Node, record: &Record, policy: u8) -> Decision {
        let context =
            CaseContext { policies: &self.policy_sets[policy as usize], now: Timestamp::UNIX_EPOCH, by: "model" };
        let mut seen = self.real_node(node);
        let mut found = record.present.then(|| self.real_record(record));
        self.mutation.blur(&mut seen, found.as_mut());
        let stored = found.clone().map(|record| Arc::new(Stored::Good(Box::new(record))));
        let case = Case::new(phase, Some(seen), stored, Vec::new(), &context);
        let outcome = match phase {
            Phase::Creating { .. } => self.mutation.distort_create(&case, found.as_ref(), &context, decide(&case)),
            _ => Outcome::Decision(decide(&case)),
        };
        let outcome = match outcome {
            Outcome::Decision(decision) => self.mutation.distort(found.as_ref(), &case, decision),
            other => other,
        };
        match outcome {
            Outcome::Decision(decide::Decision::Nothing(_)) => Decision::Nothing,
            Outcome::Decision(decide::Decision::WriteRecord(kind, next)) => {
                Decision::Write(kind, self.compact_record(&next, &case, node, record))
            }
            Outcome::Decision(decide::Decision::PatchNode(restore)) => {
                let labels = self.apply(node.labels, &restore);
                Decision::Patch(labels, self.compact_mark(&restore.mark))
            }
            Outcome::DeleteRecord => Decision::DeleteRecord,
            Outcome::AsItCame => Decision::Patch(node.labels, node.mark),
            Outcome::Unmarked => Decision::Patch(node.labels, Mark::default()),
        }
    }

    fn kept(&self, labels: &Labels) -> Kept {
        let present = self.keys.iter().zip(labels).filter(|(_, value)| **value != 0);
        present.map(|(key, value)| (key.clone(), value.to_string())).collect()
    }

    fn compact(&self, kept: &Kept) -> Labels {
        assert!(kept.keys().all(|key| self.keys.contains(key)), "foreign keys in {kept:?}");
        self.keys.each_ref().map(|key| kept.get(key).map_or(0, |value| value.parse().expect("a value of the model")))
    }

    fn apply(&self, mut labels: Labels, restore: &Restore) -> Labels {
        for (label, key) in labels.iter_mut().zip(&self.keys) {
            if restore.remove.contains(key) {
                *label = 0;
            }
            if let Some(value) = restore.set.get(key) {
                *label = value.parse().expect("a value of the model");
            }
        }
        labels
    }

    fn real_node(&self, node: &Node) -> RealNode {
        let labels = Content::from(&self.kept(&node.labels)).labels;
        let mark = node.mark.present.then(|| (MARK.to_owned(), self.real_mark(&node.mark).render()));
        RealNode {
            name: "n".into(),
            uid: format!("u{}", node.uid),
            resource_version: node.rv.into(),
            labels,
            annotations: mark.into_iter().collect(),
            machine: real_machine(node.machine()),
            ..RealNode::default()
        }
    }

    fn real_mark(&self, mark: &Mark) -> RealMark {
        let with = |code: u8| -> BTreeSet<Key> {
            self.keys.iter().zip(mark.base).filter(|(_, base)| *base == code).map(|(key, _)| key.clone()).collect()
        };
        RealMark {
            from: digest(&self.kept(&mark.from)),
            complete: mark.complete,
            given: self.kept(&mark.base.map(|base| if base < SAME { base } else { 0 })),
            own: with(OWN),
            same: with(SAME),
            ..RealMark::default()
        }
    }

    fn compact_mark(&self, mark: &RealMark) -> Mark {
        let mut base = self.compact(&mark.given);
        for (base, key) in base.iter_mut().zip(&self.keys) {
            if mark.own.contains(key) {
                *base = OWN;
            } else if mark.same.contains(key) {
                *base = SAME;
            }
        }
        let from = self.undigest(&mark.from);
        let compact = Mark { present: true, complete: mark.complete, from, base };
        assert_eq!(self.real_mark(&compact).render(), mark.render(), "a mark that the model cannot hold");
        compact
    }

    fn undigest(&self, wanted: &Digest) -> Labels {
        let all = (0..4).flat_map(|a| (0..4).map(move |b| [a, b]));
        all.into_iter().find(|labels| digest(&self.kept(labels)) == *wanted).expect("a digest of some content")
    }

    fn real_record(&self, record: &Record) -> RealRecord {
        let mark = if record.mark.present {
            Digest::of([self.real_mark(&record.mark).render()]).to_string()
        } else {
            String::new()
        };
        let withheld = (0..MACHINES).filter(|machine| record.withheld[*machine] != 0).map(|machine| Withheld {
            machine: real_machine(machine as u8),
            content: Content::from(&self.kept(&[0, record.withheld[machine]])),
        });
        let ungiven = self.keys.iter().zip(record.ungiven).filter(|(_, ungiven)| *ungiven);
        let ungiven = ungiven.map(|(key, _)| key.clone()).collect();
        RealRecord {
            provenance: Provenance { ungiven, ..Provenance::default() },
            sequence: SEQUENCE,
            node: Origin {
                name: "n".into(),
                uid: format!("u{}", record.uid),
                resource_version: record.rv.into(),
                mark,
                machine: real_machine(record.machine),
            },
            identity: None,
            kept: self.kept(&record.labels),
            folded: record.folded,
            before: self.kept(&record.before),
            withheld: withheld.collect(),
            captured_at: Timestamp::UNIX_EPOCH,
            captured_by: "model".into(),
            history: Vec::new(),
        }
    }

    fn compact_record(&self, next: &RealRecord, case: &Case, node: &Node, old: &Record) -> Record {
        assert_eq!(next.sequence, if old.present { SEQUENCE + 1 } else { 1 }, "G6: a sequence grows by one");
        assert_eq!(next.node.uid, format!("u{}", node.uid), "a record names the node that it was written from");
        assert_eq!(next.node.resource_version, u64::from(node.rv));
        let unmarked = next.folded || next.node.mark.is_empty();
        assert!(unmarked || next.node.mark == case.mark_digest(), "a record knows the node's mark, or none");
        let mark = if unmarked { Mark::default() } else { node.mark };
        let mut withheld = [0; MACHINES];
        // The first entry of a machine is used.
        for other in next.withheld.iter().rev() {
            let content = self.compact(&Kept::from(other.content.clone()));
            assert_eq!(content[0], 0, "only protected keys are withheld");
            withheld[compact_machine(&other.machine)] = content[1];
        }
        Record {
            present: true,
            folded: next.folded,
            uid: node.uid,
            rv: node.rv,
            labels: self.compact(&next.kept),
            before: self.compact(&next.before),
            mark,
            machine: compact_machine(&next.node.machine) as u8,
            withheld,
            ungiven: self.keys.each_ref().map(|key| next.provenance.ungiven.contains(key)),
            // Every write clears the absence note.
            noted: 0,
        }
    }
}

fn real_machine(machine: u8) -> RealMachine {
    let (provider, rest) = [("", ""), ("", "1"), ("p1", "1"), ("", "2"), ("p2", "2")][machine as usize];
    let named = |kind: &str| if rest.is_empty() { String::new() } else { format!("{kind}{rest}") };
    RealMachine { provider_id: provider.into(), system_uuid: named("s"), machine_id: named("m") }
}

fn compact_machine(machine: &RealMachine) -> usize {
    (0..MACHINES).find(|code| real_machine(*code as u8) == *machine).expect("a machine of the model")
}
