//! The audit: now and then everything is read afresh, page by page. It notices what a watch may have missed, notes which
//! records have no node, and collects those that nobody came back for.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

use jiff::Timestamp;
use kube::api::ListParams;
use perennial_core::keeper::{
    collect::{ABSENT_SINCE, CONFIRMED, HOLD, Seen, Step, is_mass_absence, step},
    identity::Identified,
    keys::TRUE,
    record::{RECORD_LABEL, RECORD_LABEL_VALUE},
    stored_record::Stored,
};
use tracing::{debug, info, warn};

use super::{
    Key, Priority,
    apply::{Error, Held, PAGE_OF_RECORDS},
    controller::Keeper,
    policies::labels_of,
};

const PAGE_OF_NODES: u32 = 500;

impl Keeper {
    /// Reads everything afresh and deals with old records. Failures are reported; the next audit tries again.
    pub async fn audit(&self) {
        if let Err(error) = self.try_audit().await {
            let why = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
            warn!(category = error.category().as_str(), why, "the audit ended early: {error}");
            self.metrics.failed(error.category().as_str());
        }
    }

    async fn try_audit(&self) -> Result<(), Error> {
        // Records first: a node that comes while they are read is then in the list of nodes.
        let mut records = Vec::new();
        self.each_record(|held| records.push(Old::new(&held, self))).await?;
        let mut present: HashSet<Key> = HashSet::new();
        let mut nodes = 0usize;
        self.each_node(|node| {
            nodes += 1;
            let identity = Identified::of(&self.policies.of(&node).identity, &node);
            present.extend(identity.map(|identity| self.lock().view.index.record_key(&identity.record_name().0)));
            self.learn_node(&node);
        })
        .await?;

        for record in &mut records {
            record.seen.present = present.contains(&*record.name);
        }
        let absent = records.iter().filter(|record| !record.seen.present && !record.seen.tombstone).count();
        let known = records.iter().filter(|record| !record.seen.tombstone).count();
        let mass = is_mass_absence(nodes, known, absent);
        self.metrics.mass_absence.set(i64::from(mass));
        if mass {
            warn!(nodes, records = known, absent, "most nodes are absent: no record is collected");
        }
        debug!(nodes, records = known, absent, "audit");
        let now = self.clock.now();
        for record in records {
            if self.ownership.may_act(&record.node).is_none() {
                continue;
            }
            match step(&record.seen, now, mass) {
                Step::Keep => {}
                Step::Note => self.annotate(&record, Some(now)).await?,
                Step::Clear => self.annotate(&record, None).await?,
                Step::Collect => self.collect(&record).await?,
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

    /// Writes down on a record since when its node is absent, or that it is not.
    pub(super) async fn note_absence(&self, held: &Held, since: Option<Timestamp>) -> Result<(), Error> {
        info!(node = held.node_name(), absent = since.is_some(), "absence of a node noted");
        let since = since.map(|since| since.to_string());
        let written = self.cluster.annotate_record(held, &BTreeMap::from([(ABSENT_SINCE, since)])).await?;
        self.learn_record(&written);
        Ok(())
    }

    /// Deletes a record, after a last look whether its node is there.
    async fn collect(&self, record: &Old) -> Result<(), Error> {
        if self.duties.dry_run || !self.duties.capture {
            info!(node = &*record.node, "would collect the record");
            return Ok(());
        }
        if !record.seen.tombstone && self.cluster.read_node(&record.node, Priority::Collect).await?.is_some() {
            return Ok(());
        }
        let Some(held) = self.cluster.read_record(&record.record_name(), Priority::Collect).await? else {
            return Ok(());
        };
        if held.resource_version() != record.resource_version {
            return Ok(());
        }
        self.cluster.delete_record(&held).await?;
        info!(node = &*record.node, tombstone = record.seen.tombstone, "record collected");
        self.metrics.records_collected.inc();
        Ok(())
    }

    pub(super) async fn each_record(&self, mut on: impl FnMut(Held)) -> Result<(), Error> {
        let mut params =
            ListParams::default().labels(&format!("{RECORD_LABEL}={RECORD_LABEL_VALUE}")).limit(PAGE_OF_RECORDS);
        loop {
            let (page, next) = self.cluster.list_records(&params).await?;
            for held in page {
                self.learn_record(&held);
                on(held);
            }
            match next {
                Some(token) => params.continue_token = Some(token),
                None => return Ok(()),
            }
        }
    }

    pub(super) async fn each_node(
        &self,
        mut on: impl FnMut(perennial_core::keeper::selection::Node),
    ) -> Result<(), Error> {
        let mut params = ListParams::default().limit(PAGE_OF_NODES);
        loop {
            let (page, next) = self.cluster.list_nodes(&params).await?;
            page.into_iter().for_each(&mut on);
            match next {
                Some(token) => params.continue_token = Some(token),
                None => return Ok(()),
            }
        }
    }
}

/// What the audit remembers of a record. There may be very many: names are shared with the index.
struct Old {
    name: Arc<str>,
    node: Key,
    resource_version: u64,
    seen: Seen,
}

impl Old {
    fn new(held: &Held, keeper: &Keeper) -> Self {
        let says = |key: &str| held.annotations().get(key).is_some_and(|value| value == TRUE);
        let (bad, tombstone, captured_at, retention) = match &held.stored {
            Stored::Good(record) => {
                let policy = keeper.policies.of_labels(&labels_of(record));
                (false, record.is_tombstone(), record.captured_at, policy.retention)
            }
            Stored::Bad { .. } => (true, false, Timestamp::UNIX_EPOCH, std::time::Duration::MAX),
        };
        let state = keeper.lock();
        Self {
            name: state.view.index.record_key(held.name()),
            node: state.view.index.key(held.node_name()),
            resource_version: held.resource_version(),
            seen: Seen {
                present: false,
                tombstone,
                bad,
                captured_at,
                absent_since: held.annotations().get(ABSENT_SINCE).and_then(|text| text.parse().ok()),
                held: says(HOLD),
                confirmed: says(CONFIRMED),
                retention,
            },
        }
    }

    fn record_name(&self) -> perennial_core::keeper::identity::RecordName {
        perennial_core::keeper::identity::RecordName(self.name.to_string())
    }
}
