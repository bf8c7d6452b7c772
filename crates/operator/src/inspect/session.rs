//! A connection to one cluster: client, settings and policies, and reads of nodes and records.

use std::collections::BTreeSet;

use futures::TryStreamExt as _;
use kube::api::ListParams;
use perennial_core::{
    config::{Identity, Settings},
    keeper::{
        identity::{Identified, RecordName},
        record::record_selector,
        selection,
    },
};

use super::{
    inspected_node::InspectedNode,
    join::identities_in_use,
    namespace::{SettingsSource, other_settings},
    progress::Progress,
};
use crate::{
    keeper::{
        Priority,
        apply::{KeeperClient, LoadedRecord},
        policies::Policies,
        record_keys::Signatures,
        record_lookup::read_record,
    },
    runtime::{
        budget::Budget,
        error_chain::Chain,
        pages::{PAGE, pages},
    },
};

/// One cluster and the rules by which its operator decides.
pub(crate) struct Session {
    pub(crate) client: kube::Client,
    pub(crate) cluster: KeeperClient,
    pub(crate) settings: Settings,
    /// Where the settings were read, or why that is unknown.
    pub(crate) source: Result<SettingsSource, String>,
    pub(crate) policies: Policies,
    /// Why the operator's settings or policies could not be read.
    unsure: Option<String>,
    /// Problems to report to the user, none of which prevents reads.
    pub(crate) warnings: Vec<String>,
}

impl Session {
    /// `source` is where the settings were read, or why the operator's own could not be read.
    pub(crate) async fn open(client: kube::Client, settings: Settings, source: Result<SettingsSource, String>) -> Self {
        let budget = Budget::new(1000, 1000);
        let mut warnings = Vec::new();
        let (signatures, trouble) = Signatures::for_command(&client, &settings).await;
        if let Some(trouble) = trouble {
            warnings.push(format!(
                "warning: signatures of records are not checked, and records cannot be written: {}",
                Chain(&trouble)
            ));
        }
        let cluster = KeeperClient::new(client.clone(), settings.namespace.as_str(), budget, signatures);
        let policies = Policies::new(&settings.keeper);
        let unsure = source.as_ref().err().cloned().or(policies.read_all(&client).await.err());
        if let Some(why) = &unsure {
            warnings.push(other_settings(why));
        }
        Self { client, cluster, settings, source, policies, unsure, warnings }
    }

    /// Fails unless the operator's own settings and policies were read. Every command that writes
    /// must call it.
    pub(crate) fn require_operator_settings(&self) -> anyhow::Result<()> {
        match &self.unsure {
            Some(why) => anyhow::bail!("cannot read the operator's configuration; refusing to write: {why}"),
            None => Ok(()),
        }
    }

    pub(crate) async fn node(&self, name: &str) -> anyhow::Result<Option<selection::Node>> {
        Ok(self.cluster.read_node(name, Priority::Restore).await?)
    }

    /// Reads a node, its record and other nodes with the same identity. Fails if neither node nor
    /// record exists.
    pub(crate) async fn look(&self, name: &str) -> anyhow::Result<InspectedNode> {
        let node = self.node(name).await?;
        let held = self.record(name, node.as_ref()).await?;
        if node.is_none() && held.is_none() {
            anyhow::bail!(
                "there is no node {name} and no record for it in namespace {}; `perennial nodes` lists all",
                self.settings.namespace
            );
        }
        let rivals = match self.shared_identity(node.as_ref(), held.as_ref()) {
            Some(identity) => self.rivals(name, &identity).await?,
            None => Vec::new(),
        };
        Ok(InspectedNode::new(&self.policies, node, held, rivals))
    }

    /// Returns the identity of a live node, that of its record if it has one. `None` if no other node
    /// can have the same: names are unique.
    pub(crate) fn shared_identity(
        &self,
        node: Option<&selection::Node>,
        held: Option<&LoadedRecord>,
    ) -> Option<Identified> {
        let node = node?;
        let filed = held.and_then(|held| held.stored().good()).map(Identified::of_record);
        let identity = filed.or_else(|| self.policies.current().identify(node))?;
        identity.text().is_some().then_some(identity)
    }

