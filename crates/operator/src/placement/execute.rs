//! Doing what was decided about one workload.
//!
//! # Guarantees
//! Placements and relabels of one plan are independent of each other and run side by side; the state is written after them and
//! before anything is removed. Answers are taken into the caches at once, so that the next plan rests on what was just written.

use std::time::Duration;

use futures::{FutureExt, StreamExt, future::BoxFuture, stream};
use perennial_core::placement::{
    action::{Action, Plan, PodRef},
    release::{Why, free},
    spec::{Spec, Strength},
    view::PodView,
};
use tokio::time::Instant;
use tracing::{debug, info};

use super::{
    apply::{Error, Eviction, Saved},
    controller::{Placer, REFUSED_PAUSE},
    index::{Look, Reading, Workload},
    metrics::MoveResult,
    objects::Pod,
    observe::{deployment, pod_entry, stateful_set},
};
use crate::runtime::{error_category::Category, events::Severity, request::Failure};

/// A disruption budget that said no is asked again after this.
const BLOCKED_PAUSE: Duration = Duration::from_secs(30);
/// So many pods of one workload are written to at once.
const SIDE_BY_SIDE: usize = 32;
/// So many in one go. Then the right to act is asked for anew, and what came meanwhile is looked at.
const IN_ONE_GO: usize = 64;

impl Placer {
    /// Does what was decided, or the first part of it. A pause: nothing more can be done before it is over.
    pub(super) async fn execute(&self, look: &Look, spec: &Spec, decided: &Plan) -> Result<Option<Duration>, Error> {
        let (mut writes, rest): (Vec<&Action>, Vec<&Action>) = decided
            .actions
            .iter()
            .partition(|action| matches!(action, Action::Place { .. } | Action::Free { .. } | Action::Relabel { .. }));
        let whole = writes.len() <= IN_ONE_GO;
        writes.truncate(IN_ONE_GO);
        let writing = writes.into_iter().map(|action| self.write(look, spec, action).boxed()).collect();
        if let Some(error) = side_by_side(writing).await.into_iter().find_map(Result::err) {
            return Err(error);
        }
        if !whole {
            return Ok(Some(Duration::ZERO));
        }
        for action in rest {
            let pause = match action {
                Action::Save { patch, reason, .. } => {
                    let saved = self.cluster.save(&look.workload, patch).await?;
                    debug!(workload = &*look.workload.key, reason, "state written");
                    self.take_workload(saved);
                    None
                }
                Action::Evict { pod, reason } => self.evict(&look.workload, pod, reason).await?,
                Action::Delete { pod, reason } => {
                    self.cluster.delete(&look.workload.namespace, pod).await?;
                    self.lock().removed.insert(pod.uid.clone(), Instant::now());
                    info!(workload = &*look.workload.key, pod = pod.name, reason, "deleted a pod that found no place");
                    None
                }
                _ => None,
            };
            if pause.is_some() {
                return Ok(pause);
            }
        }
        Ok(None)
    }

    /// One write to one pod.
    async fn write(&self, look: &Look, spec: &Spec, action: &Action) -> Result<(), Error> {
        let namespace = &look.workload.namespace;
        match action {
            Action::Place { pod, class, slot, patch, reason, .. } => {
                match self.cluster.patch_pod(namespace, &pod.name, patch).await {
                    Ok(answer) => {
                        debug!(workload = &*look.workload.key, pod = pod.name, %class, slot, reason, "placed");
                        self.take(answer);
                        Ok(())
                    }
                    Err(failure) if failure.is_refusal() => self.refused(look, spec, pod, &failure).await,
                    Err(failure) if failure.category() == Category::NotFound => {
                        self.forget_pod(pod);
                        Ok(())
                    }
                    Err(source) => Err(Error::Place { pod: pod.name.clone(), source }),
                }
            }
            Action::Relabel { pod, patch, .. } => match self.cluster.patch_pod(namespace, &pod.name, patch).await {
                Ok(answer) => {
                    self.take(answer);
                    Ok(())
                }
                Err(failure) if failure.category() == Category::NotFound => {
                    self.forget_pod(pod);
                    Ok(())
                }
                Err(source) => Err(Error::Relabel { pod: pod.name.clone(), source }),
            },
            Action::Free { pod, patch, on_refusal, reason, .. } => {
                self.release(namespace, pod, patch, on_refusal.as_ref(), reason).await
            }
            _ => Ok(()),
        }
    }

