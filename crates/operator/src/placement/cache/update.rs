//! Changes of the cache by single objects and by complete lists.

use std::{collections::BTreeSet, sync::Arc};

use jiff::Timestamp;
use perennial_core::placement::workload::NodeView;

use super::{
    super::{WorkloadKey, settings::Configured},
    PlacementCache,
    entry::{NamespaceEntry, PdbEntry, PodEntry, SetEntry, WorkloadEntry},
    is_short,
    nodes::{NodeChange, NodeLabelling, UsableNode},
    version,
};
use crate::runtime::map::HashMap;

impl PlacementCache {
    pub fn put_namespace(&mut self, name: &str, entry: NamespaceEntry) {
        self.namespaces.insert(name.to_owned(), entry);
    }

    pub fn remove_namespace(&mut self, name: &str) {
        self.namespaces.remove(name);
    }

    /// Stores a workload. Returns false if the cache has the same version or a newer one.
    pub fn put_workload(&mut self, workload: WorkloadEntry) -> bool {
        if let Some(old) = self.workloads.get(&workload.key) {
            let same = old.view.uid == workload.view.uid;
            if same && version(&old.view.resource_version) >= version(&workload.view.resource_version) {
                return false;
            }
            if !same {
                let uid = old.view.uid.clone();
                self.by_uid.remove(&uid);
            }
        }
        if let Some(room) = self.room.get_mut(&workload.key).filter(|_| !is_short(&workload.view)) {
            room.end_shortage();
        }
        self.by_uid.insert(workload.view.uid.clone(), Arc::clone(&workload.key));
        self.workloads.insert(Arc::clone(&workload.key), workload);
        true
    }

    pub fn remove_workload(&mut self, key: &WorkloadKey) {
        if let Some(old) = self.workloads.remove(key) {
            self.by_uid.remove(&old.view.uid);
        }
    }

    /// Stores a ReplicaSet. Returns false if the cache has the same version or a newer one.
    pub fn put_set(&mut self, set: SetEntry) -> bool {
        if self.sets.get(&set.uid).is_some_and(|old| old.resource_version >= set.resource_version) {
            return false;
        }
        let uid = set.uid.clone();
        if let Some(owner) = self.sets.get_mut(&uid).and_then(|old| old.owner.take()) {
            remove_from(&mut self.sets_of, &owner, &uid);
            if set.owner.as_ref() != Some(&owner) {
                self.reservations.forget(&uid);
            }
        }
        if let Some(owner) = &set.owner {
            self.sets_of.entry(owner.clone()).or_default().insert(uid.clone());
        }
        self.sets.insert(uid, set);
        true
    }

    pub fn remove_set(&mut self, uid: &str) {
        let Some(old) = self.sets.remove(uid) else { return };
        self.reservations.forget(uid);
        if let Some(owner) = old.owner {
            remove_from(&mut self.sets_of, &owner, uid);
        }
    }

    /// Stores a pod. Returns false if the cache has the same version or a newer one.
    pub fn put_pod(&mut self, pod: PodEntry) -> bool {
        if let Some(old) = self.pods.get(&pod.view.uid) {
            if version(&old.view.resource_version) >= version(&pod.view.resource_version) {
                return false;
            }
            if old.view.owner != pod.view.owner {
                let (owner, uid) = (old.view.owner.clone(), pod.view.uid.clone());
                remove_from(&mut self.pods_of, &owner, &uid);
            }
        } else if let Some(slot) = pod.view.slot {
            self.reservations.fulfil(&pod.view.owner, slot);
        } else if let Some(ordinal) = pod.view.ordinal {
            self.refusals.fulfil(&pod.view.owner, ordinal);
        }
        self.pods_of.entry(pod.view.owner.clone()).or_default().insert(pod.view.uid.clone());
        self.pods.insert(pod.view.uid.clone(), pod);
        true
    }

    /// Removes a pod, and with the last one the workload of a controller that is not read.
    pub fn remove_pod(&mut self, uid: &str) -> Option<PodEntry> {
        let old = self.pods.remove(uid)?;
        let owner = &old.view.owner;
        remove_from(&mut self.pods_of, owner, uid);
        if !self.pods_of.contains_key(owner)
            && let Some(workload) = self.workload_by_uid(owner).filter(|workload| !workload.view.kind.has_known_size())
        {
            let key = Arc::clone(&workload.key);
            self.remove_workload(&key);
        }
        Some(old)
    }

