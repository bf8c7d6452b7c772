//! Cache of placement: workloads, ReplicaSets, pods, PodDisruptionBudgets, namespaces and node
//! classes, filled by watches.
//!
//! Owns the indexes and turns them into the input of a decision. Pure: no requests, no clock. Of
//! two versions of an object the newer one stays, in whichever order they arrive.

mod entry;
mod freshness;
mod nodes;
mod room;
mod shared;
mod update;
mod watched;

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::{SignedDuration, Timestamp};
use kube::core::SelectorExt as _;
use perennial_core::placement::{
    Class,
    node_labels::Choice,
    spec::{AnnotationRules, parse},
    state::PlacementState,
    workload::{
        ClusterNodes, Kind, NodeView, PdbView, PendingWrites, PodView, ReplicaSetView, RequestedSpec, Workload,
        WorkloadView,
    },
};

pub use self::{
    entry::{
        MANAGED, NamespaceEntry, PdbEntry, PodEntry, Reading, SetEntry, WorkloadEntry, controller, deployment, is_apps,
        may_be_managed, namespace_entry, other_controller, pod_entry, replica_set, stateful_set,
    },
    room::RoomSearched,
    shared::{OverduePod, OwnerLookup, SharedCache, Step},
    watched::Watched,
};
use self::{
    nodes::{Nodes, PodConstraints},
    room::RoomFindings,
    watched::Lists,
};
use super::{WorkloadKey, refusals::Refusals, reservations::Reservations, settings::Configured};
use crate::runtime::{events::EventObject, map::HashMap};

/// Time for which volumes that restrict nothing are not read again.
const VOLUME_FOR: SignedDuration = SignedDuration::from_mins(1);

/// The result of a read of a pod's volumes.
#[derive(Clone, Copy, Debug)]
pub struct VolumesRead {
    /// Classes in which the volumes can be used.
    pub choice: Choice,
    pub at: Timestamp,
    /// The pod had a node before the read, so that its claims were bound.
    pub bound: bool,
}

/// Keys of the workloads to be reconciled.
pub type Affected = Vec<WorkloadKey>;

/// Returns the part of a key that determines its shard: `namespace/name`.
pub fn shard_key(key: &str) -> &str {
    key.split_once('/').map_or(key, |(_, name)| name)
}

pub fn key(kind: &str, namespace: &str, name: &str) -> WorkloadKey {
    Arc::from(format!("{}/{namespace}/{name}", kind.to_ascii_lowercase()))
}

pub fn key_of(workload: &WorkloadView) -> WorkloadKey {
    let name = match &workload.kind {
        // Kinds of different groups may have the same name.
        Kind::Other { api_version, kind } => match api_version.split_once('/') {
            Some((group, _)) => Cow::from(format!("{kind}.{group}")),
            None => Cow::from(&**kind),
        },
        apps => Cow::from(apps.as_str()),
    };
    key(&name, &workload.namespace, &workload.name)
}

/// Returns the object that Events of a workload refer to.
pub fn about(workload: &WorkloadView) -> EventObject {
    EventObject {
        api_version: workload.kind.api_version().to_owned().into(),
        kind: workload.kind.as_str().to_owned().into(),
        namespace: Some(workload.namespace.clone()),
        name: workload.name.clone(),
        uid: workload.uid.clone(),
    }
}

/// Parses a resourceVersion for comparison.
pub fn version(text: &str) -> u64 {
    text.parse().unwrap_or_default()
}

/// Returns whether a class is short for a workload.
fn is_short(workload: &WorkloadView) -> bool {
    workload.state.is_some() && has_shortage(&workload.state())
}

fn has_shortage(state: &PlacementState) -> bool {
    state.breaker.is_open() || state.on_demand.is_open()
}