    /// Combines a node and a record that were already read.
    pub(crate) fn pair(&self, node: Option<selection::Node>, held: Option<LoadedRecord>) -> InspectedNode {
        InspectedNode::new(&self.policies, node, held, Vec::new())
    }

    /// Reads all nodes for others with this identity.
    pub(crate) async fn rivals(&self, name: &str, identity: &Identified) -> anyhow::Result<Vec<String>> {
        let mut rivals = Vec::new();
        let mut progress = Progress::new("nodes", false);
        self.each_node(None, |page| {
            progress.advance(page.len());
            let same = |node: &selection::Node| {
                node.name != name && self.policies.current().identify(node).as_ref() == Some(identity)
            };
            rivals.extend(page.into_iter().filter(same).map(|node| node.name));
            Ok(())
        })
        .await?;
        Ok(rivals)
    }

    /// Returns the record of a node, which may be deleted.
    pub(crate) async fn record(
        &self,
        name: &str,
        node: Option<&selection::Node>,
    ) -> anyhow::Result<Option<LoadedRecord>> {
        if let Some(node) = node {
            // The policy that a record was captured under may be deleted, or identify nodes in
            // another way by now.
            let former = [Identity::Name, Identity::ProviderId, Identity::SystemUuid, Identity::MachineId].into();
            let found = self.record_under(node, &former).await?;
            if found.is_some() || !self.has_identified_records().await? {
                return Ok(found);
            }
            // A record that was only written from a node of this name may be of another machine.
            let mut in_use = BTreeSet::new();
            self.each_record(|page| {
                in_use.extend(identities_in_use(page.iter()));
                Ok(())
            })
            .await?;
            return self.record_under(node, &in_use).await;
        }
        let named = Identified::named(name).record_name();
        if let Some(held) = self.cluster.read_record(&named, Priority::Restore).await? {
            return Ok(Some(held));
        }
        // With another identity than the name, only the record contains the name of a deleted node.
        // The name of the record is accepted as well.
        let direct = self.cluster.read_record(&RecordName(name.to_owned()), Priority::Restore).await;
        if let Ok(Some(held)) = direct
            && held.is_labelled()
        {
            return Ok(Some(held));
        }
        self.record_from(name).await
    }

    /// Returns the record of a live node among those of its identities of these kinds.
    async fn record_under(
        &self,
        node: &selection::Node,
        in_use: &BTreeSet<Identity>,
    ) -> anyhow::Result<Option<LoadedRecord>> {
        let policies = self.policies.current();
        let identities = policies.identities_of(node, in_use);
        Ok(read_record(&policies, &self.cluster, identities, node, Priority::Restore).await?)
    }

    /// Searches all records for one that was written from a node of this name.
    async fn record_from(&self, name: &str) -> anyhow::Result<Option<LoadedRecord>> {
        let mut found = None;
        let mut progress = Progress::new("records", false);
        self.each_record(|page| {
            progress.advance(page.len());
            found = found.take().or_else(|| page.into_iter().find(|held| held.node_name() == name));
            Ok(())
        })
        .await?;
        Ok(found)
    }

    /// Calls a function with each page of records.
    pub(crate) async fn each_record(
        &self,
        mut on: impl FnMut(Vec<LoadedRecord>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let list = |params: ListParams| async move { self.cluster.list_records(&params).await };
        let mut pages = std::pin::pin!(pages(record_pages(), list));
        while let Some(page) = pages.try_next().await? {
            on(page)?;
        }
        Ok(())
    }

    /// Calls a function with each page of selected nodes.
    pub(crate) async fn each_node(
        &self,
        selector: Option<&str>,
        mut on: impl FnMut(Vec<selection::Node>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let list = |params: ListParams| async move { self.cluster.list_nodes(&params).await };
        let mut pages = std::pin::pin!(pages(node_pages(selector), list));
        while let Some(page) = pages.try_next().await? {
            on(page)?;
        }
        Ok(())
    }
}

pub(crate) fn record_pages() -> ListParams {
    ListParams::default().labels(&record_selector()).limit(PAGE)
}

pub(crate) fn node_pages(selector: Option<&str>) -> ListParams {
    let params = ListParams::default().limit(PAGE);
    match selector {
        Some(selector) => params.labels(selector),
        None => params,
    }
}
