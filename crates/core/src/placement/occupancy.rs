//! The pods of a workload as a decision counts them: the occupant of each slot, with pending writes
//! applied, and the free slots.
//!
//! Owns grouping and counting. Decides nothing.

use std::collections::HashMap;

use super::Class;
use super::slots::Split;
use super::spec::Strength;
use super::workload::{PendingWrites, PodView, ReplicaSetView};

/// A pod that counts as a replica.
#[derive(Debug, Clone)]
pub(super) struct Occupant<'a> {
    pub pod: &'a PodView,
    pub class: Option<Class>,
    pub slot: Option<u32>,
    pub gated: bool,
    pub fallback: bool,
    /// The pod itself or a write to it is not in the cache yet, so it must not be written to.
    pub pending: bool,
}

impl<'a> Occupant<'a> {
    /// Returns None for a pod that does not count: it is terminating, finished or was removed by
    /// Perennial.
    pub(super) fn new(pod: &'a PodView, pending: &PendingWrites, strength: Strength) -> Option<Self> {
        if !pod.occupies() || pending.removed.contains(&pod.uid) {
            return None;
        }
        let class = pod.counts_as(strength);
        let (gated, fallback, pending) = (pod.gated, pod.fallback, pod.expected);
        Some(Self { pod, class, slot: pod.slot, gated, fallback, pending })
    }

    pub(super) fn is(&self, class: Class) -> bool {
        !self.gated && self.class == Some(class)
    }

    /// Returns whether the pod runs on a node of neither class, which stays.
    pub(super) fn is_stray(&self) -> bool {
        !self.gated && self.class.is_none() && self.pod.node.is_some_and(|node| !node.leaving)
    }

    /// Returns whether the pod is placed but not scheduled.
    pub(super) fn unbound(&self) -> bool {
        !self.gated && self.pod.node.is_none()
    }
}

/// One ReplicaSet and its pods.
#[derive(Debug, Clone)]
pub(super) struct Group<'a> {
    pub set: &'a ReplicaSetView,
    pub occupants: Vec<Occupant<'a>>,
    /// Spot pods on nodes that are leaving or gone. Excludes pods that are only deleted (a scale-in
    /// is no interruption) and Failed pods, which may exist for days.
    pub leaving: u32,
}

impl<'a> Group<'a> {
    pub(super) fn all(
        sets: &'a [ReplicaSetView],
        pods: &'a [PodView],
        pending: &PendingWrites,
        strength: Strength,
    ) -> Vec<Self> {
        let mut groups: Vec<Self> = sets.iter().map(|set| Group { set, occupants: Vec::new(), leaving: 0 }).collect();
        let index: HashMap<&str, usize> = sets.iter().enumerate().map(|(i, set)| (set.uid.as_str(), i)).collect();
        for pod in pods {
            let Some(group) = index.get(pod.owner.as_str()).and_then(|i| groups.get_mut(*i)) else { continue };
            let leaving = !pod.finished && pod.node.is_some_and(|node| node.leaving);
            group.leaving += u32::from(leaving && pod.counts_as(strength) == Some(Class::Spot));
            group.occupants.extend(Occupant::new(pod, pending, strength));
        }
        groups
    }

    /// `spec.replicas` of the ReplicaSet.
    pub(super) fn n(&self) -> u32 {
        self.set.replicas
    }

    pub(super) fn count(&self, class: Class) -> u32 {
        count(self.occupants.iter().filter(|occupant| occupant.is(class)))
    }

    pub(super) fn ready(&self, class: Class) -> u32 {
        count(self.occupants.iter().filter(|occupant| occupant.is(class) && occupant.pod.ready))
    }

    pub(super) fn gated(&self) -> u32 {
        count(self.occupants.iter().filter(|occupant| occupant.gated))
    }

    /// Number of pods of a class beyond its quota.
    pub(super) fn surplus(&self, class: Class, split: Split) -> u32 {
        self.count(class).saturating_sub(split.quota(class, self.n()))
    }

    /// Returns whether the ReplicaSet has exactly the requested pods and none of them is gated.
    pub(super) fn settled(&self) -> bool {
        self.set.observed
            && count(self.occupants.iter()) == self.n()
            && self.occupants.iter().all(|occupant| !occupant.gated)
    }

    /// Returns whether the ReplicaSet has exactly the requested pods, each on a node.
    pub(super) fn is_running(&self) -> bool {
        self.settled() && self.occupants.iter().all(|occupant| !occupant.unbound())
    }
}

pub(super) fn count<T>(items: impl Iterator<Item = T>) -> u32 {
    u32::try_from(items.count()).unwrap_or(u32::MAX)
}

/// Free slots, by position within each class. Positions past `capacity` are not stored: with fewer
/// pods than that there is always a free slot below.
#[derive(Debug)]
pub(super) struct FreeSlots {
    split: Split,
    spot: Vec<bool>,
    on_demand: Vec<bool>,
    next: [usize; 2],
    top: [usize; 2],
}

impl FreeSlots {
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

    /// Takes a slot. Returns false if it was already taken.
    pub(super) fn take(&mut self, slot: u32) -> bool {
        let (class, index) = (self.split.class(slot), self.split.index(slot));
        let (taken, ..) = self.side(class);
        match usize::try_from(index).ok().and_then(|index| taken.get_mut(index)) {
            Some(taken) => !std::mem::replace(taken, true),
            None => true,
        }
    }

    /// Takes the lowest free slot of a class. Amortised constant time, because slots are never
    /// returned.
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

    /// Takes the highest free slot of a class among its first `quota`. Amortised constant time for
    /// one quota.
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
