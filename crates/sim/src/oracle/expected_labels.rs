//! The expected labels of one node name, derived from the log: the values that are allowed at rest.
//!
//! More than one value is allowed only by the documented limits of the design, and each use is counted:
//! (A) a paused writer, (B) an unsettled node, (C) a saved manifest, (E) a record deleted by hand, (F) webhooks off or failed.

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

/// Returns the slot of a key on a machine.
pub fn slot(key: &'static str, hardware: u8) -> Slot {
    (key, if key == PROTECTED { hardware } else { 0 })
}

pub fn slots() -> impl Iterator<Item = Slot> {
    KEYS.into_iter().flat_map(|key| if key == PROTECTED { vec![(key, 1), (key, 2)] } else { vec![(key, 0)] })
}

#[derive(Clone, Debug, Default)]
struct Expected {
    /// Allowed values; more than one where a limit of the design applies.
    want: Values,
    /// Additional values while last states are unprocessed.
    or: Values,
    /// Values that were allowed since the last certain one.
    seen: Values,
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
}

impl ExpectedLabels {
    pub fn new(merge: Merge) -> Self {
        let none = || Values::from([None]);
        let expected = slots().map(|slot| (slot, Expected { want: none(), or: Values::new(), seen: none() })).collect();
        Self {
            slots: expected,
            unsure: BTreeMap::new(),
            order_lost: false,
            overwrite: merge == Merge::Overwrite,
            firm: BTreeMap::new(),
            excuses: Counts::default(),
        }
    }

    fn at(&mut self, slot: Slot) -> &mut Expected {
        self.slots.entry(slot).or_default()
    }

    fn certain(&mut self, slot: Slot, value: Label) {
        let lost = self.order_lost;
        let expected = self.at(slot);
        expected.want = Values::from([value]);
        if !lost {
            expected.or.clear();
        }
    }

    /// A person sets or removes a key of a live node. `node` is the state before.
    pub fn person_changes(&mut self, node: &Node, record: Option<&Record>, key: &'static str, value: &Label) {
        let slot = slot(key, node.hardware);
        let settled = is_settled(node, record);
        let unsure = !self.unsure.is_empty();
        let held = record.and_then(|record| recorded(record, key, node.hardware));
        let owner = record.is_some_and(|record| is_owner(node, record));
        let equal = record.is_some() && *value == held && value.is_some() && unsure && !owner;
        let back = is_base(node, record, key, value) && (!settled || unsure);
        let overwritten = self.overwrite && (!settled || unsure);
        let unsaid = key == PROTECTED && !node.whole;
        if equal || back || overwritten || unsaid {
            self.excuses.add("B: a change on a node that is not settled");
            self.firm.remove(key);
            let expected = self.at(slot);
            expected.want.insert(value.clone());
            expected.want.extend(expected.seen.clone());
            if let Some(record) = record {
                expected.want.insert(held);
                if record.folded {
                    expected.want.insert(before(record, key));
                }
            }
        } else {
            self.certain(slot, value.clone());
            self.firm.insert(key, value.clone());
        }
        let expected = self.at(slot);
        expected.seen.extend(expected.want.clone());
    }

    /// A delete commits. `looked`: admission has processed this very state.
    pub fn node_is_deleted(&mut self, node: &Node, rv: u64, record: Option<&Record>, looked: bool) {
        self.firm.clear();
        if looked {
            for expected in self.slots.values_mut() {
                expected.seen.clone_from(&expected.want);
            }
            return;
        }
        self.excuses.add("F: a delete that admission did not process");
        self.unsure.insert(node.uid.clone(), rv);
        for (slot, expected) in &mut self.slots {
            expected.or.extend(expected.seen.clone());
            expected.or.extend(record.map(|record| recorded(record, slot.0, slot.1)));
        }
    }

    /// The last state of an incarnation is processed: strict again, unless a later one was captured first.
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
                self.excuses.add("C: a saved manifest that was believed");
                let expected = self.at(slot);
                expected.want.insert(own.clone());
                expected.seen.insert(own.clone());
            }
            if own.is_none() {
                continue;
            }
            let unsure = !self.unsure.is_empty();
            let overwrite = self.overwrite;
            let expected = self.at(slot);
            let certain = !expected.want.contains(&None) && expected.or.is_empty();
            let marked = node.mark.is_some() && is_base(node, None, key, &own);
            let equal = unsure && record.is_some_and(|record| recorded(record, key, node.hardware) == own);
            if overwrite && certain {
                // The record takes precedence.
            } else if overwrite || marked || equal || believed {
                self.at(slot).want.insert(own);
            } else {
                self.certain(slot, own.clone());
                self.firm.insert(key, own);
            }
            let expected = self.at(slot);
            expected.seen.extend(expected.want.clone());
        }
    }

    /// A stale write reached the record: its values may return.
    pub fn old_state_lands(&mut self, record: &Record, limit: &'static str) {
        self.excuses.add(limit);
        self.order_lost = true;
        for (slot, expected) in &mut self.slots {
            expected.or.insert(recorded(record, slot.0, slot.1));
        }
    }

    /// A person deletes or overwrites the record: the order of changes is lost, and every earlier value is allowed.
    pub fn record_is_gone(&mut self, record: Option<&Record>, ever: &BTreeMap<Slot, Values>) {
        self.excuses.add("E: a record deleted or overwritten by hand");
        self.order_lost = true;
        self.firm.clear();
        for (slot, expected) in &mut self.slots {
            expected.or.insert(None);
            expected.or.extend(expected.seen.clone());
            expected.or.extend(record.map(|record| recorded(record, slot.0, slot.1)));
            expected.or.extend(ever.get(slot).cloned().unwrap_or_default());
        }
    }

    /// The record is collected after its retention.
    pub fn record_is_collected(&mut self) {
        let none = Values::from([None]);
        for expected in self.slots.values_mut() {
            *expected = Expected { want: none.clone(), or: Values::new(), seen: none.clone() };
        }
        self.unsure.clear();
        self.order_lost = false;
    }

    /// Returns the violation if a value is not allowed.
    pub fn unmet(&self, slot: Slot, have: &Label) -> Option<(&'static str, String)> {
        let expected = self.slots.get(&slot)?;
        if expected.want.contains(have) || expected.or.contains(have) {
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

    pub fn is_unsure(&self) -> bool {
        !self.unsure.is_empty() || self.order_lost
    }
}