#[derive(Debug, Default)]
pub struct PlacementCache {
    namespaces: HashMap<String, NamespaceEntry>,
    workloads: HashMap<WorkloadKey, WorkloadEntry>,
    by_uid: HashMap<String, WorkloadKey>,
    sets: HashMap<String, SetEntry>,
    /// UIDs of ReplicaSets by UID of their Deployment.
    sets_of: HashMap<String, BTreeSet<String>>,
    pods: HashMap<String, PodEntry>,
    /// UIDs of pods by UID of their controller.
    pods_of: HashMap<String, BTreeSet<String>>,
    /// By namespace and name.
    pdbs: HashMap<String, BTreeMap<String, PdbEntry>>,
    nodes: Nodes,
    reservations: Reservations,
    refusals: Refusals,
    room: HashMap<WorkloadKey, RoomFindings>,
    /// Volumes of pods that were read, by the UID of the pod.
    volumes: HashMap<String, VolumesRead>,
    /// States of workloads whose controllers cannot be annotated.
    states: HashMap<WorkloadKey, String>,
    lists: Lists,
}

impl PlacementCache {
    /// Returns whether every list was read: an object that is not in the cache does not exist.
    pub fn is_synced(&self) -> bool {
        self.lists.is_synced()
    }

    /// Returns whether the nodes were listed, so that their label schemes are known.
    pub fn has_nodes(&self) -> bool {
        self.lists.has_nodes()
    }

    /// Returns every workload, or none before the cache is synced.
    pub fn all_affected(&self) -> Affected {
        if self.is_synced() { self.workloads.keys().cloned().collect() } else { Affected::new() }
    }

    pub fn workload(&self, key: &str) -> Option<&WorkloadEntry> {
        self.workloads.get(key)
    }

    pub fn workload_by_uid(&self, uid: &str) -> Option<&WorkloadEntry> {
        self.workloads.get(self.by_uid.get(uid)?)
    }

    pub fn workloads(&self) -> impl Iterator<Item = &WorkloadEntry> {
        self.workloads.values()
    }

    pub fn set(&self, uid: &str) -> Option<&SetEntry> {
        self.sets.get(uid)
    }

    pub fn pod(&self, uid: &str) -> Option<&PodEntry> {
        self.pods.get(uid)
    }

    pub fn pods(&self) -> impl Iterator<Item = &PodEntry> {
        self.pods.values()
    }

    pub fn namespace(&self, name: &str) -> Option<&NamespaceEntry> {
        self.namespaces.get(name)
    }

    pub fn refusals(&mut self) -> &mut Refusals {
        &mut self.refusals
    }

    pub fn reservations(&mut self) -> &mut Reservations {
        &mut self.reservations
    }

    /// Returns the workload that a controller belongs to: a ReplicaSet's Deployment, or the
    /// controller itself.
    pub fn key_of_owner(&self, uid: &str) -> Option<&WorkloadKey> {
        let workload = self.sets.get(uid).and_then(|set| set.owner.as_deref()).unwrap_or(uid);
        self.by_uid.get(workload)
    }

    /// Returns the requested placement of a cached workload.
    pub fn spec(&self, workload: &WorkloadEntry, rules: &AnnotationRules) -> RequestedSpec {
        match self.namespaces.get(&workload.view.namespace) {
            Some(namespace) if namespace.selected => parse(rules, &namespace.annotations, &workload.annotations),
            _ => Ok(None),
        }
    }

