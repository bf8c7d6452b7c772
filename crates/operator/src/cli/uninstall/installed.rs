//! Objects that the manifests install, as far as they exist in the cluster.

use std::fmt;

use anyhow::Context as _;
use kube::{
    Api, Client,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams},
    core::GroupVersionKind,
};
use serde_json::{Value, json};

use crate::{
    inspect::session::Session,
    manifests::{DELETABLE, Features, Install, REPLICAS},
    runtime::error_category::{self, Category},
};

/// Kinds whose objects show that a namespace is used by others.
const IN_USE: [(&str, &str, &str); 8] = [
    ("", "v1", "Pod"),
    ("", "v1", "Service"),
    ("", "v1", "PersistentVolumeClaim"),
    ("", "v1", "Secret"),
    ("apps", "v1", "Deployment"),
    ("apps", "v1", "StatefulSet"),
    ("apps", "v1", "DaemonSet"),
    ("batch", "v1", "Job"),
];

/// An object that the manifests install.
pub(super) struct Installed {
    resource: ApiResource,
    namespace: Option<String>,
    name: String,
}

impl fmt::Display for Installed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.resource.kind.to_ascii_lowercase(), self.name)?;
        match &self.namespace {
            Some(namespace) => write!(f, " in namespace {namespace}"),
            None => Ok(()),
        }
    }
}

impl Installed {
    fn of(object: &Value) -> Option<Self> {
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str);
        let (api_version, kind) = (text("/apiVersion")?, text("/kind")?);
        let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
        let mut resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        if kind.ends_with("Policy") {
            resource.plural = format!("{}ies", kind.trim_end_matches('y').to_ascii_lowercase());
        }
        let namespace = text("/metadata/namespace").map(str::to_owned);
        Some(Self { resource, namespace, name: text("/metadata/name")?.to_owned() })
    }

    fn api(&self, client: &Client) -> Api<DynamicObject> {
        match &self.namespace {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &self.resource),
            None => Api::all_with(client.clone(), &self.resource),
        }
    }

    pub(super) fn is_namespace(&self) -> bool {
        self.resource.kind == "Namespace"
    }

    /// Whether it exists. An object whose kind is not served does not.
    async fn exists(&self, client: &Client) -> anyhow::Result<bool> {
        match self.api(client).get_metadata_opt(&self.name).await {
            Ok(found) => Ok(found.is_some_and(|found| found.metadata.deletion_timestamp.is_none())),
            Err(error) if Category::of(&error) == Category::NotFound => Ok(false),
            Err(error) => {
                Err(anyhow::anyhow!(error_category::message(&error))).with_context(|| format!("could not read {self}"))
            }
        }
    }
}

/// Returns every object that the manifests install with any settings.
fn every(session: &Session) -> Vec<Installed> {
    let mut install = Install::new(&session.settings, REPLICAS);
    install.features = Features::ALL;
    install.metrics_port = install.metrics_port.or(Some(session.settings.metrics.port));
    install.all().iter().filter_map(Installed::of).collect()
}

/// Returns the objects of the manifests that exist, and whether all of them could be read.
pub(super) async fn remaining(session: &Session) -> (Vec<Installed>, bool) {
    let (mut found, mut complete) = (Vec::new(), true);
    for object in every(session) {
        match object.exists(&session.client).await {
            Ok(true) => found.push(object),
            Ok(false) => {}
            Err(_) => complete = false,
        }
    }
    (found, complete)
}

/// Deletes the objects of the manifests, in reverse order of their creation. The namespace stays
/// unless the records are deleted and nothing else is in it.
pub(super) async fn remove(session: &Session, records: bool) -> anyhow::Result<()> {
    for object in every(session).iter().rev() {
        if !object.exists(&session.client).await? {
            continue;
        }
        if object.is_namespace() && (!records || is_in_use(&session.client, &object.name).await?) {
            continue;
        }
        if object.is_namespace() {
            permit_deletion(session, object).await?;
        }
        match object.api(&session.client).delete(&object.name, &DeleteParams::background()).await {
            Ok(_) => println!("{object} deleted"),
            Err(error) if Category::of(&error) == Category::NotFound => {}
            Err(error) => {
                return Err(anyhow::anyhow!(error_category::message(&error)))
                    .with_context(|| format!("could not delete {object}"));
            }
        }
    }
    Ok(())
}

/// Annotates the namespace so that it may be deleted: its policy is in force for some time after
/// its own deletion.
async fn permit_deletion(session: &Session, namespace: &Installed) -> anyhow::Result<()> {
    let patch = json!({"metadata": {"annotations": {DELETABLE: "true"}}});
    let patched =
        namespace.api(&session.client).patch(&namespace.name, &PatchParams::default(), &Patch::Merge(patch)).await;
    match patched {
        Err(error) if Category::of(&error) != Category::NotFound => {
            Err(anyhow::anyhow!(error_category::message(&error)))
                .with_context(|| format!("could not annotate {namespace}"))
        }
        _ => Ok(()),
    }
}

/// Whether a namespace contains objects that are not Perennial's.
async fn is_in_use(client: &Client, namespace: &str) -> anyhow::Result<bool> {
    for (group, version, kind) in IN_USE {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
        let list = api.list_metadata(&ListParams::default().limit(1)).await;
        let list = list.map_err(|error| anyhow::anyhow!(error_category::message(&error)));
        let list = list.with_context(|| format!("could not list {} in namespace {namespace}", resource.plural))?;
        if !list.items.is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use perennial_core::config::Settings;

    use super::*;

    #[test]
    fn every_object_of_the_manifests_is_found_by_its_plural() {
        let install = Install { features: Features::ALL, ..Install::new(&Settings::default(), REPLICAS) };
        let plurals: Vec<String> =
            install.all().iter().filter_map(Installed::of).map(|object| object.resource.plural).collect();
        assert_eq!(plurals.len(), install.all().len());
        for plural in [
            "namespaces",
            "clusterroles",
            "customresourcedefinitions",
            "validatingadmissionpolicies",
            "validatingadmissionpolicybindings",
            "poddisruptionbudgets",
        ] {
            assert!(plurals.iter().any(|known| known == plural), "{plural} is not in {plurals:?}");
        }
    }
}
