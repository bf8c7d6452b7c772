//! The placement controller: events of the watches become work, and each workload is observed,
//! decided and applied.
//!
//! # Guarantees
//! A new owner of a workload compares its pods with the API server before it decides. A failure
//! delays only the workload that it is about.

use std::{sync::Arc, time::Duration};

use kube::runtime::watcher::Event;
use perennial_core::{
    admission_review::{AdmissionRequest, AdmissionResponse},
    placement::{
        Class,
        decision::{Action, PlacementDecision, RoomSearch},
        explain::sentence,
        workload::Workload,
    },
};
use tracing::{Span, field, info, info_span};

use super::{
    WorkloadKey,
    apply::{Applier, PlacementClient, PlacementError},
    cache::{Affected, SharedCache, Step, Watched, about, shard_key},
    gauges::Gauges,
    metrics::PlacementMetrics,
    settings::Configured,
    takeover::Takeover,
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
        health::Health,
        jitter::Jitter,
        metrics::Metrics,
        ownership::Ownership,
        queue::WorkItem,
        reconciler::{NextStep, Reconcile, Reconciler, RetryPolicy},
        reporter::{CategorizedError as _, Reporter, Retry, log_failure},
        traces,
    },
};

/// Name of the controller and its queue in metrics.
const CONTROLLER: &str = "placement";
const MIN_PAUSE: Duration = Duration::from_millis(25);
const MAX_PAUSE: Duration = Duration::from_mins(1);
/// Retry interval of an eviction for which no node has room.
const NO_ROOM_PAUSE: Duration = Duration::from_secs(30);
/// Maximum number of decisions in a row that lead to reads of volumes.
const MAX_VOLUME_READS: usize = 3;
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
    pub cluster: PlacementClient,
    /// Client of the webhook, with a separate budget because the API server waits for the answer.
    pub admission: PlacementClient,
    /// Must be below the deadline of the server, which is below the timeout of the webhook.
    pub admission_deadline: Duration,
    pub clock: Clock,
    pub jitter: Jitter,
    pub metrics: Metrics,
    pub events: Events,
    pub ownership: Ownership,
    /// Which of the watched resources can be read.
    pub health: Health,
    /// This replica decides about workloads. Otherwise it only answers admission and ungates
    /// overdue pods.
    pub decides: bool,
    /// Decisions are logged and not executed.
    pub dry_run: bool,
    /// First and longest pause after failures. A failed placement is repeated after a quarter of
    /// the first one.
    pub backoff: (Duration, Duration),
}

/// Placement of one replica of the operator.
#[expect(missing_debug_implementations, reason = "kube's client has none")]
pub struct Placer {
    cache: Arc<SharedCache>,
    applier: Applier,
    webhook: PodWebhook,
    reconciler: Arc<Reconciler<WorkloadKey, Urgency>>,
    gauges: Gauges,
    events: Events,
    reporter: Reporter,
    ownership: Ownership,
    takeover: Takeover,
    decides: bool,
}

