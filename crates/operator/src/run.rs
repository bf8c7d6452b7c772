//! `perennial run`: the list of everything that runs, and its supervision.

pub(crate) mod election;
mod webhooks;

pub use webhooks::webhooks;

use std::{sync::Arc, time::Duration};

use anyhow::Context as _;
use k8s_openapi::api::core::v1::{Namespace, Node};
use kube::{Api, Client, api::PostParams};
use perennial_core::config::{Role, Settings};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::{
    admission::{self, metrics::AdmissionMetrics},
    dashboard::{self, Dashboard, Guard, Server},
    keeper::{
        controller::{DRAIN_WITHIN, KeeperController},
        record_keys::Signatures,
    },
    monitoring,
    placement::{self, metrics::PlacementMetrics, reconcile::Placer},
    runtime::{
        budget::Budget,
        client::{self, ClusterNames, Target},
        clock::Clock,
        environment::Environment,
        error_category::{self, Category},
        events::Events,
        health::Health,
        history::History,
        http,
        jitter::Jitter,
        lease_metadata::identity,
        metrics::Metrics,
        ownership::Ownership,
        tasks::{Supervisor, Task},
    },
};

/// Tasks that have not ended this long after a stop are aborted. Every write is conditional, so
/// that loses nothing. Below the 30 s after which Kubernetes kills a pod.
pub const STOP_WITHIN: Duration = DRAIN_WITHIN.saturating_add(Duration::from_secs(5));

/// Requests per second on behalf of admission reviews: a review needs up to three. The API server
/// limits reviews, and a 429 closes this budget.
const ADMISSION_QPS: u32 = 1000;
/// Longest time for which a `Retry-After` closes that budget. A review waits a few seconds: a longer
/// pause would fail every review open.
const ADMISSION_CLOSED: Duration = Duration::from_secs(1);
/// Interval at which the health of the process is exported.
const HEALTH_PERIOD: Duration = Duration::from_secs(2);

/// The parts that work on the cluster.
#[derive(Clone)]
#[expect(missing_debug_implementations, reason = "kube's client has none")]
pub struct Parts {
    pub keeper: Arc<KeeperController>,
    /// `None` where placement is off.
    pub placer: Option<Arc<Placer>>,
}

/// Dependencies of a process that the program around it provides.
#[derive(Clone, Debug)]
pub struct Dependencies {
    pub clock: Clock,
    /// Wraps the client of the API server.
    pub wrap_client: fn(Client) -> Client,
}

impl Default for Dependencies {
    fn default() -> Self {
        Self { clock: Clock::system(), wrap_client: |client| client }
    }
}

/// Why the operator ended in good order.
#[derive(Debug, PartialEq, Eq)]
enum Ended {
    Signalled,
    HistoryWentBack,
}

/// Runs the operator until a signal stops it or a task ends. After a restore of etcd it starts
/// again with empty caches: their content belongs to a history that is gone.
pub async fn run(settings: Settings, target: &Target, dependencies: Dependencies) -> anyhow::Result<()> {
    while run_once(settings.clone(), target, dependencies.clone()).await? == Ended::HistoryWentBack {
        warn!("restarting with empty caches");
    }
    Ok(())
}

