//! The keeper's tasks: its watches, its workers and its periodic work.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use kube::Api;
use perennial_core::{
    config::{Role, Settings, settings::Hmac},
    keeper::record::{RECORD_LABEL, RECORD_LABEL_VALUE},
};
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::{
    apply::{Cluster, PAGE_OF_RECORDS},
    cache::Cache,
    controller::{CONTROLLER, Duties, Keeper, RETRY, State},
    metrics::KeeperMetrics,
    policies::{self, Policies},
    record_keys::Signatures,
};
use crate::{
    placement::reconcile::Placer,
    runtime::{
        budget::Budget, environment::Environment, error_category::Category, events::Events, health::Health,
        ownership::Ownership, reconciler::Reconciler, reporter::Reporter, tasks::Task, watch::Watch,
    },
};

/// Readiness condition: nodes, records and policies have been listed.
const SYNCED: &str = "caches";
/// Liveness condition: the runtime makes progress.
const LOOPS: &str = "loops";
const SYNC_CHECK: Duration = Duration::from_millis(50);
const GAUGES_PERIOD: Duration = Duration::from_secs(2);
/// How often the cache is searched for records that the current key has not signed.
const RESIGN_PERIOD: Duration = Duration::from_secs(3);

impl Keeper {
    /// Builds the keeper without starting it.
    pub fn new(
        settings: &Settings,
        env: &Environment,
        ownership: Ownership,
        events: Events,
        signatures: Signatures,
    ) -> Arc<Self> {
        let Environment { client, budget, metrics, clock, jitter, identity, .. } = env.clone();
        let (controller, namespace) = (&settings.controller, settings.namespace.as_str());
        let policies = Policies::new(&settings.keeper);
        Arc::new(Self {
            cache: Cache::new(policies.clone(), signatures.clone()),
            cluster: Cluster::new(client.clone(), namespace, budget, signatures.clone()),
            client: client.clone(),
            admission: Cluster::new(client, namespace, Budget::unlimited(), signatures),
            admission_deadline: settings.webhook.timeout * 3 / 5,
            policies,
            reconciler: Reconciler::new(CONTROLLER, RETRY, ownership.clone(), jitter.clone(), metrics.clone()),
            reporter: Reporter::new(metrics.clone(), events.clone()),
            clock,
            jitter,
            metrics: KeeperMetrics::register(&metrics),
            events,
            duties: Duties {
                capture: controller.roles.contains(&Role::Capture),
                restore: controller.roles.contains(&Role::Restore),
                dry_run: controller.dry_run,
            },
            ownership,
            gate: settings.keeper.gate,
            gate_timeout: settings.keeper.gate_timeout,
            identity,
            replan: tokio::sync::Notify::new(),
            state: Mutex::new(State::default()),
        })
    }

    /// Returns the tasks that fill the caches. Placement sees the nodes of the same watch.
    pub fn watch_tasks(self: &Arc<Self>, env: &Environment, placer: Option<Arc<Placer>>) -> [Task; 5] {
        env.health.expect(SYNCED);
        let synced = report_synced(Arc::clone(self), env.health.clone(), env.stop.clone());
        let keeper = Arc::clone(self);
        let policies = async move { keeper.follow_policies().await };
        [
            Task::new("keeper readiness", synced),
            self.watch_nodes(env, placer),
            self.watch_records(env),
            self.watch_policies(env),
            Task::until(&env.stop, "policy changes", policies),
        ]
    }

