//! The keeper's loop: what the watches say becomes work, the pure plan says what to do, [`apply`](super::apply) does it.
//!
//! # Guarantees
//! A pending last state is written before anything is done about its successor. A node is captured only after one more
//! look at it; a node is restored only from a record that was read after it. Failures delay the node that they are
//! about, and no other.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Client, runtime::watcher::Event};
use perennial_core::config::Gate;
use perennial_core::keeper::{
    identity::{Identified, RecordName},
    kept::Kept,
    plan::{Act, Context, Plan, Restore, Why, gone, live},
    record::Record,
    selection::{self, Policy, ignored},
    stored::Stored,
};
use tokio::{sync::Notify, time::Instant};
use tracing::{debug, info, warn};

use super::{
    apply::{Cluster, Error, Held},
    index::{NodeEntry, Survey},
    node::Node,
    observe::{Asks, View},
    policies::{self, Policies},
};
use crate::runtime::{
    budget::Priority,
    clock::Clock,
    events::{About, Events, Severity},
    fault::Category,
    labels::{NodeLabels, NodeState, Outcome, QueueLabels, RecordLabels, RecordState, Via, ViaLabels},
    metrics::Metrics,
    ownership::Ownership,
    queue::{Key, Queue, Work},
    random::Jitter,
};

const CONTROLLER: &str = "keeper";
const QUEUE: QueueLabels = QueueLabels { name: "keeper" };
/// Captures of one node are at least so far apart: a burst of changes costs its first and its last state.
const CAPTURE_PAUSE: Duration = Duration::from_secs(1);
/// From so many changes back and forth on, a node is captured less often.
const FLAPS: u32 = 3;
const FLAP_MEMORY: Duration = Duration::from_mins(5);
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_mins(1);
/// What is refused is tried again after this: the reason may be gone.
const REFUSED_PAUSE: Duration = Duration::from_mins(5);

/// What the keeper may do in this process.
#[derive(Clone, Copy, Debug)]
pub struct Duties {
    pub capture: bool,
    pub restore: bool,
    /// Say what would be done, and do nothing.
    pub dry_run: bool,
}

/// Everything that the keeper works with. All of it is passed in.
#[expect(missing_debug_implementations, reason = "kube's client has none")]
pub struct Keeper {
    pub client: Client,
    pub cluster: Cluster,
    pub policies: Policies,
    pub queue: Queue,
    pub clock: Clock,
    pub jitter: Jitter,
    pub metrics: Metrics,
    pub events: Events,
    pub duties: Duties,
    /// The way in for admission: with a budget of its own, since the API server waits for it.
    pub admission: Cluster,
    /// Below the deadline of the admission server, which is below the timeout of the webhook.
    pub admission_deadline: Duration,
    /// Which nodes are ours to work on.
    pub ownership: Ownership,
    pub gate: Gate,
    pub gate_timeout: Duration,
    /// Who we are, in records.
    pub identity: String,
    /// Told when the policies in force change.
    pub replan: Notify,
    pub state: Mutex<State>,
}

/// What the keeper has in memory.
#[derive(Debug, Default)]
pub struct State {
    pub view: View,
    attempts: HashMap<Key, u32>,
    captured: HashMap<Key, Instant>,
    /// How often a node's labels went back and forth of late, and when last.
    flaps: HashMap<Key, (u32, Instant)>,
}

/// What came of looking at a node.
enum Done {
    /// It needs nothing.
    Quiet,
    /// Something was written.
    Wrote,
    /// Things changed meanwhile: look again.
    Again,
    /// Look again after a pause.
    Later(Duration),
}

impl Keeper {
    pub fn on_node(&self, event: Event<Node>) {
        let asks = self.lock().view.on_node(event, &self.policies);
        self.ask(asks);
    }

    pub fn on_record(&self, event: Event<ConfigMap>) {
        let asks = self.lock().view.on_record(event);
        self.ask(asks);
    }

    pub fn on_policy(&self, event: Event<policies::Resource>) {
        if self.policies.on_event(event) {
            self.on_policies();
        }
    }

    /// The policies in force are known, or have changed.
    pub fn on_policies(&self) {
        self.replan.notify_one();
    }

    /// Looks at every node afresh whenever the policies in force change; only those that a policy touches are worked on.
    pub async fn follow_policies(&self) {
        loop {
            self.replan.notified().await;
            if let Err(error) = self.replan_all().await {
                warn!(category = error.category().as_str(), "the change of policies is not through yet: {error}");
                tokio::time::sleep(self.jitter.backoff(3, FIRST_PAUSE, LONGEST_PAUSE)).await;
                self.replan.notify_one();
            }
        }
    }

