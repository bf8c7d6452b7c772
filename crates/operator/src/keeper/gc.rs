//! Garbage collection: lists all nodes and then all records page by page, repairs the cache, notes
//! which records have no node, and deletes those whose node stays absent.
//!
//! Memory: the identities of live nodes, and the records that need a request.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use jiff::Timestamp;
use perennial_core::{
    config::Settings,
    keeper::{
        collect::{
            ABSENT_SINCE, AbsentLimit, AuditTime, Audits, Batch, CONFIRMED, Candidate, ClockGuard, Collection,
            MASS_ABSENCE, NodeList, Tally, Trust, collect,
        },
        identity::{Identified, RecordName},
    },
};
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::{
    NodeKey, Priority,
    apply::{KeeperClient, KeeperError, LoadedRecord},
    cache::KeeperCache,
    cases::Cases,
    controller::Duties,
    intake::Intake,
    metrics::KeeperMetrics,
};
use crate::runtime::{
    clock::Clock,
    error_chain::Chain,
    ownership::Ownership,
    reporter::{CategorizedError as _, Reporter},
};

/// Maximum number of records of each kind that one pass changes or deletes.
const BATCH: usize = 20_000;
/// Number of failures in a row after which a run ends.
const FAILURES: u32 = 10;

/// Garbage-collects records.
#[derive(Debug)]
pub(super) struct Collector {
    pub(super) cluster: KeeperClient,
    pub(super) cache: Arc<KeeperCache>,
    pub(super) cases: Cases,
    pub(super) intake: Arc<Intake>,
    pub(super) duties: Duties,
    pub(super) ownership: Ownership,
    pub(super) reporter: Reporter,
    pub(super) metrics: KeeperMetrics,
    pub(super) limits: CollectionLimits,
}

/// The limit of absent records, the last audits, and the clock.
#[derive(Debug)]
pub(super) struct CollectionLimits {
    clock: Clock,
    started: Instant,
    guard: Mutex<ClockGuard>,
    /// Maximum number of records of absent nodes. 0: no limit.
    max_absent: usize,
    /// Maximum number of records of each kind that one pass changes or deletes.
    batch: usize,
    audits: Mutex<Audits>,
}

impl CollectionLimits {
    pub(super) fn new(settings: &Settings, clock: &Clock) -> Self {
        let (now, period) = (clock.now(), settings.controller.audit_period);
        Self {
            clock: clock.clone(),
            started: Instant::now(),
            guard: Mutex::new(ClockGuard::new(period, now)),
            max_absent: usize::try_from(settings.keeper.max_absent).unwrap_or(usize::MAX),
            batch: BATCH,
            audits: Mutex::new(Audits::new(period, now)),
        }
    }

    /// Returns the time of an audit that begins now.
    fn audit_time(&self) -> AuditTime {
        let mut guard = self.guard.lock().unwrap_or_else(PoisonError::into_inner);
        guard.judge(self.clock.now(), self.started.elapsed(), self.clock.ahead())
    }

    fn audits(&self) -> MutexGuard<'_, Audits> {
        self.audits.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Everything that a pass found.
struct Findings {
    tally: Tally,
    records: Batch<Old>,
    over_limit: AbsentLimit<Old>,
    /// Absent records that a mass absence protects.
    doubted: usize,
}

/// The passes of one audit so far. One pass handles a bounded number of records.
#[derive(Clone, Copy, Debug)]
struct Passes {
    time: AuditTime,
    /// Judgement of the list of nodes by the last pass. `None` before the first one.
    trust: Option<Trust>,
}

/// Why a record is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CollectReason {
    Retention,
    Limit,
}

