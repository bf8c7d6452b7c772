//! Execution of a decision: the only place in placement that writes.
//!
//! # Guarantees
//! Placements and relabels of one decision are independent of each other and run in parallel. The
//! state is saved after them and before any removal. Answers are stored in the cache at once, so
//! that the next decision is based on them.

mod client;
mod error;
mod pace;
mod room;
mod volumes;

use std::{sync::Arc, time::Duration};

use futures::{FutureExt, StreamExt, future::BoxFuture, stream};
use jiff::SignedDuration;
use perennial_core::placement::{
    Class,
    decision::{Action, PlacementDecision, PodRef, RoomSearch},
    node_labels::Choice,
    spec::Strength,
    ungate::{UngateReason, ungate, ungate_refused},
    workload::{PodView, Workload},
};
use serde_json::Value;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use self::pace::{DeletePace, EvictionPace};
pub use self::{
    client::{Eviction, ListedPods, PlacementClient, Saved},
    error::PlacementError,
};
use super::{
    WorkloadKey,
    cache::{RoomSearched, SharedCache, WorkloadEntry, about, key_of},
    metrics::{MoveResult, PlacementMetrics},
    reconcile::PlacerParts,
};
use crate::runtime::{
    error_category::Category,
    error_chain::Chain,
    events::{Events, Severity},
    jitter::Jitter,
    ownership::Ownership,
    reporter::CategorizedError as _,
    request::RequestFailure,
};

/// Retry interval after an eviction that a PodDisruptionBudget blocked.
const BLOCKED_PAUSE: Duration = Duration::from_secs(30);
/// Retry interval after an eviction that is impossible for now.
const CANNOT_EVICT_PAUSE: Duration = Duration::from_mins(5);
/// Age of a decision after which its eviction is decided again.
const EVICTION_FRESH: SignedDuration = SignedDuration::from_secs(1);
/// Maximum number of nodes that are searched for room at a time.
const ROOM_NODES: usize = 5;
/// Maximum number of parallel writes to the pods of one workload.
const PARALLEL_WRITES: usize = 32;
/// Maximum number of pod writes per decision. The rest follows after a new permit and a new
/// decision.
const MAX_WRITES: usize = 64;

/// Executes decisions.
pub(super) struct Applier {
    cluster: PlacementClient,
    cache: Arc<SharedCache>,
    events: Events,
    metrics: PlacementMetrics,
    jitter: Jitter,
    pace: EvictionPace,
    ownership: Ownership,
    delete_pace: DeletePace,
    dry_run: bool,
}

impl Applier {
    pub(super) fn new(parts: &PlacerParts, cache: Arc<SharedCache>, metrics: PlacementMetrics) -> Self {
        Self {
            cluster: parts.cluster.clone(),
            cache,
            events: parts.events.clone(),
            metrics,
            jitter: parts.jitter.clone(),
            pace: EvictionPace::new(parts.configured.moves_per_minute),
            ownership: parts.ownership.clone(),
            delete_pace: DeletePace::default(),
            dry_run: parts.dry_run,
        }
    }

    pub(super) fn cluster(&self) -> &PlacementClient {
        &self.cluster
    }

    pub(super) fn is_dry_run(&self) -> bool {
        self.dry_run
    }

    /// Executes a decision, or the first part of it. Returns a pause if the rest must wait.
    pub(super) async fn apply(
        &self,
        workload: &Workload,
        decision: &PlacementDecision,
    ) -> Result<Option<Duration>, PlacementError> {
        let (mut writes, rest): (Vec<&Action>, Vec<&Action>) = decision.actions.iter().partition(|action| {
            matches!(action, Action::Place { .. } | Action::Ungate { .. } | Action::Relabel { .. })
        });
        let complete = writes.len() <= MAX_WRITES;
        writes.truncate(MAX_WRITES);
        let writing = writes.into_iter().map(|action| self.write_pod(workload, action).boxed()).collect();
        if let Some(error) = in_parallel(writing).await.into_iter().find_map(Result::err) {
            if error.failure().is_refusal() {
                self.cache.mark_refused(&key_of(&workload.view));
            }
            return Err(error);
        }
        if !complete {
            return Ok(Some(Duration::ZERO));
        }
        let key = key_of(&workload.view);
        // The pause between moves counts from the decision: it is made again after slow writes.
        if decision.evicts() && self.cache.now().duration_since(workload.now) > EVICTION_FRESH {
            return Ok(Some(Duration::ZERO));
        }
        if let Some(wait) = decision.evicts().then(|| self.wait_for_turn(&key)).flatten() {
            return Ok(Some(wait));
        }
        let replaces = rest.iter().any(|action| matches!(action, Action::Delete { .. }));
        if let Some(wait) = replaces.then(|| self.delete_pace.take(&key, workload)).flatten() {
            return Ok(Some(wait));
        }
        for action in rest {
            match action {
                Action::Save { state, patch, reason } => {
                    let saved = self.cluster.save(&workload.view, patch).await?;
                    debug!(workload = &*key, reason, "saved placement state");
                    self.cache.store_workload(&key, saved, state);
                }
                Action::Evict { pod, reason } => {
                    let pause = self.evict(workload, pod, reason).await?;
                    if pause.is_some() {
                        return Ok(pause);
                    }
                }
                Action::Delete { pod, reason } => {
                    // A pod that has changed may be bound by now: the next decision looks again.
                    let deleted = self.cluster.delete(&workload.view.namespace, pod).await?;
                    if !deleted {
                        continue;
                    }
                    self.cache.mark_removed(&pod.uid);
                    info!(workload = &*key, pod = pod.name, reason, "deleted unschedulable pod");
                }
                _ => {}
            }
        }
        Ok(None)
    }

