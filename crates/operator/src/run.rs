//! `perennial run`: the flat list of everything that runs.

use std::{
    fmt::Debug,
    net::{Ipv6Addr, SocketAddr},
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::Context as _;
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client, Resource, api::PostParams};
use perennial_core::{
    certs::Lifetimes,
    config::{Role, Settings},
    keeper::record::{RECORD_LABEL, RECORD_LABEL_VALUE},
};
use serde::de::DeserializeOwned;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::{
    keeper::{
        apply::Cluster,
        controller::{Duties, Keeper, State},
        policies::{self, Policies},
    },
    placement::{
        self,
        controller::Placer,
        objects::{Deployment, Namespace as Defaults, Node, Pod, PodDisruptionBudget, ReplicaSet, StatefulSet},
        observe::{MANAGED, Observed},
        settings::Configured,
    },
    runtime::{
        announcement::{Coordination, identity},
        budget::Budget,
        client::{self, Target},
        clock::Clock,
        events::Events,
        fault::{self, Category},
        members::coordinate,
        metrics::Metrics,
        ownership::Ownership,
        queue::Queue,
        random::Jitter,
        watch::{Subject, follow},
    },
    serve::{
        certs::Served,
        configuration::{self, ConfigurationSettings, Configurations, MUTATE_NODES, MUTATE_PODS, VALIDATE_NODES},
        health::Health,
        http,
        upkeep::{Origin, Upkeep, UpkeepSettings},
        webhooks::{Limits, Listening, Observation, Webhooks},
    },
};

const SYNCED: &str = "caches";
const PLACING: &str = "placement";
const CERTIFIED: &str = "webhooks";
const LOOPS: &str = "loops";
const SURVEY_EVERY: Duration = Duration::from_secs(2);
/// What has not stopped by itself after this is dropped. Every write is conditional, so nothing is lost by that.
const STOP_WITHIN: Duration = Duration::from_secs(4);

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
}

/// Runs the operator in this cluster until it is told to stop.
pub async fn run(mut settings: Settings, target: &Target) -> anyhow::Result<()> {
    let metrics = Metrics::new();
    let budget = Budget::new(settings.controller.qps, settings.controller.burst);
    let config = client::config(target).await?;
    info!(version = env!("CARGO_PKG_VERSION"), server = %config.cluster_url, namespace = %settings.namespace, "starting");
    let client = client::connect(config, metrics.clone(), Some(budget.clone()))?;
    if !in_cluster() {
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
    let ownership = compete(&settings, &client, &metrics, &identity, &stop, &mut tasks);
    let world = World {
        client: client.clone(),
        budget,
        metrics: metrics.clone(),
        clock: Clock::system(),
        jitter: Jitter::seeded(rand::random()),
        identity,
        ownership,
    };
    let parts = operate(&settings, world, &health, &stop, &mut tasks)?;
    if settings.controller.roles.contains(&Role::Webhooks) {
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
            if let Err(error) = bound.serve(metrics, health, stop).await {
                error!(%error, "the server of /metrics ended");
            }
        });
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
    let (events, write_events) = Events::new(world.client.clone(), world.clock.clone());
    tasks.spawn(until(stop.clone(), write_events));
    let roles = &settings.controller.roles;
    let wanted = settings.placement.enabled && (roles.contains(&Role::Placement) || roles.contains(&Role::Webhooks));
    let placer = if wanted { Some(place(settings, &world, events.clone(), health, stop, tasks)?) } else { None };
    let keeper = keep(settings, world, events, health, stop, tasks);
    Ok(Parts { keeper, placer })
}