impl Collector {
    /// Lists everything, then collects old records. A failure is logged, and the next run tries
    /// again.
    pub(super) async fn run(&self) {
        // The retention, the identity and the content of a record depend on them.
        if !self.cases.policies.are_known() {
            warn!("KeepPolicies cannot be read: no record is collected");
            return;
        }
        let mut passes = Passes { time: self.limits.audit_time(), trust: None };
        if !passes.time.trusted {
            let ahead = self.limits.clock.ahead().as_secs();
            warn!(ahead, "clock jump or skew, deleting no records");
        }
        loop {
            match self.pass(&mut passes).await {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    let category = error.category().as_str();
                    warn!(category, error = %Chain(&error), "garbage collection ended early");
                    self.reporter.count(error.category());
                    break;
                }
            }
        }
        // Not between two passes: all of them judge by the same nodes.
        if passes.trust.is_some() {
            self.limits.audits().complete();
        }
    }

    /// Lists everything once, and writes what is due. Returns whether another pass has more to do:
    /// some kind of write has more records, and this pass has made progress with it.
    async fn pass(&self, passes: &mut Passes) -> Result<bool, KeeperError> {
        let found = self.list(passes).await?;
        let (tally, list) = (found.tally, found.tally.node_list().or_as_doubtful_as(passes.trust));
        passes.trust = Some(list.trust);
        self.report(&tally, &list, found.doubted);
        let mut kinds = found.records.into_kinds(&list);
        let over_limit = found.over_limit.exceeding(&list);
        let is_full = over_limit.len() >= self.limits.batch;
        kinds.push((over_limit, is_full));
        let (mut failures, mut more, limited) = (0, false, kinds.len() - 1);
        for (kind, (records, is_full)) in kinds.into_iter().enumerate() {
            let mut written = 0usize;
            for record in records {
                if self.ownership.may_act(&record.node).is_none() {
                    continue;
                }
                let acted = match kind == limited {
                    true if !passes.time.trusted => Ok(false),
                    true => self.collect(&record, CollectReason::Limit).await,
                    false => self.act(&record, passes.time, &list).await,
                };
                match acted {
                    Ok(wrote) => (failures, written) = (0, written + usize::from(wrote)),
                    Err(error) => {
                        failures += 1;
                        let (node, category) = (&*record.node, error.category());
                        warn!(node, category = category.as_str(), error = %Chain(&error), "record not collected yet");
                        self.reporter.count(category);
                    }
                }
                if failures >= FAILURES {
                    warn!(failures, "garbage collection ended early");
                    return Ok(false);
                }
            }
            more |= is_full && written > 0;
        }
        Ok(more)
    }

    /// Lists nodes, then records. A node that is created in between is in the cache, or is found
    /// by the read before its record is deleted.
    async fn list(&self, passes: &Passes) -> Result<Findings, KeeperError> {
        let now = passes.time.now;
        let mut live: HashSet<NodeKey> = HashSet::new();
        let mut nodes = 0usize;
        self.intake
            .each_node(|node| {
                nodes += 1;
                let identities = self.cases.identities_of(&node);
                live.extend(identities.iter().map(|identity| self.cache.record_key(&identity.record_name().0)));
                self.intake.learn_node(&node);
            })
            .await?;
        let peak = self.cache.take_peak();
        let tally = match passes.trust {
            None => self.limits.audits().begin(nodes, peak, now),
            Some(_) => self.limits.audits().resume(nodes, peak, now),
        };
        let (batch, over_limit) = (self.limits.batch, AbsentLimit::new(self.limits.max_absent, self.limits.batch));
        let mut found = Findings { tally, records: Batch::new(batch), over_limit, doubted: 0 };
        let trusted = NodeList { nodes, trust: Trust::Full };
        self.intake
            .each_record(|held| {
                let case = self.cases.absent(&held);
                let mut candidate = Candidate::new(&case, held.annotations());
                candidate.present = live.contains(held.name()) || self.cache.has_live_node(&held);
                found.tally.count(&candidate, held.created());
                found.doubted += usize::from(!candidate.present && !candidate.held && trusted.doubts(&candidate));
                let became_absent = found.tally.became_absent(&candidate);
                let old = || Old::new(&held, &self.cache, candidate.clone(), became_absent);
                found.over_limit.count(&candidate, nodes, old);
                // Records of other replicas must not fill the batch.
                if self.ownership.may_act(held.node_name()).is_some() {
                    found.records.count(&candidate, became_absent, (now, nodes), old);
                }
            })
            .await?;
        Ok(found)
    }

    fn report(&self, tally: &Tally, list: &NodeList, doubted: usize) {
        let (nodes, records, absent) = (list.nodes, tally.records(), tally.absent());
        let became_absent = tally.recently_absent();
        self.metrics.set_mass_absence(list.trust != Trust::Full || doubted > 0);
        if list.trust != Trust::Full {
            warn!(nodes, records, absent, became_absent, "most nodes are absent: no record is deleted by its age");
        } else if doubted > 0 {
            warn!(nodes, records, absent, doubted, "records of a mass absence are not deleted by their age");
        }
        debug!(nodes, records, absent, became_absent, "garbage collection");
    }

    /// Does what is due for a record. Returns whether anything was written.
    async fn act(&self, record: &Old, time: AuditTime, list: &NodeList) -> Result<bool, KeeperError> {
        match collect(&record.candidate, time.now, list, record.became_absent) {
            Collection::Keep => Ok(false),
            Collection::NoteAbsence => self.annotate(record, Absence::Since(time.noted)).await,
            Collection::NoteMassAbsence(before) => {
                let since = record.candidate.absent_since.unwrap_or(time.noted);
                self.annotate(record, Absence::InMass { since, before }).await
            }
            Collection::ClearAbsence => self.annotate(record, Absence::Over).await,
            Collection::Delete if !time.trusted => Ok(false),
            Collection::Delete => self.collect(record, CollectReason::Retention).await,
        }
    }

    /// Whether the node of a record exists. Another machine may use its name.
    async fn is_present(&self, record: &Old) -> Result<bool, KeeperError> {
        let node = self.cluster.read_node(&record.node, Priority::Collect).await?;
        let is_its = |identity: &Identified| *identity.record_name().0 == *record.name;
        Ok(node.is_some_and(|node| self.cases.identities_of(&node).iter().any(is_its)))
    }

    /// Writes the absence of a node. Returns whether anything was written.
    async fn annotate(&self, record: &Old, absence: Absence) -> Result<bool, KeeperError> {
        if !self.duties.may_write_records() {
            return Ok(false);
        }
        let Some(held) = self.cluster.read_record(&record.record_name(), Priority::Collect).await? else {
            return Ok(false);
        };
        if held.resource_version() != record.resource_version {
            return Ok(false);
        }
        note_absence(&self.cluster, &self.intake, &held, absence).await?;
        Ok(true)
    }

    /// Deletes a record, after another check that its node does not exist. Returns whether it was
    /// deleted.
    async fn collect(&self, record: &Old, reason: CollectReason) -> Result<bool, KeeperError> {
        if !self.duties.may_write_records() {
            info!(node = &*record.node, "would delete the record");
            return Ok(false);
        }
        if !record.candidate.tombstone && self.is_present(record).await? {
            return Ok(false);
        }
        let Some(held) = self.cluster.read_record(&record.record_name(), Priority::Collect).await? else {
            return Ok(false);
        };
        let is_back = !record.candidate.tombstone && self.cache.has_live_node(&held);
        if is_back || held.resource_version() != record.resource_version {
            return Ok(false);
        }
        self.cluster.delete_record(&held).await?;
        let (node, tombstone) = (&*record.node, record.candidate.tombstone);
        match reason {
            CollectReason::Retention => {
                info!(node, tombstone, "record deleted: its node stayed absent");
                self.metrics.record_collected();
            }
            CollectReason::Limit => {
                info!(
                    node,
                    limit = self.limits.max_absent,
                    "record deleted: more nodes are absent than keeper.maxAbsent"
                );
                self.metrics.record_over_limit();
            }
        }
        Ok(true)
    }
}