    /// Takes an eviction of the cluster's rate. Returns the time to wait if it is not the turn of the
    /// workload.
    fn wait_for_turn(&self, key: &WorkloadKey) -> Option<Duration> {
        let share = self.ownership.share();
        self.pace.take(key, share, self.jitter.fraction(), Instant::now())
    }

    /// Searches for a node with room, and stores the result. A node without room is no evidence of
    /// capacity. Returns whether there is room.
    pub(super) async fn find_room(
        &self,
        key: &WorkloadKey,
        namespace: &str,
        search: &RoomSearch,
    ) -> Result<bool, PlacementError> {
        let RoomSearch { class, pod, again } = search;
        let mut result = RoomSearched::default();
        for node in self.cache.nodes_to_search(key, *class, *again, ROOM_NODES) {
            if self.cluster.has_room(&node, namespace, &pod.name).await? {
                result.found = Some(node);
                break;
            }
            result.full.push(node);
        }
        let found = result.found.is_some();
        debug!(workload = &**key, %class, found, full = result.full.len(), "searched room on nodes");
        self.cache.store_room(key, *class, result);
        Ok(found)
    }

    /// Reads the volumes of pods and stores the classes in which they can be used. Without the
    /// permission, volumes restrict nothing.
    pub(super) async fn read_volumes(&self, workload: &Workload, pods: &[PodRef]) -> Result<(), PlacementError> {
        let configured = self.cache.configured();
        for pod in pods {
            let (claims, bound) = self.cache.claims_of(&pod.uid).unwrap_or_default();
            let choice = match self.cluster.volume_choice(&workload.view.namespace, &claims, &configured).await {
                Err(error) if error.failure().is_refusal() => {
                    warn!(workload = &*key_of(&workload.view), pod = pod.name, error = %Chain(&error), "could not read volumes");
                    Choice::Any
                }
                read => read?,
            };
            debug!(workload = &*key_of(&workload.view), pod = pod.name, ?choice, "read volumes");
            self.cache.store_volume(&pod.uid, choice, bound);
        }
        Ok(())
    }

    async fn write_pod(&self, workload: &Workload, action: &Action) -> Result<(), PlacementError> {
        let namespace = &workload.view.namespace;
        match action {
            Action::Place { pod, class, slot, patch, reason, .. } => {
                match self.cluster.patch_pod(namespace, &pod.name, patch).await {
                    Ok(answer) => {
                        debug!(workload = &*key_of(&workload.view), pod = pod.name, %class, slot, reason, "placed pod");
                        self.cache.store_pod(answer);
                        Ok(())
                    }
                    Err(failure) if failure.is_refusal() => self.ungate_refused(workload, pod, *class, &failure).await,
                    Err(failure) if failure.category() == Category::NotFound => {
                        self.cache.remove_pod(&pod.uid);
                        Ok(())
                    }
                    Err(source) => Err(PlacementError::Place { pod: pod.name.clone(), source }),
                }
            }
            Action::Relabel { pod, patch, .. } => match self.cluster.patch_pod(namespace, &pod.name, patch).await {
                Ok(answer) => {
                    self.cache.store_pod(answer);
                    Ok(())
                }
                Err(failure) if failure.category() == Category::NotFound => {
                    self.cache.remove_pod(&pod.uid);
                    Ok(())
                }
                Err(source) => Err(PlacementError::Relabel { pod: pod.name.clone(), source }),
            },
            Action::Ungate { pod, patch, on_refusal, reason, .. } => {
                self.send_ungate(namespace, pod, (patch, on_refusal.as_ref()), reason).await
            }
            _ => Ok(()),
        }
    }

    /// Ungates a pod whose class the API server refused. If that is refused as well, a permission
    /// is missing and no Event is written.
    async fn ungate_refused(
        &self,
        workload: &Workload,
        pod: &PodRef,
        class: Class,
        failure: &RequestFailure,
    ) -> Result<(), PlacementError> {
        let known = workload.pods.iter().find(|known| known.uid == pod.uid);
        if let Some(Action::Ungate { pod, patch, on_refusal, reason, .. }) =
            known.map(|known| ungate_refused(known, class))
        {
            self.send_ungate(&workload.view.namespace, &pod, (&patch, on_refusal.as_ref()), &reason).await?;
        }
        self.events.occurred(about(&workload.view), Severity::Warning, "PlacementRefused", || {
            format!("the API server refused the class of pod {}, which runs without one: {failure}", pod.name)
        });
        Ok(())
    }