/// Starts the keeper.
fn keep(
    settings: &Settings,
    world: World,
    events: Events,
    health: &Health,
    stop: &CancellationToken,
    tasks: &mut JoinSet<()>,
) -> Arc<Keeper> {
    let controller = &settings.controller;
    let World { client, budget, metrics, clock, jitter, identity, ownership } = world;

    let namespace = settings.namespace.as_str();
    let keeper = Arc::new(Keeper {
        cluster: Cluster::new(client.clone(), namespace, budget),
        client: client.clone(),
        admission: Cluster::new(client, namespace, Budget::unlimited()),
        policies: Policies::new(&settings.keeper),
        queue: Queue::default(),
        clock,
        jitter: jitter.clone(),
        metrics,
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
    });

    health.expect(SYNCED);
    tasks.spawn(watch_nodes(&keeper, &jitter, health, stop));
    tasks.spawn(watch_records(&keeper, &jitter, health, stop));
    tasks.spawn(watch_policies(&keeper, &jitter, stop));
    tasks.spawn(until(stop.clone(), {
        let keeper = Arc::clone(&keeper);
        async move { keeper.follow_policies().await }
    }));
    for _ in 0..controller.workers {
        tasks.spawn(Arc::clone(&keeper).work());
    }
    tasks.spawn(follow_ownership(Arc::clone(&keeper), stop.clone()));
    tasks.spawn(every(stop.clone(), controller.resync_period, {
        let keeper = Arc::clone(&keeper);
        move || {
            keeper.resync();
            std::future::ready(())
        }
    }));
    tasks.spawn(every(stop.clone(), controller.audit_period, {
        let keeper = Arc::clone(&keeper);
        move || {
            let keeper = Arc::clone(&keeper);
            async move { keeper.audit().await }
        }
    }));
    health.watch(LOOPS, SURVEY_EVERY * 15);
    tasks.spawn(every(stop.clone(), SURVEY_EVERY, {
        let (keeper, health) = (Arc::clone(&keeper), health.clone());
        move || {
            let (keeper, health) = (Arc::clone(&keeper), health.clone());
            async move {
                keeper.survey();
                note_synced(&keeper, &health);
                keeper.free_overdue().await;
                keeper.report_policies().await;
                health.beat(LOOPS);
            }
        }
    }));
    tasks.spawn({
        let (queue, stop) = (keeper.queue.clone(), stop.clone());
        async move {
            stop.cancelled().await;
            queue.close();
        }
    });
    keeper
}

/// Starts placement.
fn place(
    settings: &Settings,
    world: &World,
    events: Events,
    health: &Health,
    stop: &CancellationToken,
    tasks: &mut JoinSet<()>,
) -> anyhow::Result<Arc<Placer>> {
    let controller = &settings.controller;
    let client = &world.client;
    let placer = Arc::new(Placer {
        configured: Configured::new(settings).context("nodeLabels cannot be used")?,
        cluster: placement::apply::Cluster::new(client.clone(), world.budget.clone()),
        admission: placement::apply::Cluster::new(client.clone(), Budget::unlimited()),
        queue: Queue::default(),
        clock: world.clock.clone(),
        jitter: world.jitter.clone(),
        metrics: world.metrics.clone(),
        events,
        ownership: world.ownership.clone(),
        decides: controller.roles.contains(&Role::Placement),
        dry_run: controller.dry_run,
        state: Mutex::default(),
    });

    health.expect(PLACING);
    let managed = Some(format!("{MANAGED}=true"));
    tasks.spawn(observe::<Defaults>(&placer, client, health, "namespaces", None, &world.jitter, stop));
    tasks.spawn(observe::<Deployment>(&placer, client, health, "deployments", None, &world.jitter, stop));
    tasks.spawn(observe::<StatefulSet>(&placer, client, health, "statefulsets", None, &world.jitter, stop));
    tasks.spawn(observe::<ReplicaSet>(&placer, client, health, "replicasets", None, &world.jitter, stop));
    tasks.spawn(observe::<Pod>(&placer, client, health, "pods", managed, &world.jitter, stop));
    tasks.spawn(observe::<PodDisruptionBudget>(
        &placer,
        client,
        health,
        "poddisruptionbudgets",
        None,
        &world.jitter,
        stop,
    ));
    tasks.spawn(observe::<Node>(&placer, client, health, "nodes for placement", None, &world.jitter, stop));
    if placer.decides {
        for _ in 0..controller.workers {
            tasks.spawn(Arc::clone(&placer).work());
        }
        tasks.spawn({
            let (placer, stop) = (Arc::clone(&placer), stop.clone());
            async move {
                let mut changes = placer.ownership.changes();
                while let Some(Ok(())) = stop.run_until_cancelled(changes.changed()).await {
                    changes.mark_unchanged();
                    placer.resync();
                }
                stop.cancelled().await;
            }
        });
        tasks.spawn(every(stop.clone(), controller.resync_period, {
            let placer = Arc::clone(&placer);
            move || {
                placer.resync();
                std::future::ready(())
            }
        }));
    }
    tasks.spawn(every(stop.clone(), SURVEY_EVERY, {
        let placer = Arc::clone(&placer);
        move || {
            let placer = Arc::clone(&placer);
            async move {
                placer.survey();
                placer.free_overdue().await;
            }
        }
    }));
    tasks.spawn(every(stop.clone(), Duration::from_millis(250), {
        let (placer, health) = (Arc::clone(&placer), health.clone());
        move || {
            if placer.is_synced() {
                health.set(PLACING, true);
            }
            std::future::ready(())
        }
    }));
    tasks.spawn({
        let (queue, stop) = (placer.queue.clone(), stop.clone());
        async move {
            stop.cancelled().await;
            queue.close();
        }
    });
    Ok(placer)
}

