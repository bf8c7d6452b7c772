//! Sections `webhook`, `metrics` and `dashboard`: the servers of the operator.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::FailurePolicy;
use crate::config::duration::DurationText;
use crate::config::text::EmptyIsNone;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Webhook {
    /// Serve the admission webhooks and maintain their configurations.
    pub enabled: bool,
    /// Port of the webhook server. 0: any free port.
    pub port: u16,
    /// IP address that the webhook server listens on. Empty: all addresses.
    #[serde(with = "EmptyIsNone")]
    pub address: Option<String>,
    /// Directory with `tls.crt` and `tls.key` (and `ca.crt`) that another tool maintains. Empty:
    /// Perennial issues its own certificates.
    #[serde(with = "EmptyIsNone")]
    pub cert_dir: Option<String>,
    /// File with certificate authorities (PEM). Only clients with a certificate of one of them are
    /// answered, so the API server needs one. Read at start. Empty: clients are not verified.
    #[serde(with = "EmptyIsNone", rename = "clientCA")]
    pub client_ca: Option<String>,
    /// URL at which the API server reaches the webhooks, if Perennial runs outside of the cluster.
    #[serde(with = "EmptyIsNone")]
    pub url: Option<String>,
    /// Reaction of the API server to a failed webhook call: `Ignore` or `Fail`.
    pub failure_policy: FailurePolicy,
    /// Time that the API server waits for a response: 1s to 30s, in whole seconds.
    #[serde(with = "DurationText")]
    pub timeout: Duration,
}

impl Default for Webhook {
    fn default() -> Self {
        Self {
            enabled: true,
            port: 9443,
            address: None,
            cert_dir: None,
            client_ca: None,
            url: None,
            failure_policy: FailurePolicy::default(),
            timeout: Duration::from_secs(2),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Metrics {
    /// Serve `/metrics`, `/livez` (also as `/healthz`) and `/readyz`.
    pub enabled: bool,
    /// Port of the metrics server. 0: any free port.
    pub port: u16,
    /// IP address that the metrics server listens on. Empty: all addresses. The probes of a pod
    /// need its address.
    #[serde(with = "EmptyIsNone")]
    pub address: Option<String>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self { enabled: true, port: 8080, address: None }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Dashboard {
    /// Serve the read-only dashboard, on loopback only. Open it with `kubectl port-forward`.
    pub enabled: bool,
    /// Port of the dashboard. 0: any free port.
    pub port: u16,
    /// Name of the cluster in the header. Empty: that of the kubeconfig; a pod has none.
    #[serde(with = "EmptyIsNone")]
    pub cluster_name: Option<String>,
}

impl Default for Dashboard {
    fn default() -> Self {
        Self { enabled: false, port: 8081, cluster_name: None }
    }
}
