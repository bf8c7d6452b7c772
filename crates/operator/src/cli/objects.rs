//! Reading nodes and records for commands, as the operator reads them.

use kube::api::ListParams;
use perennial_core::{
    config::Settings,
    keeper::{
        identity::{Identified, RecordName},
        record::{RECORD_LABEL, RECORD_LABEL_VALUE},
        selection,
    },
};

use super::Global;
use crate::{
    keeper::{
        apply::{Cluster, Held},
        policies::Policies,
    },
    runtime::{
        budget::{Budget, Priority},
        client,
        metrics::Metrics,
    },
};

const PAGE: u32 = 500;

/// A cluster as a command sees it.
pub(super) struct Session {
    pub(super) client: kube::Client,
    pub(super) cluster: Cluster,
    pub(super) settings: Settings,
    pub(super) policies: Policies,
}

impl Session {
    pub(super) async fn open(global: &Global) -> anyhow::Result<Self> {
        let settings = global.load(Vec::new())?.settings;
        let config = client::config(&global.target()).await?;
        let client = client::connect(config, Metrics::new(), None)?;
        let budget = Budget::new(1000, 1000);
        let cluster = Cluster::new(client.clone(), settings.namespace.as_str(), budget);
        let policies = Policies::new(&settings.keeper);
        policies.read_all(&client).await;
        Ok(Self { client, cluster, settings, policies })
    }

    pub(super) async fn node(&self, name: &str) -> anyhow::Result<Option<selection::Node>> {
        Ok(self.cluster.read_node(name, Priority::Restore).await?)
    }

    /// The record of a node, also of one that is away.
    pub(super) async fn record(&self, name: &str, node: Option<&selection::Node>) -> anyhow::Result<Option<Held>> {
        let known = match node {
            Some(node) => Identified::of(&self.policies.of(node).identity, node),
            None => Some(Identified::named(name)),
        };
        let Some(identity) = known else { return Ok(None) };
        if let Some(held) = self.cluster.read_record(&identity.record_name(), Priority::Restore).await? {
            return Ok(Some(held));
        }
        if node.is_some() {
            return Ok(None);
        }
        // Under another identity the name of a node that is away is in its record only; the record's own name works too.
        let direct = self.cluster.read_record(&RecordName(name.to_owned()), Priority::Restore).await;
        if let Ok(Some(held)) = direct {
            return Ok(Some(held));
        }
        let mut found = None;
        self.each_record(|held| {
            if held.node_name() == name {
                found = Some(held);
            }
        })
        .await?;
        Ok(found)
    }

    /// Every record, page by page.
    pub(super) async fn each_record(&self, mut on: impl FnMut(Held)) -> anyhow::Result<()> {
        let mut params = ListParams::default().labels(&format!("{RECORD_LABEL}={RECORD_LABEL_VALUE}")).limit(PAGE);
        loop {
            let (page, next) = self.cluster.list_records(&params).await?;
            page.into_iter().for_each(&mut on);
            match next {
                Some(token) => params.continue_token = Some(token),
                None => return Ok(()),
            }
        }
    }
}
