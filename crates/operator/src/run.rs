//! `perennial run`: the flat list of everything that runs.

mod admission;
mod keep;
mod place;
mod tasks;

pub use admission::webhooks;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use anyhow::Context as _;
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client, api::PostParams};
use perennial_core::config::{Role, Settings};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use self::{
    admission::{remove_webhooks, serve_webhooks},
    tasks::until,
};
use crate::{
    dashboard::{self, Dashboard, Guard, Server},
    keeper::{activity::Board, controller::Keeper, record_keys::Signatures},
    monitoring::{self, health::Health},
    placement::{apply::Cluster, controller::Placer},
    runtime::{
        budget::Budget,
        client::{self, Target},
        clock::Clock,
        coordinator::coordinate,
        error_category::{self, Category},
        events::Events,
        http,
        jitter::Jitter,
        lease_metadata::{Coordination, identity},
        lease_observer::{Attendance, attend},
        metrics::Metrics,
        ownership::Ownership,
    },
};

const SURVEY_EVERY: Duration = Duration::from_secs(2);
/// What has not stopped by itself after this is dropped. Every write is conditional, so nothing is lost by that.
const STOP_WITHIN: Duration = Duration::from_secs(4).saturating_add(admission::LINGER);

/// What comes from outside: the world that the operator acts on, the time and the dice.
#[expect(missing_debug_implementations, reason = "kube's client has none")]
pub struct World {
    pub client: Client,
    pub budget: Budget,
    pub metrics: Metrics,
    pub clock: Clock,
    pub jitter: Jitter,
    /// Who we are among replicas.
    pub identity: String,
    /// Which nodes are ours to work on.
    pub ownership: Ownership,
    /// Whether records are signed, and by which keys.
    pub signatures: Signatures,
}

/// Runs the operator in this cluster until it is told to stop.
pub async fn run(mut settings: Settings, target: &Target) -> anyhow::Result<()> {
    let metrics = Metrics::new();
    let budget = Budget::new(settings.controller.qps, settings.controller.burst);
    let config = client::config(target).await?;
    info!(version = env!("CARGO_PKG_VERSION"), server = %config.cluster_url, namespace = %settings.namespace, "starting");
    let dry_run = settings.controller.dry_run;
    let connect = if dry_run { client::connect_for_dry_run } else { client::connect };
    let clock = Clock::system();
    let listeners =
        client::Listeners { metrics: metrics.clone(), budget: Some(budget.clone()), clock: Some(clock.clone()) };
    let client = connect(config, listeners)?;
    if dry_run {
        info!("a dry run: nothing is written, and no admission is served");
    } else if !in_cluster() {
        ensure_namespace(&client, settings.namespace.as_str()).await;
        if settings.webhook.enabled && settings.webhook.url.is_none() {
            warn!(
                "webhooks are off: outside a cluster they need webhook.url, an address at which the API server finds us"
            );
            settings.webhook.enabled = false;
        }
    }

    let stop = CancellationToken::new();
    let health = Health::new();
    let mut tasks = JoinSet::new();
    let identity = identity(&host());
    let ownership = compete(&settings, &client, &metrics, &clock, &identity, &stop, &mut tasks);
    let world = World {
        client: client.clone(),
        budget,
        metrics: metrics.clone(),
        clock,
        jitter: Jitter::seeded(rand::random()),
        identity,
        ownership,
        signatures: Signatures::load(&client, &settings).await?,
    };
    let (clock, cluster) = (world.clock.clone(), Cluster::new(client.clone(), world.budget.clone()));
    let parts = operate(&settings, world, &health, &stop, &mut tasks)?;
    if parts.placer.is_none() && !dry_run {
        place::sweep_up(&settings, cluster, clock, &stop, &mut tasks)?;
    }
    if settings.controller.roles.contains(&Role::Webhooks) && !dry_run {
        if settings.webhook.enabled {
            serve_webhooks(&settings, &client, &parts, &health, &stop, &mut tasks)?;
        } else {
            remove_webhooks(&client).await;
        }
    }
    if settings.metrics.enabled {
        let port = settings.metrics.port;
        let bound = http::bind(port).with_context(|| format!("could not listen on metrics.port {port}"))?;
        info!(address = %bound.address(), "serving /metrics, /livez and /readyz");
        let (health, stop) = (health.clone(), stop.clone());
        tasks.spawn(async move {
            if let Err(error) = bound.serve(monitoring::router(metrics, health), stop).await {
                error!(%error, "the server of /metrics ended");
            }
        });
    }

    if settings.dashboard.enabled {
        let port = settings.dashboard.port;
        let bound = http::bind_loopback(port).with_context(|| format!("could not listen on dashboard.port {port}"))?;
        info!(address = %bound.address(), "serving the dashboard, on loopback only");
        serve_dashboard(&settings, parts, Server::Operator, Guard::open(), bound, &stop, &mut tasks);
    }

    tokio::select! {
        signal = stop_signal() => info!(signal, "stopping"),
        Some(ended) = tasks.join_next() => {
            stop.cancel();
            ended.context("a part of the operator failed")?;
            anyhow::bail!("a part of the operator ended by itself");
        }
    }
    stop.cancel();
    let stopped = tokio::time::timeout(STOP_WITHIN, async { while tasks.join_next().await.is_some() {} }).await;
    info!(clean = stopped.is_ok(), "stopped");
    Ok(())
}

