//! What is done about one node: look at it and its record, let the plan decide, do what it says.

use std::sync::Arc;

use perennial_core::{
    config::Identity,
    keeper::{
        claims,
        identity::{Identified, RecordName},
        keys::Kept,
        plan::{Act, Context, Plan, Restore, Why, gone, live},
        record::Record,
        selection::{self, Policy, ignored},
        stored_record::Stored,
    },
};
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::{
    Key, Priority, Work,
    apply::{Error, Held},
    controller::{Done, Keeper},
    index::NodeEntry,
};
use crate::runtime::{
    error_category::Category,
    events::{About, Severity},
    labels::{Via, ViaLabels},
};

impl Keeper {
    pub(super) async fn settle(&self, work: &Work) -> Result<Done, Error> {
        let mut wrote = self.settle_all_last(&work.key).await?;
        // Whoever it is may have left under another name, which is ours to work on or somebody else's.
        let left = self.lock().view.left_as(&work.key);
        if let Some(left) = left.filter(|left| self.ownership.may_act(left).is_some()) {
            wrote |= self.settle_all_last(&left).await?;
        }
        // What is not in memory is not there; what comes will be told.
        if self.lock().view.index.node(&work.key).is_none() {
            return Ok(if wrote { Done::Wrote } else { Done::Quiet });
        }
        match self.settle_live(&work.key, work.priority).await? {
            Done::Quiet if wrote => Ok(Done::Wrote),
            done => Ok(done),
        }
    }

    /// Writes the last states of a name, in order. Whether anything was written.
    async fn settle_all_last(&self, key: &Key) -> Result<bool, Error> {
        let mut wrote = false;
        loop {
            let next = self.lock().view.next_last(key);
            let Some(last) = next else { return Ok(wrote) };
            wrote |= matches!(self.settle_last(&last).await?, Done::Wrote);
            self.lock().view.done_last(key, &last.uid);
        }
    }

    /// Writes the last state of a node that is gone, where the record does not have it.
    async fn settle_last(&self, node: &selection::Node) -> Result<Done, Error> {
        let policy = self.policies.of(node);
        let Some(identity) = Identified::of(&policy.identity, node).filter(|_| !ignored(node)) else {
            return Ok(Done::Quiet);
        };
        let held = self.cluster.read_record(&identity.record_name(), Priority::LastState).await?;
        if self.is_unreadable(node, held.as_ref()) {
            return Ok(Done::Quiet);
        }
        let (policy, record) = self.informed(node, held.as_ref());
        let held_by_another = |uid: &str| self.other_holder(node, &identity, uid).is_some();
        if claims::refuses_last(&node.uid, record.as_ref(), held_by_another) {
            return Ok(Done::Quiet);
        }
        let seen = policy.select(node);
        match gone(&seen, record.as_ref(), &self.context(&policy, Some(&identity))) {
            Plan::Write(act, next) if self.duties.capture => {
                self.write(node, act, held.as_ref(), &next, Priority::LastState).await?;
                Ok(Done::Wrote)
            }
            _ => Ok(Done::Quiet),
        }
    }

