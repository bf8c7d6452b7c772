//! Reconciles one node: builds its case, decides, and applies the decision.

use std::sync::Arc;

use perennial_core::{
    config::Identity,
    keeper::{
        case::{Case, CaseContext, Phase, Rival},
        decide::{Decision, Reason, RecordWrite, Restore, decide},
        identity::Identified,
        keys::Kept,
        policy_set::PolicySet,
        record::Record,
        selection::{self, ignored},
        stored_record::Stored,
    },
};
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::{
    Key, Priority, Work,
    apply::{Error, Held},
    controller::{Done, Keeper},
    metrics::Via,
};
use crate::runtime::{
    error_category::Category,
    events::{About, Severity},
};

impl Keeper {
    pub(super) async fn settle(&self, work: &Work) -> Result<Done, Error> {
        let mut wrote = self.settle_all_last(&work.key).await?;
        // The same machine may have left under another name. Its last state comes first.
        let left = self.cache.left_as(&work.key);
        if let Some(left) = left.filter(|left| self.ownership.may_act(left).is_some()) {
            wrote |= self.settle_all_last(&left).await?;
        }
        // A node missing from the cache is deleted; a new one arrives as an event.
        if !self.cache.contains_node(&work.key) {
            return Ok(if wrote { Done::Wrote } else { Done::Quiet });
        }
        match self.settle_live(&work.key, work.priority).await? {
            Done::Quiet if wrote => Ok(Done::Wrote),
            done => Ok(done),
        }
    }

    /// Writes the last states of a name, in order. Returns whether anything was written.
    async fn settle_all_last(&self, key: &Key) -> Result<bool, Error> {
        let mut wrote = false;
        loop {
            let next = self.cache.next_last(key);
            let Some(last) = next else { return Ok(wrote) };
            wrote |= matches!(self.settle_last(&last).await?, Done::Wrote);
            self.cache.finish_last(key, &last.uid);
        }
    }

    /// Writes the last state of a deleted node, unless the record holds it.
    async fn settle_last(&self, node: &selection::Node) -> Result<Done, Error> {
        let policies = self.policies.current();
        let Some(identity) = policies.identify(node).filter(|_| !ignored(node)) else { return Ok(Done::Quiet) };
        let held = self.cluster.read_record(&identity.record_name(), Priority::LastState).await?;
        self.report_invalid_record(node, held.as_ref());
        let rivals = self.rivals(node, &identity, held.as_ref());
        let case = Case::gone(node.clone(), held.as_ref().map(Held::share), rivals, &self.context(&policies));
        match decide(&case) {
            Decision::WriteRecord(kind, next) if self.duties.capture => {
                self.write(&case, kind, held.as_ref(), &next).await?;
                Ok(Done::Wrote)
            }
            _ => Ok(Done::Quiet),
        }
    }

    async fn settle_live(&self, key: &Key, priority: Priority) -> Result<Done, Error> {
        let hot = self.cache.take_hot(key);
        let (node, held, from_watch) = if let Some(node) = hot {
            if let Some((case, restore)) = self.restore_by_recall(&node) {
                return self.restore(key, &case, &restore, None).await;
            }
            let held = self.record_of(&node, priority).await?;
            (node, held, true)
        } else {
            // The record is read before the node: the write is conditional on the record, so this
            // read of the node is the last one.
            let held = match self.cache.known_record(key) {
                Some(name) => self.cluster.read_record(&name, priority).await?,
                None => None,
            };
            let Some(node) = self.cluster.read_node(key, priority).await? else { return Ok(Done::Quiet) };
            (node, held, false)
        };

        let policies = self.policies.current();
        let Some(identity) = policies.identify(&node).filter(|_| !ignored(&node)) else { return Ok(Done::Quiet) };
        if held.as_ref().is_some_and(|held| held.name() != identity.record_name().0) {
            self.enqueue(self.cache.reconsider(&node));
            return Ok(Done::Again);
        }
        self.report_invalid_record(&node, held.as_ref());
        let rivals = self.rivals(&node, &identity, held.as_ref());
        let case = Case::live(node, held.as_ref().map(Held::share), rivals, &self.context(&policies));

        if !case.rivals().is_empty() && !case.has_newer_record() {
            self.report_conflict(&case);
        }
        match decide(&case) {
            Decision::Nothing(reason) => self.rest(key, &case, reason, held.as_ref()).await,
            Decision::WriteRecord(kind, next) if self.duties.capture => {
                if from_watch && !self.is_still(&case).await? {
                    return Ok(Done::Again);
                }
                self.capture(key, &case, kind, (held.as_ref(), &next)).await
            }
            Decision::PatchNode(_) if self.duties.restore => {
                let held = if from_watch { held } else { self.record_of(case.subject(), Priority::Restore).await? };
                let case = case.with_record(held.as_ref().map(Held::share), &self.context(&policies));
                let sequence = case.record().map(|record| record.sequence);
                match decide(&case) {
                    Decision::PatchNode(restore) => self.restore(key, &case, &restore, sequence).await,
                    _ => Ok(Done::Again),
                }
            }
            Decision::WriteRecord(..) | Decision::PatchNode(_) => Ok(Done::Quiet),
        }
    }

