//! The loop of a controller: takes keys from a queue, reconciles each under a permit of its shard,
//! and decides when to look at it again.
//!
//! # Guarantees
//! One key is never reconciled twice at the same time, and never without a permit that outlasts it.
//! A failure delays the key that it is about, and no other.

use std::{
    collections::HashMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;
use tracing::{Instrument as _, Span, error_span};

use super::{
    error_category::Category,
    jitter::Jitter,
    labels::ReconcileOutcome,
    metrics::Metrics,
    ownership::Ownership,
    queue::{Queue, QueueKey, Rank, WorkItem},
    reporter::{CategorizedError, Retry},
};

/// A controller: everything that the loop does not know about the objects.
pub trait Reconcile: Send + Sync {
    type Key: QueueKey + Send + Sync;
    type Priority: Rank + Send + Sync;
    type Error: CategorizedError + Send;

    /// The part of a key that determines its shard.
    fn shard_key(key: &Self::Key) -> &str;

    /// The part of a key whose objects take turns with those of others, so that many changes of one
    /// delay no other.
    #[expect(clippy::unnecessary_literal_bound, reason = "implementations return a part of the key")]
    fn share(_key: &Self::Key) -> &str {
        ""
    }

    /// The span of one reconciliation. Its field `outcome` is filled in by the loop.
    fn span(&self, key: &Self::Key) -> Span;

    /// Brings one object to its desired state. `term` is the term of the permit.
    fn reconcile(
        &self,
        work: &WorkItem<Self::Key, Self::Priority>,
        term: u64,
    ) -> impl Future<Output = Result<NextStep, Self::Error>> + Send;

    /// Reports a failed reconciliation.
    fn report(&self, key: &Self::Key, error: &Self::Error, retry: Retry);

    /// Drops what is cached for a key whose shard has another owner.
    fn disown(&self, _key: &Self::Key) {}
}

/// Next step after a successful reconciliation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextStep {
    /// Wait for the next event.
    Done,
    Requeue,
    RequeueAfter(Duration),
}

/// Pauses after failures.
#[derive(Clone, Copy, Debug)]
pub struct RetryPolicy {
    /// Bounds of the exponential backoff.
    pub backoff: (Duration, Duration),
    /// Number of conflicts in a row that are retried at once.
    pub immediate_conflicts: u32,
    /// Longest pause after a conflict.
    pub longest_conflict: Duration,
    /// Bounds of the pause after a request that the API server refused.
    pub refused: (Duration, Duration),
    /// Bounds of the pause after a request that lacked a permission.
    pub forbidden: (Duration, Duration),
}

/// The queue of a controller and the loop that works on it.
#[derive(Debug)]
pub struct Reconciler<K, P> {
    name: &'static str,
    queue: Queue<K, P>,
    /// Number of failures in a row.
    failures: Mutex<HashMap<K, u32>>,
    retry: RetryPolicy,
    ownership: Ownership,
    jitter: Jitter,
    metrics: Metrics,
    /// Number of reconciliations so far.
    count: AtomicU64,
}

impl RetryPolicy {
    /// Returns the policy with other bounds of the exponential backoff.
    #[must_use]
    pub fn with_backoff(self, first: Duration, longest: Duration) -> Self {
        Self { backoff: (first, longest), longest_conflict: self.longest_conflict.min(longest), ..self }
    }
}

impl<K: QueueKey, P: Rank> Reconciler<K, P> {
    /// `name` is the name of the controller and its queue in metrics.
    pub fn new(name: &'static str, retry: RetryPolicy, ownership: Ownership, jitter: Jitter, metrics: Metrics) -> Self {
        metrics.expect_controller(name);
        let (queue, failures, count) = (Queue::default(), Mutex::default(), AtomicU64::new(0));
        Self { name, queue, failures, retry, ownership, jitter, metrics, count }
    }

    /// Takes keys in turn from the shares of this controller. Called before the first key is added.
    #[must_use]
    pub fn shared_by<C: Reconcile<Key = K, Priority = P>>(self) -> Self {
        Self { queue: Queue::by_share(C::share), ..self }
    }

