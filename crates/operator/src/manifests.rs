//! What is installed in a cluster, from one typed source: `perennial manifests` prints it, `deploy/` and the chart's
//! CRDs, permissions and schema are made from it (`make manifests`), and a test fails when they are behind.

mod crds;
#[cfg(test)]
mod files;
mod permissions;
mod policies;
mod workload;

use std::fmt::Write as _;

use perennial_core::config::{Role, Settings, render_changes, settings::Hmac};
use serde::Serialize;
use serde_json::{Value, json};

pub use self::{
    crds::keep_policy_crd,
    permissions::{Permissions, Rule, uninstall},
    policies::subject,
};
pub use crate::admission::configuration::NAME;

/// What an installation has that changes what it needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a feature of its own")]
pub struct Features {
    /// Admission is served, and the webhook configurations are kept right.
    pub webhooks: bool,
    /// The certificate of the webhooks is our own, in a Secret.
    pub own_certificates: bool,
    pub placement: bool,
    /// Records are signed with keys of a Secret.
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

/// One installation.
#[derive(Debug, Clone)]
pub struct Install {
    pub namespace: String,
    pub image: String,
    pub replicas: i32,
    pub features: Features,
    pub webhook_port: u16,
    /// None: no metrics, and so no probes.
    pub metrics_port: Option<u16>,
    /// The config file.
    pub config: String,
    /// ValidatingAdmissionPolicies, which API servers have from Kubernetes 1.30 on.
    pub admission_policies: bool,
    /// Who else may write records: subjects of a RoleBinding.
    pub record_writers: Vec<Value>,
}

impl Install {
    /// What these settings need.
    pub fn new(settings: &Settings) -> Self {
        Self {
            namespace: settings.namespace.to_string(),
            image: format!("{NAME}:{}", env!("CARGO_PKG_VERSION")),
            replicas: 2,
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

    /// The namespace, the account, and what it may do.
    pub fn permissions(&self) -> Vec<Value> {
        let mut objects = vec![workload::namespace(self), workload::account(self)];
        objects.extend(Permissions::of(self.features).objects(NAME, &self.namespace));
        objects
    }

    /// What admission lets our account and others do, and who else may write records.
    pub fn policies(&self) -> Vec<Value> {
        let mut objects = policies::writers(&self.namespace, &self.record_writers);
        if self.admission_policies {
            objects.extend(policies::policies(&self.namespace, NAME));
        }
        objects
    }

    /// What runs: the config, the Deployment, and what stands around it.
    pub fn workload(&self) -> Vec<Value> {
        workload::objects(self)
    }

    /// Everything, in an order in which it can be created.
    pub fn all(&self) -> Vec<Value> {
        [self.permissions(), Self::crds(), self.policies(), self.workload()].concat()
    }
}

/// Labels of everything that is installed. What the operator makes itself is labelled as managed by it instead.
fn labels() -> Value {
    json!({
        "app.kubernetes.io/name": NAME,
        "app.kubernetes.io/instance": NAME,
    })
}

/// Documents of one YAML file.
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