impl Placer {
    /// Builds the controller without starting it.
    pub fn from_parts(parts: PlacerParts) -> Self {
        let cache = Arc::new(SharedCache::new(parts.configured.clone(), parts.clock.clone()));
        let (ownership, jitter, metrics) = (parts.ownership.clone(), parts.jitter.clone(), parts.metrics.clone());
        let own_metrics = PlacementMetrics::register(&parts.metrics);
        let retry = RETRY.with_backoff(parts.backoff.0 / 4, parts.backoff.1);
        let reconciler = Arc::new(Reconciler::new(CONTROLLER, retry, ownership, jitter, metrics).shared_by::<Self>());
        Self {
            applier: Applier::new(&parts, Arc::clone(&cache), own_metrics.clone()),
            webhook: PodWebhook::new(&parts, Arc::clone(&cache), Arc::clone(&reconciler)),
            gauges: Gauges::new(own_metrics, parts.configured.workload_metrics),
            reporter: Reporter::new(parts.metrics, parts.events.clone()),
            events: parts.events,
            ownership: parts.ownership,
            takeover: Takeover::default(),
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
        self.gauges.publish(self.cache.node_counts(), &self.cache.keys(), |key| self.is_ours(key));
        self.reconciler.report_depth();
    }

    fn report_failure(&self, object: &str, error: &PlacementError, retry: Retry) {
        log_failure!(self.reporter.failure(error, retry, None), workload = object);
    }

    fn forget(&self, key: &WorkloadKey) {
        self.gauges.forget(key);
        self.cache.forget(key);
    }

    async fn act(
        &self,
        key: &WorkloadKey,
        workload: &Workload,
        decision: &PlacementDecision,
    ) -> Result<NextStep, PlacementError> {
        self.record(key, workload, decision);
        let dry_run = self.applier.is_dry_run();
        if dry_run {
            for action in decision.actions.iter().filter_map(sentence) {
                info!(workload = &**key, action, "dry run, not executed");
            }
        } else if let Some(pause) = self.applier.apply(workload, decision).await? {
            return Ok(NextStep::RequeueAfter(pause));
        }
        // In a dry run the next decision is the same.
        let min = if dry_run { MAX_PAUSE } else { MIN_PAUSE };
        let Some(revisit) = decision.revisit else { return Ok(NextStep::Done) };
        let pause = Duration::try_from(revisit.duration_since(workload.now)).unwrap_or_default();
        Ok(NextStep::RequeueAfter(pause.max(min)))
    }

    /// Reads the volumes that a decision depends on, and decides again.
    async fn with_volumes(&self, key: &WorkloadKey, term: u64, mut step: Step) -> Result<Step, PlacementError> {
        for _ in 0..MAX_VOLUME_READS {
            let Step::Decided { decided, .. } = &step else { break };
            let (workload, decision) = &**decided;
            if decision.volume_checks.is_empty() {
                break;
            }
            self.applier.read_volumes(workload, &decision.volume_checks).await?;
            step = self.cache.decide(key, term);
        }
        Ok(step)
    }

    /// Checks that a node has room before a pod is evicted because of it, and whether an existing
    /// node has room where that would allow an eviction. Decides again after that. Returns None if the
    /// eviction must wait: a StatefulSet whose probe began keeps it until it times out.
    async fn with_room(&self, key: &WorkloadKey, term: u64, step: Step) -> Result<Option<Step>, PlacementError> {
        let Step::Decided { decided, .. } = &step else { return Ok(Some(step)) };
        let (workload, decision) = &**decided;
        let evident = decision.evicted_on_evidence(&workload.state());
        let evident = evident.map(|pod| RoomSearch { class: Class::Spot, pod: pod.clone(), again: true });
        let wanted = || decision.room_search.clone().filter(|_| self.cache.may_search_room(key));
        let Some(search) = evident.or_else(wanted) else { return Ok(Some(step)) };
        let found = self.applier.find_room(key, &workload.view.namespace, &search).await?;
        let step = self.cache.decide(key, term);
        let evicts = match &step {
            Step::Decided { decided, .. } => decided.1.evicted_on_evidence(&decided.0.state()).is_some(),
            Step::Gone | Step::Stale { .. } => false,
        };
        Ok((found || !evicts).then_some(step))
    }

    /// Records the counts of a decision and writes its Events.
    fn record(&self, key: &WorkloadKey, workload: &Workload, decision: &PlacementDecision) {
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
    type Key = WorkloadKey;
    type Priority = Urgency;
    type Error = PlacementError;

    fn shard_key(key: &WorkloadKey) -> &str {
        shard_key(key)
    }

    /// Namespaces take turns.
    fn share(key: &WorkloadKey) -> &str {
        shard_key(key).split('/').next().unwrap_or_default()
    }

    fn span(&self, key: &WorkloadKey) -> Span {
        info_span!(target: traces::TARGET, "placement", workload = &**key, outcome = field::Empty)
    }

    async fn reconcile(&self, work: &WorkItem<WorkloadKey, Urgency>, term: u64) -> Result<NextStep, PlacementError> {
        let key = &work.key;
        let mut step = self.cache.decide(key, term);
        if let Step::Stale { stale, taken_over } = &step {
            let (entry, workload) = &**stale;
            let at = (self.ownership.shard_of(shard_key(key)), term);
            let context = (self.applier.cluster(), &*self.cache, &self.ownership);
            if !taken_over || !self.takeover.is_current(workload, at, context).await? {
                self.applier.refresh(entry, workload).await?;
            }
            self.cache.mark_read(key, term);
            step = self.cache.decide(key, term);
        }
        let step = self.with_volumes(key, term, step).await?;
        let Some(mut step) = self.with_room(key, term, step).await? else {
            return Ok(NextStep::RequeueAfter(NO_ROOM_PAUSE));
        };
        // Without leader election several replicas may decide. Another one may have moved a pod
        // that this cache still contains, and the saved state alone does not show that.
        if !self.ownership.is_exclusive()
            && let Step::Decided { decided, .. } = &step
            && decided.1.evicts()
            && let Some(entry) = self.cache.entry(key)
        {
            self.applier.refresh(&entry, &decided.0).await?;
            step = self.cache.decide(key, term);
        }
        match step {
            Step::Gone => {
                self.forget(key);
                Ok(NextStep::Done)
            }
            Step::Stale { .. } => Ok(NextStep::Requeue),
            Step::Decided { decided, recheck } => {
                if let Some(delay) = recheck {
                    self.reconciler.add_after(key, Urgency::Normal, delay);
                }
                let (workload, decision) = *decided;
                let done = self.act(key, &workload, &decision).await;
                // Another replica wrote first: a decision on the same cache would place other pods
                // as if that write had not happened.
                let conflicts = done.as_ref().is_err_and(|error| error.category() == Category::Conflict);
                if conflicts && !self.ownership.is_exclusive() {
                    self.cache.forget(key);
                }
                done
            }
        }
    }

    fn report(&self, key: &WorkloadKey, error: &PlacementError, retry: Retry) {
        self.report_failure(key, error, retry);
    }

    fn disown(&self, key: &WorkloadKey) {
        self.forget(key);
    }
}
