//! The keeper's tasks: its watches, its workers and its periodic work.

use std::{sync::Arc, time::Duration};

use kube::{Api, Resource as _};
use perennial_core::{
    config::{Settings, settings::Hmac},
    keeper::{record::record_selector, status::KeepState},
};
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::{apply::PAGE_OF_RECORDS, cache::Survey, controller::KeeperController, policies};
use crate::{
    placement::reconcile::Placer,
    runtime::{environment::Environment, error_category::Category, health::Health, tasks::Task, watch::Watch},
};

/// Readiness condition: nodes and records have been listed, and policies unless they cannot be
/// read.
const SYNCED: &str = "caches";
/// The watch of policies, in logs and in the health of the process.
const POLICIES: &str = "keeppolicies";
/// Interval at which it is checked whether KeepPolicies exist at all, while they cannot be read.
const DISCOVERY_PERIOD: Duration = Duration::from_secs(5);
/// Liveness condition: the runtime makes progress.
const LOOPS: &str = "loops";
const SYNC_CHECK: Duration = Duration::from_millis(50);
const GAUGES_PERIOD: Duration = Duration::from_secs(2);
/// Longest time from the start to the first audit. Nodes that left while no replica ran are noted
/// by it.
const FIRST_AUDIT: Duration = Duration::from_mins(2);
/// Interval at which the cache is searched for records that the current key has not signed.
const RESIGN_PERIOD: Duration = Duration::from_secs(3);

impl KeeperController {
    /// Returns the tasks that fill the caches. Placement reads the nodes of the same watch.
    pub fn watch_tasks(self: &Arc<Self>, env: &Environment, placer: Option<Arc<Placer>>) -> [Task; 6] {
        env.health.expect(SYNCED);
        let synced = report_synced(Arc::clone(self), env.health.clone(), env.stop.clone());
        let keeper = Arc::clone(self);
        let policies = async move { keeper.follow_policies().await };
        [
            Task::new("keeper readiness", synced),
            self.watch_nodes(env, placer),
            self.watch_records(env),
            self.watch_policies(env),
            self.discover_policies(env),
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
        let first = controller.audit_period.min(FIRST_AUDIT);
        tasks.push(Task::every_after(stop, "keeper audit", (first, controller.audit_period), move || {
            let keeper = Arc::clone(&keeper);
            async move { keeper.collect_garbage().await }
        }));
        if self.cluster().signatures().mode() != Hmac::None {
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
                keeper.ungate_overdue().await;
                keeper.settle_foreign_last_states().await;
                keeper.report_policies().await;
            }
        }));
        let (keeper, stop, drained) = (Arc::clone(self), stop.clone(), env.drained.clone());
        tasks.push(Task::new("keeper queue", async move {
            stop.cancelled().await;
            drained.run_until_cancelled(keeper.drain()).await;
            drained.cancel();
            keeper.close();
        }));
        tasks
    }

    fn watch_nodes(self: &Arc<Self>, env: &Environment, placer: Option<Arc<Placer>>) -> Task {
        let (keeper, metrics) = (Arc::clone(self), env.metrics.clone());
        let nodes = self.cluster().nodes().clone();
        let watch =
            Watch::new("nodes", nodes, &env.jitter, &env.drained).observed_by(&env.history).reported_to(&env.health);
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
        let watch = Watch::new("records", self.cluster().records().clone(), &env.jitter, &env.drained)
            .labels(&record_selector())
            .page_size(PAGE_OF_RECORDS)
            .reported_to(&env.health);
        let on_event = move |event| keeper.on_record(event);
        Task::new("watch of records", watch.run(on_event, move |category| metrics.failed(category)))
    }

    fn watch_policies(self: &Arc<Self>, env: &Environment) -> Task {
        let (keeper, missing) = (Arc::clone(self), Arc::clone(self));
        let api = Api::<policies::KeepPolicyResource>::all(env.client.clone());
        let watch = Watch::new(POLICIES, api, &env.jitter, &env.stop).optional().reported_to(&env.health);
        let on_error = move |category| missing.on_policy_watch_failure(category);
        Task::new("watch of policies", watch.run(move |event| keeper.on_policy(event), on_error))
    }

    /// Returns the task that distinguishes unreadable KeepPolicies from missing ones:
    /// without permission the API server answers 403 to both.
    fn discover_policies(self: &Arc<Self>, env: &Environment) -> Task {
        let (keeper, client) = (Arc::clone(self), env.client.clone());
        Task::every(&env.stop, "discovery of KeepPolicies", DISCOVERY_PERIOD, move || {
            let (keeper, client) = (Arc::clone(&keeper), client.clone());
            async move {
                if !keeper.policies().must_be_discovered() {
                    return;
                }
                let version = policies::KeepPolicyResource::api_version(&());
                let found = tokio::time::timeout(DISCOVERY_PERIOD, client.list_api_group_resources(&version)).await;
                if let Ok(Err(error)) = found
                    && Category::of(&error) == Category::NotFound
                {
                    keeper.on_policy_watch_failure(Category::NotFound);
                }
            }
        })
    }
}

async fn follow_ownership(keeper: Arc<KeeperController>, stop: CancellationToken) {
    let mut changes = keeper.ownership().changes();
    while let Some(owned) = stop.run_until_cancelled(changes.next()).await {
        let owned: Vec<u32> = owned.into_keys().collect();
        info!(shards = ?owned, "owned shards changed");
        keeper.resync();
    }
}

/// Reports readiness once nodes, records and policies have been listed. It never goes back. While
/// policies cannot be read, nothing is captured or restored, but the rest works.
async fn report_synced(keeper: Arc<KeeperController>, health: Health, stop: CancellationToken) {
    while !(keeper.is_synced() || keeper.cache().is_listed() && health.is_unreadable(POLICIES)) {
        if stop.run_until_cancelled(tokio::time::sleep(SYNC_CHECK)).await.is_none() {
            return;
        }
    }
    health.set(SYNCED, true);
    let Survey { nodes, records, absent, .. } = keeper.cache().survey();
    info!(
        nodes = nodes.managed(),
        current = nodes.current(),
        to_capture = nodes.of(KeepState::Pending),
        to_restore = nodes.of(KeepState::Unsettled),
        records,
        absent,
        "nodes and records listed"
    );
    stop.cancelled().await;
}
