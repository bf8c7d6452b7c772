//! Operators that are running: they would create again what an uninstall removes.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use k8s_openapi::api::apps::v1::Deployment;
use kube::{
    Api, Client,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::json;

use crate::{
    inspect::{
        leases::{LeaseListError, LeaseSnapshot},
        progress::Progress,
        session::Session,
    },
    placement::objects::Pod,
    runtime::error_category::{self, Category},
};

/// Exceeds the termination grace period of the operator's pods.
const STOP_WITHIN: Duration = Duration::from_secs(90);
/// Exceeds the longest useful duration of a Lease.
const EXPIRE_WITHIN: Duration = Duration::from_mins(3);
const POLL: Duration = Duration::from_millis(500);
/// Labels of the operator's Deployment and pods, in the manifests and in the chart.
const OPERATOR: &str = "app.kubernetes.io/name=perennial";

fn message(error: &kube::Error) -> anyhow::Error {
    anyhow::anyhow!(error_category::message(error))
}

/// Fails while an operator is running in any namespace: the webhook configurations, taints and gates
/// belong to the cluster. The Leases of a replica that was killed are waited for: it is running only
/// if it renews them. `stopped`: its Deployment was scaled to 0.
pub(super) async fn require_stopped(session: &Session, stopped: bool) -> anyhow::Result<()> {
    let selected = session.settings.namespace.as_str();
    for deployment in operators(&session.client, selected).await {
        let replicas = deployment.spec.as_ref().map_or(0, |spec| spec.replicas.unwrap_or(1));
        if replicas > 0 {
            let name = deployment.metadata.name.unwrap_or_default();
            let namespace = deployment.metadata.namespace.unwrap_or_default();
            anyhow::bail!(
                "an operator is running: Deployment {name} in namespace {namespace} has {replicas} replica(s), which would \
                 create everything again; stop it with --stop {name}{}",
                elsewhere(&namespace, selected)
            );
        }
    }
    let own = session.settings.lease_namespace();
    let progress = Progress::new("waiting for the Leases of stopped operators to expire", false);
    let begun = Instant::now();
    let mut renewed: BTreeMap<(String, String), i64> = BTreeMap::new();
    while begun.elapsed() < EXPIRE_WITHIN {
        let leases = match read_leases(&session.client, own).await {
            Ok(leases) => leases,
            // Its pods are gone, and the account of the chart's hook may not read Leases.
            Err(error) if stopped && error.category() == Category::Forbidden => return Ok(()),
            Err(error) => return Err(error).context("could not determine whether an operator is running"),
        };
        let live = leases.iter().flat_map(|(namespace, leases)| leases.live_members().map(move |it| (namespace, it)));
        let mut live = live.peekable();
        if live.peek().is_none() {
            return Ok(());
        }
        for (namespace, member) in live {
            let replica = (namespace.clone(), member.identity.clone());
            if renewed.insert(replica, member.renewed).is_some_and(|before| member.renewed > before) {
                drop(progress);
                anyhow::bail!(
                    "an operator is running: {} renews its Lease in namespace {namespace} and would create everything \
                     again; stop it first, or scale its Deployment to 0 with --stop{}",
                    member.identity,
                    elsewhere(namespace, own)
                );
            }
        }
        tokio::time::sleep(POLL).await;
    }
    let live: Vec<String> = renewed.into_keys().map(|(namespace, _)| namespace).collect();
    anyhow::bail!("the Leases in namespace {} did not expire within {} s", live.join(", "), EXPIRE_WITHIN.as_secs())
}

/// Returns the flag that selects a namespace other than the selected one.
fn elsewhere(namespace: &str, selected: &str) -> String {
    if namespace == selected { String::new() } else { format!(" and --system-namespace {namespace}") }
}

/// Returns the Deployments of operators in all namespaces, or in the selected one without permission
/// to list all. Empty without any permission: then the Leases decide.
async fn operators(client: &Client, selected: &str) -> Vec<Deployment> {
    let params = ListParams::default().labels(OPERATOR);
    let all: Api<Deployment> = Api::all(client.clone());
    let own: Api<Deployment> = Api::namespaced(client.clone(), selected);
    match all.list(&params).await {
        Ok(list) => list.items,
        Err(_) => own.list(&params).await.map(|list| list.items).unwrap_or_default(),
    }
}

/// Returns the Leases of all namespaces, or of the selected one without permission to list all.
async fn read_leases(client: &Client, selected: &str) -> Result<BTreeMap<String, LeaseSnapshot>, LeaseListError> {
    match LeaseSnapshot::read_all(client).await {
        Ok(all) => Ok(all),
        Err(_) => Ok([(selected.to_owned(), LeaseSnapshot::read(client, selected).await?)].into()),
    }
}

/// Scales the operator to 0. A running operator would create its webhooks and Leases again.
pub(super) async fn stop(client: &Client, namespace: &str, deployment: &str) -> anyhow::Result<()> {
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
            tokio::time::sleep(POLL).await;
        }
    };
    let stopped = tokio::time::timeout(STOP_WITHIN, gone).await;
    drop(progress);
    match stopped {
        Ok(stopped) => stopped.map(|()| println!("operator stopped")),
        Err(_) => anyhow::bail!("the pods of Deployment {deployment} still exist after {}s", STOP_WITHIN.as_secs()),
    }
}
