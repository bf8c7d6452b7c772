//! The cache behind one lock, with the configuration and the clock that reading objects needs.
//!
//! Every method locks once and returns values: the lock is never visible outside and never held
//! across an await.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::runtime::watcher::Event;
use perennial_core::placement::{
    decide::decide,
    decision::{Decision, PodRef},
    spec::{Spec, Strength},
    ungate::{UngateReason, bystander_ungates_at},
    workload::{PendingWrites, Place, PodView, Workload},
};
use tokio::time::Instant;

use super::{
    super::{
        Key,
        apply::{ListedPods, Saved},
        objects::Pod,
        settings::Configured,
    },
    Affected, Cache,
    entry::{NamespaceEntry, Reading, WorkloadEntry, deployment, pod_entry, stateful_set},
    freshness::{Completeness, Freshness},
    watched::Watched,
};
use crate::runtime::clock::Clock;

/// Time for which an eviction counts that the watch has not delivered.
const REMOVED_FOR: Duration = Duration::from_mins(1);

#[derive(Debug)]
pub struct SharedCache {
    configured: Configured,
    clock: Clock,
    state: Mutex<CacheState>,
}

#[derive(Debug, Default)]
struct CacheState {
    cache: Cache,
    freshness: Freshness,
    /// UIDs of pods that were evicted or deleted, until the watch delivers that.
    removed: HashMap<String, Instant>,
}

/// Result of looking at one workload.
#[derive(Debug)]
pub enum Step {
    /// The workload does not exist.
    Gone,
    /// Its pods must be read first.
    Stale(Box<(WorkloadEntry, Workload)>),
    Decided {
        decided: Box<(Workload, Decision)>,
        /// Delay after which the completeness of its pods is checked again.
        recheck: Option<Duration>,
    },
}

/// The owner of a pod in admission.
#[derive(Debug)]
pub enum OwnerLookup {
    /// Its workload is not managed.
    Unmanaged,
    Managed(Box<(WorkloadEntry, Spec)>),
    /// The cache does not contain it yet.
    Unknown,
}

/// A pod that has been gated for too long.
#[derive(Debug)]
pub struct OverduePod {
    pub namespace: String,
    pub pod: PodView,
    pub reason: UngateReason,
    pub strength: Strength,
}

impl SharedCache {
    pub fn new(configured: Configured, clock: Clock) -> Self {
        Self { configured, clock, state: Mutex::default() }
    }

    pub fn configured(&self) -> &Configured {
        &self.configured
    }

    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    fn lock(&self) -> MutexGuard<'_, CacheState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reading(&self, listed: bool) -> Reading<'_> {
        Reading { configured: &self.configured, now: self.clock.now(), listed }
    }

    /// Applies an event of a watch and returns the workloads to be reconciled.
    pub fn on<K: Watched>(&self, event: Event<K>) -> Affected {
        let reading = self.reading(false);
        self.lock().cache.on(event, reading)
    }

    pub fn is_synced(&self) -> bool {
        self.lock().cache.is_synced()
    }

    /// Returns every workload, or none before the cache is synced.
    pub fn all_affected(&self) -> Affected {
        self.lock().cache.all_affected()
    }

    /// Returns the keys of all cached workloads.
    pub fn keys(&self) -> Vec<Key> {
        self.lock().cache.workloads().map(|workload| Arc::clone(&workload.key)).collect()
    }

    /// Returns a workload as it is in the cache.
    pub fn observe(&self, key: &str) -> Option<Workload> {
        let now = self.clock.now();
        self.lock().cache.observe(key, &self.configured, now)
    }

    /// Returns the name of the node that a pod is bound to.
    pub fn node_of(&self, pod_uid: &str) -> Option<String> {
        self.lock().cache.pod(pod_uid).and_then(|pod| pod.node.as_deref()).map(ToOwned::to_owned)
    }

    /// Observes a workload and decides about it under one lock, so that no slot is reserved
    /// meanwhile that the decision assigns to another pod.
    pub fn decide(&self, key: &Key, term: u64) -> Step {
        let now = self.clock.now();
        let mut state = self.lock();
        let CacheState { cache, freshness, .. } = &mut *state;
        let Some(mut workload) = cache.observe(key, &self.configured, now) else { return Step::Gone };
        if workload.managed_spec().is_none() {
            let decision = decide(&workload);
            return Step::Decided { decided: Box::new((workload, decision)), recheck: None };
        }
        let recheck = match freshness.check(key, &workload, term) {
            Completeness::Complete => None,
            Completeness::Mismatch(delay) => Some(delay),
            Completeness::Stale => {
                let Some(entry) = cache.workload(key).cloned() else { return Step::Gone };
                return Step::Stale(Box::new((entry, workload)));
            }
        };
        workload.pods.extend(cache.reservations().expected(&workload.replica_sets, now));
        workload.pending = state.pending_writes(&workload.pods);
        let mut decision = decide(&workload);
        state.cache.reservations().offer(std::mem::take(&mut decision.open), term);
        Step::Decided { decided: Box::new((workload, decision)), recheck }
    }

    /// Reserves a slot for a pod of this ReplicaSet that is being created.
    pub fn reserve(&self, set: &str, term: u64) -> Option<Place> {
        let now = self.clock.now();
        self.lock().cache.reservations().reserve(set, term, now)
    }

    /// Drops everything that depends on the ownership of a workload.
    pub fn forget(&self, key: &Key) {
        self.lock().freshness.forget(key);
    }

