//! The dashboard: status, explanations, histories and workloads in a browser, updated continuously.
//!
//! Served by the operator (`dashboard.enabled`) and by `perennial dashboard`. Both serve it from
//! the operator's caches, and read a node with its record when its page is opened. It is read-only:
//! for each action it shows the command.
//!
//! # Guarantees
//! The server listens on loopback only. All files come from the same origin, and no data of a
//! cluster becomes markup: the Content-Security-Policy forbids it.

mod api;
mod attention;
mod freshness;
mod guard;
mod list_window;
mod node;
mod overview;
mod page;
mod policies;
mod row;
mod stream;
mod workload;

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{Router, middleware::from_fn_with_state, routing::get};
use perennial_core::config::Settings;
use tokio::{
    sync::{Semaphore, watch},
    time::{Instant, MissedTickBehavior},
};
use tokio_util::sync::CancellationToken;

pub use guard::Guard;

use crate::{
    inspect::{
        format::shell_quoted,
        leases::{Attendance, LeaseSnapshot},
    },
    run::Parts,
    runtime::{client::ClusterNames, environment::Environment, health::Health},
};

/// Length and number of the intervals of the churn chart: one hour in total.
pub const INTERVAL: Duration = Duration::from_secs(10);
pub const INTERVALS: usize = 360;

/// Minimum time between two updates of the overview.
const UPDATE_EVERY: Duration = Duration::from_secs(1);
/// Time between two reads of the Leases while a browser is connected.
const LEASES_EVERY: Duration = Duration::from_secs(5);
/// Maximum number of connected browsers.
const STREAMS: usize = 64;
/// Maximum number of nodes that are read concurrently.
const NODE_READS: usize = 4;

/// Process that serves the dashboard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Server {
    Operator,
    Command,
}

/// State of the dashboard server.
#[expect(missing_debug_implementations, reason = "kube's client has none")]
pub struct Dashboard {
    parts: Parts,
    server: Server,
    names: ClusterNames,
    namespace: String,
    lease_namespace: String,
    max_absent: u32,
    attendance: Attendance,
    overview: watch::Sender<Arc<str>>,
    rows: Mutex<list_window::CachedRows>,
    workloads: Mutex<workload::CachedWorkloads>,
    leases: tokio::sync::Mutex<Option<(Instant, Result<LeaseSnapshot, String>)>>,
    freshness: freshness::ApiFreshness,
    streams: Arc<Semaphore>,
    node_reads: Semaphore,
    health: Health,
    stop: CancellationToken,
}

impl Dashboard {
    /// The keeper's view must have an activity board.
    pub fn new(parts: Parts, server: Server, settings: &Settings, names: ClusterNames, env: &Environment) -> Arc<Self> {
        let cluster = settings.dashboard.cluster_name.clone().or(names.cluster);
        Arc::new(Self {
            names: ClusterNames { cluster, ..names },
            parts,
            server,
            namespace: settings.namespace.to_string(),
            lease_namespace: settings.lease_namespace().to_owned(),
            max_absent: settings.keeper.max_absent,
            attendance: Attendance::of(settings),
            overview: watch::Sender::new(Arc::from("")),
            rows: Mutex::default(),
            workloads: Mutex::default(),
            leases: tokio::sync::Mutex::default(),
            freshness: freshness::ApiFreshness::default(),
            streams: Arc::new(Semaphore::new(STREAMS)),
            node_reads: Semaphore::new(NODE_READS),
            health: env.health.clone(),
            stop: env.stop.clone(),
        })
    }

    /// Returns the routes of the page and of its API.
    pub fn router(self: &Arc<Self>, guard: Guard) -> Router {
        let all = Router::new()
            .route("/", get(page::index))
            .route("/{file}", get(page::file))
            .route("/api/overview", get(api::overview))
            .route("/api/nodes", get(api::nodes))
            .route("/api/node", get(api::node))
            .route("/api/workloads", get(api::workloads))
            .route("/api/workload", get(api::workload))
            .route("/api/policies", get(api::policies))
            .route("/api/states", get(api::states))
            .route("/api/stream", get(stream::stream))
            .with_state(Arc::clone(self));
        guard.mount(all)
    }

    /// Ends the intervals of the churn chart and sends the overview to connected browsers, until
    /// stopped.
    pub async fn run(self: Arc<Self>) {
        let mut tick = tokio::time::interval(UPDATE_EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut turned = Instant::now();
        while self.stop.run_until_cancelled(tick.tick()).await.is_some() {
            if turned.elapsed() >= INTERVAL {
                turned += INTERVAL;
                self.parts.keeper.cache().activity(|activity| activity.churn.end_interval());
            }
            if self.overview.receiver_count() > 0 {
                self.refresh().await;
            }
        }
    }

    /// Computes the overview, and sends it to connected browsers if it changed.
    async fn refresh(&self) -> Arc<str> {
        let text: Arc<str> = Arc::from(overview::overview(self).await.to_string());
        self.overview.send_if_modified(|sent| {
            let changed = *sent != text;
            sent.clone_from(&text);
            changed
        });
        text
    }
}

impl Guard {
    fn mount(self, all: Router) -> Router {
        let all = match self.token() {
            Some(_) => Router::new().nest("/{token}/", all),
            None => all,
        };
        all.layer(from_fn_with_state(self, guard::check))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted_for_a_shell() {
        assert_eq!(shell_quoted("worker-1.example.com"), "worker-1.example.com");
        assert_eq!(shell_quoted("x; rm -rf ~"), "'x; rm -rf ~'");
        assert_eq!(shell_quoted("it's $HOME"), "'it'\\''s $HOME'");
        assert_eq!(shell_quoted(""), "''");
    }
}
