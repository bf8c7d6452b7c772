//! Requests about one webhook configuration, for both kinds.

use std::fmt::Debug;

use k8s_openapi::{
    api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration},
    apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement},
};
use kube::api::{Api, DeleteParams, PostParams, Preconditions};
use serde::{Serialize, de::DeserializeOwned};

use super::{ConfigurationError, DEADLINE, NAME, Repair};

/// The common interface of both kinds.
pub(super) trait Configuration:
    kube::Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned
{
    const KIND: &'static str;
    /// The fields that Perennial decides. Labels belong to the tool that installed the object.
    fn is_same(&self, other: &Self) -> bool;
    /// Copies the CA bundles of the present object where the desired one has none, and the
    /// requirements that a platform added to namespace selectors.
    fn inherit(&mut self, present: &Self);
    /// Removes all webhooks. Returns whether there were any.
    fn clear(&mut self) -> bool;
}

macro_rules! configuration {
    ($kind:ident) => {
        impl Configuration for $kind {
            const KIND: &'static str = stringify!($kind);

            fn is_same(&self, other: &Self) -> bool {
                self.webhooks == other.webhooks
            }

            fn inherit(&mut self, present: &Self) {
                for hook in self.webhooks.iter_mut().flatten() {
                    let Some(same) = present.webhooks.iter().flatten().find(|other| other.name == hook.name) else {
                        continue;
                    };
                    if hook.client_config.ca_bundle.is_none() {
                        hook.client_config.ca_bundle.clone_from(&same.client_config.ca_bundle);
                    }
                    if is_narrower(same.namespace_selector.as_ref(), hook.namespace_selector.as_ref()) {
                        hook.namespace_selector.clone_from(&same.namespace_selector);
                    }
                }
            }

            fn clear(&mut self) -> bool {
                self.webhooks.take().is_some_and(|webhooks| !webhooks.is_empty())
            }
        }
    };
}
configuration!(ValidatingWebhookConfiguration);
configuration!(MutatingWebhookConfiguration);

/// Whether a selector has all requirements of ours and possibly more: AKS' admissions enforcer
/// excludes the namespaces of the control plane from every webhook, and would add them again and
/// again.
fn is_narrower(present: Option<&LabelSelector>, ours: Option<&LabelSelector>) -> bool {
    let (Some(present), Some(ours)) = (present, ours) else { return false };
    let labels = |selector: &LabelSelector| selector.match_labels.clone().unwrap_or_default();
    let expressions = |selector: &LabelSelector| selector.match_expressions.clone().unwrap_or_default();
    let (theirs, needed) = (expressions(present), expressions(ours));
    labels(ours) == labels(present)
        && needed.iter().all(|expression| theirs.contains(expression))
        && theirs.iter().filter(|added| !needed.contains(added)).all(excludes)
}

/// Whether a requirement excludes some namespaces, so that all others still match.
fn excludes(requirement: &LabelSelectorRequirement) -> bool {
    matches!(requirement.operator.as_str(), "NotIn" | "DoesNotExist")
}

pub(super) fn is_right<K: Configuration>(present: Option<&K>, desired: Option<&K>) -> bool {
    let (Some(present), Some(desired)) = (present, desired) else { return present.is_none() && desired.is_none() };
    let mut desired = desired.clone();
    desired.inherit(present);
    present.is_same(&desired)
}

pub(super) async fn read<K: Configuration>(api: &Api<K>) -> Result<Option<K>, ConfigurationError> {
    let failed = |source| ConfigurationError::Read { kind: K::KIND, source };
    within::<K, _>(api.get_opt(NAME)).await?.map_err(failed)
}

pub(super) async fn put<K: Configuration>(
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
        let mut metadata = present.meta().clone();
        metadata.managed_fields = None;
        let annotations = desired.meta().annotations.clone().unwrap_or_default();
        metadata.annotations.get_or_insert_default().extend(annotations);
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
        Err(kube::Error::Api(status)) if status.code == 403 && present.is_none() => {
            Err(ConfigurationError::Missing { kind: K::KIND })
        }
        Err(source) => Err(ConfigurationError::Write { kind: K::KIND, source }),
    }
}

pub(super) async fn create<K: Configuration>(api: &Api<K>, object: &K) -> Result<(), ConfigurationError> {
    match within::<K, _>(api.create(&PostParams::default(), object)).await? {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        Err(source) => Err(ConfigurationError::Write { kind: K::KIND, source }),
    }
}

pub(super) async fn remove<K: Configuration>(api: &Api<K>) -> Result<(), ConfigurationError> {
    let deleted = delete(api, DeleteParams::default()).await;
    let forbidden = |error: &ConfigurationError| matches!(error, ConfigurationError::Delete { source: kube::Error::Api(status), .. } if status.code == 403);
    let Some(error) = deleted.err() else { return Ok(()) };
    if !forbidden(&error) {
        return Err(error);
    }
    let Some(mut present) = read(api).await? else { return Ok(()) };
    if !present.clear() {
        return Ok(());
    }
    let written = within::<K, _>(api.replace(NAME, &PostParams::default(), &present)).await?;
    written.map(drop).map_err(|source| ConfigurationError::Write { kind: K::KIND, source })
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
