//! The page: what `status`, `explain`, `history` and `workloads` say, live, in a browser.
//!
//! Served by the operator (`dashboard.enabled`) and by `perennial dashboard`; both show what the operator's own watches and
//! caches say, and read one node with its record when somebody looks at it. It changes nothing: for whatever is to be
//! done it shows the command.
//!
//! # Guarantees
//! It listens on loopback only. Everything in it comes from the same origin, and nothing of a cluster is ever read as
//! markup: the policy in its headers forbids the browser to.

mod api;
mod attention;
mod guard;
mod node;
mod overview;
mod page;
mod rows;
mod stream;
mod workload;

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{Router, middleware::from_fn_with_state, routing::get};
use tokio::{
    sync::{Semaphore, watch},
    time::{Instant, MissedTickBehavior},
};
use tokio_util::sync::CancellationToken;

pub use guard::Guard;

use crate::{inspect::leases::Leases, run::Parts};

/// How long an interval of the churn is, and how many are drawn: an hour in all.
pub const INTERVAL: Duration = Duration::from_secs(10);
pub const INTERVALS: usize = 360;

/// How often those who look on are told how everything stands, at most.
const TELL_EVERY: Duration = Duration::from_secs(1);
/// Who works on what is read from the Leases this often, while somebody looks on.
const LEASES_EVERY: Duration = Duration::from_secs(5);
/// So many may look on at once.
const STREAMS: usize = 64;
/// So many nodes are read at once.
const LOOKS: usize = 4;

/// Who serves the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Server {
    Operator,
    Command,
}

/// Everything that the page shows, and where it comes from.
#[expect(missing_debug_implementations, reason = "kube's client has none")]
pub struct Dashboard {
    parts: Parts,
    server: Server,
    namespace: String,
    overview: watch::Sender<Arc<str>>,
    rows: Mutex<rows::Kept>,
    workloads: Mutex<workload::Kept>,
    leases: tokio::sync::Mutex<Option<(Instant, Result<Leases, String>)>>,
    streams: Arc<Semaphore>,
    looks: Semaphore,
    stop: CancellationToken,
}

impl Dashboard {
    /// The keeper's view has to have a board.
    pub fn new(parts: Parts, server: Server, namespace: &str, stop: CancellationToken) -> Arc<Self> {
        Arc::new(Self {
            parts,
            server,
            namespace: namespace.to_owned(),
            overview: watch::Sender::new(Arc::from("")),
            rows: Mutex::default(),
            workloads: Mutex::default(),
            leases: tokio::sync::Mutex::default(),
            streams: Arc::new(Semaphore::new(STREAMS)),
            looks: Semaphore::new(LOOKS),
            stop,
        })
    }

    /// Everything that is served.
    pub fn router(self: &Arc<Self>, guard: Guard) -> Router {
        let all = Router::new()
            .route("/", get(page::index))
            .route("/{file}", get(page::file))
            .route("/api/overview", get(api::overview))
            .route("/api/nodes", get(api::nodes))
            .route("/api/node", get(api::node))
            .route("/api/workloads", get(api::workloads))
            .route("/api/workload", get(api::workload))
            .route("/api/stream", get(stream::stream))
            .with_state(Arc::clone(self));
        guard.mount(all)
    }

    /// Closes the intervals of the churn, and tells those who look on how everything stands, until it is stopped.
    pub async fn run(self: Arc<Self>) {
        let mut tick = tokio::time::interval(TELL_EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut turned = Instant::now();
        while self.stop.run_until_cancelled(tick.tick()).await.is_some() {
            if turned.elapsed() >= INTERVAL {
                turned += INTERVAL;
                self.parts.keeper.cache.activity(|activity| activity.churn.turn());
            }
            if self.overview.receiver_count() > 0 {
                self.refresh().await;
            }
        }
    }

    /// How everything stands, told to all where it changed.
    async fn refresh(&self) -> Arc<str> {
        let text: Arc<str> = Arc::from(overview::overview(self).await.to_string());
        self.overview.send_if_modified(|told| {
            let changed = *told != text;
            told.clone_from(&text);
            changed
        });
        text
    }
}

/// A name as a word of a command line, to be copied into a shell. A record that somebody tampered with may hold any name.
fn quoted(name: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._/:=".contains(c);
    if !name.is_empty() && name.chars().all(plain) {
        return name.to_owned();
    }
    format!("'{}'", name.replace('\'', "'\\''"))
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
    fn a_name_is_one_word_of_a_command() {
        assert_eq!(quoted("worker-1.example.com"), "worker-1.example.com");
        assert_eq!(quoted("x; rm -rf ~"), "'x; rm -rf ~'");
        assert_eq!(quoted("it's $HOME"), "'it'\\''s $HOME'");
        assert_eq!(quoted(""), "''");
    }
}