fn observe<K>(
    placer: &Arc<Placer>,
    client: &Client,
    health: &Health,
    what: &'static str,
    labels: Option<String>,
    jitter: &Jitter,
    stop: &CancellationToken,
) -> impl Future<Output = ()> + use<K>
where
    K: Observed + Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let (on, metrics, health) = (Arc::clone(placer), placer.metrics.clone(), health.clone());
    follow(
        Api::<K>::all(client.clone()),
        Subject { what, labels },
        jitter.clone(),
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

fn watch_nodes(
    keeper: &Arc<Keeper>,
    jitter: &Jitter,
    health: &Health,
    stop: &CancellationToken,
) -> impl Future<Output = ()> + use<> {
    let (on, health) = (Arc::clone(keeper), health.clone());
    follow(
        keeper.cluster.nodes().clone(),
        Subject { what: "nodes", labels: None },
        jitter.clone(),
        stop.clone(),
        move |event| {
            on.on_node(event);
            note_synced(&on, &health);
        },
        trouble(keeper),
    )
}

fn watch_records(
    keeper: &Arc<Keeper>,
    jitter: &Jitter,
    health: &Health,
    stop: &CancellationToken,
) -> impl Future<Output = ()> + use<> {
    let (on, health) = (Arc::clone(keeper), health.clone());
    follow(
        keeper.cluster.records().clone(),
        Subject { what: "records", labels: Some(format!("{RECORD_LABEL}={RECORD_LABEL_VALUE}")) },
        jitter.clone(),
        stop.clone(),
        move |event| {
            on.on_record(event);
            note_synced(&on, &health);
        },
        trouble(keeper),
    )
}

fn watch_policies(keeper: &Arc<Keeper>, jitter: &Jitter, stop: &CancellationToken) -> impl Future<Output = ()> + use<> {
    let (on, missing) = (Arc::clone(keeper), Arc::clone(keeper));
    follow(
        Api::<policies::Resource>::all(keeper.client.clone()),
        Subject { what: "keeppolicies", labels: None },
        jitter.clone(),
        stop.clone(),
        move |event| on.on_policy(event),
        move |category| {
            if matches!(category, Category::NotFound | Category::Forbidden) && missing.policies.on_missing() {
                missing.on_policies();
            }
        },
    )
}

async fn follow_ownership(keeper: Arc<Keeper>, stop: CancellationToken) {
    let mut changes = keeper.ownership.changes();
    while let Some(Ok(())) = stop.run_until_cancelled(changes.changed()).await {
        let owned: Vec<u32> = changes.borrow_and_update().keys().copied().collect();
        info!(shards = ?owned, "our share of the nodes changed");
        keeper.resync();
    }
    // The sender is gone only when the process stops.
    stop.cancelled().await;
}

/// Takes part in the election for shards; owns everything where there is none.
fn compete(
    settings: &Settings,
    client: &Client,
    metrics: &Metrics,
    identity: &str,
    stop: &CancellationToken,
    tasks: &mut JoinSet<()>,
) -> Ownership {
    let (controller, election) = (&settings.controller, &settings.controller.leader_election);
    let shards = u32::from(controller.shards);
    let works = controller.roles.iter().any(|role| *role != Role::Webhooks);
    if !election.enabled || controller.dry_run {
        return Ownership::all(shards);
    }
    let metrics = metrics.clone();
    let coordination = Coordination {
        client: client.clone(),
        namespace: settings.namespace.to_string(),
        group: lease_group(settings),
        identity: identity.to_owned(),
        shards,
        lease: election.lease_duration,
        observer: !works,
        report: Arc::new(move |lease, held| metrics.leads(lease, held)),
    };
    let (ownership, task) = coordinate(coordination, stop.clone());
    tasks.spawn(task);
    ownership
}

/// Processes with the same roles share the same work. One that only serves admission looks at everyone's.
fn lease_group(settings: &Settings) -> String {
    let all = [Role::Capture, Role::Restore, Role::Placement];
    let ours: Vec<&str> =
        all.iter().filter(|role| settings.controller.roles.contains(role)).map(|role| role.as_str()).collect();
    match ours.len() {
        0 | 3 => "perennial".to_owned(),
        _ => format!("perennial-{}", ours.join("-")),
    }
}

/// Starts the admission server, and keeps its certificate and the webhook configurations right.
fn serve_webhooks(
    settings: &Settings,
    client: &Client,
    parts: &Parts,
    health: &Health,
    stop: &CancellationToken,
    tasks: &mut JoinSet<()>,
) -> anyhow::Result<()> {
    let webhook = &settings.webhook;
    let target = webhook.url.clone().map_or(configuration::Target::Service, configuration::Target::Url);
    let configuration = ConfigurationSettings {
        namespace: settings.namespace.to_string(),
        target,
        failure_policy: webhook.failure_policy.to_string(),
        timeout: webhook.timeout,
        node_create: true,
        node_delete: true,
        pods: parts.placer.as_ref().map(|placer| placer.configured.namespaces()),
    };
    let served = Arc::new(Served::default());
    let listening = listen(settings, parts, &served)?;
    info!(address = %listening.address(), "serving admission");
    tasks.spawn({
        let stop = stop.clone();
        async move {
            if let Err(error) = listening.run(stop).await {
                error!(%error, "the admission server ended");
            }
        }
    });
    let origin = webhook
        .cert_dir
        .as_ref()
        .map_or_else(|| Origin::Secret { lifetimes: Lifetimes::default() }, |dir| Origin::Directory(dir.into()));
    let upkeep = UpkeepSettings {
        namespace: settings.namespace.to_string(),
        origin,
        names: configuration.names(),
        configuration: Some(configuration),
    };
    tasks.spawn(Upkeep::new(client.clone(), upkeep, Arc::clone(&served)).run(stop.clone()));
    health.expect(CERTIFIED);
    tasks.spawn({
        let (stop, health) = (stop.clone(), health.clone());
        every(stop, Duration::from_millis(250), move || {
            health.set(CERTIFIED, served.is_ready());
            std::future::ready(())
        })
    });
    Ok(())
}

fn listen(settings: &Settings, parts: &Parts, served: &Arc<Served>) -> anyhow::Result<Listening> {
    let Parts { keeper, placer } = parts;
    let metrics = keeper.metrics.clone();
    let report = move |seen: &Observation| {
        let code = if seen.outcome.is_answered() { http_code(200) } else { http_code(503) };
        metrics.admitted(seen.path.trim_start_matches('/'), code, seen.elapsed);
    };
    let (on_create, on_delete) = (Arc::clone(keeper), Arc::clone(keeper));
    let mut webhooks = Webhooks::new(Limits::for_timeout(settings.webhook.timeout), Arc::new(report))
        .on(MUTATE_NODES, move |request| {
            let keeper = Arc::clone(&on_create);
            async move { keeper.admit_create(request).await }
        })
        .on(VALIDATE_NODES, move |request| {
            let keeper = Arc::clone(&on_delete);
            async move { keeper.admit_delete(request).await }
        });
    if let Some(placer) = placer.clone() {
        webhooks = webhooks.on(MUTATE_PODS, move |request| {
            let placer = Arc::clone(&placer);
            async move { placer.admit_pod(request).await }
        });
    }
    let address = SocketAddr::from((Ipv6Addr::UNSPECIFIED, settings.webhook.port));
    Ok(webhooks.listen(address, Arc::clone(served))?)
}

fn http_code(code: u16) -> ::http::StatusCode {
    ::http::StatusCode::from_u16(code).unwrap_or_default()
}

/// Webhooks that were switched off would only be failed open: they are taken away.
async fn remove_webhooks(client: &Client) {
    if let Err(error) = Configurations::new(client.clone()).remove().await {
        warn!(%error, "webhooks are off, but their configurations could not be removed");
    }
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
            warn!(namespace = name, why = fault::message(&error), "could not make sure that our namespace exists");
        }
    }
}

