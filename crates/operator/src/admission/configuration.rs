//! The webhook configurations: their desired state, and their repair.
//!
//! Owns the webhooks in the two objects named `perennial`. The manifests install the objects, so
//! that the operator's account may update them by name and create none; an operator that may, such
//! as a cluster admin's, creates them. Writes are conditional; without a difference nothing is
//! written.

mod requests;

use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{
    MatchCondition, MutatingWebhook, MutatingWebhookConfiguration, RuleWithOperations, ServiceReference,
    ValidatingWebhook, ValidatingWebhookConfiguration, WebhookClientConfig,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement, ObjectMeta};
use kube::api::Api;
use std::collections::BTreeSet;
use std::time::Duration;

use self::requests::{create, is_right, put, read, remove};

/// Name of both objects and of the Service in front of the replicas.
pub const NAME: &str = "perennial";
pub const MUTATE_NODES: &str = "/mutate/nodes";
pub const VALIDATE_NODES: &str = "/validate/nodes";
pub const MUTATE_PODS: &str = "/mutate/pods";

const DEADLINE: Duration = Duration::from_secs(10);

/// A request about a webhook configuration failed.
#[derive(Debug, thiserror::Error)]
pub enum ConfigurationError {
    #[error("could not read the {kind}")]
    Read { kind: &'static str, source: kube::Error },
    #[error("could not write the {kind}")]
    Write { kind: &'static str, source: kube::Error },
    #[error("could not delete the {kind}")]
    Delete { kind: &'static str, source: kube::Error },
    #[error(
        "the {kind} perennial does not exist and this account may not create it; \
         apply the manifests or run `perennial webhook enable`"
    )]
    Missing { kind: &'static str },
    #[error("no response about the {kind}")]
    Unanswered { kind: &'static str },
}

/// Address at which the API server reaches the webhooks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WebhookTarget {
    /// The Service `perennial` in Perennial's namespace.
    Service,
    /// A URL prefix, for running outside the cluster.
    Url(String),
}

/// The desired webhooks.
#[derive(Debug, Clone, PartialEq)]
pub struct ConfigurationSettings {
    /// Perennial's namespace, whose pods are never changed.
    pub namespace: String,
    pub target: WebhookTarget,
    /// `Ignore` or `Fail`.
    pub failure_policy: String,
    pub timeout: Duration,
    /// Node CREATE (restore).
    pub node_create: bool,
    /// Node DELETE (capture).
    pub node_delete: bool,
    /// Pod CREATE (placement), in the selected namespaces.
    pub pods: Option<LabelSelector>,
}

impl ConfigurationSettings {
    /// Returns the DNS names that the serving certificate needs.
    pub fn names(&self) -> Vec<String> {
        match &self.target {
            WebhookTarget::Service => ["svc", "svc.cluster.local"]
                .iter()
                .map(|suffix| format!("{NAME}.{}.{suffix}", self.namespace))
                .collect(),
            WebhookTarget::Url(url) => host(url).into_iter().collect(),
        }
    }

    /// Returns the desired ValidatingWebhookConfiguration, or `None` where there should be none.
    pub fn validating(&self, bundle: Option<&[u8]>) -> Option<ValidatingWebhookConfiguration> {
        let webhooks: Vec<ValidatingWebhook> = self
            .node_delete
            .then(|| self.hook(&NODE_DELETE, bundle, None))
            .into_iter()
            .map(|hook| ValidatingWebhook {
                admission_review_versions: vec!["v1".to_owned()],
                client_config: hook.client,
                failure_policy: Some(self.failure_policy.clone()),
                match_conditions: None,
                match_policy: Some("Equivalent".to_owned()),
                name: hook.name,
                namespace_selector: Some(hook.namespaces),
                object_selector: Some(LabelSelector::default()),
                rules: Some(vec![hook.rule]),
                side_effects: "NoneOnDryRun".to_owned(),
                timeout_seconds: Some(self.seconds()),
            })
            .collect();
        let metadata = metadata();
        (!webhooks.is_empty()).then_some(ValidatingWebhookConfiguration { metadata, webhooks: Some(webhooks) })
    }

    /// Returns the desired MutatingWebhookConfiguration, or `None` where there should be none.
    pub fn mutating(&self, bundle: Option<&[u8]>) -> Option<MutatingWebhookConfiguration> {
        let nodes = self.node_create.then(|| self.hook(&NODE_CREATE, bundle, None));
        let pods = self.pods.as_ref().map(|selector| self.hook(&POD_CREATE, bundle, Some(selector)));
        let webhooks: Vec<MutatingWebhook> = nodes
            .into_iter()
            .chain(pods)
            .map(|hook| MutatingWebhook {
                admission_review_versions: vec!["v1".to_owned()],
                client_config: hook.client,
                failure_policy: Some(self.failure_policy.clone()),
                match_conditions: (hook.rule.resources.as_deref() == Some(&["pods".to_owned()]))
                    .then(|| vec![controlled_pods()]),
                match_policy: Some("Equivalent".to_owned()),
                name: hook.name,
                namespace_selector: Some(hook.namespaces),
                object_selector: Some(LabelSelector::default()),
                reinvocation_policy: Some("IfNeeded".to_owned()),
                rules: Some(vec![hook.rule]),
                side_effects: "NoneOnDryRun".to_owned(),
                timeout_seconds: Some(self.seconds()),
            })
            .collect();
        let metadata = metadata();
        (!webhooks.is_empty()).then_some(MutatingWebhookConfiguration { metadata, webhooks: Some(webhooks) })
    }

    fn hook(&self, rule: &WebhookRule, bundle: Option<&[u8]>, selector: Option<&LabelSelector>) -> Hook {
        let path = rule.path;
        let (service, url) = match &self.target {
            WebhookTarget::Service => {
                let (name, namespace) = (NAME.to_owned(), self.namespace.clone());
                (Some(ServiceReference { name, namespace, path: Some(path.to_owned()), port: Some(443) }), None)
            }
            WebhookTarget::Url(base) => (None, Some(format!("{}{path}", base.trim_end_matches('/')))),
        };
        let ca_bundle = bundle.map(|bundle| ByteString(bundle.to_vec()));
        Hook {
            name: rule.name.to_owned(),
            client: WebhookClientConfig { ca_bundle, service, url },
            rule: RuleWithOperations {
                api_groups: Some(vec![String::new()]),
                api_versions: Some(vec!["v1".to_owned()]),
                operations: Some(vec![rule.operation.to_owned()]),
                // Without a slash: no subresources.
                resources: Some(vec![rule.resource.to_owned()]),
                scope: Some(rule.scope.to_owned()),
            },
            namespaces: selector.map_or_else(LabelSelector::default, |selector| self.namespaces(selector)),
        }
    }

    /// Returns the selected namespaces except Perennial's own and kube-system.
    fn namespaces(&self, selector: &LabelSelector) -> LabelSelector {
        let mut expressions = selector.match_expressions.clone().unwrap_or_default();
        expressions.push(LabelSelectorRequirement {
            key: "kubernetes.io/metadata.name".to_owned(),
            operator: "NotIn".to_owned(),
            values: Some(vec![self.namespace.clone(), "kube-system".to_owned()]),
        });
        LabelSelector {
            match_labels: selector.match_labels.clone().filter(|labels| !labels.is_empty()),
            match_expressions: Some(expressions),
        }
    }

    fn seconds(&self) -> i32 {
        i32::try_from(self.timeout.as_secs()).unwrap_or(30).clamp(1, 30)
    }
}

struct Hook {
    name: String,
    client: WebhookClientConfig,
    rule: RuleWithOperations,
    namespaces: LabelSelector,
}

struct WebhookRule {
    name: &'static str,
    path: &'static str,
    operation: &'static str,
    resource: &'static str,
    scope: &'static str,
}

const NODE_CREATE: WebhookRule = WebhookRule {
    name: "nodes.create.perennial.dev",
    path: MUTATE_NODES,
    operation: "CREATE",
    resource: "nodes",
    scope: "Cluster",
};
const NODE_DELETE: WebhookRule = WebhookRule {
    name: "nodes.delete.perennial.dev",
    path: VALIDATE_NODES,
    operation: "DELETE",
    resource: "nodes",
    scope: "Cluster",
};
const POD_CREATE: WebhookRule = WebhookRule {
    name: "pods.create.perennial.dev",
    path: MUTATE_PODS,
    operation: "CREATE",
    resource: "pods",
    scope: "Namespaced",
};

/// Returns the condition for pods that can belong to a managed workload. Others, as those of Jobs
/// and DaemonSets, are created without a call, and so are pods of kinds that Perennial does not
/// read, unless their template has an annotation that requests placement.
fn controlled_pods() -> MatchCondition {
    MatchCondition {
        name: "controlled-by-a-workload".to_owned(),
        expression: "has(object.metadata.ownerReferences) && object.metadata.ownerReferences.exists(owner, \
                     has(owner.controller) && owner.controller && \
                     (owner.apiVersion == 'apps/v1' && owner.kind in ['ReplicaSet', 'StatefulSet'] || \
                     !(owner.kind in ['Job', 'DaemonSet', 'Node']) && has(object.metadata.annotations) && \
                     object.metadata.annotations.exists(key, \
                     key.endsWith('/spot-percentage') || key.endsWith('/enabled'))))"
            .to_owned(),
    }
}

fn metadata() -> ObjectMeta {
    let labels = [("app.kubernetes.io/managed-by".to_owned(), "perennial".to_owned())];
    // AKS leaves configurations with this annotation alone.
    let annotations = [("admissions.enforcer/disabled".to_owned(), "true".to_owned())];
    ObjectMeta {
        name: Some(NAME.to_owned()),
        labels: Some(labels.into()),
        annotations: Some(annotations.into()),
        ..ObjectMeta::default()
    }
}

/// Returns the host of a URL, without its port.
fn host(url: &str) -> Option<String> {
    let uri: http::Uri = url.parse().ok()?;
    Some(uri.host()?.trim_matches(['[', ']']).to_owned())
}

/// Both objects as they were read.
#[derive(Debug, Clone, Default)]
pub struct Present {
    pub validating: Option<ValidatingWebhookConfiguration>,
    pub mutating: Option<MutatingWebhookConfiguration>,
}

impl Present {
    /// Whether one of the objects has webhooks. The manifests install the objects without any.
    pub fn has_webhooks(&self) -> bool {
        let validating = self.validating.iter().flat_map(|object| object.webhooks.iter().flatten()).next().is_some();
        validating || self.mutating.iter().flat_map(|object| object.webhooks.iter().flatten()).next().is_some()
    }

    /// Whether neither object exists.
    pub fn is_empty(&self) -> bool {
        self.validating.is_none() && self.mutating.is_none()
    }

    /// Returns the CA bundle of the webhooks, or all of them where they differ.
    pub fn bundle(&self) -> Vec<u8> {
        let validating = self.validating.iter().flat_map(|object| object.webhooks.iter().flatten());
        let mutating = self.mutating.iter().flat_map(|object| object.webhooks.iter().flatten());
        let configs = validating.map(|hook| &hook.client_config).chain(mutating.map(|hook| &hook.client_config));
        let bundles: BTreeSet<&[u8]> =
            configs.filter_map(|config| Some(config.ca_bundle.as_ref()?.0.as_slice())).collect();
        bundles.into_iter().collect::<Vec<_>>().concat()
    }
}

/// Result of a repair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repair {
    /// No difference: nothing was written.
    Right,
    /// Something was written, or a write conflicted: check again.
    Changed,
}

/// Reads and writes the two objects.
#[derive(Debug, Clone)]
pub struct Configurations {
    validating: Api<ValidatingWebhookConfiguration>,
    mutating: Api<MutatingWebhookConfiguration>,
}

impl Configurations {
    pub fn new(client: kube::Client) -> Self {
        Self { validating: Api::all(client.clone()), mutating: Api::all(client) }
    }

