//! Everything outside of the operator's parts: the API server, the time, chance, and the process
//! that they run in.

use kube::Client;
use tokio_util::sync::CancellationToken;

use super::{budget::Budget, clock::Clock, health::Health, history::History, jitter::Jitter, metrics::Metrics};

/// Handed to each part; a simulation passes its own. Clones share everything.
#[derive(Clone)]
#[expect(missing_debug_implementations, reason = "kube's client has none")]
pub struct Environment {
    /// For the work of the controllers.
    pub client: Client,
    pub budget: Budget,
    /// For Leases, on separate connections and without a budget: a renewal waits for nothing.
    pub leases: Client,
    /// For requests on behalf of an admission review, on separate connections and with a separate
    /// budget.
    pub admission: Client,
    pub admission_budget: Budget,
    pub metrics: Metrics,
    pub clock: Clock,
    pub jitter: Jitter,
    /// Name of this process among its replicas.
    pub identity: String,
    pub health: Health,
    /// Detects a restore of etcd, after which all observations are obsolete.
    pub history: History,
    /// Cancelled when the process stops: no new work begins.
    pub stop: CancellationToken,
    /// Cancelled some time after the stop, when the work that must not be lost is done. The same as
    /// `stop` where there is none.
    pub drained: CancellationToken,
}
