//! The list protocol of the watches, and how each kind of object changes the cache and affects
//! workloads.

use std::{collections::HashSet, sync::Arc, time::Duration};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Resource as _, runtime::watcher::Event};

use super::{
    super::{
        WorkloadKey,
        objects::{Deployment, Namespace, Pod, PodDisruptionBudget, ReplicaSet, StatefulSet},
    },
    Affected, PlacementCache,
    entry::{
        Reading, WorkloadEntry, deployment, is_gated, names, namespace_entry, node_view, other_controller, pdb_entry,
        pod_entry, replica_set, set_entry, stateful_set, uid, usable_node,
    },
    key,
};
use crate::keeper::node::Node;

/// Delay that collects the pods of one burst before their workload is reconciled: for gated pods,
/// and for a ReplicaSet whose pods are about to be created.
const BURST_DELAY: Duration = Duration::from_millis(4);
/// Delay of every other change. In a burst each pod and the counts of its owners change several
/// times.
const CHANGE_DELAY: Duration = Duration::from_millis(200);

/// Progress of the list of each kind.
#[derive(Debug, Default)]
pub(super) struct Lists([ListState; 7]);

#[derive(Debug, Default)]
struct ListState {
    /// Identities in the current list.
    seen: Option<HashSet<String>>,
    done: bool,
}

#[derive(Clone, Copy)]
enum ListKind {
    Namespaces,
    Deployments,
    StatefulSets,
    ReplicaSets,
    Pods,
    Pdbs,
    Nodes,
}

impl Lists {
    /// Returns whether the nodes were listed.
    pub(super) fn has_nodes(&self) -> bool {
        self.0[ListKind::Nodes as usize].done
    }

    pub(super) fn is_synced(&self) -> bool {
        self.0.iter().all(|list| list.done)
    }

    fn begin(&mut self, kind: ListKind) {
        self.0[kind as usize].seen = Some(HashSet::new());
    }

    fn mark(&mut self, kind: ListKind, identity: String) {
        if let Some(seen) = &mut self.0[kind as usize].seen {
            seen.insert(identity);
        }
    }

    fn end(&mut self, kind: ListKind) -> HashSet<String> {
        let list = &mut self.0[kind as usize];
        list.done = true;
        list.seen.take().unwrap_or_default()
    }
}

/// A kind of object that the cache stores.
pub trait Watched: Sized {
    /// Returns the delay after which its workload is reconciled.
    fn delay(&self) -> Duration {
        CHANGE_DELAY
    }

    fn put(self, cache: &mut PlacementCache, reading: &Reading<'_>) -> Affected;
    fn remove(self, cache: &mut PlacementCache) -> Affected;
    /// Returns the identity of the object within a list.
    fn identity(&self) -> String;
    fn begin_list(cache: &mut PlacementCache);
    fn mark_listed(cache: &mut PlacementCache, identity: String);
    /// Removes the objects that the list did not contain.
    fn end_list(cache: &mut PlacementCache);
}

impl PlacementCache {
    /// Applies an event of a watch and returns the workloads to be reconciled: none before the
    /// cache is synced.
    pub fn on<K: Watched>(&mut self, event: Event<K>, reading: Reading<'_>) -> Affected {
        let affected = match event {
            Event::Init => {
                K::begin_list(self);
                return Affected::new();
            }
            Event::InitApply(object) => {
                K::mark_listed(self, object.identity());
                object.put(self, &Reading { listed: true, ..reading });
                return Affected::new();
            }
            Event::InitDone => {
                K::end_list(self);
                return self.all_affected();
            }
            Event::Apply(object) => object.put(self, &reading),
            Event::Delete(object) => object.remove(self),
        };
        if self.is_synced() { affected } else { Affected::new() }
    }
}

macro_rules! list_protocol {
    ($kind:ident, |$cache:ident, $seen:ident| $retain:expr) => {
        fn begin_list(cache: &mut PlacementCache) {
            cache.lists.begin(ListKind::$kind);
        }

        fn mark_listed(cache: &mut PlacementCache, identity: String) {
            cache.lists.mark(ListKind::$kind, identity);
        }

        fn end_list($cache: &mut PlacementCache) {
            let $seen = $cache.lists.end(ListKind::$kind);
            $retain;
        }
    };
}

impl Watched for Namespace {
    fn put(self, cache: &mut PlacementCache, reading: &Reading<'_>) -> Affected {
        let name = self.metadata.name.clone().unwrap_or_default();
        cache.put_namespace(&name, namespace_entry(&self.metadata, reading.configured));
        cache.keys_in(&name)
    }

