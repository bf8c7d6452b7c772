//! Placement's tasks: its watches, its workers and its periodic work.

use std::{fmt::Debug, sync::Arc, time::Duration};

use anyhow::Context as _;
use kube::{Api, Resource};
use perennial_core::{
    config::{Role, Settings},
    coordination::lease::Terms,
    placement::{
        ungate::{UngateReason, bystander_ungates_at},
        workload::PodView,
    },
};
use serde::de::DeserializeOwned;
use tokio::time::Instant;
use tracing::{info, warn};

use super::{
    apply::PlacementClient,
    cache::{MANAGED, Watched},
    objects::{Deployment, Namespace, Pod, PodDisruptionBudget, ReplicaSet, StatefulSet},
    reconcile::{Placer, PlacerParts},
    settings::Configured,
    ungate::ungate_all,
};
use crate::{
    inspect::leases::{LeaseSnapshot, Replica},
    run::election::placing_groups,
    runtime::{
        budget::{Budget, Lane},
        environment::Environment,
        error_chain::Chain,
        events::Events,
        health::Health,
        ownership::Ownership,
        tasks::Task,
        watch::Watch,
    },
};

/// Readiness condition: workloads, pods and disruption budgets have been listed, or one of them
/// cannot be read. Placement is paused then, and the rest of the operator works.
const SYNCED: &str = "placement";
/// The watches of placement, apart from nodes.
const WATCHED: [&str; 6] = ["namespaces", "deployments", "statefulsets", "replicasets", "pods", "poddisruptionbudgets"];
const SYNC_CHECK: Duration = Duration::from_millis(250);
const GAUGES_PERIOD: Duration = Duration::from_secs(2);
/// Interval at which a process that places nothing searches for gated pods.
const LEFTOVERS_PERIOD: Duration = Duration::from_secs(15);
/// Maximum time that a process spends to ungate pods before it ends.
const LAST_UNGATE: Duration = Duration::from_secs(10);
/// Number of renewals after which a replica that missed them does not run.
const MISSED_RENEWALS: u32 = 2;
/// Time for which it searches after the last gated pod was due.
const LEFTOVERS_FOR: Duration = Duration::from_mins(5);

impl Placer {
    /// Builds placement without starting it.
    pub fn new(
        settings: &Settings,
        env: &Environment,
        ownership: Ownership,
        events: Events,
    ) -> anyhow::Result<Arc<Self>> {
        let Environment { client, budget, metrics, clock, jitter, .. } = env.clone();
        let controller = &settings.controller;
        Ok(Arc::new(Self::from_parts(PlacerParts {
            configured: Configured::new(settings).context("nodeLabels cannot be used")?,
            // Placement and the keeper share the budget fairly, whatever a tenant makes placement
            // do.
            cluster: PlacementClient::new(client, budget.lane(Lane::Second)),
            admission: PlacementClient::new(env.admission.clone(), env.admission_budget.clone()),
            admission_deadline: settings.webhook.timeout * 3 / 5,
            clock,
            jitter,
            metrics,
            events,
            ownership,
            health: env.health.clone(),
            decides: controller.roles.contains(&Role::Placement),
            dry_run: controller.dry_run,
            backoff: (controller.retry.initial_backoff, controller.retry.max_backoff),
        })))
    }

    /// Returns the tasks that fill the caches.
    pub fn watch_tasks(self: &Arc<Self>, env: &Environment) -> [Task; 7] {
        env.health.expect(SYNCED);
        let (placer, health) = (Arc::clone(self), env.health.clone());
        let report_synced = move || {
            if placer.is_synced() || is_unreadable(&health) {
                health.set(SYNCED, true);
            }
            std::future::ready(())
        };
        let [namespaces, deployments, stateful_sets, replica_sets, pods, budgets] = WATCHED;
        [
            self.watch::<Namespace>(env, namespaces, None),
            self.watch::<Deployment>(env, deployments, None),
            self.watch::<StatefulSet>(env, stateful_sets, None),
            self.watch::<ReplicaSet>(env, replica_sets, None),
            self.watch::<Pod>(env, pods, Some(&format!("{MANAGED}=true"))),
            self.watch::<PodDisruptionBudget>(env, budgets, None),
            Task::every(&env.stop, "placement readiness", SYNC_CHECK, report_synced),
        ]
    }

