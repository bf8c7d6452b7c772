//! The placement controller: events of the watches become work, and each workload is observed,
//! decided and applied.
//!
//! # Guarantees
//! A new owner of a workload reads its pods before it decides. A failure delays only the workload
//! that it is about.

use std::{sync::Arc, time::Duration};

use kube::runtime::watcher::Event;
use perennial_core::{
    admission_review::{AdmissionRequest, AdmissionResponse},
    placement::{
        decision::{Action, Decision},
        explain::sentence,
        workload::Workload,
    },
};
use tracing::{Span, field, info, info_span};

use super::{
    Key,
    apply::{Applier, Cluster, Error},
    cache::{Affected, SharedCache, Step, Watched, about, shard_key},
    gauges::Gauges,
    metrics::PlacementMetrics,
    settings::Configured,
    ungate::ungate_overdue,
    webhook::PodWebhook,
};
use crate::{
    keeper::node::Node,
    runtime::{
        budget::Urgency,
        clock::Clock,
        error_category::Category,
        events::{Events, Severity},
        jitter::Jitter,
        metrics::Metrics,
        ownership::Ownership,
        queue::Work,
        reconciler::{Action as Next, Reconcile, Reconciler, RetryPolicy},
        reporter::{CategorizedError, Reporter, Retry, log_failure},
        traces,
    },
};

/// Name of the controller and its queue in metrics.
const CONTROLLER: &str = "placement";
const MIN_PAUSE: Duration = Duration::from_millis(25);
const MAX_PAUSE: Duration = Duration::from_mins(1);
const RETRY: RetryPolicy = RetryPolicy {
    backoff: (MIN_PAUSE, MAX_PAUSE),
    immediate_conflicts: 0,
    longest_conflict: Duration::from_millis(500),
    refused: (Duration::from_secs(270), Duration::from_secs(330)),
    forbidden: (Duration::from_secs(270), Duration::from_secs(330)),
};

/// The shared parts of the process that placement uses.
#[expect(missing_debug_implementations, reason = "kube's client has none")]
pub struct PlacerParts {
    pub configured: Configured,
    pub cluster: Cluster,
    /// Client of the webhook, with a budget of its own because the API server waits for the answer.
    pub admission: Cluster,
    /// Must be below the deadline of the server, which is below the timeout of the webhook.
    pub admission_deadline: Duration,
    pub clock: Clock,
    pub jitter: Jitter,
    pub metrics: Metrics,
    pub events: Events,
    pub ownership: Ownership,
    /// This replica decides about workloads. Otherwise it only answers admission and ungates
    /// overdue pods.
    pub decides: bool,
    /// Decisions are logged and not executed.
    pub dry_run: bool,
}

/// Placement of one replica of the operator.
#[expect(missing_debug_implementations, reason = "kube's client has none")]
pub struct Placer {
    cache: Arc<SharedCache>,
    applier: Applier,
    webhook: PodWebhook,
    reconciler: Arc<Reconciler<Key, Urgency>>,
    gauges: Gauges,
    events: Events,
    reporter: Reporter,
    ownership: Ownership,
    decides: bool,
}

impl Placer {
    /// Builds the controller without starting it.
    pub fn from_parts(parts: PlacerParts) -> Self {
        let cache = Arc::new(SharedCache::new(parts.configured.clone(), parts.clock.clone()));
        let (ownership, jitter, metrics) = (parts.ownership.clone(), parts.jitter.clone(), parts.metrics.clone());
        let own_metrics = PlacementMetrics::register(&parts.metrics);
        let reconciler = Arc::new(Reconciler::new(CONTROLLER, RETRY, ownership, jitter, metrics));
        Self {
            applier: Applier::new(&parts, Arc::clone(&cache), own_metrics.clone()),
            webhook: PodWebhook::new(&parts, Arc::clone(&cache), Arc::clone(&reconciler)),
            gauges: Gauges::new(own_metrics),
            reporter: Reporter::new(parts.metrics, parts.events.clone()),
            events: parts.events,
            ownership: parts.ownership,
            decides: parts.decides,
            cache,
            reconciler,
        }
    }

    pub fn cache(&self) -> &SharedCache {
        &self.cache
    }

    pub fn is_synced(&self) -> bool {
        self.cache.is_synced()
    }

    /// Returns whether this replica decides about workloads.
    pub fn decides(&self) -> bool {
        self.decides
    }

    pub fn ownership(&self) -> &Ownership {
        &self.ownership
    }

    /// Applies an event of a watch.
    pub fn on<K: Watched>(&self, event: Event<K>) {
        let delay = match &event {
            Event::Apply(object) | Event::Delete(object) => object.delay(),
            Event::Init | Event::InitApply(_) | Event::InitDone => Duration::ZERO,
        };
        let affected = self.cache.on(event);
        self.enqueue(affected, delay);
    }

    /// Applies an event of the keeper's watch of nodes.
    pub fn on_node(&self, event: &Event<Node>) {
        self.on(match event {
            Event::Init => Event::Init,
            Event::InitDone => Event::InitDone,
            Event::InitApply(node) => Event::InitApply(node),
            Event::Apply(node) => Event::Apply(node),
            Event::Delete(node) => Event::Delete(node),
        });
    }