    fn remove(self, cache: &mut PlacementCache) -> Affected {
        cache.remove_namespace(self.metadata.name.as_deref().unwrap_or_default());
        Affected::new()
    }

    fn identity(&self) -> String {
        self.metadata.name.clone().unwrap_or_default()
    }

    list_protocol!(Namespaces, |cache, seen| cache.retain_namespaces(|name| seen.contains(name)));
}

impl Watched for Deployment {
    fn put(self, cache: &mut PlacementCache, reading: &Reading<'_>) -> Affected {
        put_workload(cache, deployment(self, reading.configured))
    }

    fn remove(self, cache: &mut PlacementCache) -> Affected {
        remove_workload(cache, "Deployment", &self.metadata)
    }

    fn identity(&self) -> String {
        uid(&self.metadata)
    }

    list_protocol!(Deployments, |cache, seen| cache.retain_workloads("Deployment", |uid| seen.contains(uid)));
}

impl Watched for StatefulSet {
    fn put(self, cache: &mut PlacementCache, reading: &Reading<'_>) -> Affected {
        put_workload(cache, stateful_set(self, reading.configured))
    }

    fn remove(self, cache: &mut PlacementCache) -> Affected {
        remove_workload(cache, "StatefulSet", &self.metadata)
    }

    fn identity(&self) -> String {
        uid(&self.metadata)
    }

    list_protocol!(StatefulSets, |cache, seen| cache.retain_workloads("StatefulSet", |uid| seen.contains(uid)));
}

impl Watched for ReplicaSet {
    /// The places of the pods that its controller is about to create should be known in time.
    fn delay(&self) -> Duration {
        if set_entry(self).observed { CHANGE_DELAY } else { BURST_DELAY }
    }

    fn put(self, cache: &mut PlacementCache, reading: &Reading<'_>) -> Affected {
        let set = set_entry(&self);
        let uid = set.uid.clone();
        // A ReplicaSet that was orphaned affects its former owner.
        let mut affected = cache.keys_of_owner(&uid);
        if !cache.put_set(set) {
            return Affected::new();
        }
        if let Some(workload) = replica_set(&self, reading.configured) {
            cache.put_workload(workload);
        } else {
            cache.remove_workload(&replica_set_key(&self.metadata));
        }
        affected.extend(cache.keys_of_owner(&uid));
        affected.dedup();
        affected
    }

    fn remove(self, cache: &mut PlacementCache) -> Affected {
        let uid = uid(&self.metadata);
        let affected = cache.keys_of_owner(&uid);
        cache.remove_set(&uid);
        cache.remove_workload(&replica_set_key(&self.metadata));
        affected
    }

    fn identity(&self) -> String {
        uid(&self.metadata)
    }

    list_protocol!(ReplicaSets, |cache, seen| cache.retain_sets(|uid| seen.contains(uid)));
}

impl Watched for Pod {
    fn delay(&self) -> Duration {
        if is_gated(&self.spec) { BURST_DELAY } else { CHANGE_DELAY }
    }

    fn put(self, cache: &mut PlacementCache, reading: &Reading<'_>) -> Affected {
        let namespace = self.metadata.namespace.as_deref().unwrap_or_default();
        let above = other_controller(&self.metadata, namespace, reading.configured);
        let before = cache.pod(&uid(&self.metadata));
        let pod = pod_entry(self, before, reading);
        let owner = pod.view.owner.clone();
        if let Some(workload) = above {
            cache.put_workload(workload);
        }
        if cache.put_pod(pod) { cache.keys_of_owner(&owner) } else { Affected::new() }
    }

    fn remove(self, cache: &mut PlacementCache) -> Affected {
        let gone = cache.remove_pod(&uid(&self.metadata));
        gone.map(|pod| cache.keys_of_owner(&pod.view.owner)).unwrap_or_default()
    }