    /// Ends the work on a node that needs no write of its labels or its record.
    async fn rest(&self, key: &Key, case: &Case, reason: Reason, held: Option<&Held>) -> Result<Done, Error> {
        let node = case.subject();
        debug!(node = &**key, ?reason, "nothing to do");
        match reason {
            Reason::Absent | Reason::Ignored | Reason::Unidentified | Reason::Contested => return Ok(Done::Quiet),
            Reason::MachineUnknown => self.report_wait(&About::node(&node.name, &node.uid)),
            Reason::NoRecord | Reason::Current | Reason::Older if node.is_gated() => {
                self.ungate(node).await?;
                return Ok(Done::Wrote);
            }
            Reason::NewerRecord | Reason::NoRecord | Reason::Current | Reason::Older => {}
        }
        // The node exists: clear `absent-since`, also between two runs of garbage collection.
        let may_write = self.duties.capture && !self.duties.dry_run && reason != Reason::NewerRecord;
        if let Some(held) = held.filter(|held| held.is_noted_absent() && may_write) {
            self.note_absence(held, None).await?;
            return Ok(Done::Wrote);
        }
        self.cache.note_clean(key, node, held);
        Ok(Done::Quiet)
    }

    /// Writes the record of a live node.
    async fn capture(
        &self,
        key: &Key,
        case: &Case,
        kind: RecordWrite,
        (held, next): (Option<&Held>, &Record),
    ) -> Result<Done, Error> {
        let node = case.subject();
        let written = self.write(case, kind, held, next).await;
        if held.is_none()
            && let Err(error) = &written
            && error.category() == Category::Conflict
            && self.label_record(node).await?
        {
            return Ok(Done::Again);
        }
        written?;
        self.lock().captured.insert(Arc::clone(key), Instant::now());
        self.note_flap(key, node, held, next);
        self.report_withheld(node, held, next);
        Ok(Done::Wrote)
    }

    /// Returns the restore of a node whose predecessor's last state is cached, without reading the
    /// record.
    fn restore_by_recall(&self, node: &selection::Node) -> Option<(Case, Restore)> {
        if !self.duties.restore || node.is_gated() {
            return None;
        }
        let record = self.cache.recall(node)?;
        let stored = Arc::new(Stored::Good(Box::new(record)));
        let case = Case::live(node.clone(), Some(stored), Vec::new(), &self.context(&self.policies.current()));
        match decide(&case) {
            Decision::PatchNode(restore) if case.policy().identity == Identity::Name => Some((case, restore)),
            _ => None,
        }
    }

    pub(super) fn context<'a>(&'a self, policies: &'a PolicySet) -> CaseContext<'a> {
        CaseContext { policies, now: self.clock.now(), by: &self.identity }
    }

    async fn record_of(&self, node: &selection::Node, priority: Priority) -> Result<Option<Held>, Error> {
        match self.policies.current().identify(node) {
            Some(identity) => self.cluster.read_record(&identity.record_name(), priority).await,
            None => Ok(None),
        }
    }

    /// Restores the label of a record that lost it: the watch does not deliver records without it.
    /// Returns whether that was the case.
    async fn label_record(&self, node: &selection::Node) -> Result<bool, Error> {
        let Some(held) = self.record_of(node, Priority::Capture).await?.filter(|held| !held.is_labelled()) else {
            return Ok(false);
        };
        warn!(node = node.name, record = held.name(), "record without its label found; the label is restored");
        let labelled = self.cluster.label_record(&held).await?;
        self.learn_record(&labelled);
        Ok(true)
    }

    /// Reads the node again. Returns whether the decision about it still holds.
    async fn is_still(&self, case: &Case) -> Result<bool, Error> {
        let Some(now) = self.cluster.read_node(&case.subject().name, Priority::Capture).await? else {
            return Ok(false);
        };
        let same = case.is_same_in(&now);
        if !same {
            self.learn_node(&now);
        }
        Ok(same)
    }

    async fn write(&self, case: &Case, kind: RecordWrite, held: Option<&Held>, next: &Record) -> Result<(), Error> {
        let node = &case.subject().name;
        if self.duties.dry_run {
            info!(node, act = kind.as_str(), sequence = next.sequence, "would write the record");
            return Ok(());
        }
        let priority = if case.phase() == Phase::Gone { Priority::LastState } else { Priority::Capture };
        let written = self.cluster.write_record(held, next, priority).await?;
        info!(node, act = kind.as_str(), sequence = next.sequence, labels = next.kept.len(), "record written");
        if kind == RecordWrite::Capture {
            self.metrics.captured(Via::Watch);
        }
        self.learn_record(&written);
        Ok(())
    }

