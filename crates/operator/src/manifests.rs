//! Objects that are installed in a cluster. `perennial manifests` prints them; `deploy/` and the
//! chart's CRDs, permissions and schema are generated from them (`make manifests`), and a test
//! compares them.

#[cfg(test)]
mod chart_readme;
mod crds;
#[cfg(test)]
mod files;
#[cfg(test)]
mod monitoring_stack;
mod permissions;
mod policies;
mod workload;

use std::fmt::Write as _;

use perennial_core::config::{Role, Settings, render_changes, settings::Hmac};
use serde::Serialize;
use serde_json::{Value, json};

pub(crate) use self::policies::DELETABLE;
pub use self::{
    crds::keep_policy_crd,
    permissions::{Permissions, Rule, uninstall},
    policies::subject,
};
pub use crate::admission::configuration::NAME;

/// Number of replicas of an installation.
pub const REPLICAS: i32 = 2;

/// Features of an installation that change its permissions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a feature of its own")]
pub struct Features {
    /// Serves admission and maintains the webhook configurations.
    pub webhooks: bool,
    /// Perennial creates the webhook certificate and stores it in a Secret.
    pub own_certificates: bool,
    pub placement: bool,
    /// Signs records with keys from a Secret.
    pub signatures: bool,
}

impl Features {
    pub const ALL: Self = Self { webhooks: true, own_certificates: true, placement: true, signatures: true };

    pub fn of(settings: &Settings) -> Self {
        let roles = &settings.controller.roles;
        let webhooks = settings.webhook.enabled && roles.contains(&Role::Webhooks);
        Self {
            webhooks,
            own_certificates: webhooks && settings.webhook.cert_dir.is_none(),
            placement: settings.placement.enabled
                && (roles.contains(&Role::Placement) || roles.contains(&Role::Webhooks)),
            signatures: settings.records.hmac != Hmac::None,
        }
    }
}

/// Settings of an installation.
#[derive(Debug, Clone)]
pub struct Install {
    pub namespace: String,
    pub image: String,
    pub replicas: i32,
    /// Namespace of the Leases, if it is another one.
    pub lease_namespace: Option<String>,
    pub features: Features,
    pub webhook_port: u16,
    /// `None` disables metrics and probes.
    pub metrics_port: Option<u16>,
    /// Content of the config file.
    pub config: String,
    /// Installs ValidatingAdmissionPolicies, which need Kubernetes 1.30.
    pub admission_policies: bool,
    /// Additional writers of records: subjects of a RoleBinding.
    pub record_writers: Vec<Value>,
}

impl Install {
    /// Image of `make image`. No registry has it: nodes must have it loaded.
    pub const LOCAL_IMAGE: &'static str = concat!("perennial:", env!("CARGO_PKG_VERSION"));

    /// Returns the installation for these settings.
    pub fn new(settings: &Settings, replicas: i32) -> Self {
        Self {
            namespace: settings.namespace.to_string(),
            image: Self::LOCAL_IMAGE.to_owned(),
            replicas,
            lease_namespace: Some(settings.lease_namespace())
                .filter(|leases| *leases != settings.namespace.as_str())
                .map(str::to_owned),
            features: Features::of(settings),
            webhook_port: settings.webhook.port,
            metrics_port: settings.metrics.enabled.then_some(settings.metrics.port),
            config: render_changes(settings),
            admission_policies: true,
            record_writers: Vec::new(),
        }
    }

    pub fn crds() -> Vec<Value> {
        vec![keep_policy_crd()]
    }

    /// Returns the namespace, the account, its permissions, and the objects that it may update but
    /// not create.
    pub fn permissions(&self) -> Vec<Value> {
        let mut objects = vec![workload::namespace(self), workload::account(self)];
        objects.extend(Permissions::of(self.features).objects(NAME, &self.namespace));
        if let Some(leases) = &self.lease_namespace {
            objects.extend(permissions::lease_objects(NAME, &self.namespace, leases));
        }
        if self.features.webhooks {
            objects.extend(webhook_configurations());
        }
        objects
    }

    /// Returns the admission policies and the roles of additional record writers.
    pub fn policies(&self) -> Vec<Value> {
        let mut objects = policies::writers(&self.namespace, &self.record_writers);
        if self.admission_policies {
            objects.extend(policies::policies(&self.namespace, NAME));
        }
        objects
    }

    /// Returns the config, the Deployment, its Service and its disruption budget.
    pub fn workload(&self) -> Vec<Value> {
        workload::objects(self)
    }

    /// Returns all objects in creation order.
    pub fn all(&self) -> Vec<Value> {
        [self.permissions(), Self::crds(), self.policies(), self.workload()].concat()
    }
}

/// Divides the work among the replicas: there are as many shards. Without leader election only one
/// replica may run.
pub fn share_work(settings: &mut Settings, replicas: i32) {
    if settings.controller.leader_election.enabled {
        settings.controller.shards = u16::try_from(replicas.clamp(1, 100)).unwrap_or(1);
    }
}

/// Returns the labels of installed objects. Objects that the operator creates have a different
/// `managed-by` label.
fn labels() -> Value {
    json!({
        "app.kubernetes.io/name": NAME,
        "app.kubernetes.io/instance": NAME,
    })
}

/// Returns the webhook configurations without webhooks. The operator adds them, with its
/// certificate authority; applying these objects again does not remove them.
pub fn webhook_configurations() -> [Value; 2] {
    ["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"].map(|kind| {
        let metadata = json!({ "name": NAME, "labels": labels() });
        json!({ "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": metadata })
    })
}

/// Renders objects as one YAML file.
pub fn yaml(objects: &[Value]) -> anyhow::Result<String> {
    let mut text = String::new();
    for object in objects {
        if !text.is_empty() {
            text.push_str("---\n");
        }
        text.push_str(&one_yaml(object)?);
    }
    Ok(text)
}

fn one_yaml(object: &impl Serialize) -> anyhow::Result<String> {
    let mut text = serde_saphyr::to_string(object)?;
    if !text.ends_with('\n') {
        let _ = writeln!(text);
    }
    Ok(text)
}
