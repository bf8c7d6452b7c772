//! The settings: their types, their defaults, and their descriptions.
//!
//! Field names are the keys of the file. The doc comment of a field is its description on the
//! reference page and in the schema of the file, so it is written for administrators.

use std::collections::BTreeSet;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::choice::choices;
use super::defaults::{self, DROPPED_LABELS, PROTECTED_KEYS};
use super::duration::DurationText;
use super::pattern::Patterns;
use super::selector::LabelSelector;
use super::text::EmptyIsNone;

pub use super::text::{Identity, Namespace, NodeLabel, Prefix};
pub use super::toleration::Toleration;

/// All settings, validated.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Settings {
    /// Namespace of Perennial's own objects: records, Leases, certificates.
    pub namespace: Namespace,
    pub controller: Controller,
    pub keeper: Keeper,
    pub records: Records,
    pub placement: Placement,
    pub node_labels: NodeLabels,
    pub webhook: Webhook,
    pub metrics: Metrics,
    pub dashboard: Dashboard,
    pub logging: Logging,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Controller {
    /// Interval at which all cached objects are compared again, without requests. At least 5s.
    #[serde(with = "DurationText")]
    pub resync_period: Duration,
    /// Interval at which all objects are listed again from the API server. At least 5s.
    #[serde(with = "DurationText")]
    pub audit_period: Duration,
    /// Maximum number of objects that are reconciled at the same time.
    pub workers: u16,
    /// Maximum number of requests per second, for all controllers together.
    pub qps: u32,
    /// Maximum number of requests in one burst. Unless set, ten times `controller.qps`, so that a
    /// mass return of nodes fits into one burst.
    pub burst: u32,
    /// Number of shards that nodes and workloads are divided into. A shard is owned by one replica
    /// at a time.
    pub shards: u16,
    /// Parts of the operator that this process runs: `capture`, `restore`, `placement`, `webhooks`.
    pub roles: BTreeSet<Role>,
    pub leader_election: LeaderElection,
    /// Namespaces whose workloads are placed: `matchLabels` and `matchExpressions`, or one line as
    /// for `kubectl -l`. Empty: all namespaces.
    #[schemars(with = "serde_json::Map<String, serde_json::Value>")]
    pub namespace_selector: LabelSelector,
    /// Decide and report, but write nothing.
    pub dry_run: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct LeaderElection {
    /// Acquire a Lease for each shard. If false, only one replica may run.
    pub enabled: bool,
    /// Time after which a Lease that is not renewed expires, in whole seconds.
    #[serde(with = "DurationText")]
    pub lease_duration: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Keeper {
    /// Patterns of the label keys to keep.
    pub keep: Patterns,
    /// Patterns of the label keys not to keep, although `keeper.keep` matches them. Replaces the
    /// default list.
    pub drop: Patterns,
    /// Patterns of the annotation keys to keep.
    pub annotations: Patterns,
    /// Patterns of the taint keys to keep. Startup taints are never kept.
    pub taints: Patterns,
    /// Keep whether a node is cordoned.
    pub cordon: bool,
    /// Value that wins if a returning node has another one than its record: `keepExisting` (that of
    /// the node) or `overwrite` (that of the record).
    pub merge: Merge,
    /// Property by which a returning node is recognized: `name`, `providerID`, `systemUUID`,
    /// `machineID`, `label:KEY` or `annotation:KEY`.
    pub identity: Identity,
    /// Patterns of the keys that are restored only to the same machine.
    pub protected: Patterns,
    /// Time that the record of an absent node is kept.
    #[serde(with = "DurationText")]
    pub retention: Duration,
    /// Number of earlier label sets in a record.
    pub history: u16,
    /// Keep pods off a new node until it is restored: `never`, `needed` (if there is something to
    /// restore) or `always`.
    pub gate: Gate,
    /// Time after which the gate is removed, even from a node that is not restored.
    #[serde(with = "DurationText")]
    pub gate_timeout: Duration,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Records {
    /// Sign records with the keys in the Secret `perennial-record-keys`: `none`, `sign` (records
    /// without a signature are trusted, and then signed) or `require` (they are quarantined).
    pub hmac: Hmac,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Placement {
    /// Place the replicas of annotated workloads.
    pub enabled: bool,
    /// Domains of the annotations that are read, in order of precedence.
    pub annotation_prefixes: Vec<Prefix>,
    /// Minimum time between two moves of one workload.
    #[serde(with = "DurationText")]
    pub cooldown: Duration,
    /// Time after which a gated pod is released as on-demand.
    #[serde(with = "DurationText")]
    pub gate_timeout: Duration,
    /// Maximum time that the spot pods of a rollout wait until its on-demand pods are Ready.
    #[serde(with = "DurationText")]
    pub hold_timeout: Duration,
    /// Tolerations that are added to spot pods, as `key=value:Effect` or as in a pod.
    pub spot_tolerations: Vec<Toleration>,
}

/// The labels that determine the capacity class of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct NodeLabels {
    /// Labels, as `key=value`. A node with any of them is a spot node.
    pub spot: Vec<NodeLabel>,
    /// Labels, as `key=value`. A node with any of them is an on-demand node.
    pub on_demand: Vec<NodeLabel>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Webhook {
    /// Serve the admission webhooks and maintain their configurations.
    pub enabled: bool,
    /// Port of the webhook server. 0: any free port.
    pub port: u16,
    /// Directory with `tls.crt` and `tls.key` (and `ca.crt`) that another tool maintains. Empty:
    /// Perennial issues its own certificates.
    #[serde(with = "EmptyIsNone")]
    pub cert_dir: Option<String>,
    /// URL at which the API server reaches the webhooks, if Perennial runs outside of the cluster.
    #[serde(with = "EmptyIsNone")]
    pub url: Option<String>,
    /// Reaction of the API server to a failed webhook call: `Ignore` or `Fail`.
    pub failure_policy: FailurePolicy,
    /// Time that the API server waits for a response: 1s to 30s, in whole seconds.
    #[serde(with = "DurationText")]
    pub timeout: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Metrics {
    /// Serve `/metrics`, `/livez` and `/readyz`.
    pub enabled: bool,
    /// Port of the metrics server. 0: any free port.
    pub port: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Dashboard {
    /// Serve the read-only dashboard, on loopback only. Open it with `kubectl port-forward`.
    pub enabled: bool,
    /// Port of the dashboard. 0: any free port.
    pub port: u16,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Logging {
    /// Log level: `error`, `warn`, `info`, `debug` or `trace`.
    pub level: Level,
    /// Log format: `json` or `text`.
    pub format: LogFormat,
}

choices! {
    /// The side that wins if a returning node and its record have different values.
    #[derive(Default)]
    pub enum Merge { #[default] KeepExisting = "keepExisting", Overwrite = "overwrite" }

    /// The new nodes that get a taint which keeps pods off until they are restored.
    #[derive(Default)]
    pub enum Gate { #[default] Never = "never", Needed = "needed", Always = "always" }

    /// Whether records are signed, and whether unsigned ones are trusted.
    #[derive(Default)]
    pub enum Hmac { #[default] None = "none", Sign = "sign", Require = "require" }

    /// A part of the operator that a process can run.
    pub enum Role { Capture = "capture", Restore = "restore", Placement = "placement", Webhooks = "webhooks" }

    #[derive(Default)]
    pub enum FailurePolicy { #[default] Ignore = "Ignore", Fail = "Fail" }

    #[derive(Default)]
    pub enum LogFormat { #[default] Json = "json", Text = "text" }

    #[derive(Default)]
    pub enum Level { Error = "error", Warn = "warn", #[default] Info = "info", Debug = "debug", Trace = "trace" }

    /// Effect of a taint.
    pub enum Effect {
        NoSchedule = "NoSchedule", PreferNoSchedule = "PreferNoSchedule", NoExecute = "NoExecute",
    }

    /// Operator of a toleration.
    pub enum TolerationOperator { Equal = "Equal", Exists = "Exists" }

    /// Operator of a requirement of a label selector.
    pub enum Operator { In = "In", NotIn = "NotIn", Exists = "Exists", DoesNotExist = "DoesNotExist" }
}

impl Default for Controller {
    fn default() -> Self {
        Self {
            resync_period: Duration::from_mins(5),
            audit_period: Duration::from_hours(1),
            workers: 16,
            qps: 500,
            burst: 5000,
            shards: 1,
            roles: Role::ALL.iter().copied().collect(),
            leader_election: LeaderElection::default(),
            namespace_selector: LabelSelector::default(),
            dry_run: false,
        }
    }
}

impl Default for LeaderElection {
    fn default() -> Self {
        Self { enabled: true, lease_duration: Duration::from_secs(15) }
    }
}

impl Default for Keeper {
    fn default() -> Self {
        Self {
            keep: Patterns::of(&["*"]),
            drop: Patterns::of(DROPPED_LABELS),
            annotations: Patterns::default(),
            taints: Patterns::default(),
            cordon: false,
            merge: Merge::default(),
            identity: Identity::default(),
            protected: Patterns::of(PROTECTED_KEYS),
            retention: Duration::from_hours(720),
            history: 5,
            gate: Gate::default(),
            gate_timeout: Duration::from_mins(1),
        }
    }
}

impl Keeper {
    /// Returns whether a label of this key is kept: matched by `keep`, not by `drop`, and not one
    /// of Perennial's own.
    pub fn keeps_label(&self, key: &str) -> bool {
        !is_ours(key) && self.keep.matches(key) && !self.drop.matches(key)
    }
}

/// Returns whether a key is in Perennial's own domain. Such labels, annotations and taints are
/// never kept.
pub fn is_ours(key: &str) -> bool {
    key.starts_with(defaults::OWN_DOMAIN)
}

impl Default for Placement {
    fn default() -> Self {
        Self {
            enabled: true,
            annotation_prefixes: vec![Prefix::default()],
            cooldown: Duration::from_secs(30),
            gate_timeout: Duration::from_secs(30),
            hold_timeout: Duration::from_mins(5),
            spot_tolerations: Vec::new(),
        }
    }
}

impl Default for NodeLabels {
    fn default() -> Self {
        let karpenter = |value: &str| {
            let (key, value) = ("karpenter.sh/capacity-type".to_owned(), value.to_owned());
            vec![NodeLabel { key, value }]
        };
        Self { spot: karpenter("spot"), on_demand: karpenter("on-demand") }
    }
}

impl Default for Webhook {
    fn default() -> Self {
        Self {
            enabled: true,
            port: 9443,
            cert_dir: None,
            url: None,
            failure_policy: FailurePolicy::default(),
            timeout: Duration::from_secs(2),
        }
    }
}

impl Default for Dashboard {
    fn default() -> Self {
        Self { enabled: false, port: 8081 }
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self { enabled: true, port: 8080 }
    }
}
