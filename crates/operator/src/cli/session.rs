//! Reading nodes and records for commands, as the operator reads them.

use jiff::Timestamp;
use kube::api::ListParams;
use perennial_core::{
    config::Settings,
    keeper::{
        case::{Case, CaseContext, Rival},
        identity::{Identified, RecordName},
        keys::Kept,
        mark::Mark,
        record::{RECORD_LABEL, RECORD_LABEL_VALUE, Record},
        selection::{self, Policy},
        status::KeepStatus,
        stored_record::Stored,
    },
};

use super::{Global, terminal::Progress};
use crate::{
    keeper::{
        apply::{Cluster, Held},
        policies::Policies,
        record_keys::Signatures,
    },
    runtime::{
        budget::{Budget, Priority},
        error_chain::Chain,
    },
};

pub(super) const PAGE: u32 = 500;

/// A cluster as a command sees it.
pub(super) struct Session {
    pub(super) client: kube::Client,
    pub(super) cluster: Cluster,
    pub(super) settings: Settings,
    /// The settings are surely the operator's own: from its file, or from its ConfigMap.
    pub(super) configured: bool,
    pub(super) policies: Policies,
    /// Why it is not known how the operator judges, where that is so.
    unsure: Option<String>,
}

/// The case of a node, with the ConfigMap of its record.
pub(crate) struct Look {
    pub(crate) case: Case,
    pub(crate) held: Option<Held>,
}

impl Session {
    pub(super) async fn open(global: &Global) -> anyhow::Result<Self> {
        let client = global.connect().await?;
        let (settings, installed) = global.load_from(&client).await?;
        let configured = installed.as_ref().is_ok_and(|found| *found);
        let budget = Budget::new(1000, 1000);
        let (signatures, trouble) = Signatures::for_command(&client, &settings).await;
        if let Some(trouble) = trouble {
            eprintln!("Signatures of records are not checked, and no record can be written: {}", Chain(&trouble));
        }
        let cluster = Cluster::new(client.clone(), settings.namespace.as_str(), budget, signatures);
        let policies = Policies::new(&settings.keeper);
        let unsure = installed.err().or(policies.read_all(&client).await.err());
        if let Some(why) = &unsure {
            eprintln!("The operator may judge otherwise: {why}");
        }
        Ok(Self { client, cluster, settings, configured, policies, unsure })
    }

    /// For what changes something: nothing is decided by other rules than the operator's.
    pub(super) fn judges_as_the_operator(&self) -> anyhow::Result<()> {
        match &self.unsure {
            Some(why) => anyhow::bail!("nothing was changed, since it is not known by which rules: {why}"),
            None => Ok(()),
        }
    }

    pub(super) async fn node(&self, name: &str) -> anyhow::Result<Option<selection::Node>> {
        Ok(self.cluster.read_node(name, Priority::Restore).await?)
    }

    /// A node and its record, with whoever else says to be it. One of them has to be there.
    pub(super) async fn look(&self, name: &str) -> anyhow::Result<Look> {
        let node = self.node(name).await?;
        let held = self.record(name, node.as_ref()).await?;
        if node.is_none() && held.is_none() {
            anyhow::bail!(
                "there is no node {name} and no record for it in namespace {}; `perennial nodes` lists those that there are",
                self.settings.namespace
            );
        }
        let identity = node.as_ref().and_then(|node| self.policies.current().identify(node));
        let rivals = match identity.filter(|identity| identity.text().is_some()) {
            Some(identity) => self.rivals(name, &identity).await?,
            None => Vec::new(),
        };
        Ok(Look::new(&self.policies, node, held, rivals))
    }

    /// A node and its record that were read already.
    pub(super) fn pair(&self, node: Option<selection::Node>, held: Option<Held>) -> Look {
        Look::new(&self.policies, node, held, Vec::new())
    }

    async fn rivals(&self, name: &str, identity: &Identified) -> anyhow::Result<Vec<String>> {
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

    /// The record of a node, also of one that is away.
    pub(super) async fn record(&self, name: &str, node: Option<&selection::Node>) -> anyhow::Result<Option<Held>> {
        let known = match node {
            Some(node) => self.policies.current().identify(node),
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
        if let Ok(Some(held)) = direct
            && held.is_labelled()
        {
            return Ok(Some(held));
        }
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

    /// Every record, page by page.
    pub(super) async fn each_record(&self, mut on: impl FnMut(Vec<Held>) -> anyhow::Result<()>) -> anyhow::Result<()> {
        let mut params = record_pages();
        loop {
            let (page, next) = self.cluster.list_records(&params).await?;
            on(page)?;
            match next {
                Some(token) => params.continue_token = Some(token),
                None => return Ok(()),
            }
        }
    }

    /// Every node that a selector selects, page by page.
    pub(super) async fn each_node(
        &self,
        selector: Option<&str>,
        mut on: impl FnMut(Vec<selection::Node>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let mut params = node_pages(selector);
        loop {
            let (page, next) = self.cluster.list_nodes(&params).await?;
            on(page)?;
            match next {
                Some(token) => params.continue_token = Some(token),
                None => return Ok(()),
            }
        }
    }
}

pub(super) fn record_pages() -> ListParams {
    ListParams::default().labels(&format!("{RECORD_LABEL}={RECORD_LABEL_VALUE}")).limit(PAGE)
}

pub(super) fn node_pages(selector: Option<&str>) -> ListParams {
    let params = ListParams::default().limit(PAGE);
    match selector {
        Some(selector) => params.labels(selector),
        None => params,
    }
}

impl Look {
    pub(crate) fn new(
        policies: &Policies,
        node: Option<selection::Node>,
        held: Option<Held>,
        rivals: Vec<String>,
    ) -> Self {
        let rivals = rivals.into_iter().map(|name| Rival { name, holds_record: false }).collect();
        let policies = policies.current();
        let context = CaseContext { policies: &policies, now: Timestamp::now(), by: "cli" };
        let stored = held.as_ref().map(Held::share);
        let case = match node {
            Some(node) => Case::live(node, stored, rivals, &context),
            None => Case::absent(stored, &context),
        };
        Self { case, held }
    }

    pub(crate) fn node(&self) -> Option<&selection::Node> {
        self.case.node()
    }

    pub(crate) fn policy(&self) -> &Policy {
        self.case.policy()
    }

    pub(crate) fn identity(&self) -> Option<&Identified> {
        self.case.identity()
    }

    /// Returns the kept keys of the node. `None` if it is absent.
    pub(crate) fn kept(&self) -> Option<&Kept> {
        self.node().map(|_| self.case.kept())
    }

    pub(crate) fn mark(&self) -> Option<&Mark> {
        self.case.mark()
    }

    pub(crate) fn name(&self) -> &str {
        match (self.node(), &self.held) {
            (Some(node), _) => &node.name,
            (None, Some(held)) => held.node_name(),
            (None, None) => "",
        }
    }

    pub(crate) fn stored(&self) -> Option<&Stored> {
        self.held.as_ref().map(Held::stored)
    }

    /// The record to decide on.
    pub(crate) fn record(&self) -> Option<Record> {
        match (self.node(), self.stored()?) {
            (None, Stored::Bad { .. }) => None,
            _ => self.case.record().map(std::borrow::Cow::into_owned),
        }
    }

    pub(crate) fn status(&self) -> KeepStatus {
        KeepStatus::of(&self.case)
    }
}
