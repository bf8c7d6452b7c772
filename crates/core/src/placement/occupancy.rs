//! The pods of a workload as a decision sees them: who fills a place, with our own unseen writes applied.
//!
//! Owns grouping and counting. Decides nothing.

use std::collections::HashMap;

use super::Class;
use super::slots::Split;
use super::spec::Strength;
use super::view::{OwnWrite, OwnWrites, PodView, ReplicaSetView};

/// A pod in its place.
#[derive(Debug, Clone)]
pub(super) struct Seat<'a> {
    pub pod: &'a PodView,
    pub class: Option<Class>,
    pub slot: Option<u32>,
    pub gated: bool,
    pub fallback: bool,
    /// A write of ours is not seen yet, or the pod itself is not: there is nothing to write to.
    pub unseen: bool,
}

impl<'a> Seat<'a> {
    pub(super) fn new(pod: &'a PodView, own: &OwnWrites, strength: Strength) -> Option<Self> {
        if !pod.occupies() {
            return None;
        }
        let class = pod.counts_as(strength);
        let seen = Self { pod, class, slot: pod.slot, gated: pod.gated, fallback: pod.fallback, unseen: true };
        if pod.expected {
            return Some(seen);
        }
        match own.pods.get(&pod.uid).copied() {
            None => Some(Self { unseen: false, ..seen }),
            Some(OwnWrite::Placed { class, slot, fallback }) => {
                Some(Self { class: Some(class), slot: Some(slot), gated: false, fallback, ..seen })
            }
            Some(OwnWrite::Freed { class }) => Some(Self { class: class.or(seen.class), gated: false, ..seen }),
            Some(OwnWrite::Relabelled { slot, fallback }) => Some(Self { slot: Some(slot), fallback, ..seen }),
            Some(OwnWrite::Removed) => None,
        }
    }

    pub(super) fn is(&self, class: Class) -> bool {
        !self.gated && self.class == Some(class)
    }

    /// Placed, and the scheduler has not put it anywhere yet.
    pub(super) fn unbound(&self) -> bool {
        !self.gated && self.pod.node.is_none()
    }
}

/// One ReplicaSet and its pods.
#[derive(Debug, Clone)]
pub(super) struct Group<'a> {
    pub set: &'a ReplicaSetView,
    pub seats: Vec<Seat<'a>>,
    /// Spot pods on nodes that are going or gone. Not merely deleted ones (a scale-in is no interruption), nor Failed ones (they may
    /// lie around for days).
    pub leaving: u32,
}

impl<'a> Group<'a> {
    pub(super) fn all(
        sets: &'a [ReplicaSetView],
        pods: &'a [PodView],
        own: &OwnWrites,
        strength: Strength,
    ) -> Vec<Self> {
        let mut groups: Vec<Self> = sets.iter().map(|set| Group { set, seats: Vec::new(), leaving: 0 }).collect();
        let index: HashMap<&str, usize> = sets.iter().enumerate().map(|(i, set)| (set.uid.as_str(), i)).collect();
        for pod in pods {
            let Some(group) = index.get(pod.owner.as_str()).and_then(|i| groups.get_mut(*i)) else { continue };
            let going = !pod.finished && pod.node.is_some_and(|node| node.leaving);
            group.leaving += u32::from(going && pod.counts_as(strength) == Some(Class::Spot));
            group.seats.extend(Seat::new(pod, own, strength));
        }
        groups
    }

    pub(super) fn n(&self) -> u32 {
        self.set.replicas
    }

    pub(super) fn count(&self, class: Class) -> u32 {
        count(self.seats.iter().filter(|seat| seat.is(class)))
    }

    pub(super) fn ready(&self, class: Class) -> u32 {
        count(self.seats.iter().filter(|seat| seat.is(class) && seat.pod.ready))
    }

    pub(super) fn gated(&self) -> u32 {
        count(self.seats.iter().filter(|seat| seat.gated))
    }

    /// How many of a class there are beyond its quota.
    pub(super) fn surplus(&self, class: Class, split: Split) -> u32 {
        self.count(class).saturating_sub(split.quota(class, self.n()))
    }

    /// As many pods as asked for, all of them freed.
    pub(super) fn settled(&self) -> bool {
        self.set.observed && count(self.seats.iter()) == self.n() && self.seats.iter().all(|seat| !seat.gated)
    }
}

pub(super) fn count<T>(items: impl Iterator<Item = T>) -> u32 {
    u32::try_from(items.count()).unwrap_or(u32::MAX)
}

/// Which slots are taken, by position within each class. Positions past `capacity` are not remembered: with fewer pods than that
/// there is always a hole below.
#[derive(Debug)]
pub(super) struct Book {
    split: Split,
    spot: Vec<bool>,
    on_demand: Vec<bool>,
    next: [usize; 2],
    top: [usize; 2],
}

impl Book {
    pub(super) fn new(split: Split, capacity: usize) -> Self {
        Self {
            split,
            spot: vec![false; capacity],
            on_demand: vec![false; capacity],
            next: [0, 0],
            top: [usize::MAX; 2],
        }
    }

    fn side(&mut self, class: Class) -> (&mut Vec<bool>, &mut usize, &mut usize) {
        let ([spot, on_demand], [spot_top, on_demand_top]) = (&mut self.next, &mut self.top);
        match class {
            Class::Spot => (&mut self.spot, spot, spot_top),
            Class::OnDemand => (&mut self.on_demand, on_demand, on_demand_top),
        }
    }

    /// Takes a slot. False if it was taken before.
    pub(super) fn take(&mut self, slot: u32) -> bool {
        let (class, index) = (self.split.class(slot), self.split.index(slot));
        let (taken, ..) = self.side(class);
        match usize::try_from(index).ok().and_then(|index| taken.get_mut(index)) {
            Some(taken) => !std::mem::replace(taken, true),
            None => true,
        }
    }

    /// Takes the lowest free slot of a class. Amortised constant time: what is taken is never given back.
    pub(super) fn lowest(&mut self, class: Class) -> Option<u32> {
        let split = self.split;
        let (taken, next, _) = self.side(class);
        while taken.get(*next) == Some(&true) {
            *next += 1;
        }
        let index = *next;
        *next += 1;
        if let Some(taken) = taken.get_mut(index) {
            *taken = true;
        }
        split.slot(class, u32::try_from(index).ok()?)
    }

    /// Takes the highest free slot of a class among its first `quota`. Amortised constant time for one quota.
    pub(super) fn highest(&mut self, class: Class, quota: u32) -> Option<u32> {
        let split = self.split;
        let (taken, _, top) = self.side(class);
        *top = usize::try_from(quota).ok()?.min(taken.len()).min(*top);
        let index = (0..*top).rev().find(|index| !taken[*index]);
        *top = index.unwrap_or(0);
        let index = index?;
        taken[index] = true;
        split.slot(class, u32::try_from(index).ok()?)
    }
}
