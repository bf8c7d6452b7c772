//! Garbage collection: lists all nodes and records page by page, repairs the cache, notes which
//! records have no node, and deletes those whose node stays absent.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

use futures::TryStreamExt as _;
use jiff::Timestamp;
use kube::api::ListParams;
use perennial_core::keeper::{
    case::Case,
    collect::{ABSENT_SINCE, Candidate, Collection, collect, is_mass_absence},
    policy_set::PolicySet,
    record::{RECORD_LABEL, RECORD_LABEL_VALUE},
};
use tracing::{debug, info, warn};

use super::{
    Key, Priority,
    apply::{Error, Held, PAGE_OF_RECORDS},
    controller::Keeper,
};
use crate::runtime::{
    error_chain::Chain,
    pages::{PAGE, pages},
};

impl Keeper {
    /// Lists everything and collects old records. A failure is logged, and the next run tries
    /// again.
    pub async fn audit(&self) {
        if let Err(error) = self.try_audit().await {
            warn!(category = error.category().as_str(), error = %Chain(&error), "garbage collection ended early");
            self.reporter.count(error.category());
        }
    }

    async fn try_audit(&self) -> Result<(), Error> {
        // Records are listed first: a node that is created meanwhile is then in the list of nodes.
        let policies = self.policies.current();
        let mut records = Vec::new();
        self.each_record(|held| records.push(Old::new(&held, self, &policies))).await?;
        let mut present: HashSet<Key> = HashSet::new();
        let mut nodes = 0usize;
        self.each_node(|node| {
            nodes += 1;
            let identity = policies.identify(&node);
            present.extend(identity.map(|identity| self.cache.record_key(&identity.record_name().0)));
            self.learn_node(&node);
        })
        .await?;

        for record in &mut records {
            record.candidate.present = present.contains(&*record.name);
        }
        let absent = records.iter().filter(|record| !record.candidate.present && !record.candidate.tombstone).count();
        let known = records.iter().filter(|record| !record.candidate.tombstone).count();
        let mass = is_mass_absence(nodes, known, absent);
        self.metrics.set_mass_absence(mass);
        if mass {
            warn!(nodes, records = known, absent, "most nodes are absent: no record is deleted");
        }
        debug!(nodes, records = known, absent, "audit");
        let now = self.clock.now();
        for record in records {
            if self.ownership.may_act(&record.node).is_none() {
                continue;
            }
            match collect(&record.candidate, now, mass) {
                Collection::Keep => {}
                Collection::NoteAbsence => self.annotate(&record, Some(now)).await?,
                Collection::ClearAbsence => self.annotate(&record, None).await?,
                Collection::Delete => self.collect(&record).await?,
            }
        }
        Ok(())
    }

    async fn annotate(&self, record: &Old, since: Option<Timestamp>) -> Result<(), Error> {
        if self.duties.dry_run || !self.duties.capture {
            return Ok(());
        }
        let Some(held) = self.cluster.read_record(&record.record_name(), Priority::Collect).await? else {
            return Ok(());
        };
        if held.resource_version() != record.resource_version {
            return Ok(());
        }
        self.note_absence(&held, since).await
    }

    /// Sets or clears the time since which the node of a record is absent.
    pub(super) async fn note_absence(&self, held: &Held, since: Option<Timestamp>) -> Result<(), Error> {
        info!(node = held.node_name(), absent = since.is_some(), "absence of the node recorded");
        let since = since.map(|since| since.to_string());
        let written = self.cluster.annotate_record(held, &BTreeMap::from([(ABSENT_SINCE, since)])).await?;
        self.learn_record(&written);
        Ok(())
    }

    /// Deletes a record, after another check that its node does not exist.
    async fn collect(&self, record: &Old) -> Result<(), Error> {
        if self.duties.dry_run || !self.duties.capture {
            info!(node = &*record.node, "would delete the record");
            return Ok(());
        }
        if !record.candidate.tombstone && self.cluster.read_node(&record.node, Priority::Collect).await?.is_some() {
            return Ok(());
        }
        let Some(held) = self.cluster.read_record(&record.record_name(), Priority::Collect).await? else {
            return Ok(());
        };
        if held.resource_version() != record.resource_version {
            return Ok(());
        }
        self.cluster.delete_record(&held).await?;
        info!(node = &*record.node, tombstone = record.candidate.tombstone, "record deleted: its node stayed absent");
        self.metrics.record_collected();
        Ok(())
    }

    pub(super) async fn each_record(&self, mut on: impl FnMut(Held)) -> Result<(), Error> {
        let params =
            ListParams::default().labels(&format!("{RECORD_LABEL}={RECORD_LABEL_VALUE}")).limit(PAGE_OF_RECORDS);
        let list = |params: ListParams| async move { self.cluster.list_records(&params).await };
        let mut pages = std::pin::pin!(pages(params, list));
        while let Some(page) = pages.try_next().await? {
            for held in page {
                self.learn_record(&held);
                on(held);
            }
        }
        Ok(())
    }

    pub(super) async fn each_node(
        &self,
        mut on: impl FnMut(perennial_core::keeper::selection::Node),
    ) -> Result<(), Error> {
        let list = |params: ListParams| async move { self.cluster.list_nodes(&params).await };
        let mut pages = std::pin::pin!(pages(ListParams::default().limit(PAGE), list));
        while let Some(page) = pages.try_next().await? {
            page.into_iter().for_each(&mut on);
        }
        Ok(())
    }
}

/// A record in one run. There may be very many, so names are shared with the cache.
struct Old {
    name: Arc<str>,
    node: Key,
    resource_version: u64,
    candidate: Candidate,
}

impl Old {
    fn new(held: &Held, keeper: &Keeper, policies: &PolicySet) -> Self {
        let case = Case::absent(Some(held.share()), &keeper.context(policies));
        Self {
            name: keeper.cache.record_key(held.name()),
            node: keeper.cache.node_key(held.node_name()),
            resource_version: held.resource_version(),
            candidate: Candidate::new(&case, held.annotations()),
        }
    }

    fn record_name(&self) -> perennial_core::keeper::identity::RecordName {
        perennial_core::keeper::identity::RecordName(self.name.to_string())
    }
}