    /// Returns a workload with everything that a decision about it depends on, pending writes
    /// excepted.
    pub fn observe(&self, key: &str, configured: &Configured, now: Timestamp) -> Option<Workload> {
        let workload = self.workloads.get(key)?;
        let uid = workload.view.uid.as_str();
        let sets: Vec<&SetEntry> =
            self.sets_of.get(uid).into_iter().flatten().filter_map(|set| self.sets.get(set)).collect();
        let newest = sets.iter().map(|set| set.revision).max();
        let owners = std::iter::once(uid).chain(sets.iter().map(|set| set.uid.as_str()));
        let pods: Vec<PodView> = owners.flat_map(|owner| self.pods_of(owner, now)).collect();
        let view = self.sized(workload, &pods);
        let own = match &view.kind {
            Kind::ReplicaSet => self.sets.get(uid).map(|set| (set.replicas, set.observed)),
            Kind::Other { .. } => Some((view.replicas, true)),
            Kind::Deployment | Kind::StatefulSet { .. } => None,
        };
        let own = own.map(|(replicas, observed)| {
            let uid = uid.to_owned();
            ReplicaSetView { uid, replicas, newest: true, observed }
        });
        let replica_sets = sets
            .iter()
            .map(|set| ReplicaSetView {
                uid: set.uid.clone(),
                replicas: set.replicas,
                newest: Some(set.revision) == newest,
                observed: set.observed,
            })
            .chain(own)
            .collect();
        let pdbs = self.pdbs.get(&workload.view.namespace).into_iter().flatten();
        let pdbs = pdbs
            .filter(|(_, pdb)| pdb.selector.as_ref().is_some_and(|s| s.matches(&workload.template_labels)))
            .map(|(name, pdb)| PdbView { name: name.clone(), disruptions_allowed: pdb.allowed });
        let nodes = self.nodes_for(workload, &view);
        Some(Workload {
            view,
            nodes,
            spec: self.spec(workload, &configured.annotations),
            replica_sets,
            pods,
            pdbs: pdbs.collect(),
            pending: PendingWrites::default(),
            settings: Arc::clone(&configured.settings),
            now,
        })
    }

    /// Returns the view of a workload, with the numbers of its pods if its controller is not read.
    fn sized(&self, workload: &WorkloadEntry, pods: &[PodView]) -> WorkloadView {
        let mut view = workload.view.clone();
        if !view.kind.has_known_size() {
            let counted = |filter: fn(&PodView) -> bool| {
                let count = pods.iter().filter(|pod| pod.occupies() && filter(pod)).count();
                u32::try_from(count).unwrap_or(u32::MAX)
            };
            let (all, ready) = (counted(|_| true), counted(|pod| pod.ready));
            (view.replicas, view.current, view.updated, view.updated_target) = (all, all, all, all);
            view.available = ready;
            view.state = self.states.get(&workload.key).cloned();
        }
        view
    }

    /// Stores the state of a workload whose controller cannot be annotated. It is lost when this
    /// process ends: a shortage is then detected again.
    pub fn store_state(&mut self, key: &WorkloadKey, state: String) {
        let Self { states, workloads, .. } = self;
        states.retain(|known, _| workloads.contains_key(known));
        states.insert(Arc::clone(key), state);
    }

    /// Returns the nodes as far as the pods of a workload may use them.
    fn nodes_for(&self, workload: &WorkloadEntry, view: &WorkloadView) -> ClusterNodes {
        let short = is_short(view);
        let mut nodes = if short { self.nodes.for_pods(self.constraints(workload)) } else { self.nodes.counts() };
        if let Some(room) = self.room.get(&workload.key) {
            nodes.spot.room_found = room.found(Class::Spot);
            nodes.on_demand.room_found = room.found(Class::OnDemand);
        }
        nodes
    }

    fn constraints<'a>(&'a self, workload: &'a WorkloadEntry) -> PodConstraints<'a> {
        PodConstraints {
            room: self.room.get(&workload.key),
            selector: &workload.node_selector,
            affinity: workload.node_affinity.as_ref(),
            tolerations: &workload.tolerations,
        }
    }

    /// Returns the newest nodes of a class that may have room for the pods of a workload. `again`:
    /// those whose room was reason for an eviction before, too.
    pub fn nodes_to_search(&self, key: &str, class: Class, again: bool, limit: usize) -> Vec<String> {
        let Some(workload) = self.workloads.get(key) else { return Vec::new() };
        let room = self.room.get(key);
        let is_used = |node: &str| !again && room.is_some_and(|room| room.is_used(node));
        let usable = self.nodes.usable(class, self.constraints(workload)).map(|(_, node)| &node.name);
        usable.filter(|node| !is_used(node)).take(limit).cloned().collect()
    }