    fn identity(&self) -> String {
        uid(&self.metadata)
    }

    list_protocol!(Pods, |cache, seen| cache.retain_pods(|uid| seen.contains(uid)));
}

impl Watched for PodDisruptionBudget {
    /// Only a budget that starts to allow disruptions, or that selects other pods, affects
    /// workloads.
    fn put(self, cache: &mut PlacementCache, _: &Reading<'_>) -> Affected {
        let (namespace, name) = names(&self.metadata);
        let pdb = pdb_entry(self);
        let before = cache.put_pdb(&namespace, &name, pdb.clone());
        let opens = pdb.allowed > 0 && before.as_ref().is_none_or(|before| before.allowed == 0);
        let selects_others = before.is_some_and(|before| before.selector != pdb.selector);
        if opens || selects_others { cache.keys_in(&namespace) } else { Affected::new() }
    }

    fn remove(self, cache: &mut PlacementCache) -> Affected {
        let (namespace, name) = names(&self.metadata);
        cache.remove_pdb(&namespace, &name);
        cache.keys_in(&namespace)
    }

    fn identity(&self) -> String {
        let (namespace, name) = names(&self.metadata);
        format!("{namespace}/{name}")
    }

    list_protocol!(Pdbs, |cache, seen| cache.retain_pdbs(|name| seen.contains(name)));
}

/// Nodes are borrowed: the keeper has the only watch of nodes.
impl Watched for &Node {
    fn put(self, cache: &mut PlacementCache, reading: &Reading<'_>) -> Affected {
        let name = node_name(self);
        let (view, labelling) = node_view(self, reading.configured);
        let created = self.meta().creation_timestamp.as_ref().map_or(reading.now, |time| time.0);
        let at = if reading.listed { created } else { reading.now };
        let change = cache.put_node(name, (view, labelling), usable_node(self, view, reading.configured), at);
        if reading.listed {
            return Affected::new();
        }
        let mut affected = if change.changed { cache.keys_on(name) } else { Affected::new() };
        if change.became_usable {
            affected.extend(cache.keys_of_short());
        }
        affected
    }

    fn remove(self, cache: &mut PlacementCache) -> Affected {
        cache.remove_node(node_name(self));
        cache.keys_on(node_name(self))
    }

    fn identity(&self) -> String {
        node_name(self).to_owned()
    }

    fn begin_list(cache: &mut PlacementCache) {
        cache.begin_node_list();
    }

    /// Nodes are marked when they are stored.
    fn mark_listed(_: &mut PlacementCache, _: String) {}

    fn end_list(cache: &mut PlacementCache) {
        cache.end_node_list();
        cache.lists.end(ListKind::Nodes);
    }
}

impl Watched for Node {
    fn put(self, cache: &mut PlacementCache, reading: &Reading<'_>) -> Affected {
        (&self).put(cache, reading)
    }

    fn remove(self, cache: &mut PlacementCache) -> Affected {
        (&self).remove(cache)
    }

    fn identity(&self) -> String {
        node_name(self).to_owned()
    }

    fn begin_list(cache: &mut PlacementCache) {
        <&Self>::begin_list(cache);
    }

    fn mark_listed(cache: &mut PlacementCache, identity: String) {
        <&Self>::mark_listed(cache, identity);
    }

    fn end_list(cache: &mut PlacementCache) {
        <&Self>::end_list(cache);
    }
}

fn node_name(node: &Node) -> &str {
    node.meta().name.as_deref().unwrap_or_default()
}

fn put_workload(cache: &mut PlacementCache, workload: WorkloadEntry) -> Affected {
    let key = Arc::clone(&workload.key);
    if cache.put_workload(workload) { vec![key] } else { Affected::new() }
}

fn replica_set_key(meta: &ObjectMeta) -> WorkloadKey {
    let (namespace, name) = names(meta);
    key("ReplicaSet", &namespace, &name)
}

/// The workload is reconciled once more, so that its state is dropped.
fn remove_workload(cache: &mut PlacementCache, kind: &str, meta: &ObjectMeta) -> Affected {
    let (namespace, name) = names(meta);
    let key = key(kind, &namespace, &name);
    cache.remove_workload(&key);
    vec![key]
}