async fn run_once(mut settings: Settings, target: &Target, dependencies: Dependencies) -> anyhow::Result<Ended> {
    let env = environment(&settings, target, dependencies).await?;
    let dry_run = settings.controller.dry_run;
    if dry_run {
        info!("dry run: nothing is written and no admission is served");
    } else if !in_cluster() {
        ensure_namespace(&env.client, settings.namespace.as_str()).await;
        if settings.webhook.enabled && settings.webhook.url.is_none() {
            warn!(
                "webhooks are off: outside a cluster they need webhook.url, an address that the API server can reach"
            );
            settings.webhook.enabled = false;
        }
    }

    let signatures = Signatures::load(&env.client, &settings).await?;
    let (parts, mut tasks) = operate(&settings, &env, signatures)?;
    let places = parts.placer.as_ref().is_some_and(|placer| placer.decides()) && !dry_run;
    // Registered whether or not they are used: dashboards and alerts find the same metrics in every
    // process.
    let admission_metrics = AdmissionMetrics::register(&env.metrics);
    if parts.placer.is_none() {
        PlacementMetrics::register(&env.metrics);
    }
    tasks.push(env.history.watch(Api::<Node>::all(env.client.clone()), &env.stop));
    if parts.placer.is_none() && !dry_run {
        tasks.push(placement::tasks::ungate_leftovers(&settings, &env)?);
    }
    if settings.controller.roles.contains(&Role::Webhooks) && !dry_run {
        if settings.webhook.enabled {
            let pods = parts.placer.as_ref().map(|placer| placer.cache().configured().namespaces());
            let webhooks = webhooks(&settings, &parts, admission_metrics.clone());
            tasks.extend(admission::tasks::tasks(&settings, &env, webhooks, pods, admission_metrics)?);
        } else {
            admission::tasks::remove_configurations(&env.client).await;
        }
    }
    let (health, metrics) = (env.health.clone(), env.metrics.clone());
    tasks.push(Task::every(&env.stop, "health gauges", HEALTH_PERIOD, move || {
        for (resource, readable) in health.resources() {
            metrics.resource_is_readable(resource, readable);
        }
        for (resource, writable) in health.writes() {
            metrics.resource_is_writable(resource, writable);
        }
        std::future::ready(())
    }));
    #[cfg(unix)]
    tasks.extend(crate::runtime::watchdog::task(&env.health, &env.stop));
    if settings.metrics.enabled {
        tasks.push(monitoring::task(&settings.metrics, &env)?);
    }
    if settings.dashboard.enabled {
        let port = settings.dashboard.port;
        let bound = http::bind_loopback(port).with_context(|| {
            format!(
                "could not listen on dashboard.port {port}; choose another one, for example with --set dashboard.port=0"
            )
        })?;
        info!(address = %bound.address(), "serving the dashboard on loopback");
        let page = Dashboard::new(parts, Server::Operator, &settings, ClusterNames::of(target), &env);
        tasks.extend(dashboard_tasks(page, Guard::open(), bound, &env.stop));
    }
    let ended = supervise(Supervisor::start(tasks), &env).await?;
    if places && ended == Ended::Signalled {
        placement::tasks::ungate_if_last(&settings, &env).await;
    }
    Ok(ended)
}

/// Returns every part that works on the cluster, with its tasks.
pub fn operate(settings: &Settings, env: &Environment, signatures: Signatures) -> anyhow::Result<(Parts, Vec<Task>)> {
    let (ownership, mut tasks) = election::elect(settings, env);
    let (parts, watches) = observe(settings, env, ownership, signatures)?;
    tasks.extend(watches);
    if let Some(placer) = &parts.placer {
        tasks.extend(placer.work_tasks(settings, env));
    }
    tasks.extend(parts.keeper.work_tasks(settings, env));
    Ok((parts, tasks))
}

/// Returns the parts with the tasks that watch the cluster, and without those that act on it.
pub fn observe(
    settings: &Settings,
    env: &Environment,
    ownership: Ownership,
    signatures: Signatures,
) -> anyhow::Result<(Parts, Vec<Task>)> {
    let (events, write_events) = Events::new(env.client.clone(), env.clock.clone(), settings.controller.events);
    let mut tasks = vec![Task::until(&env.drained, "events", write_events)];
    let roles = &settings.controller.roles;
    let enabled = settings.placement.enabled && (roles.contains(&Role::Placement) || roles.contains(&Role::Webhooks));
    let placer = if enabled { Some(Placer::new(settings, env, ownership.clone(), events.clone())?) } else { None };
    if let Some(placer) = &placer {
        tasks.extend(placer.watch_tasks(env));
    }
    let keeper = KeeperController::new(settings, env, ownership, events, signatures);
    if settings.dashboard.enabled {
        keeper.enable_activity(dashboard::INTERVALS);
    }
    tasks.extend(keeper.watch_tasks(env, placer.clone()));
    Ok((Parts { keeper, placer }, tasks))
}

/// Returns the tasks that refresh and serve the dashboard.
pub fn dashboard_tasks(page: Arc<Dashboard>, guard: Guard, bound: http::Bound, stop: &CancellationToken) -> [Task; 2] {
    let routes = page.router(guard);
    [Task::new("dashboard refresh", page.run()), bound.task("dashboard server", routes, stop)]
}

