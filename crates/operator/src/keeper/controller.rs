//! The keeper: builds its parts, and hands out what the rest of the operator needs of them.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Client, Resource as _, runtime::watcher::Event};
use perennial_core::{
    admission_review::{AdmissionRequest, AdmissionResponse},
    config::{Role, Settings},
};
use tokio::{sync::Notify, time::Instant};
use tracing::warn;

use super::{
    NodeKey,
    activity::Activity,
    apply::KeeperClient,
    cache::{KeeperCache, Survey},
    cases::Cases,
    gc::{CollectionLimits, Collector},
    intake::Intake,
    losses::Losses,
    metrics::KeeperMetrics,
    node::Node,
    pending_restores::PendingRestores,
    policies::{KeepPolicyResource, Policies},
    policy_status::PolicyReporter,
    reconcile::NodeReconciler,
    record_keys::Signatures,
    replan::Replanner,
    reports::Reports,
    resign::Signer,
    webhook::NodeAdmission,
};
use crate::runtime::{
    budget::Lane,
    clock::Clock,
    environment::Environment,
    error_category::Category,
    events::Events,
    ownership::Ownership,
    reconciler::{Reconciler, RetryPolicy},
    reporter::Reporter,
};

/// Name of the controller and its queue in metrics.
pub const CONTROLLER: &str = "keeper";
const RETRY: RetryPolicy = RetryPolicy {
    backoff: (Duration::from_millis(100), Duration::from_mins(1)),
    immediate_conflicts: 3,
    longest_conflict: Duration::from_mins(1),
    refused: (Duration::from_secs(270), Duration::from_secs(330)),
    forbidden: (Duration::from_secs(30), Duration::from_mins(1)),
};

/// Longest time that a stop waits for last states to be written.
pub const DRAIN_WITHIN: Duration = Duration::from_secs(15);
const DRAIN_CHECK: Duration = Duration::from_millis(10);
/// Time without an event of the watch of nodes after which all of them count as delivered.
const QUIET_FOR: Duration = Duration::from_millis(100);
/// The same in a cluster whose nodes change all the time.
const LONGEST_ARRIVAL: Duration = Duration::from_millis(500);
/// Time for which the owner of a shard is trusted to write a last state.
const FOREIGN_AGE: Duration = Duration::from_mins(1);

/// The writes that this process may send.
#[derive(Clone, Copy, Debug)]
pub(super) struct Duties {
    pub(super) capture: bool,
    pub(super) restore: bool,
    /// Log writes instead of sending them.
    pub(super) dry_run: bool,
}

impl Duties {
    fn new(settings: &Settings) -> Self {
        let controller = &settings.controller;
        Self {
            capture: controller.roles.contains(&Role::Capture),
            restore: controller.roles.contains(&Role::Restore),
            dry_run: controller.dry_run,
        }
    }

    pub(super) fn may_write_records(self) -> bool {
        self.capture && !self.dry_run
    }
}

/// The parts of the keeper.
#[expect(missing_debug_implementations, reason = "kube's client has none")]
pub struct KeeperController {
    client: Client,
    cluster: KeeperClient,
    policies: Policies,
    cache: Arc<KeeperCache>,
    intake: Arc<Intake>,
    nodes: NodeReconciler,
    losses: Losses,
    admission: NodeAdmission,
    restores: Arc<PendingRestores>,
    collector: Collector,
    signer: Signer,
    replanner: Replanner,
    policy_reporter: PolicyReporter,
    clock: Clock,
    metrics: KeeperMetrics,
    ownership: Ownership,
    gate_timeout: Duration,
}