    /// Reconciles every workload. Sends no request for workloads without changes.
    pub fn resync(&self) {
        self.enqueue(self.cache.all_affected(), Duration::ZERO);
    }

    fn enqueue(&self, affected: Affected, delay: Duration) {
        if !self.decides {
            return;
        }
        for key in affected {
            if self.is_ours(&key) {
                self.reconciler.add_after(&key, Urgency::Immediate, delay);
            }
        }
    }

    fn is_ours(&self, key: &str) -> bool {
        self.ownership.is_ours(self.ownership.shard_of(shard_key(key)))
    }

    /// Reconciles workloads until the queue is closed.
    pub async fn work(self: Arc<Self>) {
        self.reconciler.work(&*self).await;
    }

    /// Ends every worker after its current reconciliation. From then on, no pod is gated.
    pub fn close(&self) {
        self.reconciler.close();
    }

    /// Answers the admission request of a pod CREATE.
    pub async fn admit_pod(&self, request: AdmissionRequest) -> AdmissionResponse {
        self.webhook.admit_pod(request).await
    }

    /// Ungates pods that have been gated for too long, whichever replica owns their workload.
    pub async fn ungate_overdue(&self) {
        let is_attended = |key: &str| self.ownership.has_owner(self.ownership.shard_of(shard_key(key)));
        for (pod, error) in ungate_overdue(&self.cache, &self.applier, is_attended).await {
            self.report_failure(&pod, &error, Retry::default());
        }
    }

    /// Updates the gauges.
    pub fn publish_gauges(&self) {
        self.gauges.publish(|key| self.is_ours(key));
        self.reconciler.report_depth();
    }

    fn report_failure(&self, object: &str, error: &Error, retry: Retry) {
        log_failure!(self.reporter.failure(error, retry, None), workload = object);
    }

    fn forget(&self, key: &Key) {
        self.gauges.forget(key);
        self.cache.forget(key);
    }

    async fn act(&self, key: &Key, workload: &Workload, decision: &Decision) -> Result<Next, Error> {
        self.record(key, workload, decision);
        let dry_run = self.applier.is_dry_run();
        if dry_run {
            for action in decision.actions.iter().filter_map(sentence) {
                info!(workload = &**key, action, "dry run, not executed");
            }
        } else if let Some(pause) = self.applier.apply(workload, decision).await? {
            return Ok(Next::RequeueAfter(pause));
        }
        // In a dry run the next decision is the same.
        let min = if dry_run { MAX_PAUSE } else { MIN_PAUSE };
        let Some(revisit) = decision.revisit else { return Ok(Next::Done) };
        let pause = Duration::try_from(revisit.duration_since(workload.now)).unwrap_or_default();
        Ok(Next::RequeueAfter(pause.max(min)))
    }

    /// Records the counts of a decision and writes its Events.
    fn record(&self, key: &Key, workload: &Workload, decision: &Decision) {
        if workload.managed_spec().is_some() {
            self.gauges.record(key, decision.counts, workload.state().breaker.is_open());
        } else {
            self.gauges.forget(key);
        }
        for action in &decision.actions {
            let Action::Report(event) = action else { continue };
            let severity = if event.warning { Severity::Warning } else { Severity::Normal };
            let (about, message) = (about(&workload.view), event.message.clone());
            if event.lasting {
                self.events.lasts(about, severity, event.reason, message);
            } else {
                self.events.occurred(about, severity, event.reason, || message);
            }
        }
    }
}

impl Reconcile for Placer {
    type Key = Key;
    type Priority = Urgency;
    type Error = Error;

    fn shard_key(key: &Key) -> &str {
        shard_key(key)
    }

    fn span(&self, key: &Key) -> Span {
        info_span!(target: traces::TARGET, "placement", workload = &**key, outcome = field::Empty)
    }

    async fn reconcile(&self, work: &Work<Key, Urgency>, term: u64) -> Result<Next, Error> {
        let key = &work.key;
        let mut step = self.cache.decide(key, term);
        if let Step::Stale(stale) = &step {
            let (entry, workload) = &**stale;
            self.applier.refresh(entry, workload).await?;
            self.cache.mark_read(key, term);
            step = self.cache.decide(key, term);
        }
        match step {
            Step::Gone => {
                self.forget(key);
                Ok(Next::Done)
            }
            Step::Stale(_) => Ok(Next::Requeue),
            Step::Decided { decided, recheck } => {
                if let Some(delay) = recheck {
                    self.reconciler.add_after(key, Urgency::Normal, delay);
                }
                let (workload, decision) = *decided;
                self.act(key, &workload, &decision).await
            }
        }
    }

    fn report(&self, key: &Key, error: &Error, retry: Retry) {
        self.report_failure(key, error, retry);
    }

    fn disown(&self, key: &Key) {
        self.forget(key);
    }
}

impl CategorizedError for Error {
    fn category(&self) -> Category {
        self.category()
    }

    fn retry_after(&self) -> Option<Duration> {
        self.retry_after()
    }

    fn missing_permission(&self) -> Option<&'static str> {
        self.missing_permission()
    }
}
