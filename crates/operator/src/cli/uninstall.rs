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

/// Longer than the grace of a pod.
const STOP_WITHIN: Duration = Duration::from_secs(90);
/// A node that others keep changing is read so often.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_millis(200);

#[derive(Debug, Args)]
pub(super) struct Uninstall {
    /// Remove the records as well: everything that is kept is lost
    #[arg(long)]
    records: bool,
    /// Do it without asking
    #[arg(short, long)]
    yes: bool,
    /// Stop the operator first: scale this Deployment in its namespace to nothing, and wait until its pods are gone
    #[arg(long, value_name = "DEPLOYMENT")]
    stop: Option<String>,
}

impl Uninstall {
    pub(super) fn execute(&self, global: &Global) -> anyhow::Result<ExitCode> {
        block_on(async {
            let session = global.open_session().await?;
            if !self.yes {
                let records = if self.records { " and every record" } else { "" };
                anyhow::bail!("this removes Perennial's webhooks, taints and Leases{records}: say --yes");
            }
            let namespace = session.settings.namespace.to_string();
            if let Some(deployment) = &self.stop {
                stop(&session.client, &namespace, deployment).await?;
            }
            Configurations::new(session.client.clone()).remove().await?;
            println!("webhook configurations removed");
            let freed = free_nodes(&session).await?;
            println!("{freed} node(s) freed of our taint");
            let freed = free_pods(&session).await?;
            println!("{freed} pod(s) freed of our gate");
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
                println!("records stay in namespace {namespace}");
            }
            Ok(ExitCode::SUCCESS)
        })
    }
}

/// An operator that runs would write its webhooks and Leases again.
async fn stop(client: &Client, namespace: &str, deployment: &str) -> anyhow::Result<()> {
    let said = |error: &kube::Error| anyhow::anyhow!(error_category::message(error));
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), namespace);
    let none = Patch::Merge(json!({ "spec": { "replicas": 0 } }));
    let scale = match deployments.patch_scale(deployment, &PatchParams::default(), &none).await {
        Ok(scale) => scale,
        Err(kube::Error::Api(status)) if status.code == 404 => {
            println!("no Deployment {deployment} in namespace {namespace}: nothing to stop");
            return Ok(());
        }
        Err(error) => {
            return Err(said(&error)).with_context(|| format!("could not scale the Deployment {deployment} to 0"));
        }
    };
    let selector = scale.status.and_then(|status| status.selector).unwrap_or_default();
    anyhow::ensure!(!selector.is_empty(), "the Deployment {deployment} does not say which pods are its own");
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let progress = Progress::new("waiting until the operator's pods are gone", false);
    let gone = async {
        loop {
            let left = pods.list_metadata(&ListParams::default().labels(&selector)).await;
            let left = left.map_err(|error| said(&error)).context("could not list the operator's pods")?;
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
        Err(_) => anyhow::bail!("the pods of Deployment {deployment} are not gone after {}s", STOP_WITHIN.as_secs()),
    }
}

/// Takes our taint from every node that has it. One that changed meanwhile is read again, one that is gone is passed over.
async fn free_nodes(session: &Session) -> anyhow::Result<usize> {
    let mut freed = 0;
    let mut progress = Progress::new("nodes looked at", false);
    for attempt in 1.. {
        let mut overtaken = None;
        let list = |params: ListParams| async move { session.cluster.list_nodes(&params).await };
        let mut pages = std::pin::pin!(pages(ListParams::default().limit(PAGE), list));
        while let Some(page) = pages.try_next().await? {
            progress.advance(page.len());
            for node in page.iter().filter(|node| node.is_gated()) {
                match session.cluster.ungate_node(node).await {
                    Ok(_) => freed += 1,
                    Err(error) if error.category() == Category::NotFound => {}
                    Err(error) if error.category() == Category::Conflict => overtaken = Some(error),
                    Err(error) => return Err(error.into()),
                }
            }
        }
        match overtaken {
            None => break,
            Some(error) if attempt == TRIES => return Err(error.into()),
            Some(_) => tokio::time::sleep(PAUSE).await,
        }
    }
    Ok(freed)
}

/// Frees every pod that still waits for its slot, as on-demand.
async fn free_pods(session: &Session) -> anyhow::Result<usize> {
    let configured = Configured::new(&session.settings).context("nodeLabels cannot be used")?;
    let cluster = placement::apply::Cluster::new(session.client.clone(), Budget::unlimited());
    let mut progress = Progress::new("pods looked at", false);
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