    /// Returns the tasks that act on the cluster.
    pub fn work_tasks(self: &Arc<Self>, settings: &Settings, env: &Environment) -> Vec<Task> {
        let (controller, stop) = (&settings.controller, &env.stop);
        let workers = (0..controller.workers).map(|_| Task::new("keeper worker", Arc::clone(self).work()));
        let mut tasks: Vec<Task> = workers.collect();
        let keeper = Arc::clone(self);
        tasks.push(Task::new("keeper shard changes", follow_ownership(keeper, stop.clone())));
        let keeper = Arc::clone(self);
        tasks.push(Task::every(stop, "keeper resync", controller.resync_period, move || {
            keeper.resync();
            std::future::ready(())
        }));
        let keeper = Arc::clone(self);
        tasks.push(Task::every(stop, "keeper audit", controller.audit_period, move || {
            let keeper = Arc::clone(&keeper);
            async move { keeper.audit().await }
        }));
        if self.cluster.signatures().mode() != Hmac::None {
            let keeper = Arc::clone(self);
            tasks.push(Task::every(stop, "record signatures", RESIGN_PERIOD, move || {
                let keeper = Arc::clone(&keeper);
                async move { keeper.keep_signed().await }
            }));
        }
        env.health.watch(LOOPS, GAUGES_PERIOD * 15);
        let (keeper, health) = (Arc::clone(self), env.health.clone());
        tasks.push(Task::every(stop, "keeper gauges", GAUGES_PERIOD, move || {
            keeper.survey();
            health.beat(LOOPS);
            std::future::ready(())
        }));
        // Not in the task that beats: a slow API server is no reason to restart.
        let keeper = Arc::clone(self);
        tasks.push(Task::every(stop, "gate timeouts and policy status", GAUGES_PERIOD, move || {
            let keeper = Arc::clone(&keeper);
            async move {
                keeper.free_overdue().await;
                keeper.report_policies().await;
            }
        }));
        let (keeper, stop) = (Arc::clone(self), stop.clone());
        tasks.push(Task::new("keeper queue", async move {
            stop.cancelled().await;
            keeper.reconciler.close();
        }));
        tasks
    }

    fn watch_nodes(self: &Arc<Self>, env: &Environment, placer: Option<Arc<Placer>>) -> Task {
        let (keeper, metrics) = (Arc::clone(self), env.metrics.clone());
        let watch = Watch::new("nodes", self.cluster.nodes().clone(), &env.jitter, &env.stop).observed_by(&env.history);
        let on_event = move |event| {
            if let Some(placer) = &placer {
                placer.on_node(&event);
            }
            keeper.on_node(event);
        };
        Task::new("watch of nodes", watch.run(on_event, move |category| metrics.failed(category)))
    }

    fn watch_records(self: &Arc<Self>, env: &Environment) -> Task {
        let (keeper, metrics) = (Arc::clone(self), env.metrics.clone());
        let watch = Watch::new("records", self.cluster.records().clone(), &env.jitter, &env.stop)
            .labels(&format!("{RECORD_LABEL}={RECORD_LABEL_VALUE}"))
            .page_size(PAGE_OF_RECORDS);
        let on_event = move |event| keeper.on_record(event);
        Task::new("watch of records", watch.run(on_event, move |category| metrics.failed(category)))
    }

    fn watch_policies(self: &Arc<Self>, env: &Environment) -> Task {
        let (keeper, missing) = (Arc::clone(self), Arc::clone(self));
        let api = Api::<policies::KeepPolicyResource>::all(env.client.clone());
        let watch = Watch::new("keeppolicies", api, &env.jitter, &env.stop);
        let on_error = move |category| {
            if matches!(category, Category::NotFound | Category::Forbidden) && missing.policies.on_missing(category) {
                missing.on_policies();
            }
        };
        Task::new("watch of policies", watch.run(move |event| keeper.on_policy(event), on_error))
    }
}

async fn follow_ownership(keeper: Arc<Keeper>, stop: CancellationToken) {
    let mut changes = keeper.ownership.changes();
    while let Some(owned) = stop.run_until_cancelled(changes.next()).await {
        let owned: Vec<u32> = owned.into_keys().collect();
        info!(shards = ?owned, "owned shards changed");
        keeper.resync();
    }
}

/// Reports readiness once nodes, records and policies have been listed. It never goes back.
async fn report_synced(keeper: Arc<Keeper>, health: Health, stop: CancellationToken) {
    while !keeper.is_synced() {
        if stop.run_until_cancelled(tokio::time::sleep(SYNC_CHECK)).await.is_none() {
            return;
        }
    }
    health.set(SYNCED, true);
    stop.cancelled().await;
}