    /// Notes the result of a search for room.
    pub fn store_room(&mut self, key: &WorkloadKey, class: Class, result: RoomSearched, now: Timestamp) {
        let Self { room, workloads, .. } = self;
        room.retain(|known, _| workloads.contains_key(known));
        room.entry(Arc::clone(key)).or_default().store(class, result, now);
    }

    /// Returns when room for the pods of a workload was last searched for.
    pub fn room_searched(&self, key: &str) -> Option<Timestamp> {
        self.room.get(key)?.searched()
    }

    fn pods_of(&self, owner: &str, now: Timestamp) -> impl Iterator<Item = PodView> {
        let uids = self.pods_of.get(owner).into_iter().flatten();
        uids.filter_map(|uid| self.pods.get(uid)).map(move |pod| {
            let gone = NodeView { class: None, leaving: true };
            let node = pod.node.as_deref().map(|node| self.nodes.get(node).unwrap_or(gone));
            let volume = pod.view.volume.or_else(|| self.volume(pod, now));
            PodView { node, volume, ..pod.view.clone() }
        })
    }

    /// Returns the classes in which the volumes of a pod can be used, if they were read. A claim that
    /// restricts nothing may be bound later, at the latest when its pod is.
    fn volume(&self, pod: &PodEntry, now: Timestamp) -> Option<Choice> {
        let VolumesRead { choice, at, bound } = *self.volumes.get(&pod.view.uid)?;
        let may_be_bound_since = pod.node.is_some() && !bound || now >= at + VOLUME_FOR;
        (choice != Choice::Any || !may_be_bound_since).then_some(choice)
    }

    /// Notes the classes in which the volumes of a pod can be used.
    pub fn store_volume(&mut self, uid: &str, read: VolumesRead) {
        let Self { volumes, pods, .. } = self;
        volumes.retain(|known, _| pods.contains_key(known));
        volumes.insert(uid.to_owned(), read);
    }

    /// Returns whether a cached pod of the workload matches.
    pub fn has_pod(&self, key: &str, matches: impl Fn(&PodEntry) -> bool) -> bool {
        let Some(workload) = self.workloads.get(key) else { return false };
        let uid = &workload.view.uid;
        let owners = std::iter::once(uid).chain(self.sets_of.get(uid).into_iter().flatten());
        let mut pods = owners.filter_map(|owner| self.pods_of.get(owner)).flatten();
        pods.any(|pod| self.pods.get(pod).is_some_and(&matches))
    }

    fn keys_in(&self, namespace: &str) -> Affected {
        let here = self.workloads.values().filter(|workload| workload.view.namespace == namespace);
        here.map(|workload| Arc::clone(&workload.key)).collect()
    }

    /// Returns the workloads that have pods on a node.
    fn keys_on(&self, node: &str) -> Affected {
        let here = self.pods.values().filter(|pod| pod.node.as_deref() == Some(node));
        let keys: BTreeSet<&WorkloadKey> = here.filter_map(|pod| self.key_of_owner(&pod.view.owner)).collect();
        keys.into_iter().cloned().collect()
    }

    /// Returns the workloads for which a class is short.
    fn keys_of_short(&self) -> Affected {
        self.workloads
            .values()
            .filter(|workload| match self.states.get(&workload.key) {
                Some(state) => has_shortage(&PlacementState::read(Some(state)).0),
                None => is_short(&workload.view),
            })
            .map(|workload| Arc::clone(&workload.key))
            .collect()
    }

    /// Returns the number of nodes of each class.
    pub fn node_counts(&self) -> ClusterNodes {
        self.nodes.counts()
    }

    fn keys_of_owner(&self, uid: &str) -> Affected {
        self.key_of_owner(uid).cloned().into_iter().collect()
    }
}

#[cfg(test)]
mod tests;
