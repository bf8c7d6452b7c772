//! The parts of the keeper.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use kube::Api;
use perennial_core::{
    config::{Role, Settings, settings::Hmac},
    keeper::record::{RECORD_LABEL, RECORD_LABEL_VALUE},
};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::{
    SURVEY_EVERY, World,
    tasks::{every, until},
};
use crate::{
    keeper::{
        apply::{Cluster, PAGE_OF_RECORDS},
        controller::{CONTROLLER, Duties, Keeper, RETRY, State},
        policies::{self, Policies},
    },
    monitoring::health::Health,
    placement::controller::Placer,
    runtime::{
        budget::Budget,
        error_category::Category,
        events::Events,
        jitter::Jitter,
        reconciler::Reconciler,
        reporter::Reporter,
        watch::{PAGE, Subject, follow},
    },
};

const SYNCED: &str = "caches";
const LOOPS: &str = "loops";
/// How often it is seen to, in memory, that all records are signed, where they are to be.
const SIGN_EVERY: Duration = Duration::from_secs(3);
const SYNC_CHECK: Duration = Duration::from_millis(50);

/// The keeper, which does nothing yet.
pub(super) fn keeper(settings: &Settings, world: World, events: Events) -> Arc<Keeper> {
    let controller = &settings.controller;
    let World { client, budget, metrics, clock, jitter, identity, ownership, signatures } = world;
    let namespace = settings.namespace.as_str();
    Arc::new(Keeper {
        cluster: Cluster::new(client.clone(), namespace, budget, signatures.clone()),
        client: client.clone(),
        admission: Cluster::new(client, namespace, Budget::unlimited(), signatures),
        admission_deadline: settings.webhook.timeout * 3 / 5,
        policies: Policies::new(&settings.keeper),
        reconciler: Reconciler::new(CONTROLLER, RETRY, ownership.clone(), jitter.clone(), metrics.clone()),
        reporter: Reporter::new(metrics.clone(), events.clone()),
        clock,
        jitter,
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
    })
}

/// Starts what fills its caches. What its watch says of nodes, placement hears as well.
pub(super) fn watch(
    keeper: &Arc<Keeper>,
    placer: Option<Arc<Placer>>,
    health: &Health,
    stop: &CancellationToken,
    tasks: &mut JoinSet<()>,
) {
    health.expect(SYNCED);
    tasks.spawn(report_synced(Arc::clone(keeper), health.clone(), stop.clone()));
    tasks.spawn(watch_nodes(keeper, placer, &keeper.jitter, stop));
    tasks.spawn(watch_records(keeper, &keeper.jitter, stop));
    tasks.spawn(watch_policies(keeper, &keeper.jitter, stop));
    tasks.spawn(until(stop.clone(), {
        let keeper = Arc::clone(keeper);
        async move { keeper.follow_policies().await }
    }));
}

/// Starts what acts.
pub(super) fn work(
    settings: &Settings,
    keeper: &Arc<Keeper>,
    health: &Health,
    stop: &CancellationToken,
    tasks: &mut JoinSet<()>,
) {
    let controller = &settings.controller;
    for _ in 0..controller.workers {
        tasks.spawn(Arc::clone(keeper).work());
    }
    tasks.spawn(follow_ownership(Arc::clone(keeper), stop.clone()));
    tasks.spawn(every(stop.clone(), controller.resync_period, {
        let keeper = Arc::clone(keeper);
        move || {
            keeper.resync();
            std::future::ready(())
        }
    }));
    tasks.spawn(every(stop.clone(), controller.audit_period, {
        let keeper = Arc::clone(keeper);
        move || {
            let keeper = Arc::clone(&keeper);
            async move { keeper.audit().await }
        }
    }));
    if keeper.cluster.signatures().mode() != Hmac::None {
        tasks.spawn(every(stop.clone(), SIGN_EVERY, {
            let keeper = Arc::clone(keeper);
            move || {
                let keeper = Arc::clone(&keeper);
                async move { keeper.keep_signed().await }
            }
        }));
    }
    health.watch(LOOPS, SURVEY_EVERY * 15);
    tasks.spawn(every(stop.clone(), SURVEY_EVERY, {
        let (keeper, health) = (Arc::clone(keeper), health.clone());
        move || {
            keeper.survey();
            health.beat(LOOPS);
            std::future::ready(())
        }
    }));
    // Apart from the beat: these wait for the API server, and a slow one is no reason to begin anew.
    tasks.spawn(every(stop.clone(), SURVEY_EVERY, {
        let keeper = Arc::clone(keeper);
        move || {
            let keeper = Arc::clone(&keeper);
            async move {
                keeper.free_overdue().await;
                keeper.report_policies().await;
            }
        }
    }));
    tasks.spawn({
        let (keeper, stop) = (Arc::clone(keeper), stop.clone());
        async move {
            stop.cancelled().await;
            keeper.reconciler.close();
        }
    });
}

fn watch_nodes(
    keeper: &Arc<Keeper>,
    placer: Option<Arc<Placer>>,
    jitter: &Jitter,
    stop: &CancellationToken,
) -> impl Future<Output = ()> + use<> {
    let on = Arc::clone(keeper);
    follow(
        keeper.cluster.nodes().clone(),
        Subject { what: "nodes", labels: None, page: PAGE },
        jitter.clone(),
        stop.clone(),
        move |event| {
            if let Some(placer) = &placer {
                placer.on_node(&event);
            }
            on.on_node(event);
        },
        trouble(keeper),
    )
}

fn watch_records(keeper: &Arc<Keeper>, jitter: &Jitter, stop: &CancellationToken) -> impl Future<Output = ()> + use<> {
    let on = Arc::clone(keeper);
    follow(
        keeper.cluster.records().clone(),
        Subject {
            what: "records",
            labels: Some(format!("{RECORD_LABEL}={RECORD_LABEL_VALUE}")),
            page: PAGE_OF_RECORDS,
        },
        jitter.clone(),
        stop.clone(),
        move |event| on.on_record(event),
        trouble(keeper),
    )
}

fn watch_policies(keeper: &Arc<Keeper>, jitter: &Jitter, stop: &CancellationToken) -> impl Future<Output = ()> + use<> {
    let (on, missing) = (Arc::clone(keeper), Arc::clone(keeper));
    follow(
        Api::<policies::Resource>::all(keeper.client.clone()),
        Subject { what: "keeppolicies", labels: None, page: PAGE },
        jitter.clone(),
        stop.clone(),
        move |event| on.on_policy(event),
        move |category| {
            if matches!(category, Category::NotFound | Category::Forbidden) && missing.policies.on_missing(category) {
                missing.on_policies();
            }
        },
    )
}

async fn follow_ownership(keeper: Arc<Keeper>, stop: CancellationToken) {
    let mut changes = keeper.ownership.changes();
    while let Some(owned) = stop.run_until_cancelled(changes.next()).await {
        let owned: Vec<u32> = owned.into_keys().collect();
        info!(shards = ?owned, "our share of the nodes changed");
        keeper.resync();
    }
}

/// Ready once nodes, records and policies are known. What is known once stays known.
async fn report_synced(keeper: Arc<Keeper>, health: Health, stop: CancellationToken) {
    while !keeper.is_synced() {
        if stop.run_until_cancelled(tokio::time::sleep(SYNC_CHECK)).await.is_none() {
            return;
        }
    }
    health.set(SYNCED, true);
    stop.cancelled().await;
}

fn trouble(keeper: &Arc<Keeper>) -> impl FnMut(Category) + use<> {
    let metrics = keeper.metrics.clone();
    move |category| metrics.failed(category.as_str())
}
