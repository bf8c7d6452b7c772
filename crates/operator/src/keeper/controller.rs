//! The keeper's loop: what the watches say becomes work, the pure plan says what to do, [`apply`](super::apply) does it.
//!
//! # Guarantees
//! A pending last state is written before anything is done about its successor. A node is captured only after one more
//! look at it; a node is restored only from a record that was read after it, or, unchanged since it began, from what its
//! predecessor had ([`past`](super::past)). Failures delay the node that they are about, and no other.

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
    node::Node,
    observe::{Asks, View},
    policies::{self, Policies},
};
use crate::runtime::{
    clock::Clock,
    error_category::Category,
    events::{About, Events},
    jitter::Jitter,
    metrics::Metrics,
    ownership::Ownership,
    reconciler::{Action, Reconcile, Reconciler, RetryPolicy},
    reporter::{CategorizedError, Reporter, Retry, log_failure},
    traces,
};

/// The name of the controller and its queue, in metrics.
pub const CONTROLLER: &str = "keeper";
/// Captures of one node are at least so far apart: a burst of changes costs its first and its last state.
const CAPTURE_PAUSE: Duration = Duration::from_secs(1);
/// From so many changes back and forth on, a node is captured less often.
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

/// What the keeper may do in this process.
#[derive(Clone, Copy, Debug)]
pub struct Duties {
    pub capture: bool,
    pub restore: bool,
    /// Say what would be done, and do nothing.
    pub dry_run: bool,
}

/// Everything that the keeper works with. All of it is passed in.
#[expect(missing_debug_implementations, reason = "kube's client has none")]
pub struct Keeper {
    pub client: Client,
    pub cluster: Cluster,
    pub policies: Policies,
    pub reconciler: Reconciler<Key, Priority>,
    pub clock: Clock,
    pub jitter: Jitter,
    pub metrics: Metrics,
    pub events: Events,
    pub reporter: Reporter,
    pub duties: Duties,
    /// The way in for admission: with a budget of its own, since the API server waits for it.
    pub admission: Cluster,
    /// Below the deadline of the admission server, which is below the timeout of the webhook.
    pub admission_deadline: Duration,
    /// Which nodes are ours to work on.
    pub ownership: Ownership,
    pub gate: Gate,
    pub gate_timeout: Duration,
    /// Who we are, in records.
    pub identity: String,
    /// Told when the policies in force change.
    pub replan: Notify,
    pub state: Mutex<State>,
}

/// What the keeper has in memory.
#[derive(Debug, Default)]
pub struct State {
    pub view: View,
    pub(super) captured: HashMap<Key, Instant>,
    /// How often a node's labels went back and forth of late, and when last.
    pub(super) flaps: HashMap<Key, (u32, Instant)>,
    /// After how many changes of their keys all records were last judged by signature.
    pub(super) judged_after: u64,
}

/// What came of looking at a node.
pub(super) enum Done {
    /// It needs nothing.
    Quiet,
    /// Something was written.
    Wrote,
    /// Things changed meanwhile: look again.
    Again,
}

impl Keeper {
    pub fn on_node(&self, event: Event<Node>) {
        let asks = self.lock().view.on_node(event, &self.policies);
        self.ask(asks);
    }

    pub fn on_record(&self, event: Event<ConfigMap>) {
        let asks = self.lock().view.on_record(event, &self.policies, self.cluster.signatures());
        self.ask(asks);
    }

    /// A node as the API server just answered: as if the watch had said so.
    pub(super) fn learn_node(&self, node: &selection::Node) {
        let asks = self.lock().view.learn_node(node, &self.policies);
        self.ask(asks);
    }

    /// The same for a record.
    pub(super) fn learn_record(&self, held: &Held) {
        let asks = self.lock().view.learn_record(held, &self.policies);
        self.ask(asks);
    }

    pub fn on_policy(&self, event: Event<policies::Resource>) {
        if self.policies.on_event(event) {
            self.on_policies();
        }
    }

    /// The policies in force are known, or have changed.
    pub fn on_policies(&self) {
        self.replan.notify_one();
    }

    /// Looks at every node afresh whenever the policies in force change; only those that a policy touches are worked on.
    pub async fn follow_policies(&self) {
        loop {
            self.replan.notified().await;
            if let Err(error) = self.replan_all().await {
                warn!(category = error.category().as_str(), "the change of policies is not through yet: {error}");
                tokio::time::sleep(self.jitter.backoff(3, FIRST_PAUSE, LONGEST_PAUSE)).await;
                self.replan.notify_one();
            }
        }
    }

    async fn replan_all(&self) -> Result<(), Error> {
        let known = self.lock().view.policies_known;
        // Records move before anything is decided under a new identity; not where a policy that we may not read has the word.
        let differ = self.policies.identities_differ() || self.lock().view.index.has_other_identities();
        if differ && self.policies.are_known() {
            self.migrate().await?;
        } else if differ {
            warn!("KeepPolicies may not be read: no record is moved to another identity");
        }
        if known || self.policies.has_any() {
            self.each_node(|node| {
                let asks = self.lock().view.reconsider(&node, &self.policies);
                self.ask(asks);
            })
            .await?;
        }
        self.lock().view.policies_known = true;
        self.resync();
        Ok(())
    }

    pub fn is_synced(&self) -> bool {
        self.lock().view.is_synced()
    }

    /// Compares nodes and records in memory. Costs no request.
    pub fn resync(&self) {
        let asks = self.lock().view.everything();
        debug!(nodes = asks.len(), "resync");
        self.ask(asks);
    }

    pub(super) fn ask(&self, asks: Asks) {
        for (key, priority) in asks {
            if !self.ownership.is_ours(self.ownership.shard_of(&key)) {
                self.lock().view.take_hot(&key);
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
