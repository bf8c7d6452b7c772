//! The cache behind one lock, with the configuration and the clock that reading objects needs.
//!
//! Every method locks once and returns values: the lock is never visible outside and never held
//! across an await.

mod responses;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::runtime::watcher::Event;
use perennial_core::placement::{
    Class,
    decide::decide,
    decision::{PlacementDecision, ROOM_PERIOD},
    node_labels::Choice,
    spec::{Spec, Strength},
    ungate::{UngateReason, after, bystander_ungates_at},
    workload::{ClusterNodes, PendingWrites, Place, PodView, Workload},
};
use tokio::time::Instant;
use tracing::info;

use super::{
    super::{WorkloadKey, refusals::OrdinalAdmission, settings::Configured},
    Affected, PlacementCache, RoomSearched, VolumesRead,
    entry::{NamespaceEntry, PodEntry, Reading, WorkloadEntry, is_apps},
    freshness::{Completeness, PodFreshness},
    watched::Watched,
};
use crate::runtime::clock::Clock;

/// Time for which the pods of a workload are not gated after refused writes.
const REFUSED_FOR: Duration = Duration::from_mins(5);
/// Time after which a pod that any replica may ungate should be ungated.
const UNGATE_PATIENCE: SignedDuration = SignedDuration::from_secs(10);
/// Time for which an eviction counts that the watch has not delivered.
const REMOVED_FOR: Duration = Duration::from_mins(1);

#[derive(Debug)]
pub struct SharedCache {
    configured: RwLock<Arc<Configured>>,
    clock: Clock,
    state: Mutex<SharedState>,
}

#[derive(Debug, Default)]
struct SharedState {
    cache: PlacementCache,
    freshness: PodFreshness,
    /// UIDs of pods that were evicted or deleted, until the watch delivers that.
    removed: HashMap<String, Instant>,
    /// When the last eviction of a workload was answered.
    evicted: HashMap<WorkloadKey, Timestamp>,
    /// Workloads whose pods could not be placed or ungated.
    refused: HashMap<WorkloadKey, Instant>,
}

/// Result of looking at one workload.
#[derive(Debug)]
pub enum Step {
    /// The workload does not exist.
    Gone,
    /// Its pods must be read first. `taken_over`: for the first time in this term.
    Stale { stale: Box<(WorkloadEntry, Workload)>, taken_over: bool },
    Decided {
        decided: Box<(Workload, PlacementDecision)>,
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
    /// The workload, if it is in the cache.
    pub workload: Option<WorkloadKey>,
    pub namespace: String,
    pub pod: PodView,
    pub reason: UngateReason,
    pub strength: Strength,
}

impl SharedCache {
    pub fn new(configured: Configured, clock: Clock) -> Self {
        Self { configured: RwLock::new(Arc::new(configured)), clock, state: Mutex::default() }
    }