/// The absence of a node, as its record holds it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Absence {
    Over,
    Since(Timestamp),
    /// In a mass absence, with this number of nodes before it.
    InMass {
        since: Timestamp,
        before: usize,
    },
}

/// Writes the absence of the node of a record.
pub(super) async fn note_absence(
    cluster: &KeeperClient,
    intake: &Intake,
    held: &LoadedRecord,
    absence: Absence,
) -> Result<(), KeeperError> {
    let (since, before) = match absence {
        Absence::Over => (None, None),
        Absence::Since(since) => (Some(since.to_string()), None),
        Absence::InMass { since, before } => (Some(since.to_string()), Some(before.to_string())),
    };
    let (node, absent, in_mass) = (held.node_name(), since.is_some(), before.is_some());
    info!(node, absent, in_mass, "absence of the node recorded");
    // A confirmation is about one absence. The next one needs its own.
    let confirmed = matches!(absence, Absence::Over).then_some((CONFIRMED, None));
    let annotations = [(ABSENT_SINCE, since), (MASS_ABSENCE, before)].into_iter().chain(confirmed).collect();
    let written = cluster.annotate_record(held, &annotations).await?;
    intake.learn_record(&written);
    Ok(())
}

/// A record in one run. Its names are shared with the cache.
#[derive(Clone, Debug)]
struct Old {
    name: Arc<str>,
    node: NodeKey,
    resource_version: u64,
    candidate: Candidate,
    became_absent: bool,
}

impl Old {
    fn new(held: &LoadedRecord, cache: &KeeperCache, candidate: Candidate, became_absent: bool) -> Self {
        Self {
            name: cache.record_key(held.name()),
            node: cache.node_key(held.node_name()),
            resource_version: held.resource_version(),
            candidate,
            became_absent,
        }
    }

    fn record_name(&self) -> RecordName {
        RecordName(self.name.to_string())
    }
}

impl PartialEq for Old {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Old {}

impl PartialOrd for Old {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Old {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.name.cmp(&other.name)
    }
}
