//! The webhook configurations: their desired state, and their repair.
//!
//! Owns the two objects named `perennial`. Writes are conditional; without a difference nothing is written.

use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhook, MutatingWebhookConfiguration, RuleWithOperations, ServiceReference, ValidatingWebhook,
    ValidatingWebhookConfiguration, WebhookClientConfig,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement, ObjectMeta};
use kube::api::{Api, DeleteParams, PostParams, Preconditions};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeSet;
use std::fmt::Debug;
use std::time::Duration;

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
    #[error("no response about the {kind}")]
    Unanswered { kind: &'static str },
}

/// Address at which the API server reaches the webhooks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
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
    pub target: Target,
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
            Target::Service => ["svc", "svc.cluster.local"]
                .iter()
                .map(|suffix| format!("{NAME}.{}.{suffix}", self.namespace))
                .collect(),
            Target::Url(url) => host(url).into_iter().collect(),
        }
    }

    /// Returns the desired ValidatingWebhookConfiguration, or `None` where there should be none.
    pub fn validating(&self, bundle: Option<&[u8]>) -> Option<ValidatingWebhookConfiguration> {
        let webhooks: Vec<ValidatingWebhook> = self
            .node_delete
            .then(|| self.hook("nodes.delete.perennial.dev", VALIDATE_NODES, bundle, &NODE_DELETE, None))
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
        let nodes =
            self.node_create.then(|| self.hook("nodes.create.perennial.dev", MUTATE_NODES, bundle, &NODE_CREATE, None));
        let pods = self
            .pods
            .as_ref()
            .map(|selector| self.hook("pods.create.perennial.dev", MUTATE_PODS, bundle, &POD_CREATE, Some(selector)));
        let webhooks: Vec<MutatingWebhook> = nodes
            .into_iter()
            .chain(pods)
            .map(|hook| MutatingWebhook {
                admission_review_versions: vec!["v1".to_owned()],
                client_config: hook.client,
                failure_policy: Some(self.failure_policy.clone()),
                match_conditions: None,
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

    fn hook(
        &self,
        name: &str,
        path: &str,
        bundle: Option<&[u8]>,
        rule: &Rule,
        selector: Option<&LabelSelector>,
    ) -> Hook {
        let (service, url) = match &self.target {
            Target::Service => {
                let (name, namespace) = (NAME.to_owned(), self.namespace.clone());
                (Some(ServiceReference { name, namespace, path: Some(path.to_owned()), port: Some(443) }), None)
            }
            Target::Url(base) => (None, Some(format!("{}{path}", base.trim_end_matches('/')))),
        };
        let ca_bundle = bundle.map(|bundle| ByteString(bundle.to_vec()));
        Hook {
            name: name.to_owned(),
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

struct Rule {
    operation: &'static str,
    resource: &'static str,
    scope: &'static str,
}

const NODE_CREATE: Rule = Rule { operation: "CREATE", resource: "nodes", scope: "Cluster" };
const NODE_DELETE: Rule = Rule { operation: "DELETE", resource: "nodes", scope: "Cluster" };
const POD_CREATE: Rule = Rule { operation: "CREATE", resource: "pods", scope: "Namespaced" };

fn metadata() -> ObjectMeta {
    let labels = [("app.kubernetes.io/managed-by".to_owned(), "perennial".to_owned())];
    ObjectMeta { name: Some(NAME.to_owned()), labels: Some(labels.into()), ..ObjectMeta::default() }
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

    /// Brings both objects to their desired state. Without a bundle the present one stays, which another tool injects.
    ///
    /// Callers read the configurations first, then the source of the bundle, then repair, so that a bundle never goes back.
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

    /// Deletes both objects where they exist.
    pub async fn remove(&self) -> Result<(), ConfigurationError> {
        delete(&self.validating, DeleteParams::default()).await?;
        delete(&self.mutating, DeleteParams::default()).await
    }
}

/// Whether every desired webhook exists and has this CA bundle.
pub fn is_carried(settings: &ConfigurationSettings, present: &Present, bundle: &[u8]) -> bool {
    is_right(present.validating.as_ref(), settings.validating(Some(bundle)).as_ref())
        && is_right(present.mutating.as_ref(), settings.mutating(Some(bundle)).as_ref())
}

/// The common interface of both kinds.
trait Configuration: kube::Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned {
    const KIND: &'static str;
    /// The fields that Perennial decides, apart from labels.
    fn is_same(&self, other: &Self) -> bool;
    /// Copies the CA bundles of the present object where the desired one has none.
    fn inherit(&mut self, present: &Self);
}

macro_rules! configuration {
    ($kind:ident) => {
        impl Configuration for $kind {
            const KIND: &'static str = stringify!($kind);

            fn is_same(&self, other: &Self) -> bool {
                self.webhooks == other.webhooks
            }

            fn inherit(&mut self, present: &Self) {
                for hook in self.webhooks.iter_mut().flatten().filter(|hook| hook.client_config.ca_bundle.is_none()) {
                    let same = present.webhooks.iter().flatten().find(|other| other.name == hook.name);
                    hook.client_config.ca_bundle = same.and_then(|other| other.client_config.ca_bundle.clone());
                }
            }
        }
    };
}
configuration!(ValidatingWebhookConfiguration);
configuration!(MutatingWebhookConfiguration);

fn is_right<K: Configuration>(present: Option<&K>, desired: Option<&K>) -> bool {
    let (Some(present), Some(desired)) = (present, desired) else { return present.is_none() && desired.is_none() };
    let labels = |object: &K| object.meta().labels.clone().unwrap_or_default();
    let labelled = labels(present);
    present.is_same(desired) && labels(desired).iter().all(|(key, value)| labelled.get(key) == Some(value))
}

async fn read<K: Configuration>(api: &Api<K>) -> Result<Option<K>, ConfigurationError> {
    let failed = |source| ConfigurationError::Read { kind: K::KIND, source };
    within::<K, _>(api.get_opt(NAME)).await?.map_err(failed)
}

async fn put<K: Configuration>(
    api: &Api<K>,
    present: Option<&K>,
    desired: Option<K>,
) -> Result<Repair, ConfigurationError> {
    let Some(mut desired) = desired else {
        let Some(present) = present else { return Ok(Repair::Right) };
        let (uid, resource_version) = (present.meta().uid.clone(), present.meta().resource_version.clone());
        delete(api, DeleteParams::default().preconditions(Preconditions { resource_version, uid })).await?;
        return Ok(Repair::Changed);
    };
    if let Some(present) = present {
        desired.inherit(present);
        if is_right(Some(present), Some(&desired)) {
            return Ok(Repair::Right);
        }
        let ours = desired.meta().labels.clone().unwrap_or_default();
        let mut metadata = present.meta().clone();
        metadata.managed_fields = None;
        metadata.labels.get_or_insert_default().extend(ours);
        *desired.meta_mut() = metadata;
    }
    let params = PostParams { field_manager: Some("perennial".to_owned()), ..PostParams::default() };
    let answer = if present.is_some() {
        within::<K, _>(api.replace(NAME, &params, &desired)).await?
    } else {
        within::<K, _>(api.create(&params, &desired)).await?
    };
    match answer {
        Ok(_) => {
            tracing::info!(kind = K::KIND, "webhook configuration repaired");
            Ok(Repair::Changed)
        }
        Err(kube::Error::Api(status)) if status.code == 409 || (status.code == 404 && present.is_some()) => {
            Ok(Repair::Changed)
        }
        Err(source) => Err(ConfigurationError::Write { kind: K::KIND, source }),
    }
}

async fn delete<K: Configuration>(api: &Api<K>, params: DeleteParams) -> Result<(), ConfigurationError> {
    match within::<K, _>(api.delete(NAME, &params)).await? {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 || status.code == 409 => Ok(()),
        Err(source) => Err(ConfigurationError::Delete { kind: K::KIND, source }),
    }
}

async fn within<K: Configuration, T>(request: impl Future<Output = T>) -> Result<T, ConfigurationError> {
    tokio::time::timeout(DEADLINE, request).await.map_err(|_| ConfigurationError::Unanswered { kind: K::KIND })
}

#[cfg(test)]
mod tests;