/// Serves the page over what these parts know.
pub fn serve_dashboard(
    settings: &Settings,
    parts: Parts,
    server: Server,
    guard: Guard,
    bound: http::Bound,
    stop: &CancellationToken,
    tasks: &mut JoinSet<()>,
) {
    let dashboard = Dashboard::new(parts, server, settings.namespace.as_str(), stop.clone());
    let routes = dashboard.router(guard);
    let stop = stop.clone();
    tasks.spawn(dashboard.run());
    tasks.spawn(async move {
        if let Err(error) = bound.serve(routes, stop).await {
            error!(%error, "the server of the dashboard ended");
        }
    });
}

/// The parts that work on the cluster.
#[derive(Clone)]
#[expect(missing_debug_implementations, reason = "kube's client has none")]
pub struct Parts {
    pub keeper: Arc<Keeper>,
    /// None where placement is off.
    pub placer: Option<Arc<Placer>>,
}

/// Starts every part that works on the cluster. All that it knows of the world comes in.
pub fn operate(
    settings: &Settings,
    world: World,
    health: &Health,
    stop: &CancellationToken,
    tasks: &mut JoinSet<()>,
) -> anyhow::Result<Parts> {
    let parts = observe(settings, world, health, stop, tasks)?;
    if let Some(placer) = &parts.placer {
        place::work(settings, placer, stop, tasks);
    }
    keep::work(settings, &parts.keeper, health, stop, tasks);
    Ok(parts)
}

/// Starts the parts that watch the cluster, and none that acts on it: for those who look on.
pub fn observe(
    settings: &Settings,
    world: World,
    health: &Health,
    stop: &CancellationToken,
    tasks: &mut JoinSet<()>,
) -> anyhow::Result<Parts> {
    let (events, write_events) = Events::new(world.client.clone(), world.clock.clone());
    tasks.spawn(until(stop.clone(), write_events));
    let roles = &settings.controller.roles;
    let wanted = settings.placement.enabled && (roles.contains(&Role::Placement) || roles.contains(&Role::Webhooks));
    let placer = if wanted { Some(place::placer(settings, &world, events.clone())?) } else { None };
    if let Some(placer) = &placer {
        place::watch(placer, &world.client, health, stop, tasks);
    }
    let keeper = keep::keeper(settings, world, events);
    if settings.dashboard.enabled {
        keeper.lock().view.board = Some(Board::new(keeper.clock.clone(), dashboard::INTERVALS));
    }
    keep::watch(&keeper, placer.clone(), health, stop, tasks);
    Ok(Parts { keeper, placer })
}

