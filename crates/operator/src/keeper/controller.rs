//! The keeper: watch events become requests to reconcile nodes, `decide` decides,
//! [`apply`](super::apply) writes.
//!
//! # Guarantees
//! A pending last state is written before any decision about its successor. A node is read once
//! more before it is captured. A node is restored only from a record that was read after it, or, if
//! it has not changed since its creation, from the last state of its predecessor
//! ([`recall_cache`](super::recall_cache)). A failure delays only the node that it concerns.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Client, runtime::watcher::Event};
use perennial_core::{config::Gate, keeper::selection};
use tokio::{sync::Notify, time::Instant};
use tracing::{Span, debug, field, info_span, warn};

use super::{
    Key, Priority, Work,
    apply::{Cluster, Error, Held},
    cache::{Cache, Requests},
    metrics::KeeperMetrics,
    node::Node,
    policies::{self, Policies},
};
use crate::runtime::{
    clock::Clock,
    error_category::Category,
    error_chain::Chain,
    events::{About, Events},
    jitter::Jitter,
    ownership::Ownership,
    reconciler::{Action, Reconcile, Reconciler, RetryPolicy},
    reporter::{CategorizedError, Reporter, Retry, log_failure},
    traces,
};

/// Name of the controller and its queue in metrics.
pub const CONTROLLER: &str = "keeper";
/// Minimum time between two captures of a node. Of a burst of changes, the first and the last state
/// are captured.
const CAPTURE_PAUSE: Duration = Duration::from_secs(1);
/// Number of changes back and forth after which a node is captured less often.
pub(super) const FLAPS: u32 = 3;
pub(super) const FLAP_MEMORY: Duration = Duration::from_mins(5);
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_mins(1);
pub const RETRY: RetryPolicy = RetryPolicy {
    backoff: (FIRST_PAUSE, LONGEST_PAUSE),
    immediate_conflicts: 3,
    longest_conflict: LONGEST_PAUSE,
    refused: (Duration::from_secs(270), Duration::from_secs(330)),
    forbidden: (Duration::from_secs(30), Duration::from_mins(1)),
};

/// The writes that this process may send.
#[derive(Clone, Copy, Debug)]
pub struct Duties {
    pub capture: bool,
    pub restore: bool,
    /// Log writes instead of sending them.
    pub dry_run: bool,
}

/// The parts of the keeper. All of them are passed in.
#[expect(missing_debug_implementations, reason = "kube's client has none")]
pub struct Keeper {
    pub client: Client,
    pub cluster: Cluster,
    pub policies: Policies,
    pub cache: Cache,
    pub reconciler: Reconciler<Key, Priority>,
    pub clock: Clock,
    pub jitter: Jitter,
    pub metrics: KeeperMetrics,
    pub events: Events,
    pub reporter: Reporter,
    pub duties: Duties,
    /// Requests of the webhooks, with a budget of their own, since the API server waits for them.
    pub admission: Cluster,
    /// Deadline of a webhook call. Below the deadline of the admission server, which is below the
    /// timeout of the webhook.
    pub admission_deadline: Duration,
    /// The shards that this replica owns.
    pub ownership: Ownership,
    pub gate: Gate,
    pub gate_timeout: Duration,
    /// Name of the writer in records.
    pub identity: String,
    /// Notified when the policies in force change.
    pub replan: Notify,
    pub state: Mutex<State>,
}

/// State of the work on nodes.
#[derive(Debug, Default)]
pub struct State {
    pub(super) captured: HashMap<Key, Instant>,
    /// Number of recent changes back and forth of a node's labels, and the time of the last one.
    pub(super) flaps: HashMap<Key, (u32, Instant)>,
    /// Number of key changes after which all records were last verified.
    pub(super) verified_after: u64,
}

/// Result of reconciling a node.
pub(super) enum Done {
    /// The node needs nothing.
    Quiet,
    /// Something was written.
    Wrote,
    /// The node or its record changed meanwhile.
    Again,
}

impl Keeper {
    pub fn on_node(&self, event: Event<Node>) {
        self.enqueue(self.cache.on_node(event));
    }

    pub fn on_record(&self, event: Event<ConfigMap>) {
        self.enqueue(self.cache.on_record(event));
    }

