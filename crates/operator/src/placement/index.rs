//! What is known of workloads, their pods and where these run, by the ways in which it is asked for.
//!
//! Owns the caches of placement and turns them into what a decision needs. Pure: no requests, no clock. Of two versions of an
//! object the newer one stays, whichever way they came.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{BuildHasher, RandomState},
    sync::Arc,
};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference};
use perennial_core::placement::{
    action::Plan,
    labels::NodeLabels,
    rebalance::{Input, plan},
    spec::{Problem, Spec, Strength, parse},
    view::{NodeView, OwnWrites, PdbView, PodView, ReplicaSetView, Settings, WorkloadView},
};

use super::Key;
use super::{reservations::Places, settings::Configured};
use crate::runtime::{events::About, map::HashMap};

/// A Deployment or StatefulSet.
#[derive(Clone, Debug)]
pub struct Workload {
    pub key: Key,
    pub kind: &'static str,
    pub namespace: String,
    pub name: String,
    pub view: WorkloadView,
    /// Those that may say something about placement.
    pub annotations: BTreeMap<String, String>,
    pub selector: LabelSelector,
    pub template_labels: BTreeMap<String, String>,
}

impl Workload {
    pub fn about(&self) -> About {
        About {
            api_version: "apps/v1",
            kind: self.kind,
            namespace: Some(self.namespace.clone()),
            name: self.name.clone(),
            uid: self.view.uid.clone(),
        }
    }
}

/// The part of a key that decides its shard: `namespace/name`.
pub fn shard_key(key: &str) -> &str {
    key.split_once('/').map_or(key, |(_, name)| name)
}

pub fn key(kind: &str, namespace: &str, name: &str) -> Key {
    Arc::from(format!("{}/{namespace}/{name}", kind.to_ascii_lowercase()))
}

#[derive(Clone, Debug)]
pub struct SetEntry {
    pub uid: String,
    /// UID of the Deployment that controls it.
    pub owner: Option<String>,
    pub owner_name: Option<String>,
    pub resource_version: u64,
    pub revision: u64,
    pub replicas: u32,
    pub observed: bool,
}

#[derive(Clone, Debug)]
pub struct PodEntry {
    /// Without its node, which is looked up when it is asked for.
    pub view: PodView,
    pub namespace: String,
    pub node: Option<Arc<str>>,
    /// It carries our label, so the watch shows it.
    pub labelled: bool,
    /// How its class was to be put to the scheduler when it was gated.
    pub strength: Strength,
}

#[derive(Clone, Debug)]
pub struct PdbEntry {
    pub selector: Option<LabelSelector>,
    pub allowed: u32,
}

#[derive(Clone, Debug, Default)]
pub struct NamespaceEntry {
    pub selected: bool,
    pub annotations: BTreeMap<String, String>,
}

#[derive(Debug, Default)]
pub struct Index {
    namespaces: HashMap<String, NamespaceEntry>,
    workloads: HashMap<Key, Workload>,
    by_uid: HashMap<String, Key>,
    sets: HashMap<String, SetEntry>,
    sets_of: HashMap<String, BTreeSet<String>>,
    pods: HashMap<String, PodEntry>,
    pods_of: HashMap<String, BTreeSet<String>>,
    pdbs: HashMap<String, BTreeMap<String, PdbEntry>>,
    nodes: Nodes,
    /// What pods are given as they are created.
    pub places: Places,
}

/// What matters of every node. There may be very many, so their names are hashed, by keys that nobody knows: that two of a
/// hundred thousand have the same hash is as likely as one in four thousand million.
#[derive(Debug, Default)]
struct Nodes {
    entries: HashMap<u64, NodeEntry>,
    keys: RandomState,
}

#[derive(Clone, Copy, Debug)]
struct NodeEntry {
    view: NodeView,
    /// The list that comes in, or the last one, has named it.
    listed: bool,
}