    /// Removes the gate of a pod without assigning a slot.
    pub(super) async fn ungate(
        &self,
        namespace: &str,
        pod: &PodView,
        reason: UngateReason,
        strength: Strength,
    ) -> Result<(), PlacementError> {
        match ungate(pod, reason, strength, &self.cache.configured().settings) {
            Action::Ungate { pod, patch, on_refusal, reason, .. } if !self.dry_run => {
                self.send_ungate(namespace, &pod, (&patch, on_refusal.as_ref()), &reason).await
            }
            _ => Ok(()),
        }
    }

    async fn send_ungate(
        &self,
        namespace: &str,
        pod: &PodRef,
        (patch, on_refusal): (&Value, Option<&Value>),
        reason: &str,
    ) -> Result<(), PlacementError> {
        if let Some(answer) = self.cluster.ungate_pod(namespace, &pod.name, patch, on_refusal).await? {
            info!(namespace, pod = pod.name, reason, "ungated pod");
            self.cache.store_pod(answer);
        }
        Ok(())
    }

    async fn evict(&self, workload: &Workload, pod: &PodRef, reason: &str) -> Result<Option<Duration>, PlacementError> {
        let count = |result| self.metrics.moved(result);
        let key = key_of(&workload.view);
        let answer = self.cluster.evict(&workload.view.namespace, pod).await.inspect_err(|_| {
            count(MoveResult::Failed);
            self.cache.mark_evicted(&key);
        })?;
        match answer {
            Eviction::Done => {
                count(MoveResult::Evicted);
                self.cache.mark_removed(&pod.uid);
                self.cache.mark_evicted(&key);
                info!(workload = &*key, pod = pod.name, reason, "evicted pod");
                self.events.occurred(about(&workload.view), Severity::Normal, "Moved", || {
                    format!("evicted pod {}: {reason}", pod.name)
                });
                Ok(None)
            }
            Eviction::Blocked => {
                count(MoveResult::Blocked);
                debug!(workload = &*key, pod = pod.name, "eviction blocked by a PodDisruptionBudget");
                Ok(Some(BLOCKED_PAUSE.mul_f64(0.75 + self.jitter.fraction() / 2.0)))
            }
            Eviction::Ambiguous => {
                count(MoveResult::Failed);
                self.events.occurred(about(&workload.view), Severity::Warning, "CannotEvict", || {
                    format!("pod {} cannot be evicted: more than one PodDisruptionBudget may select it", pod.name)
                });
                Ok(Some(CANNOT_EVICT_PAUSE))
            }
            Eviction::Gone => {
                self.cache.remove_pod(&pod.uid);
                Ok(Some(Duration::ZERO))
            }
        }
    }

    /// Reads the pods of a workload into the cache and adopts those without the label.
    pub(super) async fn refresh(&self, entry: &WorkloadEntry, workload: &Workload) -> Result<(), PlacementError> {
        let listed = self.cluster.list_pods(entry).await?;
        let unlabelled = self.cache.store_listed(workload, listed);
        if self.dry_run || unlabelled.is_empty() {
            return Ok(());
        }
        info!(workload = &*entry.key, pods = unlabelled.len(), "adopting unmanaged pods");
        let namespace = &workload.view.namespace;
        let (mut adopted, mut refused, mut failed) = (false, None, None);
        let adopting = unlabelled.iter().map(|pod| self.cluster.adopt(namespace, pod).boxed()).collect();
        for (pod, answer) in unlabelled.iter().zip(in_parallel(adopting).await) {
            match answer {
                Ok(answer) => {
                    adopted = true;
                    self.cache.store_pod(answer);
                }
                // The pod is gone. It never had the label, so the watch does not deliver that.
                Err(error) if matches!(error.category(), Category::NotFound | Category::Conflict) => {
                    self.cache.remove_pod(&pod.uid);
                }
                // The pod counts as it was listed. Others of the workload are still placed.
                Err(error) if error.failure().is_refusal() => {
                    warn!(workload = &*entry.key, pod = pod.name, error = %Chain(&error), "could not label pod");
                    refused = Some(error);
                }
                // Without the label the watch does not deliver the pod: a cached one would become
                // stale. It is missing instead, so that the pods are read again.
                Err(error) => {
                    self.cache.remove_pod(&pod.uid);
                    failed = Some(error);
                }
            }
        }
        if let Some(error) = failed {
            return Err(error);
        }
        // Without a success the permission is missing.
        refused.filter(|error| !adopted && error.category() == Category::Forbidden).map_or(Ok(()), Err)
    }
}

/// Runs requests with limited parallelism and returns their answers in order.
pub(super) async fn in_parallel<T>(requests: Vec<BoxFuture<'_, T>>) -> Vec<T> {
    stream::iter(requests).buffered(PARALLEL_WRITES).collect().await
}
