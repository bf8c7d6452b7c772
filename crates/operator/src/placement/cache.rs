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

use jiff::Timestamp;
use kube::core::SelectorExt as _;
use perennial_core::placement::{
    spec::parse,
    workload::{NodeView, PdbView, PendingWrites, PodView, ReplicaSetView, RequestedSpec, Workload, WorkloadView},
};

pub use self::{
    entry::{
        MANAGED, NamespaceEntry, PdbEntry, PodEntry, Reading, SetEntry, WorkloadEntry, controller, deployment,
        namespace_entry, pod_entry, stateful_set,
    },
    shared::{OverduePod, OwnerLookup, SharedCache, Step},
    watched::Watched,
};
use self::{nodes::Nodes, watched::Lists};
use super::{Key, reservations::Reservations, settings::Configured};
use crate::runtime::{events::About, map::HashMap};

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
pub fn about(workload: &WorkloadView) -> About {
    About {
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
    lists: Lists,
}

impl Cache {
    /// Returns whether every list was read: an object that is not in the cache does not exist.
    pub fn is_synced(&self) -> bool {
        self.lists.is_synced()
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
    pub fn spec(&self, workload: &WorkloadEntry, prefixes: &[String]) -> RequestedSpec {
        match self.namespaces.get(&workload.view.namespace) {
            Some(namespace) if namespace.selected => parse(prefixes, &namespace.annotations, &workload.annotations),
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
        Some(Workload {
            view: workload.view.clone(),
            spec: self.spec(workload, &configured.prefixes),
            replica_sets,
            pods: owners.flat_map(|owner| self.pods_of(owner)).collect(),
            pdbs: pdbs.collect(),
            pending: PendingWrites::default(),
            settings: Arc::clone(&configured.settings),
            now,
        })
    }

    fn pods_of(&self, owner: &str) -> impl Iterator<Item = PodView> {
        let uids = self.pods_of.get(owner).into_iter().flatten();
        uids.filter_map(|uid| self.pods.get(uid)).map(|pod| {
            let gone = NodeView { class: None, leaving: true };
            let node = pod.node.as_deref().map(|node| self.nodes.get(node).unwrap_or(gone));
            PodView { node, ..pod.view.clone() }
        })
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

    fn keys_of_owner(&self, uid: &str) -> Affected {
        self.key_of_owner(uid).cloned().into_iter().collect()
    }
}

#[cfg(test)]
mod tests;
