//! Slots of running pods: who fills which place once a ReplicaSet has settled.
//!
//! Owns the annotations of placed pods. Never moves one: only the order of scale-in changes.
//!
//! The slots `0..n` end up as a permutation over the `n` pods: each class fills its own slots from below, and a class with too
//! many pods takes the highest holes of the other. Scale-in from the top is then as exact as the counts allow.

use super::Class;
use super::action::{Plan, relabel};
use super::occupancy::{Book, Group, Seat};
use super::rebalance::Input;
use super::slots::Split;

/// Rewrites what is missing, double, of the wrong class or past the end. A pod whose slot is right keeps it, the older of two wins.
/// Waits until every write of ours is seen: one round of annotations instead of several.
pub(super) fn settle(group: &mut Group<'_>, input: &Input<'_>, short: bool, plan: &mut Plan) {
    if !group.settled() || group.seats.iter().any(|seat| seat.unseen) {
        return;
    }
    let split = input.spec.split;
    let n = group.n();
    let rows = Rows::new(group, split);
    let mut book = Book::new(split, group.seats.len() + 1);
    let mut seats: Vec<&mut Seat<'_>> = group.seats.iter_mut().filter(|seat| seat.class.is_some()).collect();
    seats.sort_by(|a, b| (a.pod.created, &a.pod.name).cmp(&(b.pod.created, &b.pod.name)));

    let mut surplus = [rows.surplus(Class::Spot, n), rows.surplus(Class::OnDemand, n)];
    let mut target: Vec<Option<u32>> = vec![None; seats.len()];
    for (seat, target) in seats.iter().zip(&mut target) {
        let (Some(class), Some(slot)) = (seat.class, seat.slot.filter(|slot| *slot < n)) else { continue };
        let left = &mut surplus[usize::from(class == Class::OnDemand)];
        let fits = if split.class(slot) == class { rows.low(slot) } else { *left > 0 && rows.high(slot) };
        if fits && book.take(slot) {
            *target = Some(slot);
            *left -= u32::from(split.class(slot) != class);
        }
    }
    for (seat, target) in seats.into_iter().zip(target) {
        let Some(class) = seat.class else { continue };
        let slot = target.or_else(|| {
            let left = &mut surplus[usize::from(class == Class::OnDemand)];
            if *left > 0 {
                *left -= 1;
                book.highest(class.other(), split.quota(class.other(), n))
            } else {
                book.lowest(class)
            }
        });
        let Some(slot) = slot else { continue };
        let astray = class == Class::OnDemand && split.class(slot) == Class::Spot;
        let fallback = astray && (seat.fallback || short);
        if seat.slot == Some(slot) && seat.fallback == fallback {
            continue;
        }
        let reason = match seat.slot {
            Some(old) if old != slot => format!("slot {old} becomes {slot}"),
            Some(_) => format!("slot {slot} {} a fallback", if fallback { "is" } else { "is no longer" }),
            None => format!("takes slot {slot}"),
        };
        plan.actions.push(relabel(seat.pod, slot, fallback, reason));
        (seat.slot, seat.fallback) = (Some(slot), fallback);
    }
}

/// Where the pods of each class belong. With a surplus on one side, the other class must be packed below, so that what is astray
/// is at the top.
struct Rows {
    split: Split,
    spot: u32,
    on_demand: u32,
    packed: [bool; 2],
}

impl Rows {
    fn new(group: &Group<'_>, split: Split) -> Self {
        let (spot, on_demand) = (group.count(Class::Spot), group.count(Class::OnDemand));
        let over = |class| group.surplus(class, split) > 0;
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

    /// A slot that a pod of the slot's own class may keep.
    fn low(&self, slot: u32) -> bool {
        let class = self.split.class(slot);
        let packed = self.packed[usize::from(class == Class::OnDemand)];
        !packed || self.split.index(slot) < self.count(class)
    }

    /// A slot that a pod of the other class may keep.
    fn high(&self, slot: u32) -> bool {
        self.split.index(slot) >= self.count(self.split.class(slot))
    }
}