    async fn settle_live(&self, key: &Key, priority: Priority) -> Result<Done, Error> {
        let hot = self.lock().view.take_hot(key);
        let (node, held, from_watch) = if let Some(node) = hot {
            if let Some(restore) = self.restore_by_recall(&node) {
                return self.restore(key, &node, &restore, None).await;
            }
            let held = self.record_of(&node, priority).await?;
            (node, held, true)
        } else {
            // The record before the node: the write is conditional on the record, so this look at the node is the last.
            let known = self.known_record(key);
            let held = match known {
                Some(name) => self.cluster.read_record(&name, priority).await?,
                None => None,
            };
            let Some(node) = self.cluster.read_node(key, priority).await? else { return Ok(Done::Quiet) };
            (node, held, false)
        };

        let policy = self.policies.of(&node);
        let Some(identity) = Identified::of(&policy.identity, &node).filter(|_| !ignored(&node)) else {
            return Ok(Done::Quiet);
        };
        if held.as_ref().is_some_and(|held| held.name() != identity.record_name().0) {
            let asks = self.lock().view.reconsider(&node, &self.policies);
            self.ask(asks);
            return Ok(Done::Again);
        }
        if self.is_unreadable(&node, held.as_ref()) {
            self.note_clean(key, &node, held.as_ref());
            return Ok(Done::Quiet);
        }
        let (policy, _) = self.informed(&node, held.as_ref());
        if self.is_contested(key, &node, &identity, held.as_ref()) {
            return Ok(Done::Quiet);
        }

        match self.plan(&node, &policy, &identity, held.as_ref()) {
            Plan::Nothing(why) => {
                debug!(node = &**key, ?why, "nothing to do");
                if why == Why::MachineUnknown {
                    self.say_waits(&About::node(&node.name, &node.uid));
                }
                if node.is_gated() && why != Why::MachineUnknown {
                    self.ungate(&node).await?;
                    return Ok(Done::Wrote);
                }
                // A node that is seen is not absent, also between two audits.
                let may_write = self.duties.capture && !self.duties.dry_run;
                if let Some(held) = held.as_ref().filter(|held| held.is_noted_absent() && may_write) {
                    self.note_absence(held, None).await?;
                    return Ok(Done::Wrote);
                }
                self.note_clean(key, &node, held.as_ref());
                Ok(Done::Quiet)
            }
            Plan::Write(act, next) if self.duties.capture => {
                if from_watch && !self.is_still(&node, &policy).await? {
                    return Ok(Done::Again);
                }
                let written = self.write(&node, act, held.as_ref(), &next, Priority::Capture).await;
                if held.is_none()
                    && let Err(error) = &written
                    && error.category() == Category::Conflict
                    && self.label_record(&node).await?
                {
                    return Ok(Done::Again);
                }
                written?;
                self.lock().captured.insert(Arc::clone(key), Instant::now());
                self.note_flap(key, &node, held.as_ref(), &next);
                self.note_refusals(&node, held.as_ref(), &next);
                Ok(Done::Wrote)
            }
            Plan::Restore(_) if self.duties.restore => {
                let held = if from_watch { held } else { self.record_of(&node, Priority::Restore).await? };
                match self.plan(&node, &policy, &identity, held.as_ref()) {
                    Plan::Restore(restore) => self.restore(key, &node, &restore, held.as_ref()).await,
                    _ => Ok(Done::Again),
                }
            }
            Plan::Write(..) | Plan::Restore(_) => Ok(Done::Quiet),
        }
    }

    /// What a node is given where its predecessor's last state says it, without reading the record.
    fn restore_by_recall(&self, node: &selection::Node) -> Option<Restore> {
        if !self.duties.restore || ignored(node) || node.is_gated() {
            return None;
        }
        let record = self.lock().view.recall(node, &self.policies)?;
        let policy = self.policies.with_record(node, Some(&record));
        match live(&policy.select(node), Some(&record), &self.context(&policy, None)) {
            Plan::Restore(restore) if policy.identity == Identity::Name => Some(restore),
            _ => None,
        }
    }

    /// The policy for a node, its record known, and the record to decide on.
    pub(super) fn informed(&self, node: &selection::Node, held: Option<&Held>) -> (Arc<Policy>, Option<Record>) {
        let plain = self.policies.of(node);
        let record = held.and_then(|held| held.stored.effective(&plain.select(node)));
        (self.policies.with_record(node, record.as_ref()), record)
    }

    fn plan(&self, node: &selection::Node, policy: &Policy, identity: &Identified, held: Option<&Held>) -> Plan {
        let seen = policy.select(node);
        let record = held.and_then(|held| held.stored.effective(&seen));
        live(&seen, record.as_ref(), &self.context(policy, Some(identity)))
    }

