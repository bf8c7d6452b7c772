//! The responses to requests of this process. They are stored at once, so that the next decision
//! is based on them before the watch delivers them.

use std::collections::{HashMap, HashSet};

use perennial_core::placement::{decision::PodRef, state::PlacementState, workload::Workload};

use super::{
    super::{
        super::{
            WorkloadKey,
            apply::{ListedPods, Saved},
            objects::Pod,
            takeover::PodVersions,
        },
        entry::{Reading, deployment, pod_entry, replica_set, stateful_set},
        version,
    },
    SharedCache,
};

impl SharedCache {
    /// Stores the pods of a workload that were just listed. Returns those without the label, which
    /// the watch does not deliver.
    pub fn store_listed(&self, workload: &Workload, listed: ListedPods) -> Vec<PodRef> {
        let configured = self.configured();
        let reading = Reading { configured: &configured, now: self.clock.now(), listed: true };
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

    /// Returns whether the cached pods of a workload are as new as these versions, and as many as its
    /// status counts: pods without the label are in neither.
    pub fn is_current(&self, workload: &Workload, versions: &PodVersions) -> bool {
        let occupied = workload.pods.iter().filter(|pod| pod.occupies()).count();
        let view = &workload.view;
        if !view.kind.has_known_size() || usize::try_from(view.current).ok() != Some(occupied) {
            return false;
        }
        let sets = workload.replica_sets.iter().map(|set| set.uid.as_str());
        let owners: HashSet<&str> = std::iter::once(view.uid.as_str()).chain(sets).collect();
        let cached: HashMap<&str, u64> =
            workload.pods.iter().map(|pod| (pod.uid.as_str(), version(&pod.resource_version))).collect();
        let by_owner = &versions.by_owner;
        let listed = || owners.iter().filter_map(move |owner| by_owner.get(*owner)).flatten();
        let known = listed().all(|(uid, listed)| cached.get(uid.as_str()).is_some_and(|cached| cached >= listed));
        let listed: HashSet<&str> = listed().map(|(uid, _)| uid.as_str()).collect();
        known && cached.iter().all(|(uid, cached)| listed.contains(uid) || *cached > versions.as_of)
    }

    /// Returns the number of cached pods and of cached workloads.
    pub fn sizes(&self) -> (usize, usize) {
        let state = self.lock();
        (state.cache.pods().count(), state.cache.workloads().count())
    }

    /// Notes that all pods of a workload are in the cache.
    pub fn mark_read(&self, key: &WorkloadKey, term: u64) {
        self.lock().freshness.mark_read(key, term);
    }

    /// Stores the response to a write. A pod that was removed in the meantime stays removed.
    pub fn store_pod(&self, pod: Pod) {
        let configured = self.configured();
        let reading = Reading { configured: &configured, now: self.clock.now(), listed: false };
        let mut state = self.lock();
        let before = state.cache.pod(pod.metadata.uid.as_deref().unwrap_or_default());
        if before.is_some() {
            let entry = pod_entry(pod, before, &reading);
            state.cache.put_pod(entry);
        }
    }

    /// Stores the response to a write. A workload that was removed in the meantime stays removed.
    pub fn store_workload(&self, key: &WorkloadKey, saved: Saved, written: &PlacementState) {
        let configured = self.configured();
        let workload = match saved {
            Saved::Deployment(object) => Some(deployment(object, &configured)),
            Saved::ReplicaSet(object) => replica_set(&object, &configured),
            Saved::StatefulSet(object) => Some(stateful_set(object, &configured)),
            Saved::InMemory => {
                self.lock().cache.store_state(key, written.to_annotation());
                None
            }
        };
        let Some(workload) = workload else { return };
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
}