    /// Asks for a reconciliation after a delay.
    pub fn add_after(&self, key: &K, priority: P, delay: Duration) {
        self.metrics.enqueued(self.name);
        self.queue.add_after(key, priority, delay);
    }

    /// Ends every worker once its current reconciliation is over.
    pub fn close(&self) {
        self.queue.close();
    }

    pub fn is_closed(&self) -> bool {
        self.queue.is_closed()
    }

    /// Updates the gauge of the queue's length.
    pub fn report_depth(&self) {
        self.metrics.queue_has(self.name, self.queue.len());
    }

    /// Reconciles one key after the other until the queue is closed. Several workers may run at the
    /// same time.
    pub async fn work<C: Reconcile<Key = K, Priority = P>>(&self, controller: &C) {
        while let Some(work) = self.queue.next().await {
            self.metrics.dequeued(self.name, work.waited);
            let start = Instant::now();
            let Some(permit) = self.ownership.may_act(C::shard_key(&work.key)) else {
                // The new owner has seen the same events.
                self.failures().remove(&work.key);
                controller.disown(&work.key);
                continue;
            };
            let span = controller.span(&work.key);
            let id = self.count.fetch_add(1, Ordering::Relaxed);
            // Part of every log line of this reconciliation, at any level.
            let correlation = error_span!("reconcile", id = format_args!("{}-{id}", self.name));
            let reconciled = controller.reconcile(&work, permit.term()).instrument(span.clone());
            let reconciled = tokio::time::timeout(permit.remaining(), reconciled).instrument(correlation.clone()).await;
            drop(permit);
            let reconciled = reconciled.unwrap_or(Ok(NextStep::Requeue));
            let outcome = correlation.in_scope(|| self.conclude(controller, &work, reconciled));
            span.record("outcome", outcome.as_str());
            self.metrics.reconciled(self.name, outcome, start.elapsed());
        }
    }

    fn conclude<C: Reconcile<Key = K, Priority = P>>(
        &self,
        controller: &C,
        work: &WorkItem<K, P>,
        reconciled: Result<NextStep, C::Error>,
    ) -> ReconcileOutcome {
        match reconciled {
            Ok(NextStep::Done) => {
                self.failures().remove(&work.key);
                ReconcileOutcome::Success
            }
            Ok(NextStep::Requeue) => {
                self.queue.add(&work.key, work.priority);
                ReconcileOutcome::Requeue
            }
            Ok(NextStep::RequeueAfter(delay)) => {
                self.failures().remove(&work.key);
                self.queue.add_after(&work.key, work.priority, delay);
                ReconcileOutcome::RequeueAfter
            }
            Err(error) => {
                let attempt = self.count_failure(&work.key);
                let pause = self.pause_after(&error, attempt);
                controller.report(&work.key, &error, Retry { attempt, pause });
                self.metrics.requeued(self.name);
                self.queue.add_after(&work.key, work.priority, pause);
                if error.category() == Category::Conflict { ReconcileOutcome::Requeue } else { ReconcileOutcome::Error }
            }
        }
    }

    /// Returns the number of failures before this one.
    fn count_failure(&self, key: &K) -> u32 {
        let mut failures = self.failures();
        let count = failures.entry(key.clone()).or_default();
        let before = *count;
        *count = count.saturating_add(1);
        before
    }

    fn pause_after(&self, error: &impl CategorizedError, attempt: u32) -> Duration {
        let (first, longest) = self.retry.backoff;
        let backoff = self.jitter.backoff(attempt, first, longest);
        match error.category() {
            Category::Conflict if attempt < self.retry.immediate_conflicts => Duration::ZERO,
            Category::Conflict => backoff.min(self.retry.longest_conflict),
            Category::Throttled => error.retry_after().unwrap_or(backoff).max(backoff),
            Category::Refused => self.jitter.between(self.retry.refused),
            Category::Forbidden => self.jitter.between(self.retry.forbidden),
            _ => backoff,
        }
    }

    fn failures(&self) -> MutexGuard<'_, HashMap<K, u32>> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