    pub(super) fn context<'a>(&'a self, policy: &'a Policy, identity: Option<&Identified>) -> Context<'a> {
        Context { policy, identity: identity.and_then(Identified::text), now: self.clock.now(), by: &self.identity }
    }

    fn known_record(&self, key: &Key) -> Option<RecordName> {
        let state = self.lock();
        let name = state.view.index.node(key)?.record.clone()?;
        state.view.index.record(&name)?;
        Some(RecordName(name.to_string()))
    }

    async fn record_of(&self, node: &selection::Node, priority: Priority) -> Result<Option<Held>, Error> {
        match Identified::of(&self.policies.of(node).identity, node) {
            Some(identity) => self.cluster.read_record(&identity.record_name(), priority).await,
            None => Ok(None),
        }
    }

    /// A record that lost its label is one that no watch tells of: it is given it again. False where that is not so.
    async fn label_record(&self, node: &selection::Node) -> Result<bool, Error> {
        let Some(held) = self.record_of(node, Priority::Capture).await?.filter(|held| !held.is_labelled()) else {
            return Ok(false);
        };
        warn!(node = node.name, record = held.name(), "the record had lost its label; it has it again");
        let labelled = self.cluster.label_record(&held).await?;
        self.learn_record(&labelled);
        Ok(true)
    }

    /// Whether the node is what it was when it was decided on.
    async fn is_still(&self, node: &selection::Node, policy: &Policy) -> Result<bool, Error> {
        let Some(now) = self.cluster.read_node(&node.name, Priority::Capture).await? else { return Ok(false) };
        let (then, seen) = (policy.select(node), policy.select(&now));
        let same = (then.uid, then.kept, then.mark, then.machine) == (seen.uid, seen.kept, seen.mark, seen.machine);
        if !same {
            self.learn_node(&now);
        }
        Ok(same)
    }

    async fn write(
        &self,
        node: &selection::Node,
        act: Act,
        held: Option<&Held>,
        next: &Record,
        priority: Priority,
    ) -> Result<(), Error> {
        if self.duties.dry_run {
            info!(node = node.name, act = act.as_str(), sequence = next.sequence, "would write the record");
            return Ok(());
        }
        let written = self.cluster.write_record(held, next, priority).await?;
        info!(
            node = node.name,
            act = act.as_str(),
            sequence = next.sequence,
            labels = next.kept.len(),
            "record written"
        );
        if act == Act::Capture {
            self.metrics.captures.get_or_create(&ViaLabels { via: Via::Watch }).inc();
        }
        self.learn_record(&written);
        Ok(())
    }

    async fn restore(
        &self,
        key: &Key,
        node: &selection::Node,
        restore: &Restore,
        held: Option<&Held>,
    ) -> Result<Done, Error> {
        let (set, removed, withheld) = (restore.set.len(), restore.remove.len(), restore.withheld.len());
        if self.duties.dry_run {
            info!(node = node.name, set, removed, withheld, "would restore the node");
            return Ok(Done::Quiet);
        }
        // Asked before: the watch may tell of the restored node sooner than the answer comes.
        let waits_since = self.lock().view.waits_since(key);
        let patched = self.cluster.patch_node(node, restore).await?;
        let sequence =
            held.and_then(|held| held.stored.effective(&self.policies.of(node).select(node))).map(|r| r.sequence);
        info!(node = node.name, set, removed, withheld, sequence, "node restored");
        self.metrics.restores.get_or_create(&ViaLabels { via: Via::Watch }).inc();
        self.metrics.labels_restored.inc_by(set as u64);
        if let Some(since) = waits_since {
            self.metrics.restore_latency.observe(since.elapsed().as_secs_f64());
        }
        let about = About::node(&node.name, &node.uid);
        if set + removed > 0 {
            self.events.say(about.clone(), Severity::Normal, "Restored", || said(restore));
        }
        if restore.waits {
            self.say_waits(&about);
        }
        self.learn_node(&patched);
        Ok(Done::Wrote)
    }

