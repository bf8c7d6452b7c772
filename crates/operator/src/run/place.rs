//! The parts of placement.

use std::{
    fmt::Debug,
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::Context as _;
use kube::{Api, Client, Resource};
use perennial_core::{
    config::{Role, Settings},
    placement::{
        release::{Why, bystander_frees_at},
        view::PodView,
    },
};
use serde::de::DeserializeOwned;
use tokio::{task::JoinSet, time::Instant};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{
    SURVEY_EVERY, World,
    tasks::{every, until},
};
use crate::{
    monitoring::health::Health,
    placement::{
        apply::Cluster,
        controller::{CONTROLLER, Placer, RETRY},
        objects::{Deployment, Namespace as Defaults, Pod, PodDisruptionBudget, ReplicaSet, StatefulSet},
        observe::{MANAGED, Observed},
        settings::Configured,
        ungate_all::sweep,
    },
    runtime::{
        budget::Budget,
        clock::Clock,
        error_category::Category,
        events::Events,
        reconciler::Reconciler,
        reporter::Reporter,
        watch::{PAGE, Subject, follow},
    },
};

const PLACING: &str = "placement";
/// Gated pods are looked for so often where nothing is placed any more, and for so long after the last of them was due.
const SWEEP_EVERY: Duration = Duration::from_secs(15);
const SWEEP_AFTER: Duration = Duration::from_mins(5);

/// Placement, which does nothing yet.
pub(super) fn placer(settings: &Settings, world: &World, events: Events) -> anyhow::Result<Arc<Placer>> {
    let controller = &settings.controller;
    Ok(Arc::new(Placer {
        configured: Configured::new(settings).context("nodeLabels cannot be used")?,
        cluster: Cluster::new(world.client.clone(), world.budget.clone()),
        admission: Cluster::new(world.client.clone(), Budget::unlimited()),
        admission_deadline: settings.webhook.timeout * 3 / 5,
        reconciler: Reconciler::new(
            CONTROLLER,
            RETRY,
            world.ownership.clone(),
            world.jitter.clone(),
            world.metrics.clone(),
        ),
        reporter: Reporter::new(world.metrics.clone(), events.clone()),
        clock: world.clock.clone(),
        jitter: world.jitter.clone(),
        metrics: world.metrics.clone(),
        events,
        ownership: world.ownership.clone(),
        decides: controller.roles.contains(&Role::Placement),
        dry_run: controller.dry_run,
        state: Mutex::default(),
    }))
}

/// Starts what fills its caches.
pub(super) fn watch(
    placer: &Arc<Placer>,
    client: &Client,
    health: &Health,
    stop: &CancellationToken,
    tasks: &mut JoinSet<()>,
) {
    health.expect(PLACING);
    let managed = Some(format!("{MANAGED}=true"));
    tasks.spawn(observe::<Defaults>(placer, client, health, "namespaces", None, stop));
    tasks.spawn(observe::<Deployment>(placer, client, health, "deployments", None, stop));
    tasks.spawn(observe::<StatefulSet>(placer, client, health, "statefulsets", None, stop));
    tasks.spawn(observe::<ReplicaSet>(placer, client, health, "replicasets", None, stop));
    tasks.spawn(observe::<Pod>(placer, client, health, "pods", managed, stop));
    tasks.spawn(observe::<PodDisruptionBudget>(placer, client, health, "poddisruptionbudgets", None, stop));
    tasks.spawn(every(stop.clone(), Duration::from_millis(250), {
        let (placer, health) = (Arc::clone(placer), health.clone());
        move || {
            if placer.is_synced() {
                health.set(PLACING, true);
            }
            std::future::ready(())
        }
    }));
}

/// Starts what acts.
pub(super) fn work(settings: &Settings, placer: &Arc<Placer>, stop: &CancellationToken, tasks: &mut JoinSet<()>) {
    let controller = &settings.controller;
    if placer.decides {
        for _ in 0..controller.workers {
            tasks.spawn(Arc::clone(placer).work());
        }
        tasks.spawn({
            let (placer, stop) = (Arc::clone(placer), stop.clone());
            async move {
                let mut changes = placer.ownership.changes();
                while stop.run_until_cancelled(changes.next()).await.is_some() {
                    placer.resync();
                }
            }
        });
        tasks.spawn(every(stop.clone(), controller.resync_period, {
            let placer = Arc::clone(placer);
            move || {
                placer.resync();
                std::future::ready(())
            }
        }));
    }
    tasks.spawn(every(stop.clone(), SURVEY_EVERY, {
        let placer = Arc::clone(placer);
        move || {
            let placer = Arc::clone(&placer);
            async move {
                placer.survey();
                placer.free_overdue().await;
            }
        }
    }));
    tasks.spawn({
        let (placer, stop) = (Arc::clone(placer), stop.clone());
        async move {
            stop.cancelled().await;
            placer.reconciler.close();
        }
    });
}

/// Where placement is not ours: what was gated before that is freed, and so is what replicas that know nothing of it gate for a while. If others may
/// still place, they are given the time that they may need.
pub(super) fn sweep_up(
    settings: &Settings,
    cluster: Cluster,
    clock: Clock,
    stop: &CancellationToken,
    tasks: &mut JoinSet<()>,
) -> anyhow::Result<()> {
    let configured = Configured::new(settings).context("nodeLabels cannot be used")?;
    let placement = &settings.placement;
    let (others, last) = (placement.enabled, placement.hold_timeout + placement.gate_timeout + SWEEP_AFTER);
    let sweeping = async move {
        let start = Instant::now();
        loop {
            let now = clock.now();
            let is_due = |pod: &PodView| bystander_frees_at(pod.created, others, &configured.settings) <= now;
            match sweep(&cluster, &configured, Why::Ownerless, is_due, |_| ()).await {
                Ok(0) => {}
                Ok(pods) => info!(pods, "freed pods that were gated: this process places none"),
                Err(error) => {
                    let why = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
                    warn!(why, "{error}: what was gated while pods were placed may stay gated");
                }
            }
            if start.elapsed() >= last {
                return std::future::pending().await;
            }
            tokio::time::sleep(SWEEP_EVERY).await;
        }
    };
    tasks.spawn(until(stop.clone(), sweeping));
    Ok(())
}

fn observe<K>(
    placer: &Arc<Placer>,
    client: &Client,
    health: &Health,
    what: &'static str,
    labels: Option<String>,
    stop: &CancellationToken,
) -> impl Future<Output = ()> + use<K>
where
    K: Observed + Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let (on, metrics, health) = (Arc::clone(placer), placer.metrics.clone(), health.clone());
    follow(
        Api::<K>::all(client.clone()),
        Subject { what, labels, page: PAGE },
        placer.jitter.clone(),
        stop.clone(),
        move |event| on.on(event),
        move |category| {
            metrics.failed(category.as_str());
            // Where placement has no permissions it does nothing, and the rest of the operator goes on.
            if category == Category::Forbidden {
                health.set(PLACING, true);
            }
        },
    )
}
