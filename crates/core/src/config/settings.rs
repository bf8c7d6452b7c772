//! The settings: their types, their defaults, and their descriptions.
//!
//! Field names are the keys of the file. The doc comment of a field is its description on the
//! reference page and in the schema of the file, so it is written for administrators.

mod controller;
mod keeper;
mod placement;
mod servers;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::choice::choices;

pub use self::controller::{Controller, LeaderElection, RetryBackoff};
pub use self::keeper::Keeper;
pub use self::placement::{NodeLabelSettings, Placement, PlacementDefaults};
pub use self::servers::{Dashboard, Metrics, Webhook};
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
    pub node_labels: NodeLabelSettings,
    pub webhook: Webhook,
    pub metrics: Metrics,
    pub dashboard: Dashboard,
    pub logging: Logging,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Records {
    /// Sign records with the keys in the Secret `perennial-record-keys`: `none`, `sign` (records
    /// without a signature are trusted, and then signed) or `require` (they are quarantined).
    pub hmac: Hmac,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Logging {
    /// Log level: `error`, `warn`, `info`, `debug` or `trace`.
    pub level: LogLevel,
    /// Log format: `json`, `text`, or `auto`: text on a terminal, JSON elsewhere.
    pub format: LogFormat,
}

choices! {
    /// The side that wins if a returning node and its record have different values.
    #[derive(Default)]
    pub enum Merge { #[default] KeepExisting = "keepExisting", Overwrite = "overwrite" }

    /// The new nodes that get a taint which keeps pods off until they are restored.
    #[derive(Default)]
    pub enum Gate { #[default] Never = "never", Needed = "needed", Always = "always" }

    /// Signing of records, and trust in unsigned ones.
    #[derive(Default)]
    pub enum Hmac { #[default] None = "none", Sign = "sign", Require = "require" }

    /// A part of the operator that a process can run.
    pub enum Role { Capture = "capture", Restore = "restore", Placement = "placement", Webhooks = "webhooks" }

    #[derive(Default)]
    pub enum FailurePolicy { #[default] Ignore = "Ignore", Fail = "Fail" }

    #[derive(Default)]
    pub enum LogFormat { #[default] Auto = "auto", Json = "json", Text = "text" }

    #[derive(Default)]
    pub enum LogLevel { Error = "error", Warn = "warn", #[default] Info = "info", Debug = "debug", Trace = "trace" }

    /// Effect of a taint.
    pub enum Effect {
        NoSchedule = "NoSchedule", PreferNoSchedule = "PreferNoSchedule", NoExecute = "NoExecute",
    }

    /// Operator of a toleration.
    pub enum TolerationOperator { Equal = "Equal", Exists = "Exists" }

    /// Operator of a requirement of a label selector.
    pub enum Operator { In = "In", NotIn = "NotIn", Exists = "Exists", DoesNotExist = "DoesNotExist" }
}

impl Settings {
    /// Returns the namespace of the Leases.
    pub fn lease_namespace(&self) -> &str {
        self.controller.leader_election.namespace.as_deref().unwrap_or(self.namespace.as_str())
    }
}
