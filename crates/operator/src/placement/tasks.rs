//! Placement's tasks: its watches, its workers and its periodic work.

use std::{fmt::Debug, sync::Arc, time::Duration};

use anyhow::Context as _;
use kube::{Api, Resource};
use perennial_core::{
    config::{Role, Settings},
    placement::{
        ungate::{UngateReason, bystander_ungates_at},
        workload::PodView,
    },
};
use serde::de::DeserializeOwned;
use tokio::time::Instant;
use tracing::{info, warn};

use super::{
    apply::Cluster,
    cache::{MANAGED, Watched},
    objects::{Deployment, Namespace, Pod, PodDisruptionBudget, ReplicaSet, StatefulSet},
    reconcile::{Placer, PlacerParts},
    settings::Configured,
    ungate::ungate_all,
};
use crate::runtime::{
    budget::Budget, environment::Environment, error_category::Category, error_chain::Chain, events::Events,
    ownership::Ownership, tasks::Task, watch::Watch,
};

/// Readiness condition: workloads, pods and disruption budgets have been listed.
const SYNCED: &str = "placement";
const SYNC_CHECK: Duration = Duration::from_millis(250);
const GAUGES_PERIOD: Duration = Duration::from_secs(2);
/// Interval at which a process that places nothing searches for gated pods.
const LEFTOVERS_PERIOD: Duration = Duration::from_secs(15);
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
            cluster: Cluster::new(client.clone(), budget),
            admission: Cluster::new(client, Budget::unlimited()),
            admission_deadline: settings.webhook.timeout * 3 / 5,
            clock,
            jitter,
            metrics,
            events,
            ownership,
            decides: controller.roles.contains(&Role::Placement),
            dry_run: controller.dry_run,
        })))
    }

    /// Returns the tasks that fill the caches.
    pub fn watch_tasks(self: &Arc<Self>, env: &Environment) -> [Task; 7] {
        env.health.expect(SYNCED);
        let (placer, health) = (Arc::clone(self), env.health.clone());
        let report_synced = move || {
            if placer.is_synced() {
                health.set(SYNCED, true);
            }
            std::future::ready(())
        };
        [
            self.watch::<Namespace>(env, "namespaces", None),
            self.watch::<Deployment>(env, "deployments", None),
            self.watch::<StatefulSet>(env, "statefulsets", None),
            self.watch::<ReplicaSet>(env, "replicasets", None),
            self.watch::<Pod>(env, "pods", Some(&format!("{MANAGED}=true"))),
            self.watch::<PodDisruptionBudget>(env, "poddisruptionbudgets", None),
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
        let (placer, metrics, health) = (Arc::clone(self), env.metrics.clone(), env.health.clone());
        let mut watch = Watch::new(what, Api::<K>::all(env.client.clone()), &env.jitter, &env.stop);
        if let Some(labels) = labels {
            watch = watch.labels(labels);
        }
        let on_error = move |category: Category| {
            metrics.failed(category);
            // Without permissions placement does nothing, and the rest of the operator keeps
            // working.
            if category == Category::Forbidden {
                health.set(SYNCED, true);
            }
        };
        Task::new(what, watch.run(move |event| placer.on(event), on_error))
    }
}

/// Returns the task that ungates pods where this process places none: those that were gated while
/// placement was on, and those that replicas with an older configuration still gate. Where other
/// replicas may place, they have their time first.
pub fn ungate_leftovers(settings: &Settings, env: &Environment) -> anyhow::Result<Task> {
    let configured = Configured::new(settings).context("nodeLabels cannot be used")?;
    let (cluster, clock) = (Cluster::new(env.client.clone(), env.budget.clone()), env.clock.clone());
    let placement = &settings.placement;
    let (others, last) = (placement.enabled, placement.hold_timeout + placement.gate_timeout + LEFTOVERS_FOR);
    let ungate = async move {
        let start = Instant::now();
        loop {
            let now = clock.now();
            let is_due = |pod: &PodView| bystander_ungates_at(pod.created, others, &configured.settings) <= now;
            match ungate_all(&cluster, &configured, UngateReason::Ownerless, is_due, |_| ()).await {
                Ok(0) => {}
                Ok(pods) => info!(pods, "ungated pods: this process places none"),
                Err(error) => warn!(error = %Chain(&error), "could not ungate pods that were gated for placement"),
            }
            if start.elapsed() >= last {
                return std::future::pending().await;
            }
            tokio::time::sleep(LEFTOVERS_PERIOD).await;
        }
    };
    Ok(Task::until(&env.stop, "leftover gates", ungate))
}