    fn say_waits(&self, about: &About) {
        self.events.say(about.clone(), Severity::Normal, "RestoreWaits", || {
            "protected labels wait until the node says which machine it is".to_owned()
        });
    }

    /// Another machine took a record over: what was protected in it stays for its own machine, and that is said.
    fn note_refusals(&self, node: &selection::Node, held: Option<&Held>, next: &Record) {
        let Some(Stored::Good(before)) = held.map(|held| &held.stored) else { return };
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
        self.metrics.protected_refusals.inc_by(refused.len() as u64);
        warn!(node = node.name, keys = refused.join(", "), "protected keys belong to another machine: not given");
        self.events.say(About::node(&node.name, &node.uid), Severity::Warning, "Withheld", || {
            format!("not given, since they belong to another machine: {}", refused.join(", "))
        });
    }

    /// A record that cannot be trusted is said so. One of a newer operator is left alone altogether.
    pub(super) fn is_unreadable(&self, node: &selection::Node, held: Option<&Held>) -> bool {
        let Some((held, fault)) = held.and_then(|held| Some((held, held.stored.fault()?))) else { return false };
        warn!(node = node.name, record = held.name(), why = %fault, "the record cannot be trusted; its bytes are kept");
        self.events.say(About::node(&node.name, &node.uid), Severity::Warning, "RecordInvalid", || {
            format!(
                "record {} cannot be trusted: {fault}. Its bytes are kept; nothing is restored from it",
                held.name()
            )
        });
        fault.is_newer()
    }

    /// Two live nodes of one identity: nobody is given anything, only the record's own node is still captured.
    fn is_contested(&self, key: &Key, node: &selection::Node, identity: &Identified, held: Option<&Held>) -> bool {
        let others = self.other_claimants(identity, key);
        if others.is_empty() {
            return false;
        }
        let seen = self.policies.of(node).select(node);
        let record = held.and_then(|held| held.stored.effective(&seen));
        self.events.say(About::node(&node.name, &node.uid), Severity::Warning, "IdentityConflict", || {
            format!(
                "{} is claimed by {} as well: nothing is restored",
                identity.text().unwrap_or_default(),
                others.join(", ")
            )
        });
        claims::refuses(&node.uid, record.as_ref(), others.len())
    }

    /// Another node that claims this identity and that the record, taken from the node with this UID, is of.
    pub(super) fn other_holder(&self, node: &selection::Node, identity: &Identified, uid: &str) -> Option<Key> {
        self.lock().view.index.holder(&identity.record_name().0, uid, &node.name).cloned()
    }

    fn other_claimants(&self, identity: &Identified, name: &str) -> Vec<Key> {
        let state = self.lock();
        state.view.index.claimants(&identity.record_name().0).filter(|other| ***other != *name).cloned().collect()
    }

    pub(super) fn has_claimants(&self, identity: &Identified, name: &str) -> bool {
        !self.other_claimants(identity, name).is_empty()
    }

    fn note_clean(&self, key: &Key, node: &selection::Node, held: Option<&Held>) {
        let entry = NodeEntry::new(node, &self.policies.of(node));
        let mut state = self.lock();
        state.view.index.note_clean(key, &entry, held.map(Held::resource_version));
        state.view.stop_waiting(key);
    }

    /// Takes our taint from a node that has everything, or has waited too long.
    pub(super) async fn ungate(&self, node: &selection::Node) -> Result<(), Error> {
        if self.duties.dry_run {
            info!(node = node.name, "would take the taint off");
            return Ok(());
        }
        let patched = self.cluster.ungate_node(node).await?;
        info!(node = node.name, "taint taken off");
        self.learn_node(&patched);
        Ok(())
    }
}

fn said(restore: &Restore) -> String {
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
