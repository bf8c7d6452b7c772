//! State of the model: one Deployment with two ReplicaSets and a few pods, in small integers.

use std::fmt;

pub(crate) const PODS: usize = 6;
pub(crate) const ANY: u8 = 0;
pub(crate) const SPOT: u8 = 1;
pub(crate) const ON_DEMAND: u8 = 2;
pub(crate) const NO_SLOT: u8 = 9;

/// `uid` 0 is no pod. Of two pods the one with the lower UID is the older.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub(crate) struct Pod {
    pub(crate) uid: u8,
    /// Its ReplicaSet, 0 or 1.
    pub(crate) set: u8,
    pub(crate) gated: bool,
    /// Class in its nodeSelector.
    pub(crate) choice: u8,
    pub(crate) slot: u8,
    /// Its deletion cost is the slot's; otherwise it has none.
    pub(crate) costs: bool,
    pub(crate) node: u8,
    pub(crate) ready: bool,
    pub(crate) deleting: bool,
    /// Only in the operator's cache: evicted, and the deletion not delivered yet.
    pub(crate) evicted: bool,
}

impl Pod {
    pub(crate) fn is_live(&self) -> bool {
        self.uid != 0 && !self.deleting
    }

    pub(crate) fn class(&self) -> u8 {
        if self.choice == ANY { self.node } else { self.choice }
    }

    pub(crate) fn is_ready_on_demand(&self) -> bool {
        self.is_live() && self.ready && self.node == ON_DEMAND
    }
}

/// The pods, oldest first, then empty places.
pub(crate) type Pods = [Pod; PODS];

/// The Deployment and its ReplicaSets.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub(crate) struct Workload {
    pub(crate) replicas: u8,
    /// Index of the requested percentage.
    pub(crate) percentage: u8,
    pub(crate) newest: u8,
    /// Requested pods of each ReplicaSet.
    pub(crate) wanted: [u8; 2],
    /// Status that the controllers report: whether each ReplicaSet has as many, whether the
    /// Deployment's has nothing to do, and how many replicas, updated and available ones there are.
    /// Only in what the operator sees; see [`State::reported`].
    pub(crate) observed: [bool; 2],
    pub(crate) seen: bool,
    pub(crate) status: [u8; 3],
    /// The cooldown of the last move is running.
    pub(crate) cooling: bool,
}

/// A place assigned in a create.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub(crate) struct Expected {
    pub(crate) on: bool,
    pub(crate) set: u8,
    pub(crate) class: u8,
    pub(crate) slot: u8,
    /// Its pod never appears: another webhook rejected the create.
    pub(crate) refused: bool,
}

/// Remaining budget of each step.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub(crate) struct Budget {
    pub(crate) scales: u8,
    pub(crate) policies: u8,
    pub(crate) rollouts: u8,
    /// Deletions of nodes.
    pub(crate) losses: u8,
    /// Pods that bypass the webhook.
    pub(crate) misses: u8,
    /// Creates that are rejected after the webhook answered.
    pub(crate) refusals: u8,
    pub(crate) crashes: u8,
}

/// Outside steps since the last exact rest.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub(crate) enum Since {
    #[default]
    Anything,
    Nothing,
    /// Scale-ups only, which need no move.
    Growth,
    /// One scale-down or one lost node, which need no move.
    OneChange,
    /// One rollout.
    Rollout,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub(crate) enum Broken {
    #[default]
    Nothing,
    FloorByMove,
    FloorInRollout,
    MovedWhileCooling,
    MovedTwoAtOnce,
    MovedForNothing,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct State {
    pub(crate) pods: Pods,
    pub(crate) workload: Workload,
    /// The operator's cache of them.
    pub(crate) seen_pods: Pods,
    pub(crate) seen_workload: Workload,
    pub(crate) expected: [Expected; 2],
    /// Places for the next pods by the last decision: set, class and slot.
    pub(crate) open: [(u8, u8, u8); 2],
    /// The operator evicted a pod.
    pub(crate) moved: bool,
    /// Evictions since the last outside step.
    pub(crate) moves: u8,
    pub(crate) since: Since,
    pub(crate) left: Budget,
    pub(crate) broken: Broken,
}

impl State {
    pub(crate) fn live(&self, set: u8) -> impl Iterator<Item = &Pod> {
        self.pods.iter().filter(move |pod| pod.is_live() && pod.set == set)
    }

    pub(crate) fn count(&self, set: u8) -> u8 {
        self.live(set).count() as u8
    }

    /// Returns the Deployment with its status. `idle`: its controller has nothing to do.
    pub(crate) fn reported(&self, idle: bool) -> Workload {
        let observed = [0, 1].map(|set| self.count(set) == self.workload.wanted[set as usize]);
        Workload { observed, seen: idle, status: self.truth(), ..self.workload }
    }

    /// Returns the current status.
    pub(crate) fn truth(&self) -> [u8; 3] {
        let ready = self.pods.iter().filter(|pod| pod.is_live() && pod.ready).count() as u8;
        [self.count(0) + self.count(1), self.count(self.workload.newest), ready]
    }

    pub(crate) fn ready_on_demand(&self) -> u8 {
        self.pods.iter().filter(|pod| pod.is_ready_on_demand()).count() as u8
    }

    pub(crate) fn has_room(&self) -> bool {
        self.pods[PODS - 1].uid == 0
    }

    pub(crate) fn add(&mut self, pod: Pod) {
        let uid = 1 + self.pods.iter().chain(&self.seen_pods).map(|pod| pod.uid).max().unwrap_or_default();
        if let Some(place) = self.pods.iter_mut().find(|pod| pod.uid == 0) {
            *place = Pod { uid, ..pod };
        }
    }

    pub(crate) fn remove(&mut self, index: usize) {
        self.pods[index] = Pod::default();
        self.pods[index..].rotate_left(1);
    }

    /// Normalises UIDs.
    pub(crate) fn normalise(&mut self) {
        let mut used = 0u64;
        for pod in self.pods.iter().chain(&self.seen_pods) {
            used |= 1 << pod.uid;
        }
        used &= !1;
        for pod in self.pods.iter_mut().chain(&mut self.seen_pods).filter(|pod| pod.uid != 0) {
            pod.uid = (used & ((2 << pod.uid) - 1)).count_ones() as u8;
        }
    }
}

impl fmt::Display for Pod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |class: u8| ["any", "spot", "on-demand"][class as usize];
        write!(f, "P{} of R{}", self.uid, self.set)?;
        if self.gated {
            return f.write_str(" gated");
        }
        write!(f, " {}", name(self.choice))?;
        if self.slot != NO_SLOT {
            write!(f, " slot {}", self.slot)?;
        }
        if self.node != ANY {
            write!(f, " on {}", name(self.node))?;
        }
        let (ready, going) = (if self.ready { " ready" } else { "" }, if self.deleting { " going" } else { "" });
        write!(f, "{ready}{going}")
    }
}