    /// Stores the pods of a workload that were just listed. Returns those without the label, which
    /// the watch does not deliver.
    pub fn store_listed(&self, workload: &Workload, listed: ListedPods) -> Vec<PodRef> {
        let reading = self.reading(true);
        let mut state = self.lock();
        let cache = &mut state.cache;
        let sets = workload.replica_sets.iter().map(|set| set.uid.as_str());
        let owners: Vec<&str> = std::iter::once(workload.view.uid.as_str()).chain(sets).collect();
        // Only a list reveals that a pod without the label is gone.
        let present: HashSet<String> = listed.pods.iter().filter_map(|pod| pod.metadata.uid.clone()).collect();
        cache.retain_pods_of(&owners, listed.as_of, |uid| present.contains(uid));
        let mut unlabelled = Vec::new();
        for pod in listed.pods {
            let before = cache.pod(pod.metadata.uid.as_deref().unwrap_or_default());
            let entry = pod_entry(pod, before, &reading);
            if !owners.contains(&entry.view.owner.as_str()) {
                continue;
            }
            if !entry.labelled && entry.view.occupies() {
                unlabelled.push(PodRef::from(&entry.view));
            }
            cache.put_pod(entry);
        }
        unlabelled
    }

    /// Notes that all pods of a workload are in the cache.
    pub fn mark_read(&self, key: &Key, term: u64) {
        self.lock().freshness.mark_read(key, term);
    }

    /// Stores the answer to a write. A pod that was removed meanwhile stays removed.
    pub fn store_pod(&self, pod: Pod) {
        let reading = self.reading(false);
        let mut state = self.lock();
        let before = state.cache.pod(pod.metadata.uid.as_deref().unwrap_or_default());
        if before.is_some() {
            let entry = pod_entry(pod, before, &reading);
            state.cache.put_pod(entry);
        }
    }

    /// Stores the answer to a write. A workload that was removed meanwhile stays removed.
    pub fn store_workload(&self, saved: Saved) {
        let workload = match saved {
            Saved::Deployment(object) => deployment(object, &self.configured),
            Saved::StatefulSet(object) => stateful_set(object, &self.configured),
        };
        let mut state = self.lock();
        let known = state.cache.workload(&workload.key).is_some_and(|known| known.view.uid == workload.view.uid);
        if known {
            state.cache.put_workload(workload);
        }
    }

    /// Removes a pod that does not exist any more. The watch delivers no deletion of a pod without
    /// the label.
    pub fn remove_pod(&self, uid: &str) {
        self.lock().cache.remove_pod(uid);
    }

    /// Notes a pod that was evicted or deleted.
    pub fn mark_removed(&self, uid: &str) {
        self.lock().removed.insert(uid.to_owned(), Instant::now());
    }

    /// Looks up the workload of a pod in admission.
    pub fn lookup_owner(&self, owner: &OwnerReference, namespace: &str) -> OwnerLookup {
        let state = self.lock();
        let cache = &state.cache;
        if cache.namespace(namespace).is_some_and(|known| !known.selected) {
            return OwnerLookup::Unmanaged;
        }
        let workload = if owner.kind == "ReplicaSet" {
            let Some(set) = cache.set(&owner.uid) else { return OwnerLookup::Unknown };
            let Some(deployment) = &set.owner else { return OwnerLookup::Unmanaged };
            cache.workload_by_uid(deployment)
        } else {
            cache.workload_by_uid(&owner.uid)
        };
        let (Some(workload), Some(_)) = (workload, cache.namespace(namespace)) else { return OwnerLookup::Unknown };
        match cache.spec(workload, &self.configured.prefixes) {
            Ok(Some(spec)) => OwnerLookup::Managed(Box::new((workload.clone(), spec))),
            Ok(None) | Err(_) => OwnerLookup::Unmanaged,
        }
    }

    pub fn namespace(&self, name: &str) -> Option<NamespaceEntry> {
        self.lock().cache.namespace(name).cloned()
    }

    /// Returns the name of the Deployment that controls a ReplicaSet.
    pub fn deployment_of(&self, set_uid: &str) -> Option<String> {
        self.lock().cache.set(set_uid).and_then(|set| set.owner_name.clone())
    }

    /// Returns the pods that this replica must ungate, whichever replica owns their workload.
    pub fn overdue(&self, is_attended: impl Fn(&str) -> bool) -> Vec<OverduePod> {
        let now = self.clock.now();
        let state = self.lock();
        let cache = &state.cache;
        let gated = cache.pods().filter(|pod| pod.view.gated && pod.view.occupies());
        gated
            .filter_map(|pod| {
                let key = cache.key_of_owner(&pod.view.owner);
                let attended = key.is_some_and(|key| is_attended(key));
                if bystander_ungates_at(pod.view.created, attended, &self.configured.settings) > now {
                    return None;
                }
                let reason = if attended { UngateReason::Timeout } else { UngateReason::Ownerless };
                let workload = key.and_then(|key| cache.workload(key));
                let spec = workload.and_then(|w| cache.spec(w, &self.configured.prefixes).ok().flatten());
                let strength = spec.map_or(pod.strength, |spec| spec.strength);
                Some(OverduePod { namespace: pod.namespace.clone(), pod: pod.view.clone(), reason, strength })
            })
            .collect()
    }
}

impl CacheState {
    /// Returns the removals that the watch has not delivered. Answers to other writes are stored at
    /// once.
    fn pending_writes(&mut self, pods: &[PodView]) -> PendingWrites {
        self.removed.retain(|_, since| since.elapsed() < REMOVED_FOR);
        let unseen = pods.iter().filter(|pod| !pod.deleting && self.removed.contains_key(&pod.uid));
        PendingWrites { removed: unseen.map(|pod| pod.uid.clone()).collect(), state: None }
    }
}