async fn environment(settings: &Settings, target: &Target, dependencies: Dependencies) -> anyhow::Result<Environment> {
    let (metrics, clock, health) = (Metrics::new(), dependencies.clock, Health::new());
    let budget = Budget::new(settings.controller.qps, settings.controller.burst);
    let config = client::config(target).await?;
    info!(version = env!("CARGO_PKG_VERSION"), server = %config.cluster_url, namespace = %settings.namespace, "starting");
    let connect = if settings.controller.dry_run { client::connect_for_dry_run } else { client::connect };
    // A 429 closes the budget of its own client only.
    let client = |budget: Option<&Budget>, health: Option<&Health>| {
        let listeners = client::Listeners {
            metrics: metrics.clone(),
            budget: budget.cloned(),
            clock: Some(clock.clone()),
            health: health.cloned(),
        };
        Ok::<_, client::ClientError>((dependencies.wrap_client)(connect(config.clone(), listeners)?))
    };
    let admission_budget = Budget::closed_at_most(ADMISSION_QPS, ADMISSION_QPS, ADMISSION_CLOSED);
    Ok(Environment {
        client: client(Some(&budget), Some(&health))?,
        leases: client(None, None)?,
        admission: client(Some(&admission_budget), None)?,
        admission_budget,
        budget,
        metrics,
        clock,
        jitter: Jitter::seeded(rand::random()),
        identity: identity(&host()),
        health,
        history: History::default(),
        stop: CancellationToken::new(),
        drained: CancellationToken::new(),
    })
}

async fn supervise(mut tasks: Supervisor, env: &Environment) -> anyhow::Result<Ended> {
    let ended = tokio::select! {
        signal = stop_signal() => {
            info!(signal, "stopping");
            Ended::Signalled
        }
        () = env.history.went_back() => Ended::HistoryWentBack,
        error = tasks.first_end() => {
            env.stop.cancel();
            return Err(error.into());
        }
    };
    env.stop.cancel();
    // After a restore of etcd, last states belong to a history that is gone.
    if ended == Ended::HistoryWentBack {
        env.drained.cancel();
    }
    let aborted = tasks.join(STOP_WITHIN).await;
    info!(clean = aborted.is_empty(), ?aborted, "stopped");
    Ok(ended)
}

/// Creates Perennial's namespace, which nothing else does outside a cluster.
async fn ensure_namespace(client: &Client, name: &str) {
    let api: Api<Namespace> = Api::all(client.clone());
    let namespace = Namespace {
        metadata: kube::api::ObjectMeta { name: Some(name.to_owned()), ..kube::api::ObjectMeta::default() },
        ..Namespace::default()
    };
    let ensured = async {
        if api.get_opt(name).await?.is_none() {
            api.create(&PostParams::default(), &namespace).await?;
            info!(namespace = name, "created the namespace");
        }
        Ok::<_, kube::Error>(())
    };
    match ensured.await {
        Ok(()) => {}
        Err(error) if matches!(Category::of(&error), Category::Conflict) => {}
        Err(error) => {
            warn!(
                namespace = name,
                why = error_category::message(&error),
                "could not ensure that the namespace exists"
            );
        }
    }
}

fn in_cluster() -> bool {
    std::env::var_os("KUBERNETES_SERVICE_HOST").is_some()
}

/// Name of the pod or host.
fn host() -> String {
    let named = ["PERENNIAL_POD_NAME", "POD_NAME", "HOSTNAME"].iter().find_map(|name| std::env::var(name).ok());
    let host = named.or_else(|| std::fs::read_to_string("/proc/sys/kernel/hostname").ok());
    host.unwrap_or_default().trim().to_owned()
}

/// Waits for SIGTERM or SIGINT and returns its name.
pub(crate) async fn stop_signal() -> &'static str {
    tokio::select! {
        () = terminated() => "SIGTERM",
        _ = tokio::signal::ctrl_c() => "SIGINT",
    }
}

#[cfg(unix)]
async fn terminated() {
    use tokio::signal::unix::{SignalKind, signal};
    match signal(SignalKind::terminate()) {
        Ok(mut signal) => drop(signal.recv().await),
        Err(_) => std::future::pending().await,
    }
}

/// Only Unix has SIGTERM.
#[cfg(not(unix))]
async fn terminated() {
    std::future::pending().await
}