    async fn replan_all(&self) -> Result<(), Error> {
        let known = self.lock().view.policies_known;
        // Records move before anything is decided under a new identity.
        if self.policies.identities_differ() || self.lock().view.index.has_other_identities() {
            self.migrate().await?;
        }
        if known || self.policies.has_any() {
            self.each_node(|node| {
                let asks = self.lock().view.reconsider(node, &self.policies);
                self.ask(asks);
            })
            .await?;
        }
        self.lock().view.policies_known = true;
        self.resync();
        Ok(())
    }

    pub fn is_synced(&self) -> bool {
        self.lock().view.is_synced()
    }

    /// Compares nodes and records in memory. Costs no request.
    pub fn resync(&self) {
        let asks = self.lock().view.everything();
        debug!(nodes = asks.len(), "resync");
        self.ask(asks);
    }

    pub(super) fn ask(&self, asks: Asks) {
        for (key, priority) in asks {
            if !self.ownership.is_ours(self.ownership.shard_of(&key)) {
                self.lock().view.take_hot(&key);
                continue;
            }
            self.metrics.queue_adds.get_or_create(&QUEUE).inc();
            let pause = if priority == Priority::Capture { self.capture_pause(&key) } else { Duration::ZERO };
            self.queue.add_after(&key, priority, pause);
        }
    }

    fn capture_pause(&self, key: &Key) -> Duration {
        let state = self.lock();
        let flaps = state.flaps.get(key).map_or(0, |(count, _)| *count);
        let pause = if flaps < FLAPS { CAPTURE_PAUSE } else { CAPTURE_PAUSE * 2u32.pow((flaps - FLAPS + 2).min(6)) };
        state.captured.get(key).map_or(Duration::ZERO, |at| pause.saturating_sub(at.elapsed()))
    }

    /// Works until the queue is closed.
    pub async fn work(self: Arc<Self>) {
        while let Some(work) = self.queue.next().await {
            self.metrics.queue_duration.get_or_create(&QUEUE).observe(work.waited.as_secs_f64());
            let start = Instant::now();
            // Another replica's by now: it has seen the same events.
            let Some(permit) = self.ownership.may_act(&work.key) else { continue };
            let done = match tokio::time::timeout(permit.remaining(), self.settle(&work)).await {
                Ok(done) => done,
                Err(_) => Ok(Done::Again),
            };
            drop(permit);
            let outcome = self.conclude(&work, done);
            self.metrics.queue_work_duration.get_or_create(&QUEUE).observe(start.elapsed().as_secs_f64());
            self.metrics.reconciled(CONTROLLER, outcome, start.elapsed());
        }
    }

    /// Decides when to look again.
    fn conclude(&self, work: &Work, done: Result<Done, Error>) -> Outcome {
        let key = &work.key;
        match done {
            Ok(Done::Quiet | Done::Wrote) => {
                self.lock().attempts.remove(key);
                Outcome::Success
            }
            Ok(Done::Again) => {
                self.queue.add(key, work.priority);
                Outcome::Requeue
            }
            Ok(Done::Later(pause)) => {
                self.queue.add_after(key, work.priority, pause);
                Outcome::RequeueAfter
            }
            Err(error) => {
                let attempt = {
                    let mut state = self.lock();
                    let attempt = state.attempts.entry(Arc::clone(key)).or_default();
                    *attempt = attempt.saturating_add(1);
                    *attempt - 1
                };
                let pause = self.pause_after(&error, attempt);
                self.report(key, &error, attempt, pause);
                self.metrics.queue_retries.get_or_create(&QUEUE).inc();
                self.queue.add_after(key, work.priority, pause);
                if error.category() == Category::Conflict { Outcome::Requeue } else { Outcome::Error }
            }
        }
    }

    fn pause_after(&self, error: &Error, attempt: u32) -> Duration {
        let backoff = self.jitter.backoff(attempt, FIRST_PAUSE, LONGEST_PAUSE);
        match error.category() {
            // Somebody was faster: look again at once, unless that goes on.
            Category::Conflict if attempt < 3 => Duration::ZERO,
            Category::Throttled => error.retry_after().unwrap_or(backoff).max(backoff),
            Category::Refused | Category::Forbidden => REFUSED_PAUSE.mul_f64(0.9 + self.jitter.fraction() / 5.0),
            _ => backoff,
        }
    }