    /// Returns the tasks that act on the cluster.
    pub fn work_tasks(self: &Arc<Self>, settings: &Settings, env: &Environment) -> Vec<Task> {
        let (controller, stop) = (&settings.controller, &env.stop);
        let mut tasks = Vec::new();
        if self.decides() {
            let workers = (0..controller.workers).map(|_| Task::new("placement worker", Arc::clone(self).work()));
            tasks.extend(workers);
            let (placer, stopped) = (Arc::clone(self), stop.clone());
            tasks.push(Task::new("placement shard changes", async move {
                let mut changes = placer.ownership().changes();
                while stopped.run_until_cancelled(changes.next()).await.is_some() {
                    placer.resync();
                }
            }));
            let placer = Arc::clone(self);
            tasks.push(Task::every(stop, "placement resync", controller.resync_period, move || {
                placer.resync();
                std::future::ready(())
            }));
        }
        let placer = Arc::clone(self);
        tasks.push(Task::every(stop, "placement gauges and gate timeouts", GAUGES_PERIOD, move || {
            let placer = Arc::clone(&placer);
            async move {
                placer.publish_gauges();
                placer.ungate_overdue().await;
            }
        }));
        let (placer, stop) = (Arc::clone(self), stop.clone());
        tasks.push(Task::new("placement queue", async move {
            stop.cancelled().await;
            placer.close();
        }));
        tasks
    }

    fn watch<K>(self: &Arc<Self>, env: &Environment, what: &'static str, labels: Option<&str>) -> Task
    where
        K: Watched + Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
    {
        let (placer, metrics) = (Arc::clone(self), env.metrics.clone());
        let mut watch =
            Watch::new(what, Api::<K>::all(env.client.clone()), &env.jitter, &env.stop).reported_to(&env.health);
        if let Some(labels) = labels {
            watch = watch.labels(labels);
        }
        Task::new(what, watch.run(move |event| placer.on(event), move |category| metrics.failed(category)))
    }
}

/// Returns whether a resource that placement watches cannot be read. Gates cannot be removed then.
pub(super) fn is_unreadable(health: &Health) -> bool {
    WATCHED.iter().any(|resource| health.is_unreadable(resource))
}

/// Ungates all pods after this process has given up its Leases, if no other process places. Others
/// that stop at the same time do the same.
pub async fn ungate_if_last(settings: &Settings, env: &Environment) {
    let ungate = async {
        if settings.controller.leader_election.enabled {
            let leases = LeaseSnapshot::read(&env.client, settings.namespace.as_str()).await?;
            let placing = placing_groups();
            let others = leases.groups.iter().filter(|group| placing.contains(&group.name));
            // A crashed replica leaves a Lease that is valid for a while.
            let renewal = Terms::new(settings.controller.leader_election.lease_duration).renew;
            let runs = |member: &Replica| {
                let silent = Duration::from_secs(u64::try_from(member.silent).unwrap_or(u64::MAX));
                member.alive && silent <= MISSED_RENEWALS * renewal && member.identity != env.identity
            };
            if others.flat_map(|group| &group.members).any(runs) {
                return Ok(0);
            }
        }
        let configured = Configured::new(settings).context("nodeLabels cannot be used")?;
        let cluster = PlacementClient::new(env.client.clone(), Budget::unlimited());
        Ok::<_, anyhow::Error>(ungate_all(&cluster, &configured, UngateReason::Ownerless, |_| true, |_| ()).await?)
    };
    match tokio::time::timeout(LAST_UNGATE, ungate).await {
        Ok(Ok(0)) => {}
        Ok(Ok(pods)) => info!(pods, "ungated pods: no other replica places"),
        Ok(Err(error)) => warn!(error = %format!("{error:#}"), "could not ungate pods before shutdown"),
        Err(_) => warn!("deadline exceeded ungating pods before shutdown"),
    }
}

/// Returns the task that ungates pods where this process places none: those that were gated while
/// placement was on, and those that replicas with an older configuration still gate. Where other
/// replicas may place, they have their time first. Does nothing while the process may not change
/// pods: the manifests without placement grant no permission for pods.
pub fn ungate_leftovers(settings: &Settings, env: &Environment) -> anyhow::Result<Task> {
    let configured = Configured::new(settings).context("nodeLabels cannot be used")?;
    let (cluster, clock) = (PlacementClient::new(env.client.clone(), env.budget.clone()), env.clock.clone());
    let placement = &settings.placement;
    let (others, last) = (placement.enabled, placement.hold_timeout + placement.gate_timeout + LEFTOVERS_FOR);
    let ungate = async move {
        let start = Instant::now();
        loop {
            let now = clock.now();
            let is_due = |pod: &PodView| bystander_ungates_at(pod.created, others, &configured.settings) <= now;
            let reason = if others { UngateReason::Ownerless } else { UngateReason::Disabled };
            let released = if cluster.may_release().await {
                ungate_all(&cluster, &configured, reason, is_due, |_| ()).await
            } else {
                Ok(0)
            };
            match released {
                Ok(0) => {}
                Ok(pods) => info!(pods, "released pods: this process places none"),
                Err(error) => warn!(error = %Chain(&error), "could not release pods that wait for placement"),
            }
            if start.elapsed() >= last {
                return std::future::pending().await;
            }
            tokio::time::sleep(LEFTOVERS_PERIOD).await;
        }
    };
    Ok(Task::until(&env.stop, "leftover gates", ungate))
}