/// Takes part in the election for shards; owns everything where there is none.
pub fn compete(
    settings: &Settings,
    client: &Client,
    metrics: &Metrics,
    clock: &Clock,
    identity: &str,
    stop: &CancellationToken,
    tasks: &mut JoinSet<()>,
) -> Ownership {
    let (controller, election) = (&settings.controller, &settings.controller.leader_election);
    let shards = u32::from(controller.shards);
    if !election.enabled || controller.dry_run {
        return Ownership::all(shards);
    }
    let ours = lease_group(&controller.roles).map(|group| {
        let metrics = metrics.clone();
        let coordination = Coordination {
            client: client.clone(),
            namespace: settings.namespace.to_string(),
            group,
            identity: identity.to_owned(),
            shards,
            lease: election.lease_duration,
            clock: clock.clone(),
            report: Arc::new(move |lease, held| metrics.leads(lease, held)),
        };
        let (ownership, task) = coordinate(coordination, stop.clone());
        tasks.spawn(task);
        ownership
    });
    if let Some(ours) = &ours
        && controller.roles.contains(&Role::Placement)
    {
        return ours.clone();
    }
    // Admission has to know whether somebody places what it gates.
    let attendance = Attendance {
        client: client.clone(),
        namespace: settings.namespace.to_string(),
        groups: placing_groups(),
        shards,
        lease: election.lease_duration,
    };
    let (others, task) = attend(&attendance, Jitter::seeded(rand::random()), stop.clone());
    tasks.spawn(task);
    match ours {
        Some(ours) => ours.attended_by(&others),
        None => others,
    }
}

/// Processes with the same roles share the same work: the name of their Leases. One that only serves admission has none.
fn lease_group(roles: &BTreeSet<Role>) -> Option<String> {
    let all = [Role::Capture, Role::Restore, Role::Placement];
    let ours: Vec<&str> = all.iter().filter(|role| roles.contains(role)).map(|role| role.as_str()).collect();
    match ours.len() {
        0 => None,
        3 => Some("perennial".to_owned()),
        _ => Some(format!("perennial-{}", ours.join("-"))),
    }
}

/// The groups of all processes that decide about workloads, whatever else they do.
fn placing_groups() -> Vec<String> {
    let others: [&[Role]; 4] = [&[], &[Role::Capture], &[Role::Restore], &[Role::Capture, Role::Restore]];
    let roles = others.into_iter().map(|others| others.iter().copied().chain([Role::Placement]).collect());
    roles.filter_map(|roles: BTreeSet<Role>| lease_group(&roles)).collect()
}

/// Outside a cluster nobody made the namespace for us.
async fn ensure_namespace(client: &Client, name: &str) {
    let api: Api<Namespace> = Api::all(client.clone());
    let namespace = Namespace {
        metadata: kube::api::ObjectMeta { name: Some(name.to_owned()), ..kube::api::ObjectMeta::default() },
        ..Namespace::default()
    };
    let ensured = async {
        if api.get_opt(name).await?.is_none() {
            api.create(&PostParams::default(), &namespace).await?;
            info!(namespace = name, "created our namespace");
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
                "could not make sure that our namespace exists"
            );
        }
    }
}

fn in_cluster() -> bool {
    std::env::var_os("KUBERNETES_SERVICE_HOST").is_some()
}

/// The name of the pod or host.
fn host() -> String {
    let named = ["PERENNIAL_POD_NAME", "POD_NAME", "HOSTNAME"].iter().find_map(|name| std::env::var(name).ok());
    let host = named.or_else(|| std::fs::read_to_string("/proc/sys/kernel/hostname").ok());
    host.unwrap_or_default().trim().to_owned()
}

/// Until somebody wants us to stop; says how.
pub(crate) async fn stop_signal() -> &'static str {
    use tokio::signal::unix::{SignalKind, signal};
    let terminate = async {
        match signal(SignalKind::terminate()) {
            Ok(mut signal) => drop(signal.recv().await),
            Err(_) => std::future::pending().await,
        }
    };
    tokio::select! {
        () = terminate => "SIGTERM",
        _ = tokio::signal::ctrl_c() => "SIGINT",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_decides_about_workloads_is_known_to_admission() {
        let group = |roles: &[Role]| lease_group(&roles.iter().copied().collect());
        let everything = [Role::Capture, Role::Restore, Role::Placement, Role::Webhooks];
        for roles in [&everything[..], &[Role::Placement], &[Role::Restore, Role::Placement, Role::Webhooks]] {
            assert!(placing_groups().contains(&group(roles).unwrap()), "{roles:?}");
        }
        assert_eq!(group(&[Role::Webhooks]), None);
        assert!(!placing_groups().contains(&group(&[Role::Capture, Role::Restore]).unwrap()));
    }
}