    /// The API server does not accept our choice for this pod, and never will: it goes as it is. Where not even that is accepted, a
    /// permission is missing, and nothing is said of the pod.
    async fn refused(&self, look: &Look, spec: &Spec, pod: &PodRef, failure: &Failure) -> Result<(), Error> {
        if let Some(known) = look.pods.iter().find(|known| known.uid == pod.uid) {
            self.free(&look.workload.namespace, known, Why::Refused, spec.strength).await?;
        }
        self.events.say(look.workload.about(), Severity::Warning, "PlacementRefused", || {
            format!("pod {} could not be given a class and was freed as it is: {failure}", pod.name)
        });
        Ok(())
    }

    pub(super) async fn free(&self, namespace: &str, pod: &PodView, why: Why, strength: Strength) -> Result<(), Error> {
        match free(pod, why, strength, &self.configured.settings) {
            Action::Free { pod, patch, on_refusal, reason, .. } if !self.dry_run => {
                self.release(namespace, &pod, &patch, on_refusal.as_ref(), &reason).await
            }
            _ => Ok(()),
        }
    }

    async fn release(
        &self,
        namespace: &str,
        pod: &PodRef,
        patch: &serde_json::Value,
        on_refusal: Option<&serde_json::Value>,
        reason: &str,
    ) -> Result<(), Error> {
        if let Some(answer) = self.cluster.free_pod(namespace, &pod.name, patch, on_refusal).await? {
            info!(namespace, pod = pod.name, reason, "freed");
            self.take(answer);
        }
        Ok(())
    }

    async fn evict(&self, workload: &Workload, pod: &PodRef, reason: &str) -> Result<Option<Duration>, Error> {
        let count = |result| self.metrics.moved(result);
        let answer = self.cluster.evict(&workload.namespace, pod).await.inspect_err(|_| {
            count(MoveResult::Failed);
        })?;
        match answer {
            Eviction::Done => {
                count(MoveResult::Evicted);
                self.lock().removed.insert(pod.uid.clone(), Instant::now());
                info!(workload = &*workload.key, pod = pod.name, reason, "evicted");
                self.events
                    .say(workload.about(), Severity::Normal, "Moved", || format!("evicted pod {}: {reason}", pod.name));
                Ok(None)
            }
            Eviction::Blocked => {
                count(MoveResult::Blocked);
                debug!(workload = &*workload.key, pod = pod.name, "a disruption budget does not allow it now");
                Ok(Some(BLOCKED_PAUSE.mul_f64(0.75 + self.jitter.fraction() / 2.0)))
            }
            Eviction::Ambiguous => {
                count(MoveResult::Failed);
                self.events.say(workload.about(), Severity::Warning, "CannotEvict", || {
                    format!("pod {} cannot be evicted: more than one PodDisruptionBudget may select it", pod.name)
                });
                Ok(Some(REFUSED_PAUSE))
            }
            Eviction::Gone => {
                self.forget_pod(pod);
                Ok(Some(Duration::ZERO))
            }
        }
    }

    /// The API server says that a pod is gone. The watch shows only what has our label, so it may never say so.
    fn forget_pod(&self, pod: &PodRef) {
        self.lock().view.index.remove_pod(&pod.uid);
    }

    /// Takes in the answer to a write. A pod that is gone meanwhile stays gone.
    pub(super) fn take(&self, pod: Pod) {
        let mut state = self.lock();
        let reading = Reading { configured: &self.configured, now: self.clock.now(), listed: false };
        let before = state.view.index.pod(pod.metadata.uid.as_deref().unwrap_or_default());
        if before.is_some() {
            let entry = pod_entry(pod, before, &reading);
            state.view.index.put_pod(entry);
        }
    }

    fn take_workload(&self, saved: Saved) {
        let workload = match saved {
            Saved::Deployment(object) => deployment(object, &self.configured),
            Saved::StatefulSet(object) => stateful_set(object, &self.configured),
        };
        let mut state = self.lock();
        if state.view.index.workload(&workload.key).is_some_and(|known| known.view.uid == workload.view.uid) {
            state.view.index.put_workload(workload);
        }
    }
}

/// All of them, some at a time; the answers in order.
pub(super) async fn side_by_side<T>(requests: Vec<BoxFuture<'_, T>>) -> Vec<T> {
    stream::iter(requests).buffered(SIDE_BY_SIDE).collect().await
}
