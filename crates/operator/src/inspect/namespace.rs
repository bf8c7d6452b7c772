//! Checks that the selected namespace is the one of Perennial, and finds the source of a command's
//! settings.

use std::{collections::BTreeMap, fmt};

use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{ConfigMap, Namespace},
};
use kube::{Api, Client, api::ListParams};
use perennial_core::config::Settings;

use super::{leases::LeaseSnapshot, session::record_pages};
use crate::runtime::lease_metadata::GROUP;

/// Where the settings of a command were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SettingsSource {
    /// The file of `--config`.
    File,
    /// The ConfigMap of the installation.
    ConfigMap,
    /// Neither exists: the default settings apply.
    Defaults,
}

impl SettingsSource {
    /// Returns whether the settings are those of an installation.
    pub(crate) fn is_configured(self) -> bool {
        self != Self::Defaults
    }
}

/// Returns the warning about settings of the operator that could not be read.
pub(crate) fn other_settings(why: &str) -> String {
    format!("warning: the operator may use other settings: {why}")
}

/// Fails if the namespace does not exist, or if it has nothing of Perennial and another one has. A namespace that cannot be read is accepted. Returns a warning if the settings of
/// the operator are unknown, or if nothing of Perennial is found.
pub(crate) async fn require_namespace(
    client: &Client,
    settings: &Settings,
    source: &Result<SettingsSource, String>,
) -> anyhow::Result<Option<String>> {
    let namespace = settings.namespace.as_str();
    let namespaces: Api<Namespace> = Api::all(client.clone());
    if matches!(namespaces.get_metadata_opt(namespace).await, Ok(None)) {
        match installed_elsewhere(client, settings).await {
            Some(other) => anyhow::bail!("namespace {namespace} does not exist; {other}"),
            None => anyhow::bail!(
                "namespace {namespace} does not exist; install Perennial, or select its namespace with \
                 --system-namespace"
            ),
        }
    }
    if matches!(source, Ok(SettingsSource::ConfigMap)) {
        return Ok(None);
    }
    let has_records = has_records(client, namespace).await;
    let found = has_records || has_leases(client, settings).await;
    let other = if has_records { None } else { installed_elsewhere(client, settings).await };
    if !found && let Some(other) = &other {
        anyhow::bail!("nothing of Perennial is in namespace {namespace}; {other}")
    }
    if let (Ok(SettingsSource::Defaults), Some(other)) = (source, other.filter(|other| other.has_records)) {
        // It may be the namespace of the Leases only.
        return Ok(Some(format!("warning: namespace {namespace} has Leases of Perennial and no record; {other}")));
    }
    Ok(match source {
        _ if !found => Some(format!(
            "warning: namespace {namespace} has no configuration, Lease or record of Perennial; if it is installed \
             elsewhere, use --system-namespace"
        )),
        Ok(SettingsSource::Defaults) => Some(format!(
            "warning: there is no ConfigMap perennial-config in namespace {namespace}: default settings are assumed; \
             if the operator has others, use --config"
        )),
        _ => None,
    })
}

/// An installation in another namespace.
pub(crate) struct Elsewhere {
    namespace: String,
    /// A replica renews its Lease.
    runs: bool,
    has_records: bool,
}

impl fmt::Display for Elsewhere {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { namespace, runs, .. } = self;
        let what = if *runs { "runs" } else { "is installed" };
        write!(f, "Perennial {what} in namespace {namespace}: use --system-namespace {namespace}")
    }
}

/// Returns the namespace of an installation that is not in the selected one: with records, which are
/// in the namespace of Perennial even if its Leases are not, or with Leases, also of an operator that
/// was stopped. Without permission to list all of them there is none.
pub(crate) async fn installed_elsewhere(client: &Client, settings: &Settings) -> Option<Elsewhere> {
    // Maps a namespace to whether it has records, and whether a replica runs there.
    let mut found: BTreeMap<String, (bool, bool)> = BTreeMap::new();
    for (namespace, leases) in LeaseSnapshot::read_all(client).await.unwrap_or_default() {
        found.entry(namespace).or_default().1 = leases.live_members().next().is_some();
    }
    let runs = found.values().any(|(_, runs)| *runs);
    let records: Api<ConfigMap> = Api::all(client.clone());
    if let Ok(page) = records.list_metadata(&record_pages()).await {
        for namespace in page.items.into_iter().filter_map(|record| record.metadata.namespace) {
            found.entry(namespace).or_default().0 = true;
        }
    }
    let own = [settings.namespace.as_str(), settings.lease_namespace()];
    let others = found.into_iter().filter(|(namespace, _)| !own.contains(&namespace.as_str()));
    let (namespace, (has_records, _)) = others.max_by_key(|(_, evidence)| *evidence)?;
    Some(Elsewhere { namespace, runs, has_records })
}

/// Returns whether the namespace has a Lease of an operator, or that cannot be determined. Leases
/// in another namespace prove nothing about it.
async fn has_leases(client: &Client, settings: &Settings) -> bool {
    if settings.lease_namespace() != settings.namespace.as_str() {
        return false;
    }
    let leases: Api<Lease> = Api::namespaced(client.clone(), settings.lease_namespace());
    let list = leases.list_metadata(&ListParams::default().labels(GROUP).limit(1)).await;
    !list.is_ok_and(|list| list.items.is_empty())
}

/// Returns whether the namespace has a record, or that cannot be determined.
async fn has_records(client: &Client, namespace: &str) -> bool {
    let records: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let list = records.list_metadata(&record_pages().limit(1)).await;
    !list.is_ok_and(|list| list.items.is_empty())
}