    pub async fn read(&self) -> Result<Present, ConfigurationError> {
        let (validating, mutating) = futures::join!(read(&self.validating), read(&self.mutating));
        Ok(Present { validating: validating?, mutating: mutating? })
    }

    /// Brings both objects to their desired state. Without a bundle the present one stays, which
    /// another tool injects.
    ///
    /// Callers read the configurations first, then the source of the bundle, then repair, so that a
    /// bundle never goes back.
    pub async fn repair(
        &self,
        settings: &ConfigurationSettings,
        present: &Present,
        bundle: Option<&[u8]>,
    ) -> Result<Repair, ConfigurationError> {
        let validating = settings.validating(bundle);
        let mutating = settings.mutating(bundle);
        let first = put(&self.validating, present.validating.as_ref(), validating).await?;
        let second = put(&self.mutating, present.mutating.as_ref(), mutating).await?;
        Ok(if first == Repair::Right { second } else { first })
    }

    /// Creates both objects without webhooks where they do not exist. A running operator adds the
    /// webhooks.
    pub async fn create_empty(&self) -> Result<(), ConfigurationError> {
        let metadata = metadata();
        let validating = ValidatingWebhookConfiguration { metadata: metadata.clone(), webhooks: None };
        create(&self.validating, &validating).await?;
        create(&self.mutating, &MutatingWebhookConfiguration { metadata, webhooks: None }).await
    }

    /// Deletes both objects where they exist. An account that may not delete them removes their
    /// webhooks.
    pub async fn remove(&self) -> Result<(), ConfigurationError> {
        remove(&self.validating).await?;
        remove(&self.mutating).await
    }
}

/// Whether every desired webhook exists and has this CA bundle.
pub fn is_carried(settings: &ConfigurationSettings, present: &Present, bundle: &[u8]) -> bool {
    is_right(present.validating.as_ref(), settings.validating(Some(bundle)).as_ref())
        && is_right(present.mutating.as_ref(), settings.mutating(Some(bundle)).as_ref())
}

#[cfg(test)]
mod tests;
