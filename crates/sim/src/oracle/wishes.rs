//! What people want of the labels of one name, as it follows from the log: the values that may be there at rest.
//!
//! It grows beyond one value only by the limits that the design documents, each of which is counted when it excuses something:
//! (A) a paused writer, (B) an unsettled node, (C) a saved manifest, (E) a record deleted by hand, (F) webhooks off or failed.

use std::collections::{BTreeMap, BTreeSet};

use perennial_core::{config::Merge, keeper::record::Record};

use super::facts::{Label, Node, before, is_base, is_owner, is_settled, recorded};
use crate::{
    keeper::people::{KEYS, PROTECTED},
    server::fault_plan::Counts,
};

/// A key, and for a protected one the machine that it is of.
pub type Slot = (&'static str, u8);
type Values = BTreeSet<Label>;

/// Which slot a key on a machine belongs to.
pub fn slot(key: &'static str, hardware: u8) -> Slot {
    (key, if key == PROTECTED { hardware } else { 0 })
}

pub fn slots() -> impl Iterator<Item = Slot> {
    KEYS.into_iter().flat_map(|key| if key == PROTECTED { vec![(key, 1), (key, 2)] } else { vec![(key, 0)] })
}

#[derive(Clone, Debug, Default)]
struct Wish {
    /// What is wanted; more than one value where a limit of the design leaves it open.
    want: Values,
    /// What may also be, while last states are unprocessed.
    or: Values,
    /// What may have been wanted since it was last certain.
    seen: Values,
}

/// The wishes for one name.
#[derive(Clone, Debug)]
pub struct Wishes {
    slots: BTreeMap<Slot, Wish>,
    /// Incarnations whose last state may not have been processed, and its version.
    unsure: BTreeMap<String, u64>,
    order_lost: bool,
    overwrite: bool,
    /// The last word of a person about a key of this incarnation that nothing may undo.
    pub firm: BTreeMap<&'static str, Label>,
    pub excuses: Counts,
}

impl Wishes {
    pub fn new(merge: Merge) -> Self {
        let none = || Values::from([None]);
        let wishes = slots().map(|slot| (slot, Wish { want: none(), or: Values::new(), seen: none() })).collect();
        Self {
            slots: wishes,
            unsure: BTreeMap::new(),
            order_lost: false,
            overwrite: merge == Merge::Overwrite,
            firm: BTreeMap::new(),
            excuses: Counts::default(),
        }
    }

    fn wish(&mut self, slot: Slot) -> &mut Wish {
        self.slots.entry(slot).or_default()
    }

    fn certain(&mut self, slot: Slot, value: Label) {
        let lost = self.order_lost;
        let wish = self.wish(slot);
        wish.want = Values::from([value]);
        if !lost {
            wish.or.clear();
        }
    }

    /// A person sets a key of a live node, or removes it. `node` is as it was before.
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
            let wish = self.wish(slot);
            wish.want.insert(value.clone());
            wish.want.extend(wish.seen.clone());
            if let Some(record) = record {
                wish.want.insert(held);
                if record.folded {
                    wish.want.insert(before(record, key));
                }
            }
        } else {
            self.certain(slot, value.clone());
            self.firm.insert(key, value.clone());
        }
        let wish = self.wish(slot);
        wish.seen.extend(wish.want.clone());
    }

    /// A delete commits; `looked`: admission has processed this very state.
    pub fn node_is_deleted(&mut self, node: &Node, rv: u64, record: Option<&Record>, looked: bool) {
        self.firm.clear();
        if looked {
            for wish in self.slots.values_mut() {
                wish.seen.clone_from(&wish.want);
            }
            return;
        }
        self.excuses.add("F: a delete that admission did not process");
        self.unsure.insert(node.uid.clone(), rv);
        for (slot, wish) in &mut self.slots {
            wish.or.extend(wish.seen.clone());
            wish.or.extend(record.map(|record| recorded(record, slot.0, slot.1)));
        }
    }

    /// The exact last state of an incarnation has been processed: strict again, unless a later one was captured first.
    pub fn last_state_is_processed(&mut self, uid: &str, record: Option<&Record>) {
        let Some(rv) = self.unsure.get(uid).copied() else { return };
        let overtaken = record.is_some_and(|r| r.node.uid != uid && r.node.resource_version > rv);
        if !overtaken {
            self.unsure.remove(uid);
            if self.unsure.is_empty() && !self.order_lost {
                for wish in self.slots.values_mut() {
                    wish.or.clear();
                }
            }
        }
    }

    /// A create commits that brought labels of its own. `believed`: it came with a mark that nobody took away.
    pub fn node_is_created(&mut self, node: &Node, came: &Node, record: Option<&Record>, believed: bool) {
        self.firm.clear();
        for key in KEYS {
            let own = came.labels.get(key).cloned();
            let slot = slot(key, node.hardware);
            if believed {
                self.excuses.add("C: a saved manifest that was believed");
                let wish = self.wish(slot);
                wish.want.insert(own.clone());
                wish.seen.insert(own.clone());
            }
            if own.is_none() {
                continue;
            }
            let unsure = !self.unsure.is_empty();
            let overwrite = self.overwrite;
            let wish = self.wish(slot);
            let certain = !wish.want.contains(&None) && wish.or.is_empty();
            let marked = node.mark.is_some() && is_base(node, None, key, &own);
            let equal = unsure && record.is_some_and(|record| recorded(record, key, node.hardware) == own);
            if overwrite && certain {
                // The record wins.
            } else if overwrite || marked || equal || believed {
                self.wish(slot).want.insert(own);
            } else {
                self.certain(slot, own.clone());
                self.firm.insert(key, own);
            }
            let wish = self.wish(slot);
            wish.seen.extend(wish.want.clone());
        }
    }

    /// Something that was decided long ago landed in the record: it may come back.
    pub fn old_state_lands(&mut self, record: &Record, limit: &'static str) {
        self.excuses.add(limit);
        self.order_lost = true;
        for (slot, wish) in &mut self.slots {
            wish.or.insert(recorded(record, slot.0, slot.1));
        }
    }

    /// A person deletes the record or writes over it: the order of things is lost, and anything that was ever seen may be.
    pub fn record_is_gone(&mut self, record: Option<&Record>, ever: &BTreeMap<Slot, Values>) {
        self.excuses.add("E: a record deleted or overwritten by hand");
        self.order_lost = true;
        self.firm.clear();
        for (slot, wish) in &mut self.slots {
            wish.or.insert(None);
            wish.or.extend(wish.seen.clone());
            wish.or.extend(record.map(|record| recorded(record, slot.0, slot.1)));
            wish.or.extend(ever.get(slot).cloned().unwrap_or_default());
        }
    }

    /// Nobody came back for it.
    pub fn record_is_collected(&mut self) {
        let none = Values::from([None]);
        for wish in self.slots.values_mut() {
            *wish = Wish { want: none.clone(), or: Values::new(), seen: none.clone() };
        }
        self.unsure.clear();
        self.order_lost = false;
    }

    /// What of this is not what anybody wants.
    pub fn unmet(&self, slot: Slot, have: &Label) -> Option<(&'static str, String)> {
        let wish = self.slots.get(&slot)?;
        if wish.want.contains(have) || wish.or.contains(have) {
            return None;
        }
        let guarantee = if have.is_none() { "G1" } else { "G2" };
        let what = match (have, wish.want.contains(&None) && wish.want.len() == 1) {
            (None, _) => "lost",
            (_, true) => "a removal undone",
            _ => "newer overwritten by older",
        };
        let want: Vec<&str> = wish.want.iter().map(|label| label.as_deref().unwrap_or("-")).collect();
        let have = have.as_deref().unwrap_or("-");
        Some((guarantee, format!("{what}: {} (machine {}) is {have}, wanted is {}", slot.0, slot.1, want.join(" or "))))
    }

    pub fn is_unsure(&self) -> bool {
        !self.unsure.is_empty() || self.order_lost
    }
}
