//! ConfigMaps, custom resources and finalizers of other tools.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context as _;
use futures::TryStreamExt as _;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Node};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams},
};
use perennial_core::keeper::record::RECORD_LABEL;
use serde_json::{Value, json};

use crate::{
    cli::edit::TRIES,
    runtime::{
        error_category::{self, Category},
        pages::{PAGE, next_token, pages},
    },
};

/// Kind of a custom resource with labels of a node.
const LABEL_STATE: &str = "NodeLabelState";

pub(super) struct OtherTools {
    client: Client,
}

impl OtherTools {
    pub(super) fn new(client: &Client) -> Self {
        Self { client: client.clone() }
    }

    /// Returns the names of all nodes, and the nodes of each finalizer. Perennial has no
    /// finalizers.
    pub(super) async fn nodes(&self) -> anyhow::Result<(BTreeSet<String>, BTreeMap<String, Vec<String>>)> {
        let api: Api<Node> = Api::all(self.client.clone());
        let (mut names, mut finalizers) = (BTreeSet::new(), BTreeMap::<String, Vec<String>>::new());
        let api = &api;
        let list = |params: ListParams| async move {
            let page =
                api.list_metadata(&params).await.map_err(|error| message(&error)).context("could not list nodes")?;
            let next = next_token(&page.metadata);
            anyhow::Ok((page.items, next))
        };
        let mut pages = std::pin::pin!(pages(ListParams::default().limit(PAGE), list));
        while let Some(page) = pages.try_next().await? {
            for item in page {
                let name = item.metadata.name.unwrap_or_default();
                for finalizer in item.metadata.finalizers.into_iter().flatten() {
                    finalizers.entry(finalizer).or_default().push(name.clone());
                }
                names.insert(name);
            }
        }
        Ok((names, finalizers))
    }

    /// Returns the ConfigMaps of a namespace except records, and the NodeLabelStates of all API
    /// groups.
    pub(super) async fn objects(&self, namespace: &str) -> anyhow::Result<Vec<Value>> {
        let mut found = Vec::new();
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        if matches!(namespaces.get_metadata_opt(namespace).await, Ok(None)) {
            anyhow::bail!("namespace {namespace} does not exist");
        }
        let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), namespace);
        let api = &api;
        let list = |params: ListParams| async move {
            let page = api.list(&params).await.map_err(|error| message(&error));
            let page = page.with_context(|| format!("could not list configmaps in namespace {namespace}"))?;
            let next = next_token(&page.metadata);
            anyhow::Ok((page.items, next))
        };
        let params = ListParams::default().labels(&format!("!{RECORD_LABEL}")).limit(PAGE);
        let mut pages = std::pin::pin!(pages(params, list));
        while let Some(page) = pages.try_next().await? {
            for item in page {
                let mut value = json!(item);
                value["kind"] = json!("ConfigMap");
                found.push(value);
            }
        }
        for resource in self.label_states().await? {
            let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource);
            let list = api.list(&ListParams::default()).await.map_err(|error| message(&error));
            for item in list.with_context(|| format!("could not list {}", resource.plural))?.items {
                let mut value = json!(item);
                value["kind"] = json!(LABEL_STATE);
                found.push(value);
            }
        }
        Ok(found)
    }

    async fn label_states(&self) -> anyhow::Result<Vec<ApiResource>> {
        let mut found = Vec::new();
        let groups = self
            .client
            .list_api_groups()
            .await
            .map_err(|error| message(&error))
            .context("could not list API groups")?;
        for group in groups.groups {
            let Some(version) = group.preferred_version.or_else(|| group.versions.first().cloned()) else { continue };
            // The server of an aggregated API may be down. Its group is skipped.
            let Ok(list) = self.client.list_api_group_resources(&version.group_version).await else { continue };
            found.extend(list.resources.into_iter().filter(|resource| resource.kind == LABEL_STATE).map(|resource| {
                ApiResource {
                    group: group.name.clone(),
                    version: version.version.clone(),
                    api_version: version.group_version.clone(),
                    kind: resource.kind,
                    plural: resource.name,
                }
            }));
        }
        Ok(found)
    }

    /// Removes a finalizer from a node with a conditional write.
    pub(super) async fn remove_finalizer(&self, node: &str, finalizer: &str) -> anyhow::Result<()> {
        let api: Api<Node> = Api::all(self.client.clone());
        for _ in 0..TRIES {
            let found = api.get_metadata_opt(node).await.map_err(|error| message(&error))?;
            let Some(found) = found else { return Ok(()) };
            let rest: Vec<String> =
                found.metadata.finalizers.into_iter().flatten().filter(|name| name != finalizer).collect();
            let patch = json!({"metadata": {
                "uid": found.metadata.uid,
                "resourceVersion": found.metadata.resource_version,
                "finalizers": rest,
            }});
            match api.patch_metadata(node, &PatchParams::default(), &Patch::Merge(patch)).await {
                Ok(_) => return Ok(()),
                Err(error) if Category::of(&error) == Category::Conflict => {}
                Err(error) if Category::of(&error) == Category::NotFound => return Ok(()),
                Err(error) => {
                    return Err(message(&error))
                        .with_context(|| format!("could not remove the finalizer from node {node}"));
                }
            }
        }
        anyhow::bail!("gave up on node {node} after 5 conflicts")
    }
}

fn message(error: &kube::Error) -> anyhow::Error {
    anyhow::anyhow!(error_category::message(error))
}