    fn report(&self, node: &str, error: &Error, attempt: u32, pause: Duration) {
        let category = error.category();
        self.metrics.failed(category.as_str());
        let why = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
        let (category, retry_in) = (category.as_str(), pause.as_secs_f32());
        match error.missing_permission() {
            Some(missing) => warn!(node, category, missing, why, retry_in, "{error}: a permission is missing"),
            None if error.category() == Category::Conflict => debug!(node, category, why, retry_in, "{error}"),
            None => warn!(node, category, attempt, why, retry_in, "{error}"),
        }
        if error.category() == Category::Refused {
            let about = About::node(node, "");
            self.events.say(about, Severity::Warning, "PerennialRefused", || format!("{error}: {why}"));
        }
    }

    async fn settle(&self, work: &Work) -> Result<Done, Error> {
        let mut wrote = false;
        loop {
            let next = self.lock().view.next_last(&work.key);
            let Some(last) = next else { break };
            if let Done::Later(pause) = self.settle_last(&last).await? {
                return Ok(Done::Later(pause));
            }
            self.lock().view.done_last(&work.key, &last.uid);
            wrote = true;
        }
        match self.settle_live(&work.key, work.priority).await? {
            Done::Quiet if wrote => Ok(Done::Wrote),
            done => Ok(done),
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
            let asks = self.lock().view.put_node(node, &self.policies);
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
                    self.events.say(About::node(&node.name, &node.uid), Severity::Normal, "RestoreWaits", || {
                        "protected labels wait until the node says which machine it is".to_owned()
                    });
                }
                if node.is_gated() && why != Why::MachineUnknown {
                    self.ungate(&node).await?;
                    return Ok(Done::Wrote);
                }
                self.note_clean(key, &node, held.as_ref());
                Ok(Done::Quiet)
            }
            Plan::Write(act, next) if self.duties.capture => {
                if from_watch && !self.is_still(&node, &policy).await? {
                    return Ok(Done::Again);
                }
                self.write(&node, act, held.as_ref(), &next, Priority::Capture).await?;
                self.lock().captured.insert(Arc::clone(key), Instant::now());
                self.note_flap(key, &node, held.as_ref(), &next);
                self.note_refusal(&node, held.as_ref(), &next);
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

    /// Whether the node is what it was when it was decided on.
    async fn is_still(&self, node: &selection::Node, policy: &Policy) -> Result<bool, Error> {
        let Some(now) = self.cluster.read_node(&node.name, Priority::Capture).await? else { return Ok(false) };
        let (then, seen) = (policy.select(node), policy.select(&now));
        let same = (then.uid, then.kept, then.mark, then.machine) == (seen.uid, seen.kept, seen.mark, seen.machine);
        if !same {
            let asks = self.lock().view.put_node(now, &self.policies);
            self.ask(asks);
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
        let asks = self.lock().view.put_record(&written);
        self.ask(asks);
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
        let patched = self.cluster.patch_node(node, restore).await?;
        let waited = {
            let mut state = self.lock();
            let waited = state.view.restored(key);
            drop(state);
            waited
        };
        let sequence =
            held.and_then(|held| held.stored.effective(&self.policies.of(node).select(node))).map(|r| r.sequence);
        info!(node = node.name, set, removed, withheld, sequence, "node restored");
        self.metrics.restores.get_or_create(&ViaLabels { via: Via::Watch }).inc();
        self.metrics.labels_restored.inc_by(set as u64);
        if let Some(waited) = waited {
            self.metrics.restore_latency.observe(waited.as_secs_f64());
        }
        let about = About::node(&node.name, &node.uid);
        if set + removed > 0 {
            self.events.say(about, Severity::Normal, "Restored", || said(restore));
        }
        let asks = self.lock().view.put_node(patched, &self.policies);
        self.ask(asks);
        Ok(Done::Wrote)
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
        let owner =
            held.and_then(|held| held.stored.effective(&seen)).is_some_and(|record| record.node.uid == node.uid);
        self.events.say(About::node(&node.name, &node.uid), Severity::Warning, "IdentityConflict", || {
            format!(
                "{} is claimed by {} as well: nothing is restored",
                identity.text().unwrap_or_default(),
                others.join(", ")
            )
        });
        !owner
    }

    /// Another machine took the record over: what it was not given is said once, however the rest of it was given.
    fn note_refusal(&self, node: &selection::Node, held: Option<&Held>, next: &Record) {
        let Some(before) = held.and_then(|held| held.stored.effective(&self.policies.of(node).select(node))) else {
            return;
        };
        let Some(withheld) = next.withheld.first() else { return };
        if self.duties.dry_run || withheld.machine != before.node.machine || before.node.machine == next.node.machine {
            return;
        }
        let keys: Vec<String> = Kept::from(withheld.content.clone()).keys().map(ToString::to_string).collect();
        self.metrics.protected_refusals.inc_by(keys.len() as u64);
        self.events.say(About::node(&node.name, &node.uid), Severity::Warning, "Withheld", || {
            format!("not given, since they belong to another machine: {}", keys.join(", "))
        });
    }

    /// Something keeps setting labels back and forth: it is said once, captured ever more seldom, and never fought.
    fn note_flap(&self, key: &Key, node: &selection::Node, held: Option<&Held>, next: &Record) {
        let Some(Stored::Good(before)) = held.map(|held| &held.stored) else { return };
        let back = before.kept != next.kept
            && before.history.first().is_some_and(|entry| Kept::from(entry.content.clone()) == next.kept);
        if !back {
            return;
        }
        let count = {
            let mut state = self.lock();
            let flap = state.flaps.entry(Arc::clone(key)).or_insert((0, Instant::now()));
            *flap = (if flap.1.elapsed() < FLAP_MEMORY { flap.0 + 1 } else { 1 }, Instant::now());
            flap.0
        };
        self.metrics.label_flaps.inc();
        if count == FLAPS {
            warn!(node = node.name, "its labels go back and forth; it is captured less often");
            self.events.say(About::node(&node.name, &node.uid), Severity::Warning, "LabelsFlap", || {
                let changed =
                    next.kept.keys().chain(before.kept.keys()).filter(|k| next.kept.get(*k) != before.kept.get(*k));
                let keys: std::collections::BTreeSet<String> = changed.map(ToString::to_string).collect();
                format!("something sets {} back and forth", keys.into_iter().collect::<Vec<_>>().join(", "))
            });
        }
    }

    fn other_claimants(&self, identity: &Identified, name: &str) -> Vec<Key> {
        let state = self.lock();
        state.view.index.claimants(&identity.record_name().0).filter(|other| ***other != *name).cloned().collect()
    }

    pub(super) fn has_claimants(&self, identity: &Identified, name: &str) -> bool {
        !self.other_claimants(identity, name).is_empty()
    }

    /// Takes our taint from a node that has everything, or has waited too long.
    async fn ungate(&self, node: &selection::Node) -> Result<(), Error> {
        if self.duties.dry_run {
            info!(node = node.name, "would take the taint off");
            return Ok(());
        }
        let patched = self.cluster.ungate_node(node).await?;
        info!(node = node.name, "taint taken off");
        let asks = self.lock().view.put_node(patched, &self.policies);
        self.ask(asks);
        Ok(())
    }

    /// Frees nodes that have waited too long, whosever they are: no node of ours may stay closed because its owner is away.
    pub async fn free_overdue(&self) {
        let overdue = self.lock().view.overdue(self.gate_timeout);
        for name in overdue {
            let freed = async {
                match self.cluster.read_node(&name, Priority::Restore).await? {
                    Some(node) if node.is_gated() => self.ungate(&node).await,
                    _ => Ok(()),
                }
            };
            if let Err(error) = freed.await {
                self.report(&name, &error, 0, Duration::ZERO);
            }
        }
    }

    fn note_clean(&self, key: &Key, node: &selection::Node, held: Option<&Held>) {
        let entry = NodeEntry::new(node, &self.policies.of(node));
        let mut state = self.lock();
        state.view.index.note_clean(key, &entry, held.map(Held::resource_version));
        state.view.restored(key);
    }

    /// Brings the gauges up to date.
    pub fn survey(&self) -> Survey {
        let survey = {
            let mut state = self.lock();
            state.view.expire();
            state.flaps.retain(|_, (_, at)| at.elapsed() < FLAP_MEMORY);
            state.captured.retain(|_, at| at.elapsed() < FLAP_MEMORY);
            state.view.index.survey()
        };
        let count = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        let node = |state| self.metrics.nodes.get_or_create_owned(&NodeLabels { state });
        node(NodeState::Settled).set(count(survey.current + survey.to_capture));
        node(NodeState::Unsettled).set(count(survey.to_restore + survey.unidentified));
        node(NodeState::Ignored).set(count(survey.ignored));
        let record = |state| self.metrics.records.get_or_create_owned(&RecordLabels { state });
        record(RecordState::Present).set(count(survey.records.saturating_sub(survey.absent)));
        record(RecordState::Absent).set(count(survey.absent));
        record(RecordState::Tombstone).set(count(survey.tombstones));
        record(RecordState::Invalid).set(count(survey.bad_records));
        self.metrics.records_invalid.set(count(survey.bad_records));
        let all = survey.current + survey.to_capture + survey.to_restore + survey.unidentified;
        #[expect(clippy::cast_precision_loss)]
        self.metrics.nodes_current_ratio.set(if all == 0 { 1.0 } else { survey.current as f64 / all as f64 });
        self.metrics.queue_depth.get_or_create(&QUEUE).set(count(self.queue.len()));
        survey
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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
