//! The settings: real types, and the defaults. How they are written in a file is the business of [`super::keys`].

use std::collections::BTreeSet;
use std::time::Duration;

use super::choice::choices;
use super::defaults;
use super::pattern::Patterns;
use super::selector::LabelSelector;

/// Everything that can be configured, validated.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Settings {
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

/// The namespace that Perennial's own objects live in; a DNS label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Namespace(pub(super) String);

impl Namespace {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for Namespace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Controller {
    pub resync_period: Duration,
    pub audit_period: Duration,
    pub workers: u16,
    pub qps: u32,
    pub burst: u32,
    pub shards: u16,
    pub roles: BTreeSet<Role>,
    pub leader_election: LeaderElection,
    pub namespace_selector: LabelSelector,
    pub dry_run: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaderElection {
    pub enabled: bool,
    pub lease_duration: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keeper {
    pub keep: Patterns,
    pub drop: Patterns,
    pub annotations: Patterns,
    pub taints: Patterns,
    pub cordon: bool,
    pub merge: Merge,
    pub identity: Identity,
    pub protected: Patterns,
    pub retention: Duration,
    pub history: u16,
    pub gate: Gate,
    pub gate_timeout: Duration,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Records {
    pub hmac: Hmac,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    pub enabled: bool,
    pub annotation_prefixes: Vec<Prefix>,
    pub cooldown: Duration,
    pub gate_timeout: Duration,
    pub hold_timeout: Duration,
    pub spot_tolerations: Vec<Toleration>,
}

/// The domain of an annotation key, without its slash.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Prefix(pub(super) String);

impl Prefix {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The labels that tell a node's capacity class; a node with any of a class's labels is of that class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeLabels {
    pub spot: Vec<NodeLabel>,
    pub on_demand: Vec<NodeLabel>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeLabel {
    pub key: String,
    pub value: String,
}

/// As in Kubernetes: without an effect for all effects, without a value for all values of the key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Toleration {
    pub key: String,
    pub value: Option<String>,
    pub effect: Option<Effect>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Webhook {
    pub enabled: bool,
    /// 0: any free port.
    pub port: u16,
    pub cert_dir: Option<String>,
    pub url: Option<String>,
    pub failure_policy: FailurePolicy,
    pub timeout: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metrics {
    pub enabled: bool,
    /// 0: any free port.
    pub port: u16,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dashboard {
    pub enabled: bool,
    /// 0: any free port.
    pub port: u16,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Logging {
    pub level: Level,
    pub format: LogFormat,
}

/// What makes a node that returns the same node.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Identity {
    #[default]
    Name,
    ProviderId,
    SystemUuid,
    MachineId,
    Label(String),
    Annotation(String),
}

choices! {
    /// Who wins when node and record differ: the node, or the record.
    #[derive(Default)]
    pub enum Merge { #[default] KeepExisting = "keepExisting", Overwrite = "overwrite" }

    /// When a node is created with the taint that holds pods back until its restore.
    #[derive(Default)]
    pub enum Gate { #[default] Never = "never", Needed = "needed", Always = "always" }

    /// Whether records are signed, and whether those that are not are trusted.
    #[derive(Default)]
    pub enum Hmac { #[default] None = "none", Sign = "sign", Require = "require" }

    /// The parts of the operator that one process runs.
    pub enum Role { Capture = "capture", Restore = "restore", Placement = "placement", Webhooks = "webhooks" }

    #[derive(Default)]
    pub enum FailurePolicy { #[default] Ignore = "Ignore", Fail = "Fail" }

    #[derive(Default)]
    pub enum LogFormat { #[default] Json = "json", Text = "text" }

    #[derive(Default)]
    pub enum Level { Error = "error", Warn = "warn", #[default] Info = "info", Debug = "debug", Trace = "trace" }

    pub enum Effect {
        NoSchedule = "NoSchedule", PreferNoSchedule = "PreferNoSchedule", NoExecute = "NoExecute",
    }

    pub enum Operator { In = "In", NotIn = "NotIn", Exists = "Exists", DoesNotExist = "DoesNotExist" }
}

impl Default for Namespace {
    fn default() -> Self {
        Self("perennial-system".to_owned())
    }
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
            drop: Patterns::of(defaults::DROP),
            annotations: Patterns::default(),
            taints: Patterns::default(),
            cordon: false,
            merge: Merge::default(),
            identity: Identity::default(),
            protected: Patterns::of(defaults::PROTECTED),
            retention: Duration::from_hours(720),
            history: 5,
            gate: Gate::default(),
            gate_timeout: Duration::from_mins(1),
        }
    }
}

impl Keeper {
    /// Whether a label of this key is kept: by `keep`, not by `drop`, and never one of our own.
    pub fn keeps_label(&self, key: &str) -> bool {
        !is_ours(key) && self.keep.matches(key) && !self.drop.matches(key)
    }
}

/// A key under our own domain: never kept, of whatever kind.
pub fn is_ours(key: &str) -> bool {
    key.starts_with(defaults::OWN_DOMAIN)
}

impl Default for Placement {
    fn default() -> Self {
        Self {
            enabled: true,
            annotation_prefixes: vec![Prefix("perennial.dev".to_owned())],
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
