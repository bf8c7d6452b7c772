//! Cache of placement: workloads, ReplicaSets, pods, PodDisruptionBudgets, namespaces and node
//! classes, filled by watches.
//!
//! Owns the indexes and turns them into the input of a decision. Pure: no requests, no clock. Of
//! two versions of an object the newer one stays, in whichever order they arrive.

mod entry;
mod freshness;
mod nodes;
mod shared;
mod update;
mod watched;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::{SignedDuration, Timestamp};
use kube::core::SelectorExt as _;
use perennial_core::placement::{
    Class,
    spec::{AnnotationRules, parse},
    workload::{
        ClusterNodes, NodeView, PdbView, PendingWrites, PodView, ReplicaSetView, RequestedSpec, Workload, WorkloadView,
    },
};

pub use self::{
    entry::{
        MANAGED, NamespaceEntry, PdbEntry, PodEntry, Reading, SetEntry, WorkloadEntry, controller, deployment,
        namespace_entry, pod_entry, stateful_set,
    },
    shared::{OverduePod, OwnerLookup, SharedCache, Step},
    watched::Watched,
};
use self::{
    nodes::{Nodes, PodConstraints},
    watched::Lists,
};
use super::{Key, refusals::Refusals, reservations::Reservations, settings::Configured};
use crate::runtime::{events::EventObject, map::HashMap};

/// Keys of the workloads to be reconciled.
pub type Affected = Vec<Key>;

/// Returns the part of a key that determines its shard: `namespace/name`.
pub fn shard_key(key: &str) -> &str {
    key.split_once('/').map_or(key, |(_, name)| name)
}

pub fn key(kind: &str, namespace: &str, name: &str) -> Key {
    Arc::from(format!("{}/{namespace}/{name}", kind.to_ascii_lowercase()))
}

pub fn key_of(workload: &WorkloadView) -> Key {
    key(workload.kind.as_str(), &workload.namespace, &workload.name)
}

/// Returns the object that Events of a workload refer to.
pub fn about(workload: &WorkloadView) -> EventObject {
    EventObject {
        api_version: "apps/v1",
        kind: workload.kind.as_str(),
        namespace: Some(workload.namespace.clone()),
        name: workload.name.clone(),
        uid: workload.uid.clone(),
    }
}

/// Parses a resourceVersion for comparison.
pub fn version(text: &str) -> u64 {
    text.parse().unwrap_or_default()
}

/// Returns whether the breaker of a workload is open.
fn is_short(workload: &WorkloadEntry) -> bool {
    workload.view.state.is_some() && workload.view.state().breaker.is_open()
}

#[derive(Debug, Default)]
pub struct Cache {
    namespaces: HashMap<String, NamespaceEntry>,
    workloads: HashMap<Key, WorkloadEntry>,
    by_uid: HashMap<String, Key>,
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
    room: HashMap<Key, RoomFindings>,
    lists: Lists,
}

/// Time for which a node without room for a workload's pods is no evidence of capacity.
const FULL_FOR: SignedDuration = SignedDuration::from_mins(5);

/// Results of comparing the requests of a workload's pods with the room on nodes.
#[derive(Debug, Default)]
struct RoomFindings {
    /// Nodes without room, and when that was found.
    full: HashMap<String, Timestamp>,
    /// When room was last searched for, and found.
    searched: Option<Timestamp>,
    found: Option<Timestamp>,
}

impl Cache {
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
    /// StatefulSet itself.
    pub fn key_of_owner(&self, uid: &str) -> Option<&Key> {
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
        let replica_sets = sets
            .iter()
            .map(|set| ReplicaSetView {
                uid: set.uid.clone(),
                replicas: set.replicas,
                newest: Some(set.revision) == newest,
                observed: set.observed,
            })
            .collect();
        let owners = std::iter::once(uid).chain(sets.iter().map(|set| set.uid.as_str()));
        let pdbs = self.pdbs.get(&workload.view.namespace).into_iter().flatten();
        let pdbs = pdbs
            .filter(|(_, pdb)| pdb.selector.as_ref().is_some_and(|s| s.matches(&workload.template_labels)))
            .map(|(name, pdb)| PdbView { name: name.clone(), disruptions_allowed: pdb.allowed });
        let nodes = if is_short(workload) { self.nodes_for(workload) } else { self.nodes.counts() };
        Some(Workload {
            view: workload.view.clone(),
            nodes,
            spec: self.spec(workload, &configured.annotations),
            replica_sets,
            pods: owners.flat_map(|owner| self.pods_of(owner)).collect(),
            pdbs: pdbs.collect(),
            pending: PendingWrites::default(),
            settings: Arc::clone(&configured.settings),
            now,
        })
    }

    /// Returns the nodes as far as the pods of a workload may use them. Room that was found on a
    /// spot node counts as a new node.
    fn nodes_for(&self, workload: &WorkloadEntry) -> ClusterNodes {
        let mut nodes = self.nodes.for_pods(self.constraints(workload));
        let found = self.room.get(&workload.key).and_then(|room| room.found);
        nodes.spot.usable_since = nodes.spot.usable_since.max(found);
        nodes
    }

    fn constraints<'a>(&'a self, workload: &'a WorkloadEntry) -> PodConstraints<'a> {
        PodConstraints {
            full: self.room.get(&workload.key).map(|room| &room.full),
            selector: &workload.node_selector,
            tolerations: &workload.tolerations,
        }
    }

    /// Returns the newest spot nodes that the pods of a workload may use.
    pub fn spot_nodes(&self, key: &str, limit: usize) -> Vec<String> {
        let Some(workload) = self.workloads.get(key) else { return Vec::new() };
        let usable = self.nodes.usable(Class::Spot, self.constraints(workload));
        usable.take(limit).map(|(_, node)| node.name.clone()).collect()
    }

    /// Notes the result of a search for room: the nodes without, and whether there was one with.
    pub fn store_room(&mut self, key: &Key, full: Vec<String>, found: bool, now: Timestamp) {
        let Self { room, workloads, .. } = self;
        room.retain(|known, _| workloads.contains_key(known));
        let findings = room.entry(Arc::clone(key)).or_default();
        findings.full.retain(|_, since| now < *since + FULL_FOR);
        findings.full.extend(full.into_iter().map(|node| (node, now)));
        findings.searched = Some(now);
        findings.found = found.then_some(now);
    }

    /// Returns when room for the pods of a workload was last searched for.
    pub fn room_searched(&self, key: &str) -> Option<Timestamp> {
        self.room.get(key)?.searched
    }

    fn pods_of(&self, owner: &str) -> impl Iterator<Item = PodView> {
        let uids = self.pods_of.get(owner).into_iter().flatten();
        uids.filter_map(|uid| self.pods.get(uid)).map(|pod| {
            let gone = NodeView { class: None, leaving: true };
            let node = pod.node.as_deref().map(|node| self.nodes.get(node).unwrap_or(gone));
            PodView { node, ..pod.view.clone() }
        })
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
        let keys: BTreeSet<&Key> = here.filter_map(|pod| self.key_of_owner(&pod.view.owner)).collect();
        keys.into_iter().cloned().collect()
    }

    /// Returns the workloads for which a class is short.
    fn keys_of_short(&self) -> Affected {
        self.workloads
            .values()
            .filter(|workload| is_short(workload))
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