fn in_cluster() -> bool {
    std::env::var_os("KUBERNETES_SERVICE_HOST").is_some()
}

fn note_synced(keeper: &Keeper, health: &Health) {
    if keeper.is_synced() {
        health.set(SYNCED, true);
    }
}

fn trouble(keeper: &Arc<Keeper>) -> impl FnMut(Category) + use<> {
    let metrics = keeper.metrics.clone();
    move |category| metrics.failed(category.as_str())
}

async fn until(stop: CancellationToken, task: impl Future<Output = ()>) {
    stop.run_until_cancelled(task).await;
}

async fn every<F: Future<Output = ()>>(stop: CancellationToken, period: Duration, mut tick: impl FnMut() -> F) {
    let mut interval = tokio::time::interval(period);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    interval.tick().await;
    while stop.run_until_cancelled(interval.tick()).await.is_some() {
        tick().await;
    }
}

/// The name of the pod or host.
fn host() -> String {
    let named = ["PERENNIAL_POD_NAME", "POD_NAME", "HOSTNAME"].iter().find_map(|name| std::env::var(name).ok());
    let host = named.or_else(|| std::fs::read_to_string("/proc/sys/kernel/hostname").ok());
    host.unwrap_or_default().trim().to_owned()
}

async fn stop_signal() -> &'static str {
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