impl KeeperController {
    /// Builds the keeper without starting it.
    pub fn new(
        settings: &Settings,
        env: &Environment,
        ownership: Ownership,
        events: Events,
        signatures: Signatures,
    ) -> Arc<Self> {
        let Environment { client, budget, metrics, clock, jitter, identity, .. } = env.clone();
        let (namespace, duties) = (settings.namespace.as_str(), Duties::new(settings));
        let policies = Policies::new(&settings.keeper);
        let cache = Arc::new(KeeperCache::new(policies.clone(), signatures.clone()));
        let cluster = KeeperClient::new(client.clone(), namespace, budget.lane(Lane::First), signatures.clone());
        let cases = Cases::new(policies.clone(), Arc::clone(&cache), clock.clone(), identity);
        let backoff = &settings.controller.retry;
        let retry = RETRY.with_backoff(backoff.initial_backoff, backoff.max_backoff);
        let reconciler = Reconciler::new(CONTROLLER, retry, ownership.clone(), jitter.clone(), metrics.clone());
        let reporter = Reporter::new(metrics.clone(), events.clone());
        let metrics = KeeperMetrics::register(&metrics);
        let reports = Reports::new(events.clone(), metrics.clone());
        let intake = Arc::new(Intake::new(cluster.clone(), Arc::clone(&cache), reconciler, ownership.clone()));
        let restores = Arc::new(PendingRestores::new(metrics.clone(), reports.clone(), clock.clone()));
        Arc::new(Self {
            restores: Arc::clone(&restores),
            nodes: NodeReconciler {
                cluster: cluster.clone(),
                cache: Arc::clone(&cache),
                cases: cases.clone(),
                intake: Arc::clone(&intake),
                reports: reports.clone(),
                reporter: reporter.clone(),
                duties,
                ownership: ownership.clone(),
                metrics: metrics.clone(),
                draining: AtomicBool::new(false),
            },
            losses: Losses {
                cluster: cluster.clone(),
                cache: Arc::clone(&cache),
                cases: cases.clone(),
                ownership: ownership.clone(),
                clock: clock.clone(),
                reports: reports.clone(),
            },
            admission: NodeAdmission {
                cluster: KeeperClient::new(env.admission.clone(), namespace, env.admission_budget.clone(), signatures),
                cache: Arc::clone(&cache),
                cases: cases.clone(),
                reports,
                reporter: reporter.clone(),
                metrics: metrics.clone(),
                restores: Arc::clone(&restores),
                gate: settings.keeper.gate,
                deadline: settings.webhook.timeout * 3 / 5,
                dry_run: duties.dry_run,
            },
            collector: Collector {
                cluster: cluster.clone(),
                cache: Arc::clone(&cache),
                cases: cases.clone(),
                intake: Arc::clone(&intake),
                duties,
                ownership: ownership.clone(),
                reporter: reporter.clone(),
                metrics: metrics.clone(),
                limits: CollectionLimits::new(settings, &clock),
            },
            signer: Signer {
                cluster: cluster.clone(),
                cache: Arc::clone(&cache),
                intake: Arc::clone(&intake),
                duties,
                ownership: ownership.clone(),
                reporter,
                verified_after: AtomicU64::new(0),
            },
            replanner: Replanner {
                policies: policies.clone(),
                cluster: cluster.clone(),
                cache: Arc::clone(&cache),
                cases,
                intake: Arc::clone(&intake),
                duties,
                jitter,
                ownership: ownership.clone(),
                moves: Notify::new(),
                changed: Notify::new(),
            },
            policy_reporter: PolicyReporter {
                policies: policies.clone(),
                cluster: cluster.clone(),
                cache: Arc::clone(&cache),
                clock: clock.clone(),
                events,
                ownership: ownership.clone(),
                dry_run: duties.dry_run,
            },
            client,
            cluster,
            policies,
            cache,
            intake,
            clock,
            metrics,
            ownership,
            gate_timeout: settings.keeper.gate_timeout,
        })
    }

    pub fn client(&self) -> &Client {
        &self.client
    }

    pub fn cluster(&self) -> &KeeperClient {
        &self.cluster
    }

    pub fn policies(&self) -> &Policies {
        &self.policies
    }

    pub fn cache(&self) -> &KeeperCache {
        &self.cache
    }

    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    pub fn ownership(&self) -> &Ownership {
        &self.ownership
    }

    /// Records activity for the dashboard, with the counts of the last `intervals` intervals.
    pub fn enable_activity(&self, intervals: usize) {
        self.cache.enable_activity(Activity::new(self.clock.clone(), intervals));
    }

    pub fn on_node(&self, event: Event<Node>) {
        if let Event::Apply(node) | Event::InitApply(node) = &event {
            self.restores.seen(node.meta(), |name, uid| self.cache.contains_incarnation(name, uid));
        }
        if let Event::Delete(node) = &event {
            self.restores.deleted(node.meta());
        }
        self.intake.on_node(event);
        self.losses.report_dropped();
    }

