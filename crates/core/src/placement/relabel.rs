//! Renumbering of running pods: which pod has which slot once a ReplicaSet has settled.
//!
//! Writes annotations of placed pods only. Never moves a pod: only the order of scale-in changes.
//!
//! The slots `0..n` become a permutation over the `n` pods: each class fills its own slots from the
//! lowest, and a class with too many pods takes the highest free slots of the other. Pods on nodes
//! of neither class take the highest slots that are left. Scale-in from the top is then as exact as
//! the counts allow.

use super::decision::PlacementDecision;
use super::occupancy::{FreeSlots, Group, Occupant};
use super::slots::Split;
use super::workload::Managed;
use super::{Class, pod_patch};

/// Rewrites slots that are missing, duplicate, of the wrong class or past the end. A pod whose slot
/// is right keeps it; of two pods with the same slot the older keeps it. Waits until no write is
/// pending: one round of annotations instead of several.
pub(super) fn relabel(group: &mut Group<'_>, workload: &Managed<'_>, short: bool, decision: &mut PlacementDecision) {
    if !group.settled() || group.occupants.iter().any(|occupant| occupant.pending) {
        return;
    }
    let split = workload.spec.split;
    let n = group.n();
    let ranges = SlotRanges::new(group, split);
    let mut free = FreeSlots::new(split, group.occupants.len() + 1);
    let (mut occupants, mut strays): (Vec<&mut Occupant<'_>>, Vec<&mut Occupant<'_>>) =
        group.occupants.iter_mut().partition(|occupant| occupant.class.is_some());
    let by_age =
        |a: &&mut Occupant<'_>, b: &&mut Occupant<'_>| (a.pod.created, &a.pod.name).cmp(&(b.pod.created, &b.pod.name));
    occupants.sort_by(by_age);
    strays.retain(|occupant| occupant.is_stray());
    strays.sort_by(by_age);

    let mut surplus = [ranges.surplus(Class::Spot, n), ranges.surplus(Class::OnDemand, n)];
    let mut target: Vec<Option<u32>> = vec![None; occupants.len()];
    for (occupant, target) in occupants.iter().zip(&mut target) {
        let (Some(class), Some(slot)) = (occupant.class, occupant.slot.filter(|slot| *slot < n)) else { continue };
        let left = &mut surplus[usize::from(class == Class::OnDemand)];
        let fits = if split.class(slot) == class { ranges.low(slot) } else { *left > 0 && ranges.high(slot) };
        if fits && free.take(slot) {
            *target = Some(slot);
            *left -= u32::from(split.class(slot) != class);
        }
    }
    for (occupant, target) in occupants.into_iter().zip(target) {
        let Some(class) = occupant.class else { continue };
        let slot = target.or_else(|| {
            let left = &mut surplus[usize::from(class == Class::OnDemand)];
            if *left > 0 {
                *left -= 1;
                free.highest(class.other(), split.quota(class.other(), n))
            } else {
                free.lowest(class)
            }
        });
        let Some(slot) = slot else { continue };
        let misplaced = class == Class::OnDemand && split.class(slot) == Class::Spot;
        let fallback = misplaced && (occupant.fallback || short);
        rewrite(occupant, slot, fallback, decision);
    }
    relabel_strays(strays, &mut free, n, decision);
}

/// Gives pods on nodes of neither class the slots that are left: scale-in removes them first.
fn relabel_strays(strays: Vec<&mut Occupant<'_>>, free: &mut FreeSlots, n: u32, decision: &mut PlacementDecision) {
    let kept: Vec<bool> =
        strays.iter().map(|occupant| occupant.slot.is_some_and(|slot| slot < n && free.take(slot))).collect();
    for (occupant, kept) in strays.into_iter().zip(kept) {
        let slot = if kept { occupant.slot } else { (0..n).rev().find(|slot| free.take(*slot)) };
        if let Some(slot) = slot {
            rewrite(occupant, slot, false, decision);
        }
    }
}

/// Writes the slot of a pod, unless the pod has it already.
fn rewrite(occupant: &mut Occupant<'_>, slot: u32, fallback: bool, decision: &mut PlacementDecision) {
    if occupant.slot == Some(slot) && occupant.fallback == fallback {
        return;
    }
    let reason = match occupant.slot {
        Some(old) if old != slot => format!("slot {old} becomes {slot}"),
        Some(_) => format!("slot {slot} {} a fallback", if fallback { "is" } else { "is no longer" }),
        None => format!("takes slot {slot}"),
    };
    decision.actions.push(pod_patch::relabel(occupant.pod, slot, fallback, reason));
    (occupant.slot, occupant.fallback) = (Some(slot), fallback);
}

/// Slots that the pods of each class may have. If one class has a surplus, the other must be packed
/// from the lowest slot, so that the pods in the wrong class are at the top. If pods are on nodes
/// of neither class, both must be.
struct SlotRanges {
    split: Split,
    spot: u32,
    on_demand: u32,
    packed: [bool; 2],
}

impl SlotRanges {
    fn new(group: &Group<'_>, split: Split) -> Self {
        let (spot, on_demand) = (group.count(Class::Spot), group.count(Class::OnDemand));
        let strays = group.occupants.iter().any(Occupant::is_stray);
        let over = |class| strays || group.surplus(class, split) > 0;
        Self { split, spot, on_demand, packed: [over(Class::OnDemand), over(Class::Spot)] }
    }

    fn surplus(&self, class: Class, n: u32) -> u32 {
        self.count(class).saturating_sub(self.split.quota(class, n))
    }

    fn count(&self, class: Class) -> u32 {
        match class {
            Class::Spot => self.spot,
            Class::OnDemand => self.on_demand,
        }
    }

    /// Returns whether a pod of the slot's own class may keep the slot.
    fn low(&self, slot: u32) -> bool {
        let class = self.split.class(slot);
        let packed = self.packed[usize::from(class == Class::OnDemand)];
        !packed || self.split.index(slot) < self.count(class)
    }

    /// Returns whether a pod of the other class may keep the slot.
    fn high(&self, slot: u32) -> bool {
        self.split.index(slot) >= self.count(self.split.class(slot))
    }
}
