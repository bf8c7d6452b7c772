//! `perennial uninstall`: remove the webhooks, taints, gates, Leases and certificates from a
//! cluster, and on request everything that the manifests installed.

mod installed;
mod running;

use std::{process::ExitCode, time::Duration};

use anyhow::Context as _;
use clap::Args;
use futures::TryStreamExt as _;
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{ConfigMap, Secret},
};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams},
};
use perennial_core::{keeper::record::record_selector, placement::ungate::UngateReason};

use super::{Global, block_on, terminal::confirm};
use crate::{
    admission::{certificates, configuration::Configurations},
    inspect::{namespace::installed_elsewhere, progress::Progress, session::Session},
    placement::{self, settings::Configured, ungate::ungate_all},
    runtime::{
        budget::Budget,
        error_category::{self, Category},
        pages::{PAGE, pages},
        reporter::CategorizedError as _,
    },
};

/// Maximum number of attempts on conflicts.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_millis(200);
/// Label of the objects that the operator creates.
const MANAGED: &str = "app.kubernetes.io/managed-by=perennial";

/// Remove the webhooks, taints, gates, Leases and certificates of Perennial, and list what remains.
/// Refuses while an operator is running in any namespace
#[derive(Debug, Args)]
pub(super) struct Uninstall {
    /// Also delete everything that the manifests install: RBAC, CRDs with all KeepPolicies,
    /// policies, Service, Deployment
    #[arg(long)]
    all: bool,
    /// Delete the records as well. All kept labels are lost
    #[arg(long)]
    records: bool,
    /// Do not ask for confirmation
    #[arg(short, long)]
    yes: bool,
    /// Scale this Deployment of the operator to 0 first, and wait until its pods are deleted
    /// [default: perennial]. Can be repeated
    #[arg(long, value_name = "DEPLOYMENT", num_args = 0..=1, default_missing_value = "perennial")]
    stop: Vec<String>,
}

impl Uninstall {
    pub(super) fn execute(&self, global: &Global) -> anyhow::Result<ExitCode> {
        block_on(async {
            let session = global.open_session_anywhere().await?;
            let records = if self.records { " and every record" } else { "" };
            let all = if self.all { ", and all that its manifests install" } else { "" };
            let what = format!("this removes the webhooks, taints, gates and Leases of Perennial{records}{all}");
            confirm(self.yes, &what)?;
            let namespace = session.settings.namespace.to_string();
            for deployment in &self.stop {
                running::stop(&session.client, &namespace, deployment).await?;
            }
            running::require_stopped(&session, !self.stop.is_empty()).await?;
            self.remove(&session, &namespace).await?;
            if self.all {
                installed::remove(&session, self.records).await?;
            }
            // An operator that holds no Lease would have created them again by now.
            let present = Configurations::new(session.client.clone()).read().await;
            if present.is_ok_and(|present| present.has_webhooks()) {
                anyhow::bail!(
                    "the webhook configurations were created again: an operator is still running; stop it first"
                );
            }
            print_rest(&session, &namespace).await;
            Ok(ExitCode::SUCCESS)
        })
    }

    async fn remove(&self, session: &Session, namespace: &str) -> anyhow::Result<()> {
        Configurations::new(session.client.clone()).remove().await?;
        println!("webhook configurations removed");
        let nodes = remove_taints(session).await?;
        println!("taint removed from {nodes} node(s)");
        let pods = remove_gates(session).await?;
        println!("scheduling gate removed from {pods} pod(s)");
        remove_all::<Lease>(&session.client, session.settings.lease_namespace(), MANAGED, "leases").await?;
        println!("leases removed");
        let secrets: Api<Secret> = Api::namespaced(session.client.clone(), namespace);
        match secrets.delete(certificates::SECRET, &DeleteParams::default()).await {
            Ok(_) => println!("certificates removed"),
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => anyhow::bail!("could not remove the certificates: {}", error_category::message(&error)),
        }
        if self.records {
            let selector = record_selector();
            remove_all::<ConfigMap>(&session.client, namespace, &selector, "records").await?;
            println!("records removed");
        }
        Ok(())
    }
}

/// Prints what is still in the cluster, with the commands that remove it.
async fn print_rest(session: &Session, namespace: &str) {
    let mut records = 0;
    let counted = session
        .each_record(|page| {
            records += page.len();
            Ok(())
        })
        .await;
    let (objects, complete) = installed::remaining(session).await;
    let complete = complete && counted.is_ok();
    let elsewhere = installed_elsewhere(&session.client, &session.settings).await;
    if records == 0 && objects.is_empty() && complete && elsewhere.is_none() {
        println!("nothing of Perennial remains");
        return;
    }
    println!("remaining{}:", if complete { "" } else { ", as far as it can be read" });
    match counted {
        Ok(()) if records == 0 => {}
        Ok(()) => {
            println!(
                "  {records} record(s) in namespace {namespace}; `perennial uninstall --yes --records` deletes them"
            );
        }
        Err(_) => println!("  the records in namespace {namespace}, unless --records was given"),
    }
    for object in &objects {
        println!("  {object}");
    }
    if let Some(elsewhere) = elsewhere {
        println!("  {elsewhere}");
    }
    if objects.iter().any(|object| !object.is_namespace()) {
        println!(
            "`perennial uninstall --yes --all` deletes the objects above; for a release of the chart use `helm uninstall`"
        );
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
    let cluster = placement::apply::PlacementClient::new(session.client.clone(), Budget::unlimited());
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