    pub fn on_record(&self, event: Event<ConfigMap>) {
        if let Event::Delete(record) = &event {
            self.losses.on_record_deleted(record);
        }
        let ends_list = matches!(event, Event::InitDone);
        if ends_list {
            self.losses.on_list_end();
        }
        self.intake.on_record(event);
        if ends_list {
            self.losses.report_lost();
        }
    }

    pub fn on_policy(&self, event: Event<KeepPolicyResource>) {
        self.replanner.on_policy(event);
    }

    /// Uses the configuration for all nodes where KeepPolicies do not exist. Where they cannot be
    /// read, nothing is captured or restored.
    pub fn on_policy_watch_failure(&self, category: Category) {
        self.replanner.on_watch_failure(category);
    }

    /// Applies policy changes to all nodes.
    pub async fn follow_policies(&self) {
        self.replanner.run().await;
    }

    pub fn is_synced(&self) -> bool {
        self.cache.is_synced()
    }

    /// Queues all nodes that may need work, from the cache. Sends no requests.
    pub fn resync(&self) {
        self.intake.resync();
    }

    /// Reconciles nodes until the queue is closed.
    pub async fn work(self: Arc<Self>) {
        self.intake.reconciler().work(&self.nodes).await;
    }

    /// Writes the pending last states of the owned shards, and nothing else. Ends when all are
    /// written, or after [`DRAIN_WITHIN`]. The rate of requests is not limited: last states that
    /// are not written now are lost.
    pub async fn drain(&self) {
        // Others write them: this process never does.
        if !self.nodes.duties.capture {
            return;
        }
        let start = Instant::now();
        self.nodes.draining.store(true, Ordering::Relaxed);
        self.cluster.lift_limit();
        self.intake.resync();
        loop {
            let is_ours = |name: &NodeKey| self.ownership.is_ours(self.ownership.shard_of(name));
            let pending = self.cache.pending_names().iter().filter(|name| is_ours(name)).count();
            let elapsed = start.elapsed();
            // Deletions that were committed before the stop may still be on their way.
            let quiet = elapsed.min(self.cache.silent_for()) >= QUIET_FOR || elapsed >= LONGEST_ARRIVAL;
            if !self.cache.is_synced() || pending == 0 && quiet {
                return;
            }
            if elapsed >= DRAIN_WITHIN {
                warn!(last_states = pending, "stopping before all last states were written");
                return;
            }
            tokio::time::sleep(DRAIN_CHECK).await;
        }
    }

    /// Settles last states of other replicas that have waited for long.
    pub async fn settle_foreign_last_states(&self) {
        self.nodes.settle_foreign_last_states(FOREIGN_AGE).await;
    }

    /// Ends every worker once its current reconciliation is over.
    pub fn close(&self) {
        self.intake.reconciler().close();
    }

    /// Answers a Node CREATE.
    pub async fn admit_create(&self, request: AdmissionRequest) -> AdmissionResponse {
        self.admission.create(request).await
    }

    /// Answers a Node DELETE.
    pub async fn admit_delete(&self, request: AdmissionRequest) -> AdmissionResponse {
        self.admission.delete(request).await
    }

    /// Garbage-collects records.
    pub async fn collect_garbage(&self) {
        self.collector.run().await;
    }

    /// Signs records with the newest key.
    pub async fn keep_signed(&self) {
        self.signer.run().await;
    }

    /// Ungates nodes that have been gated for too long.
    pub async fn ungate_overdue(&self) {
        self.nodes.ungate_overdue(self.gate_timeout).await;
    }

    /// Updates the status of KeepPolicies.
    pub async fn report_policies(&self) {
        self.policy_reporter.run().await;
    }

    /// Updates the gauges, and drops what has expired.
    pub fn survey(&self) -> Survey {
        self.intake.expire();
        let survey = self.cache.survey();
        self.metrics.set_gauges(&survey);
        self.metrics.set_pending(self.cache.pending());
        self.intake.reconciler().report_depth();
        survey
    }
}
