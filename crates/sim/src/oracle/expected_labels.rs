//! The expected labels of one node name, derived from the log: the values that are allowed at rest.
//!
//! Another value than the expected one is allowed only by the documented limits of the design, and
//! each value that needs such an excuse at rest is counted: (A) a paused writer, (B) an unsettled
//! node, (C) a saved manifest, (E) a record deleted by hand, (F) webhooks off or failed.

use std::collections::{BTreeMap, BTreeSet};

use perennial_core::{config::Merge, keeper::record::Record};

use super::observed::{Label, Node, before, is_base, is_owner, is_settled, recorded};
use crate::{
    keeper::node_workload::{KEYS, PROTECTED},
    server::fault_plan::Counts,
};

/// A key, and for a protected key its machine.
pub type Slot = (&'static str, u8);
type Values = BTreeSet<Label>;
/// Values that are allowed by a limit of the design.
type Excused = BTreeMap<Label, &'static str>;

const A: &str = "A: a writer that was paused between its last look and its write";
const B: &str = "B: a change on a node that is not settled";
const C: &str = "C: a saved manifest that was believed";
const E: &str = "E: a record deleted or overwritten by hand";
const F: &str = "F: a delete that admission did not process";

fn excuse(excused: &mut Excused, values: impl IntoIterator<Item = Label>, limit: &'static str) {
    for value in values {
        excused.entry(value).or_insert(limit);
    }
}

/// Returns the slot of a key on a machine.
pub fn slot(key: &'static str, hardware: u8) -> Slot {
    (key, if key == PROTECTED { hardware } else { 0 })
}

pub fn slots() -> impl Iterator<Item = Slot> {
    KEYS.into_iter().flat_map(|key| if key == PROTECTED { vec![(key, 1), (key, 2)] } else { vec![(key, 0)] })
}

#[derive(Clone, Debug, Default)]
struct Expected {
    /// Expected values; more than one where both are right.
    want: Values,
    /// Values that a limit of the design allows until the next certain one.
    also: Excused,
    /// Values that a limit of the design allows while last states are unprocessed.
    or: Excused,
    /// Values that may be in a write that is under way: allowed since the record was last written
    /// from this incarnation, each with the latest version of the node that had it.
    seen: BTreeMap<Label, u64>,
}

impl Expected {
    /// Returns the values that are allowed whether last states are processed or not.
    fn lasting(&self) -> Values {
        self.want.iter().chain(self.also.keys()).cloned().collect()
    }

    /// Notes that the allowed values may be in a write from now on.
    fn see_allowed(&mut self, version: u64) {
        for value in self.lasting() {
            self.seen.entry(value).or_insert(version);
        }
    }

    /// Allows another value beside the expected ones.
    fn allow(&mut self, value: Label, limit: &'static str) {
        excuse(&mut self.also, [value], limit);
    }
}

/// The expected labels of one name.
#[derive(Clone, Debug)]
pub struct ExpectedLabels {
    slots: BTreeMap<Slot, Expected>,
    /// Deleted incarnations whose last state may be unprocessed, with its version.
    unsure: BTreeMap<String, u64>,
    order_lost: bool,
    overwrite: bool,
    /// Values that a person set on this incarnation, and that the operator must not change.
    pub firm: BTreeMap<&'static str, Label>,
    pub excuses: Counts,
    /// Values that are counted as excused. A value that stays is one excuse, at however many rests.
    counted: BTreeSet<(Slot, Label)>,
}

impl ExpectedLabels {
    pub fn new(merge: Merge) -> Self {
        let none = || Values::from([None]);
        let fresh = || Expected { want: none(), seen: BTreeMap::from([(None, 0)]), ..Expected::default() };
        let expected = slots().map(|slot| (slot, fresh())).collect();
        Self {
            slots: expected,
            unsure: BTreeMap::new(),
            order_lost: false,
            overwrite: merge == Merge::Overwrite,
            firm: BTreeMap::new(),
            excuses: Counts::default(),
            counted: BTreeSet::new(),
        }
    }

    fn at(&mut self, slot: Slot) -> &mut Expected {
        self.slots.entry(slot).or_default()
    }

    fn certain(&mut self, slot: Slot, value: Label) {
        let lost = self.order_lost;
        let expected = self.at(slot);
        expected.want = Values::from([value]);
        expected.also.clear();
        if !lost {
            expected.or.clear();
        }
    }

    /// A person sets or removes a key of a live node. `node` is the state before, `version` the one
    /// after.
    pub fn person_changes(
        &mut self,
        (node, version): (&Node, u64),
        record: Option<&Record>,
        key: &'static str,
        value: &Label,
    ) {
        let slot = slot(key, node.hardware);
        self.counted.retain(|(counted, _)| *counted != slot);
        let settled = is_settled(node, record);
        let unsure = !self.unsure.is_empty();
        let held = record.and_then(|record| recorded(record, key, node.hardware));
        let owner = record.is_some_and(|record| is_owner(node, record));
        let equal = record.is_some() && *value == held && value.is_some() && unsure && !owner;
        let back = is_base(node, record, key, value) && (!settled || unsure);
        let overwritten = self.overwrite && (!settled || unsure);
        let unsaid = key == PROTECTED && !node.whole;
        if equal || back || overwritten || unsaid {
            self.firm.remove(key);
            let expected = self.at(slot);
            let others: Vec<Label> = expected.lasting().into_iter().chain(expected.seen.keys().cloned()).collect();
            excuse(&mut expected.also, others, B);
            if let Some(record) = record {
                expected.allow(held, B);
                if record.folded {
                    expected.allow(before(record, key), B);
                }
            }
            expected.want = Values::from([value.clone()]);
        } else {
            self.certain(slot, value.clone());
            self.firm.insert(key, value.clone());
        }
        let expected = self.at(slot);
        expected.see_allowed(0);
        expected.seen.insert(value.clone(), version);
    }

    /// The record is written from the incarnation that exists: earlier values than those that it
    /// holds are in no write any more.
    pub fn node_is_recorded(&mut self, record: &Record) {
        if !self.unsure.is_empty() || self.order_lost {
            return;
        }
        for (slot, expected) in &mut self.slots {
            let (held, allowed) = (recorded(record, slot.0, slot.1), expected.lasting());
            let since = record.node.resource_version;
            expected.seen.retain(|value, version| *version > since || *value == held || allowed.contains(value));
        }
    }

    /// A delete commits. `looked`: admission has processed this very state.
    pub fn node_is_deleted(&mut self, node: &Node, rv: u64, record: Option<&Record>, looked: bool) {
        self.firm.clear();
        if looked {
            for expected in self.slots.values_mut() {
                expected.seen = expected.lasting().into_iter().map(|value| (value, 0)).collect();
            }
            return;
        }
        self.unsure.insert(node.uid.clone(), rv);
        for (slot, expected) in &mut self.slots {
            excuse(&mut expected.or, expected.seen.keys().cloned(), F);
            excuse(&mut expected.or, [record.and_then(|record| recorded(record, slot.0, slot.1))], F);
        }
    }

    /// The last state of an incarnation is processed: strict again, unless a later one was captured
    /// first.
    pub fn last_state_is_processed(&mut self, uid: &str, record: Option<&Record>) {
        let Some(rv) = self.unsure.get(uid).copied() else { return };
        let overtaken = record.is_some_and(|r| r.node.uid != uid && r.node.resource_version > rv);
        if !overtaken {
            self.unsure.remove(uid);
            if self.unsure.is_empty() && !self.order_lost {
                for expected in self.slots.values_mut() {
                    expected.or.clear();
                }
            }
        }
    }

    /// A create commits. `believed`: its manifest had a mark that admission did not remove.
    pub fn node_is_created(&mut self, node: &Node, came: &Node, record: Option<&Record>, believed: bool) {
        self.firm.clear();
        for key in KEYS {
            let own = came.labels.get(key).cloned();
            let slot = slot(key, node.hardware);
            if believed {
                let expected = self.at(slot);
                expected.allow(own.clone(), C);
                expected.seen.insert(own.clone(), node.rv);
            }
            if own.is_none() {
                continue;
            }
            let unsure = !self.unsure.is_empty();
            let overwrite = self.overwrite;
            let expected = self.at(slot);
            let certain = !expected.lasting().contains(&None) && expected.or.is_empty();
            let marked = node.mark.is_some() && is_base(node, None, key, &own);
            let equal = unsure && record.is_some_and(|record| recorded(record, key, node.hardware) == own);
            if overwrite && certain {
                // The record takes precedence.
            } else if believed {
                // Allowed above.
            } else if overwrite || marked || equal {
                self.at(slot).want.insert(own);
            } else {
                self.certain(slot, own.clone());
                self.firm.insert(key, own);
            }
            self.at(slot).see_allowed(node.rv);
        }
    }

    /// A stale write reached the record: its values may return.
    pub fn old_state_lands(&mut self, record: &Record) {
        self.order_lost = true;
        for (slot, expected) in &mut self.slots {
            excuse(&mut expected.or, [recorded(record, slot.0, slot.1)], A);
        }
    }

    /// A person deletes or overwrites the record: the order of changes is lost, and every earlier
    /// value is allowed.
    pub fn record_is_gone(&mut self, record: Option<&Record>, ever: &BTreeMap<Slot, Values>) {
        self.order_lost = true;
        self.firm.clear();
        for (slot, expected) in &mut self.slots {
            let earlier = expected.seen.keys().cloned().chain(ever.get(slot).cloned().unwrap_or_default());
            let held = record.map(|record| recorded(record, slot.0, slot.1));
            excuse(&mut expected.or, earlier.chain(held).chain([None]), E);
        }
    }

    /// The record is collected after its retention.
    pub fn record_is_collected(&mut self) {
        let none = Values::from([None]);
        for expected in self.slots.values_mut() {
            let seen = BTreeMap::from([(None, 0)]);
            *expected = Expected { want: none.clone(), seen, ..Expected::default() };
        }
        self.unsure.clear();
        self.order_lost = false;
    }

    /// Returns the violation if a value is not allowed at rest. Counts the excuse that it needs.
    pub fn unmet_at_rest(&mut self, slot: Slot, have: &Label) -> Option<(&'static str, String)> {
        let expected = self.slots.get(&slot)?;
        let excuse = expected.also.get(have).or_else(|| expected.or.get(have)).copied();
        let limit = excuse.filter(|_| !expected.want.contains(have));
        if let Some(limit) = limit.filter(|_| self.counted.insert((slot, have.clone()))) {
            self.excuses.add(limit);
        }
        self.unmet(slot, have)
    }

    /// Returns the violation if a value is not allowed.
    pub fn unmet(&self, slot: Slot, have: &Label) -> Option<(&'static str, String)> {
        let expected = self.slots.get(&slot)?;
        if expected.lasting().contains(have) || expected.or.contains_key(have) {
            return None;
        }
        let guarantee = if have.is_none() { "G1" } else { "G2" };
        let what = match (have, expected.want.contains(&None) && expected.want.len() == 1) {
            (None, _) => "lost",
            (_, true) => "a removal undone",
            _ => "newer overwritten by older",
        };
        let want: Vec<&str> = expected.want.iter().map(|label| label.as_deref().unwrap_or("-")).collect();
        let have = have.as_deref().unwrap_or("-");
        Some((guarantee, format!("{what}: {} (machine {}) is {have}, wanted is {}", slot.0, slot.1, want.join(" or "))))
    }
}