    /// Caches a node from a response, as if the watch had delivered it.
    pub(super) fn learn_node(&self, node: &selection::Node) {
        self.enqueue(self.cache.learn_node(node));
    }

    /// Caches a record from a response.
    pub(super) fn learn_record(&self, held: &Held) {
        self.enqueue(self.cache.learn_record(held));
    }

    pub fn on_policy(&self, event: Event<policies::KeepPolicyResource>) {
        if self.policies.on_event(event) {
            self.on_policies();
        }
    }

    /// The policies in force are known, or have changed.
    pub fn on_policies(&self) {
        self.replan.notify_one();
    }

    /// Caches every node again whenever the policies in force change. Only affected nodes are
    /// reconciled.
    pub async fn follow_policies(&self) {
        loop {
            self.replan.notified().await;
            if let Err(error) = self.replan_all().await {
                warn!(category = error.category().as_str(), error = %Chain(&error), "policy change not applied yet, retrying");
                tokio::time::sleep(self.jitter.backoff(3, FIRST_PAUSE, LONGEST_PAUSE)).await;
                self.replan.notify_one();
            }
        }
    }

    async fn replan_all(&self) -> Result<(), Error> {
        let known = self.cache.policies_are_known();
        // Records are moved before any decision under a new identity, but not while policies cannot
        // be read.
        let differ = self.policies.identities_differ() || self.cache.has_other_identities();
        if differ && self.policies.are_known() {
            self.migrate().await?;
        } else if differ {
            warn!("KeepPolicies cannot be read: no record is moved to another identity");
        }
        if known || self.policies.has_any() {
            self.each_node(|node| {
                self.enqueue(self.cache.reconsider(&node));
            })
            .await?;
        }
        self.cache.set_policies_known();
        self.resync();
        Ok(())
    }

    pub fn is_synced(&self) -> bool {
        self.cache.is_synced()
    }

    /// Requests all nodes that may need work, from the cache. Sends no requests.
    pub fn resync(&self) {
        let requests = self.cache.everything();
        debug!(nodes = requests.len(), "resync");
        self.enqueue(requests);
    }

    /// Adds nodes to the queue that this replica owns.
    pub(super) fn enqueue(&self, requests: Requests) {
        for (key, priority) in requests {
            if !self.ownership.is_ours(self.ownership.shard_of(&key)) {
                self.cache.take_hot(&key);
                continue;
            }
            let pause = if priority == Priority::Capture { self.capture_pause(&key) } else { Duration::ZERO };
            self.reconciler.add_after(&key, priority, pause);
        }
    }

    fn capture_pause(&self, key: &Key) -> Duration {
        let state = self.lock();
        let flaps = state.flaps.get(key).map_or(0, |(count, _)| *count);
        let pause = if flaps < FLAPS { CAPTURE_PAUSE } else { CAPTURE_PAUSE * 2u32.pow((flaps - FLAPS + 2).min(6)) };
        state.captured.get(key).map_or(Duration::ZERO, |at| pause.saturating_sub(at.elapsed()))
    }

    /// Works until the queue is closed.
    pub async fn work(self: Arc<Self>) {
        self.reconciler.work(&*self).await;
    }

    pub(super) fn report(&self, node: &str, error: &Error, retry: Retry) {
        let report = self.reporter.failure(error, retry, Some(About::node(node, "")));
        log_failure!(report, node = node);
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reconcile for Keeper {
    type Key = Key;
    type Priority = Priority;
    type Error = Error;

    fn shard_key(key: &Key) -> &str {
        key
    }

    fn span(&self, key: &Key) -> Span {
        info_span!(target: traces::TARGET, "keeper", node = &**key, outcome = field::Empty)
    }

    async fn reconcile(&self, work: &Work, _term: u64) -> Result<Action, Error> {
        Ok(match self.settle(work).await? {
            Done::Quiet | Done::Wrote => Action::Done,
            Done::Again => Action::Requeue,
        })
    }

    fn report(&self, key: &Key, error: &Error, retry: Retry) {
        self.report(key, error, retry);
    }
}

impl CategorizedError for Error {
    fn category(&self) -> Category {
        self.category()
    }

    fn retry_after(&self) -> Option<Duration> {
        self.retry_after()
    }

    fn missing_permission(&self) -> Option<&'static str> {
        self.missing_permission()
    }
}
