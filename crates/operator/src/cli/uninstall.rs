//! `perennial uninstall`: remove the webhooks, taints, gates, Leases and certificates from a cluster.

use std::{process::ExitCode, time::Duration};

use anyhow::Context as _;
use clap::Args;
use futures::TryStreamExt as _;
use k8s_openapi::api::{
    apps::v1::Deployment,
    coordination::v1::Lease,
    core::v1::{ConfigMap, Secret},
};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use perennial_core::{
    keeper::record::{RECORD_LABEL, RECORD_LABEL_VALUE},
    placement::ungate::UngateReason,
};
use serde_json::json;

use super::{Global, block_on};
use crate::{
    admission::{certificates, configuration::Configurations},
    inspect::{progress::Progress, session::Session},
    placement::{self, objects::Pod, settings::Configured, ungate::ungate_all},
    runtime::{
        budget::Budget,
        error_category::{self, Category},
        pages::{PAGE, pages},
    },
};

/// Exceeds the termination grace period of the operator's pods.
const STOP_WITHIN: Duration = Duration::from_secs(90);
/// Maximum number of attempts on conflicts.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_millis(200);

#[derive(Debug, Args)]
pub(super) struct Uninstall {
    /// Delete the records as well. All kept labels are lost
    #[arg(long)]
    records: bool,
    /// Confirm the operation
    #[arg(short, long)]
    yes: bool,
    /// Scale this Deployment of the operator to 0 first, and wait until its pods are deleted
    #[arg(long, value_name = "DEPLOYMENT")]
    stop: Option<String>,
}

impl Uninstall {
    pub(super) fn execute(&self, global: &Global) -> anyhow::Result<ExitCode> {
        block_on(async {
            let session = global.open_session().await?;
            if !self.yes {
                let records = if self.records { " and every record" } else { "" };
                anyhow::bail!(
                    "this removes the webhooks, taints, gates and Leases of Perennial{records}; confirm with --yes"
                );
            }
            let namespace = session.settings.namespace.to_string();
            if let Some(deployment) = &self.stop {
                stop(&session.client, &namespace, deployment).await?;
            }
            Configurations::new(session.client.clone()).remove().await?;
            println!("webhook configurations removed");
            let nodes = remove_taints(&session).await?;
            println!("taint removed from {nodes} node(s)");
            let pods = remove_gates(&session).await?;
            println!("scheduling gate removed from {pods} pod(s)");
            remove_all::<Lease>(&session.client, &namespace, "app.kubernetes.io/managed-by=perennial", "leases")
                .await?;
            println!("leases removed");
            let secrets: Api<Secret> = Api::namespaced(session.client.clone(), &namespace);
            match secrets.delete(certificates::SECRET, &DeleteParams::default()).await {
                Ok(_) => println!("certificates removed"),
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                Err(error) => anyhow::bail!("could not remove the certificates: {}", error_category::message(&error)),
            }
            if self.records {
                let selector = format!("{RECORD_LABEL}={RECORD_LABEL_VALUE}");
                remove_all::<ConfigMap>(&session.client, &namespace, &selector, "records").await?;
                println!("records removed");
            } else {
                println!("records kept in namespace {namespace}");
            }
            Ok(ExitCode::SUCCESS)
        })
    }
}

/// Scales the operator to 0. A running operator would create its webhooks and Leases again.
async fn stop(client: &Client, namespace: &str, deployment: &str) -> anyhow::Result<()> {
    let message = |error: &kube::Error| anyhow::anyhow!(error_category::message(error));
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), namespace);
    let none = Patch::Merge(json!({ "spec": { "replicas": 0 } }));
    let scale = match deployments.patch_scale(deployment, &PatchParams::default(), &none).await {
        Ok(scale) => scale,
        Err(kube::Error::Api(status)) if status.code == 404 => {
            println!("no Deployment {deployment} in namespace {namespace}, nothing to stop");
            return Ok(());
        }
        Err(error) => {
            return Err(message(&error)).with_context(|| format!("could not scale Deployment {deployment} to 0"));
        }
    };
    let selector = scale.status.and_then(|status| status.selector).unwrap_or_default();
    anyhow::ensure!(!selector.is_empty(), "Deployment {deployment} has no pod selector in its scale status");
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let progress = Progress::new("waiting for the operator's pods to be deleted", false);
    let gone = async {
        loop {
            let left = pods.list_metadata(&ListParams::default().labels(&selector)).await;
            let left = left.map_err(|error| message(&error)).context("could not list the operator's pods")?;
            if left.items.is_empty() {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    };
    let stopped = tokio::time::timeout(STOP_WITHIN, gone).await;
    drop(progress);
    match stopped {
        Ok(stopped) => stopped.map(|()| println!("operator stopped")),
        Err(_) => anyhow::bail!("the pods of Deployment {deployment} still exist after {}s", STOP_WITHIN.as_secs()),
    }
}

/// Removes the taint from every node. Conflicting nodes are read again, deleted ones are skipped.
async fn remove_taints(session: &Session) -> anyhow::Result<usize> {
    let mut freed = 0;
    let mut progress = Progress::new("nodes", false);
    for attempt in 1.. {
        let mut conflict = None;
        let list = |params: ListParams| async move { session.cluster.list_nodes(&params).await };
        let mut pages = std::pin::pin!(pages(ListParams::default().limit(PAGE), list));
        while let Some(page) = pages.try_next().await? {
            progress.advance(page.len());
            for node in page.iter().filter(|node| node.is_gated()) {
                match session.cluster.ungate_node(node).await {
                    Ok(_) => freed += 1,
                    Err(error) if error.category() == Category::NotFound => {}
                    Err(error) if error.category() == Category::Conflict => conflict = Some(error),
                    Err(error) => return Err(error.into()),
                }
            }
        }
        match conflict {
            None => break,
            Some(error) if attempt == TRIES => return Err(error.into()),
            Some(_) => tokio::time::sleep(PAUSE).await,
        }
    }
    Ok(freed)
}

/// Removes the scheduling gate from every pod, without a capacity type requirement.
async fn remove_gates(session: &Session) -> anyhow::Result<usize> {
    let configured = Configured::new(&session.settings).context("invalid nodeLabels")?;
    let cluster = placement::apply::Cluster::new(session.client.clone(), Budget::unlimited());
    let mut progress = Progress::new("pods", false);
    Ok(ungate_all(&cluster, &configured, UngateReason::Uninstall, |_| true, |count| progress.advance(count)).await?)
}

async fn remove_all<K>(client: &Client, namespace: &str, selector: &str, what: &str) -> anyhow::Result<()>
where
    K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
        + serde::de::DeserializeOwned
        + Clone
        + std::fmt::Debug,
{
    let api: Api<K> = Api::namespaced(client.clone(), namespace);
    let _progress = Progress::new("removing", false);
    let removed = api.delete_collection(&DeleteParams::default(), &ListParams::default().labels(selector)).await;
    removed
        .map(drop)
        .map_err(|error| anyhow::anyhow!(error_category::message(&error)))
        .with_context(|| format!("could not remove the {what}"))
}