    async fn restore(&self, key: &Key, case: &Case, restore: &Restore, sequence: Option<u64>) -> Result<Done, Error> {
        let node = case.subject();
        let (set, removed, withheld) = (restore.set.len(), restore.remove.len(), restore.withheld.len());
        if self.duties.dry_run {
            info!(node = node.name, set, removed, withheld, "would restore the node");
            return Ok(Done::Quiet);
        }
        // Read before the patch: the watch may deliver the restored node before the response
        // arrives.
        let waits_since = self.cache.waits_since(key);
        let patched = self.cluster.patch_node(node, restore).await?;
        info!(node = node.name, set, removed, withheld, sequence, "node restored");
        self.metrics.restored(Via::Watch, set);
        if let Some(since) = waits_since {
            self.metrics.restore_took(since.elapsed());
        }
        let about = About::node(&node.name, &node.uid);
        if set + removed > 0 {
            self.events.occurred(about.clone(), Severity::Normal, "Restored", || summary(restore));
        }
        if restore.waits {
            self.report_wait(&about);
        }
        self.learn_node(&patched);
        Ok(Done::Wrote)
    }

    fn report_wait(&self, about: &About) {
        self.events.occurred(about.clone(), Severity::Normal, "RestoreWaits", || {
            "protected labels are restored once the node reports its providerID, systemUUID and machineID".to_owned()
        });
    }

    /// Reports protected keys that stay with another machine when a node takes over its record.
    fn report_withheld(&self, node: &selection::Node, held: Option<&Held>, next: &Record) {
        let Some(Stored::Good(before)) = held.map(Held::stored) else { return };
        let refused: Vec<String> = next
            .withheld
            .iter()
            .filter(|entry| !before.withheld.contains(entry))
            .flat_map(|entry| Kept::from(entry.content.clone()).into_keys())
            .map(|key| key.to_string())
            .collect();
        if refused.is_empty() || self.duties.dry_run {
            return;
        }
        self.metrics.protected_keys_withheld(refused.len());
        warn!(node = node.name, keys = refused.join(", "), "protected keys belong to another machine; not restored");
        self.events.occurred(About::node(&node.name, &node.uid), Severity::Warning, "Withheld", || {
            format!("not restored, since they belong to another machine: {}", refused.join(", "))
        });
    }

    /// Reports a quarantined record in the log and as an Event.
    pub(super) fn report_invalid_record(&self, node: &selection::Node, held: Option<&Held>) {
        let Some((held, fault)) = held.and_then(|held| Some((held, held.stored().fault()?))) else { return };
        warn!(node = node.name, record = held.name(), error = %fault, "record quarantined; its bytes are kept");
        self.events.occurred(About::node(&node.name, &node.uid), Severity::Warning, "RecordInvalid", || {
            format!(
                "record {} cannot be trusted: {fault}. Its bytes are kept; nothing is restored from it",
                held.name()
            )
        });
    }

    /// Reports that several live nodes have one identity.
    fn report_conflict(&self, case: &Case) {
        let node = case.subject();
        self.events.occurred(About::node(&node.name, &node.uid), Severity::Warning, "IdentityConflict", || {
            format!(
                "{} is also the identity of {}: nothing is restored until only one of them has it",
                case.identity().and_then(Identified::text).unwrap_or_default(),
                case.rival_names()
            )
        });
    }

    /// Returns the other live nodes with the same identity.
    pub(super) fn rivals(&self, node: &selection::Node, identity: &Identified, held: Option<&Held>) -> Vec<Rival> {
        let record = held.and_then(|held| held.stored().record_for(node));
        let uid = record.as_ref().map(|record| record.node.uid.as_str());
        self.cache.rivals(&identity.record_name(), uid, &node.name)
    }

    /// Removes the gate taint from a node that is settled, or has been gated for too long.
    pub(super) async fn ungate(&self, node: &selection::Node) -> Result<(), Error> {
        if self.duties.dry_run {
            info!(node = node.name, "would remove the gate taint");
            return Ok(());
        }
        let patched = self.cluster.ungate_node(node).await?;
        info!(node = node.name, "gate taint removed");
        self.learn_node(&patched);
        Ok(())
    }
}

/// Returns the message of the Event of a restore.
fn summary(restore: &Restore) -> String {
    let list = |keys: Vec<String>| {
        let more = keys.len().saturating_sub(10);
        let shown = keys.into_iter().take(10).collect::<Vec<_>>().join(", ");
        if more > 0 { format!("{shown} and {more} more") } else { shown }
    };
    let mut parts = Vec::new();
    if !restore.set.is_empty() {
        parts.push(format!("gave back {}", list(restore.set.keys().map(ToString::to_string).collect())));
    }
    if !restore.remove.is_empty() {
        parts.push(format!("removed {}", list(restore.remove.iter().map(ToString::to_string).collect())));
    }
    parts.join("; ")
}