    /// Returns the configuration, with the labels of the node classes as far as they are known.
    pub fn configured(&self) -> Arc<Configured> {
        Arc::clone(&self.configured.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns whether the labels of the node classes are configured or were detected.
    pub fn has_classes(&self) -> bool {
        if !self.configured().schemes.is_auto() {
            return true;
        }
        let state = self.lock();
        state.cache.has_nodes()
    }

    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    fn lock(&self) -> MutexGuard<'_, SharedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Applies an event of a watch and returns the workloads to be reconciled.
    pub fn on<K: Watched>(&self, event: Event<K>) -> Affected {
        let mut state = self.lock();
        let configured = self.configured();
        let had_nodes = state.cache.has_nodes();
        let reading = Reading { configured: &configured, now: self.clock.now(), listed: false };
        let affected = state.cache.on(event, reading);
        let mut changed = Arc::clone(&configured);
        let is_new = state.cache.detect_schemes(&mut changed);
        if is_new {
            *self.configured.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&changed);
        }
        if state.cache.has_nodes() && (is_new || !had_nodes) {
            let labels = &changed.settings.labels;
            let (spot, on_demand) = (labels.describe(Class::Spot), labels.describe(Class::OnDemand));
            info!(scheme = changed.scheme_names(), spot, on_demand, "node classes determined by these labels");
        }
        if is_new { state.cache.all_affected() } else { affected }
    }

    pub fn is_synced(&self) -> bool {
        self.lock().cache.is_synced()
    }

    /// Returns the number of nodes of each class.
    pub fn node_counts(&self) -> ClusterNodes {
        self.lock().cache.node_counts()
    }

    /// Returns every workload, or none before the cache is synced.
    pub fn all_affected(&self) -> Affected {
        self.lock().cache.all_affected()
    }

    /// Returns the keys of all cached workloads.
    pub fn keys(&self) -> Vec<WorkloadKey> {
        self.lock().cache.workloads().map(|workload| Arc::clone(&workload.key)).collect()
    }

    /// Returns a workload as it is in the cache.
    pub fn observe(&self, key: &str) -> Option<Workload> {
        let now = self.clock.now();
        let configured = self.configured();
        self.lock().cache.observe(key, &configured, now)
    }

    /// Returns the name of the node that a pod is bound to.
    pub fn node_of(&self, pod_uid: &str) -> Option<String> {
        self.lock().cache.pod(pod_uid).and_then(|pod| pod.node.as_deref()).map(ToOwned::to_owned)
    }

    /// Observes a workload and decides about it under one lock, so that no slot is reserved
    /// in between that the decision assigns to another pod.
    pub fn decide(&self, key: &WorkloadKey, term: u64) -> Step {
        let now = self.clock.now();
        let configured = self.configured();
        let mut state = self.lock();
        let SharedState { cache, freshness, .. } = &mut *state;
        let Some(mut workload) = cache.observe(key, &configured, now) else { return Step::Gone };
        if workload.managed_spec().is_none() {
            let decision = decide(&workload);
            return Step::Decided { decided: Box::new((workload, decision)), recheck: None };
        }
        let recheck = match freshness.check(key, &workload, term) {
            Completeness::Complete => None,
            Completeness::Mismatch(delay) => Some(delay),
            Completeness::Stale => {
                let Some(entry) = cache.workload(key).cloned() else { return Step::Gone };
                let taken_over = !freshness.was_read(key, term);
                return Step::Stale { stale: Box::new((entry, workload)), taken_over };
            }
        };
        workload.pods.extend(cache.reservations().expected(&workload.replica_sets, now));
        workload.pending = state.pending_writes(key, &workload.pods);
        let mut decision = decide(&workload);
        state.cache.reservations().offer(std::mem::take(&mut decision.open), term);
        Step::Decided { decided: Box::new((workload, decision)), recheck }
    }

    /// Reserves a slot for a pod of this ReplicaSet that is being created.
    pub fn reserve(&self, set: &str, term: u64) -> Option<Place> {
        let now = self.clock.now();
        self.lock().cache.reservations().reserve(set, term, now)
    }

    /// Notes the create of a StatefulSet pod and returns whether it gets its class.
    pub fn admit_ordinal(&self, set: &str, ordinal: u32, class: Class) -> OrdinalAdmission {
        let now = self.clock.now();
        self.lock().cache.refusals().admit(set, ordinal, class, now)
    }

    /// Drops everything that depends on the ownership of a workload.
    pub fn forget(&self, key: &WorkloadKey) {
        self.lock().freshness.forget(key);
    }

    /// Notes that writes to the gated pods of a workload are refused.
    pub fn mark_refused(&self, key: &WorkloadKey) {
        self.lock().refused.insert(Arc::clone(key), Instant::now());
    }

    /// Returns whether gates of a workload's pods are not removed: writes to them were refused
    /// recently, or one of them is gated for longer than any replica lets it be. The writes of
    /// other replicas are not known here.
    pub fn is_refused(&self, key: &str) -> bool {
        let (now, configured) = (self.clock.now(), self.configured());
        let mut state = self.lock();
        state.refused.retain(|_, since| since.elapsed() < REFUSED_FOR);
        let overdue = |pod: &PodEntry| {
            let due = bystander_ungates_at(pod.view.created, true, &configured.settings);
            pod.view.gated && pod.view.occupies() && after(due, UNGATE_PATIENCE) <= now
        };
        state.refused.contains_key(key) || state.cache.has_pod(key, overdue)
    }

    /// Notes a pod that was evicted or deleted.
    pub fn mark_removed(&self, uid: &str) {
        self.lock().removed.insert(uid.to_owned(), Instant::now());
    }

    /// Notes that an eviction of a workload's pod was answered, or that its answer was lost.
    pub fn mark_evicted(&self, key: &WorkloadKey) {
        let now = self.clock.now();
        let mut state = self.lock();
        let SharedState { evicted, cache, .. } = &mut *state;
        evicted.retain(|known, _| cache.workload(known).is_some());
        evicted.insert(Arc::clone(key), now);
    }

    /// Looks up the workload of a pod in admission.
    pub fn lookup_owner(&self, owner: &OwnerReference, namespace: &str) -> OwnerLookup {
        let state = self.lock();
        let cache = &state.cache;
        if cache.namespace(namespace).is_some_and(|known| !known.selected) {
            return OwnerLookup::Unmanaged;
        }
        let workload = if is_apps(owner, &["ReplicaSet"]) {
            let Some(set) = cache.set(&owner.uid) else { return OwnerLookup::Unknown };
            cache.workload_by_uid(set.owner.as_ref().unwrap_or(&owner.uid))
        } else if !is_apps(owner, &["StatefulSet"]) {
            return OwnerLookup::Unknown;
        } else {
            cache.workload_by_uid(&owner.uid)
        };
        let (Some(workload), Some(_)) = (workload, cache.namespace(namespace)) else { return OwnerLookup::Unknown };
        match cache.spec(workload, &self.configured().annotations) {
            Ok(Some(spec)) => OwnerLookup::Managed(Box::new((workload.clone(), spec))),
            Ok(None) | Err(_) => OwnerLookup::Unmanaged,
        }
    }

    /// Returns the newest nodes of a class that may have room for the pods of a workload.
    pub fn nodes_to_search(&self, key: &str, class: Class, again: bool, limit: usize) -> Vec<String> {
        self.lock().cache.nodes_to_search(key, class, again, limit)
    }

    /// Notes the result of a search for room.
    pub fn store_room(&self, key: &WorkloadKey, class: Class, result: RoomSearched) {
        let now = self.clock.now();
        self.lock().cache.store_room(key, class, result, now);
    }

    /// Returns the claims of a pod, and whether it has a node.
    pub fn claims_of(&self, pod_uid: &str) -> Option<(Vec<String>, bool)> {
        self.lock().cache.pod(pod_uid).map(|pod| (pod.claims.clone(), pod.node.is_some()))
    }

    /// Notes the classes in which the volumes of a pod can be used. `bound`: it had a node before they
    /// were read.
    pub fn store_volume(&self, pod_uid: &str, choice: Choice, bound: bool) {
        let at = self.clock.now();
        self.lock().cache.store_volume(pod_uid, VolumesRead { choice, at, bound });
    }

    /// Returns whether a search for room is due.
    pub fn may_search_room(&self, key: &str) -> bool {
        let now = self.clock.now();
        self.lock().cache.room_searched(key).is_none_or(|at| after(at, ROOM_PERIOD) <= now)
    }

    /// Returns the cached entry of a workload.
    pub fn entry(&self, key: &str) -> Option<WorkloadEntry> {
        self.lock().cache.workload(key).cloned()
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
        let (now, configured) = (self.clock.now(), self.configured());
        let state = self.lock();
        let cache = &state.cache;
        let gated = cache.pods().filter(|pod| pod.view.gated && pod.view.occupies());
        gated
            .filter_map(|pod| {
                let key = cache.key_of_owner(&pod.view.owner);
                let attended = key.is_some_and(|key| is_attended(key));
                if bystander_ungates_at(pod.view.created, attended, &configured.settings) > now {
                    return None;
                }
                let reason = if attended { UngateReason::Timeout } else { UngateReason::Ownerless };
                let workload = key.and_then(|key| cache.workload(key));
                let spec = workload.and_then(|w| cache.spec(w, &configured.annotations).ok().flatten());
                let strength = spec.map_or(pod.strength, |spec| spec.strength);
                let (workload, namespace) = (key.cloned(), pod.namespace.clone());
                Some(OverduePod { workload, namespace, pod: pod.view.clone(), reason, strength })
            })
            .collect()
    }
}

impl SharedState {
    /// Returns the removals that the watch has not delivered. Answers to other writes are stored at
    /// once.
    fn pending_writes(&mut self, key: &str, pods: &[PodView]) -> PendingWrites {
        self.removed.retain(|_, since| since.elapsed() < REMOVED_FOR);
        let unseen = pods.iter().filter(|pod| !pod.deleting && self.removed.contains_key(&pod.uid));
        let removed = unseen.map(|pod| pod.uid.clone()).collect();
        PendingWrites { removed, evicted_at: self.evicted.get(key).copied(), ..PendingWrites::default() }
    }
}
