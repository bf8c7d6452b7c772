//! `perennial run`: the flat list of everything that runs.

use std::{sync::Arc, time::Duration};

use anyhow::Context as _;
use kube::Client;
use perennial_core::{
    config::{Role, Settings},
    keeper::record::{RECORD_LABEL, RECORD_LABEL_VALUE},
};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use crate::{
    keeper::{
        apply::Cluster,
        controller::{Duties, Keeper, State},
        policies::Policies,
    },
    runtime::{
        budget::Budget,
        client::{self, Target},
        clock::Clock,
        events::Events,
        metrics::Metrics,
        queue::Queue,
        random::Jitter,
        watch::{Subject, follow},
    },
    serve::{health::Health, http},
};

const SYNCED: &str = "caches";
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
}

/// Runs the operator in this cluster until it is told to stop.
pub async fn run(settings: Settings, target: &Target) -> anyhow::Result<()> {
    let metrics = Metrics::new();
    let budget = Budget::new(settings.controller.qps, settings.controller.burst);
    let config = client::config(target).await?;
    info!(version = env!("CARGO_PKG_VERSION"), server = %config.cluster_url, namespace = %settings.namespace, "starting");
    let client = client::connect(config, metrics.clone(), Some(budget.clone()))?;
    let world = World {
        client,
        budget,
        metrics: metrics.clone(),
        clock: Clock::system(),
        jitter: Jitter::seeded(rand::random()),
        identity: identity(),
    };

    let stop = CancellationToken::new();
    let health = Health::new();
    let mut tasks = JoinSet::new();
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
    operate(&settings, world, &health, &stop, &mut tasks);

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

/// Starts every part of the operator.
pub fn operate(settings: &Settings, world: World, health: &Health, stop: &CancellationToken, tasks: &mut JoinSet<()>) {
    let controller = &settings.controller;
    let World { client, budget, metrics, clock, jitter, identity } = world;
    let (events, events_task) = Events::new(client.clone(), clock.clone());
    tasks.spawn(until(stop.clone(), events_task));

    let keeper = Arc::new(Keeper {
        cluster: Cluster::new(client, settings.namespace.as_str(), budget),
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
        identity,
        state: std::sync::Mutex::new(State::default()),
    });

    health.expect(SYNCED);
    tasks.spawn({
        let (on, synced) = (Arc::clone(&keeper), (Arc::clone(&keeper), health.clone()));
        follow(
            keeper.cluster.nodes().clone(),
            Subject { what: "nodes", labels: None },
            jitter.clone(),
            stop.clone(),
            move |event| {
                on.on_node(event);
                note_synced(&synced);
            },
            trouble(&keeper),
        )
    });
    tasks.spawn({
        let (on, synced) = (Arc::clone(&keeper), (Arc::clone(&keeper), health.clone()));
        follow(
            keeper.cluster.records().clone(),
            Subject { what: "records", labels: Some(format!("{RECORD_LABEL}={RECORD_LABEL_VALUE}")) },
            jitter,
            stop.clone(),
            move |event| {
                on.on_record(event);
                note_synced(&synced);
            },
            trouble(&keeper),
        )
    });
    for _ in 0..controller.workers {
        tasks.spawn(Arc::clone(&keeper).work());
    }
    tasks.spawn(every(stop.clone(), controller.resync_period, {
        let keeper = Arc::clone(&keeper);
        move || keeper.resync()
    }));
    tasks.spawn(every(stop.clone(), SURVEY_EVERY, {
        let (keeper, health) = (Arc::clone(&keeper), health.clone());
        move || {
            keeper.survey();
            health.beat(LOOPS);
        }
    }));
    health.watch(LOOPS, SURVEY_EVERY * 15);
    tasks.spawn({
        let (queue, stop) = (keeper.queue.clone(), stop.clone());
        async move {
            stop.cancelled().await;
            queue.close();
        }
    });
}

const LOOPS: &str = "loops";

fn note_synced((keeper, health): &(Arc<Keeper>, Health)) {
    if keeper.is_synced() {
        health.set(SYNCED, true);
    }
}

fn trouble(keeper: &Arc<Keeper>) -> impl FnMut(crate::runtime::fault::Category) + use<> {
    let metrics = keeper.metrics.clone();
    move |category| metrics.failed(category.as_str())
}

async fn until(stop: CancellationToken, task: impl Future<Output = ()>) {
    stop.run_until_cancelled(task).await;
}

async fn every(stop: CancellationToken, period: Duration, mut tick: impl FnMut()) {
    let mut interval = tokio::time::interval(period);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    interval.tick().await;
    while stop.run_until_cancelled(interval.tick()).await.is_some() {
        tick();
    }
}

/// The name of the pod or host, and something that no other process has.
fn identity() -> String {
    let host = std::env::var("POD_NAME").or_else(|_| std::env::var("HOSTNAME")).ok();
    let host = host.or_else(|| std::fs::read_to_string("/proc/sys/kernel/hostname").ok());
    let host = host.map(|host| host.trim().to_owned()).filter(|host| !host.is_empty());
    format!("{}_{:08x}", host.unwrap_or_else(|| "perennial".to_owned()), rand::random::<u32>())
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