    /// Removes the pods of these owners that a list of version `as_of` does not contain. Pods newer
    /// than the list are kept.
    pub fn retain_pods_of(&mut self, owners: &[&str], as_of: u64, listed: impl Fn(&str) -> bool) {
        let known = owners.iter().filter_map(|owner| self.pods_of.get(*owner)).flatten();
        let gone = known.filter(|uid| {
            !listed(uid) && self.pods.get(*uid).is_some_and(|pod| version(&pod.view.resource_version) <= as_of)
        });
        let gone: Vec<String> = gone.cloned().collect();
        for uid in &gone {
            self.remove_pod(uid);
        }
    }

    /// Stores a PodDisruptionBudget and returns its former entry.
    pub fn put_pdb(&mut self, namespace: &str, name: &str, pdb: PdbEntry) -> Option<PdbEntry> {
        self.pdbs.entry(namespace.to_owned()).or_default().insert(name.to_owned(), pdb)
    }

    pub fn remove_pdb(&mut self, namespace: &str, name: &str) {
        if let Some(here) = self.pdbs.get_mut(namespace) {
            here.remove(name);
        }
    }

    /// Stores a node. `usable`: the node accepts pods, since `at` if it did not before.
    pub fn put_node(
        &mut self,
        name: &str,
        node: (NodeView, NodeLabelling),
        usable: Option<UsableNode>,
        at: Timestamp,
    ) -> NodeChange {
        let change = self.nodes.put(name, node, usable, at);
        if change.became_usable {
            self.room.values_mut().for_each(|room| room.forget_node(name));
        }
        change
    }

    /// Adapts the configuration to the label schemes that the nodes indicate, and everything in the
    /// cache to the configuration. Returns whether that changed anything.
    pub fn detect_schemes(&mut self, configured: &mut Arc<Configured>) -> bool {
        let detected = self.nodes.detected();
        if detected == configured.detected() || !Arc::make_mut(configured).detect(detected) {
            return false;
        }
        let active = configured.active;
        self.nodes.reclassify(active);
        for workload in self.workloads.values_mut() {
            workload.view.template = workload.classes.choice(active);
        }
        for pod in self.pods.values_mut() {
            pod.view.choice = pod.classes.choice(active);
        }
        true
    }

    pub fn remove_node(&mut self, name: &str) {
        self.nodes.remove(name);
    }

    pub(super) fn begin_node_list(&mut self) {
        self.nodes.begin_list();
    }

    pub(super) fn end_node_list(&mut self) {
        self.nodes.end_list();
    }

    pub(super) fn retain_namespaces(&mut self, keep: impl Fn(&str) -> bool) {
        self.namespaces.retain(|name, _| keep(name));
    }

    pub(super) fn retain_pdbs(&mut self, keep: impl Fn(&str) -> bool) {
        for (namespace, here) in &mut self.pdbs {
            here.retain(|name, _| keep(&format!("{namespace}/{name}")));
        }
    }

    pub(super) fn retain_workloads(&mut self, kind: &str, keep: impl Fn(&str) -> bool) {
        let is_kind =
            |workload: &&WorkloadEntry| workload.view.kind.has_known_size() && workload.view.kind.as_str() == kind;
        let of_kind = self.workloads.values().filter(is_kind);
        let gone = of_kind.filter(|workload| !keep(&workload.view.uid));
        let gone: Vec<WorkloadKey> = gone.map(|workload| Arc::clone(&workload.key)).collect();
        for key in &gone {
            self.remove_workload(key);
        }
    }

    pub(super) fn retain_sets(&mut self, keep: impl Fn(&str) -> bool) {
        let gone: Vec<String> = self.sets.keys().filter(|uid| !keep(uid)).cloned().collect();
        for uid in &gone {
            self.remove_set(uid);
        }
        self.retain_workloads("ReplicaSet", keep);
    }

    pub(super) fn retain_pods(&mut self, keep: impl Fn(&str) -> bool) {
        let gone: Vec<String> = self.pods.keys().filter(|uid| !keep(uid)).cloned().collect();
        for uid in &gone {
            self.remove_pod(uid);
        }
    }
}

fn remove_from(map: &mut HashMap<String, BTreeSet<String>>, owner: &str, uid: &str) {
    if let Some(all) = map.get_mut(owner) {
        all.remove(uid);
        if all.is_empty() {
            map.remove(owner);
        }
    }
}