impl Nodes {
    fn get(&self, name: &str) -> Option<NodeView> {
        self.entries.get(&self.keys.hash_one(name)).map(|node| node.view)
    }

    fn put(&mut self, name: &str, view: NodeView) -> bool {
        let before = self.entries.insert(self.keys.hash_one(name), NodeEntry { view, listed: true });
        before.map(|node| node.view) != Some(view)
    }

    fn remove(&mut self, name: &str) {
        self.entries.remove(&self.keys.hash_one(name));
    }
}

/// A workload and everything that a decision about it needs.
#[derive(Clone, Debug)]
pub struct Look {
    pub workload: Workload,
    /// `Ok(None)`: it asks for nothing.
    pub spec: Result<Option<Spec>, Vec<Problem>>,
    pub replica_sets: Vec<ReplicaSetView>,
    pub pods: Vec<PodView>,
    pub pdbs: Vec<PdbView>,
}

impl Look {
    /// What is to be done about the workload now.
    pub fn plan(&self, settings: &Settings, spec: &Spec, own: &OwnWrites, now: Timestamp) -> Plan {
        plan(&Input {
            settings,
            spec,
            workload: &self.workload.view,
            replica_sets: &self.replica_sets,
            pods: &self.pods,
            own,
            pdbs: &self.pdbs,
            now,
        })
    }
}

impl Index {
    pub fn workload(&self, key: &str) -> Option<&Workload> {
        self.workloads.get(key)
    }

    pub fn workload_by_uid(&self, uid: &str) -> Option<&Workload> {
        self.workloads.get(self.by_uid.get(uid)?)
    }

