//! Section `controller`: work, rate limits, shards and leader election.

use std::collections::BTreeSet;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Role;
use crate::config::duration::DurationText;
use crate::config::selector::LabelSelector;
use crate::config::text::EmptyIsNone;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Controller {
    /// Interval at which all cached objects are compared again, without requests. At least 5s.
    /// `RESYNC_INTERVAL_SECONDS` sets this and `controller.auditPeriod`.
    #[serde(with = "DurationText")]
    pub resync_period: Duration,
    /// Interval at which all objects are listed again from the API server. At least 5s.
    #[serde(with = "DurationText")]
    pub audit_period: Duration,
    /// Maximum number of objects that are reconciled at the same time.
    pub workers: u16,
    /// Ceiling of the requests per second, for all controllers together. Below it, the rate follows
    /// the answers of the API server: it halves after a 429 and grows while requests wait.
    pub qps: u32,
    /// Maximum number of requests in one burst, and at most those of ten seconds. Unless set, ten
    /// times `controller.qps`.
    pub burst: u32,
    /// Number of shards that nodes and workloads are divided into. A shard is owned by one replica
    /// at a time.
    pub shards: u16,
    /// Parts of the operator that this process runs: `capture`, `restore`, `placement`, `webhooks`.
    pub roles: BTreeSet<Role>,
    pub leader_election: LeaderElection,
    pub retry: RetryBackoff,
    /// Namespaces whose workloads are placed: `matchLabels` and `matchExpressions`, or one line as
    /// for `kubectl -l`. Empty: all namespaces.
    #[schemars(with = "serde_json::Map<String, serde_json::Value>")]
    pub namespace_selector: LabelSelector,
    /// Write Events about nodes, KeepPolicies and workloads. They are rate-limited.
    pub events: bool,
    /// Decide and report, but write nothing.
    pub dry_run: bool,
}

impl Default for Controller {
    fn default() -> Self {
        Self {
            resync_period: Duration::from_mins(5),
            audit_period: Duration::from_hours(1),
            workers: 16,
            qps: 5000,
            burst: 50_000,
            shards: 1,
            roles: Role::ALL.iter().copied().collect(),
            leader_election: LeaderElection::default(),
            retry: RetryBackoff::default(),
            namespace_selector: LabelSelector::default(),
            events: true,
            dry_run: false,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct LeaderElection {
    /// Acquire a Lease for each shard. If false, only one replica may run.
    pub enabled: bool,
    /// Namespace of the Leases. Empty: that of Perennial. Another one needs permission for Leases
    /// there.
    #[serde(with = "EmptyIsNone")]
    pub namespace: Option<String>,
    /// Time after which a Lease that is not renewed expires, in whole seconds.
    #[serde(with = "DurationText")]
    pub lease_duration: Duration,
}

impl Default for LeaderElection {
    fn default() -> Self {
        Self { enabled: true, namespace: None, lease_duration: Duration::from_secs(15) }
    }
}

/// Pauses before a failed reconciliation is repeated. Each pause is twice the one before it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct RetryBackoff {
    /// Pause after the first failure of an object.
    #[serde(with = "DurationText")]
    pub initial_backoff: Duration,
    /// Longest pause between two attempts. There is no limit of attempts.
    #[serde(with = "DurationText")]
    pub max_backoff: Duration,
}

impl Default for RetryBackoff {
    fn default() -> Self {
        Self { initial_backoff: Duration::from_millis(100), max_backoff: Duration::from_mins(1) }
    }
}