    pub fn workloads(&self) -> impl Iterator<Item = &Workload> {
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

    /// The workload that a pod's or a ReplicaSet's controller belongs to.
    pub fn key_of_owner(&self, uid: &str) -> Option<&Key> {
        let workload = self.sets.get(uid).and_then(|set| set.owner.as_deref()).unwrap_or(uid);
        self.by_uid.get(workload)
    }

    pub fn spec(&self, workload: &Workload, prefixes: &[String]) -> Result<Option<Spec>, Vec<Problem>> {
        match self.namespaces.get(&workload.namespace) {
            Some(namespace) if namespace.selected => parse(prefixes, &namespace.annotations, &workload.annotations),
            _ => Ok(None),
        }
    }

    /// Everything about one workload.
    pub fn look(&self, key: &str, prefixes: &[String]) -> Option<Look> {
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
        let pods = std::iter::once(uid).chain(sets.iter().map(|set| set.uid.as_str())).flat_map(|o| self.pods_of(o));
        let pdbs = self.pdbs.get(&workload.namespace).into_iter().flatten();
        let pdbs = pdbs
            .filter(|(_, pdb)| pdb.selector.as_ref().is_some_and(|s| selects(s, &workload.template_labels)))
            .map(|(name, pdb)| PdbView { name: name.clone(), disruptions_allowed: pdb.allowed })
            .collect();
        let spec = self.spec(workload, prefixes);
        Some(Look { workload: workload.clone(), spec, replica_sets, pods: pods.collect(), pdbs })
    }

    fn pods_of(&self, owner: &str) -> impl Iterator<Item = PodView> {
        let uids = self.pods_of.get(owner).into_iter().flatten();
        uids.filter_map(|uid| self.pods.get(uid)).map(|pod| {
            let gone = NodeView { class: None, leaving: true };
            let node = pod.node.as_deref().map(|node| self.nodes.get(node).unwrap_or(gone));
            PodView { node, ..pod.view.clone() }
        })
    }

    pub fn put_namespace(&mut self, name: &str, entry: NamespaceEntry) {
        self.namespaces.insert(name.to_owned(), entry);
    }

    pub fn remove_namespace(&mut self, name: &str) {
        self.namespaces.remove(name);
    }

    pub fn keys_in(&self, namespace: &str) -> Vec<Key> {
        let here = self.workloads.values().filter(|workload| workload.namespace == namespace);
        here.map(|workload| Arc::clone(&workload.key)).collect()
    }

    pub fn put_workload(&mut self, workload: Workload) -> bool {
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
        self.by_uid.insert(workload.view.uid.clone(), Arc::clone(&workload.key));
        self.workloads.insert(Arc::clone(&workload.key), workload);
        true
    }

    pub fn remove_workload(&mut self, key: &Key) {
        if let Some(old) = self.workloads.remove(key) {
            self.by_uid.remove(&old.view.uid);
        }
    }

    pub fn put_set(&mut self, set: SetEntry) -> bool {
        if self.sets.get(&set.uid).is_some_and(|old| old.resource_version >= set.resource_version) {
            return false;
        }
        let uid = set.uid.clone();
        if let Some(owner) = self.sets.get_mut(&uid).and_then(|old| old.owner.take()) {
            take(&mut self.sets_of, &owner, &uid);
            if set.owner.as_ref() != Some(&owner) {
                self.places.forget(&uid);
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
        self.places.forget(uid);
        if let Some(owner) = old.owner {
            take(&mut self.sets_of, &owner, uid);
        }
    }

    pub fn put_pod(&mut self, pod: PodEntry) -> bool {
        if let Some(old) = self.pods.get(&pod.view.uid) {
            if version(&old.view.resource_version) >= version(&pod.view.resource_version) {
                return false;
            }
            if old.view.owner != pod.view.owner {
                let (owner, uid) = (old.view.owner.clone(), pod.view.uid.clone());
                take(&mut self.pods_of, &owner, &uid);
            }
        } else if let Some(slot) = pod.view.slot {
            self.places.seen(&pod.view.owner, slot);
        }
        self.pods_of.entry(pod.view.owner.clone()).or_default().insert(pod.view.uid.clone());
        self.pods.insert(pod.view.uid.clone(), pod);
        true
    }

    pub fn remove_pod(&mut self, uid: &str) -> Option<PodEntry> {
        let old = self.pods.remove(uid)?;
        take(&mut self.pods_of, &old.view.owner, uid);
        Some(old)
    }

    /// Forgets the pods of these owners that a list of this version does not have. What is newer than the list came after it.
    pub fn retain_pods_of(&mut self, owners: &[&str], as_of: u64, keep: impl Fn(&str) -> bool) {
        let known = owners.iter().filter_map(|owner| self.pods_of.get(*owner)).flatten();
        let gone = known.filter(|uid| {
            !keep(uid) && self.pods.get(*uid).is_some_and(|pod| version(&pod.view.resource_version) <= as_of)
        });
        let gone: Vec<String> = gone.cloned().collect();
        for uid in &gone {
            self.remove_pod(uid);
        }
    }

    /// Takes in a budget; how it was before.
    pub fn put_pdb(&mut self, namespace: &str, name: &str, pdb: PdbEntry) -> Option<PdbEntry> {
        self.pdbs.entry(namespace.to_owned()).or_default().insert(name.to_owned(), pdb)
    }

    pub fn remove_pdb(&mut self, namespace: &str, name: &str) {
        if let Some(here) = self.pdbs.get_mut(namespace) {
            here.remove(name);
        }
    }

    /// Takes in a node; true where something changed.
    pub fn put_node(&mut self, name: &str, node: NodeView) -> bool {
        self.nodes.put(name, node)
    }

    /// A list of nodes begins.
    pub fn begin_nodes(&mut self) {
        self.nodes.entries.values_mut().for_each(|node| node.listed = false);
    }

    /// What the list did not name is gone.
    pub fn end_nodes(&mut self) {
        self.nodes.entries.retain(|_, node| node.listed);
        self.nodes.entries.shrink_to_fit();
    }

    pub fn remove_node(&mut self, name: &str) {
        self.nodes.remove(name);
    }

    /// The workloads that have pods on this node.
    pub fn keys_on(&self, node: &str) -> BTreeSet<Key> {
        let here = self.pods.values().filter(|pod| pod.node.as_deref() == Some(node));
        here.filter_map(|pod| self.key_of_owner(&pod.view.owner).cloned()).collect()
    }

    /// Forgets what a new list does not have.
    pub fn retain_namespaces(&mut self, keep: impl Fn(&str) -> bool) {
        self.namespaces.retain(|name, _| keep(name));
    }

    pub fn retain_pdbs(&mut self, keep: impl Fn(&str) -> bool) {
        for (namespace, here) in &mut self.pdbs {
            here.retain(|name, _| keep(&format!("{namespace}/{name}")));
        }
    }

    pub fn retain_workloads(&mut self, kind: &str, keep: impl Fn(&str) -> bool) {
        let gone = self.workloads.values().filter(|workload| workload.kind == kind && !keep(&workload.view.uid));
        let gone: Vec<Key> = gone.map(|workload| Arc::clone(&workload.key)).collect();
        for key in &gone {
            self.remove_workload(key);
        }
    }

    pub fn retain_sets(&mut self, keep: impl Fn(&str) -> bool) {
        let gone: Vec<String> = self.sets.keys().filter(|uid| !keep(uid)).cloned().collect();
        for uid in &gone {
            self.remove_set(uid);
        }
    }

    pub fn retain_pods(&mut self, keep: impl Fn(&str) -> bool) {
        let gone: Vec<String> = self.pods.keys().filter(|uid| !keep(uid)).cloned().collect();
        for uid in &gone {
            self.remove_pod(uid);
        }
    }
}

fn take(map: &mut HashMap<String, BTreeSet<String>>, owner: &str, uid: &str) {
    if let Some(all) = map.get_mut(owner) {
        all.remove(uid);
        if all.is_empty() {
            map.remove(owner);
        }
    }
}

pub fn version(text: &str) -> u64 {
    text.parse().unwrap_or_default()
}

/// The owner that controls an object.
pub fn controller(meta: &ObjectMeta) -> Option<&OwnerReference> {
    meta.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))
}

/// Whether a selector means these labels; an empty one means all, as for PodDisruptionBudgets.
pub fn selects(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> bool {
    let equal = selector.match_labels.iter().flatten().all(|(key, value)| labels.get(key) == Some(value));
    equal
        && selector.match_expressions.iter().flatten().all(|expression| {
            let value = labels.get(&expression.key);
            let listed = value.is_some_and(|value| expression.values.iter().flatten().any(|listed| listed == value));
            match expression.operator.as_str() {
                "In" => listed,
                "NotIn" => !listed,
                "Exists" => value.is_some(),
                "DoesNotExist" => value.is_none(),
                _ => false,
            }
        })
}

/// A selector as a list request takes it.
pub fn selector_text(selector: &LabelSelector) -> String {
    let equal = selector.match_labels.iter().flatten().map(|(key, value)| format!("{key}={value}"));
    let expressions = selector.match_expressions.iter().flatten().map(|expression| {
        let values = expression.values.clone().unwrap_or_default().join(",");
        match expression.operator.as_str() {
            "In" => format!("{} in ({values})", expression.key),
            "NotIn" => format!("{} notin ({values})", expression.key),
            "DoesNotExist" => format!("!{}", expression.key),
            _ => expression.key.clone(),
        }
    });
    equal.chain(expressions).collect::<Vec<_>>().join(",")
}

/// The labels of nodes and what else is needed to read objects.
#[derive(Clone, Copy, Debug)]
pub struct Reading<'a> {
    pub configured: &'a Configured,
    pub now: Timestamp,
    /// From a list: what it says may be old.
    pub listed: bool,
}

impl Reading<'_> {
    pub fn labels(&self) -> &NodeLabels {
        &self.configured.settings.labels
    }
}
