//! Placement's loop: what the watches say becomes work, the pure plan says what to do, [`apply`](super::apply) does it.
//!
//! # Guarantees
//! Whoever becomes the owner of a workload reads its pods afresh before deciding anything. Failures delay the workload that
//! they are about, and no other.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::FutureExt;
use kube::runtime::watcher::Event;
use perennial_core::placement::{
    decide::decide,
    decision::{Action, Counts, Decision, PodRef},
    workload::{PendingWrites, Place, PodView, Workload},
};
use tokio::time::Instant;
use tracing::{Instrument as _, debug, field, info, info_span, warn};

use super::{
    apply::{Cluster, Error},
    execute::side_by_side,
    index::{Reading, WorkloadEntry, about, shard_key},
    observe::{Asks, Observed, View, pod_entry},
    settings::Configured,
};
use crate::{
    keeper::node::Node,
    runtime::{
        budget::Priority,
        clock::Clock,
        error_category::Category,
        events::{Events, Severity},
        jitter::Jitter,
        labels::{Outcome, QueueLabels},
        metrics::Metrics,
        ownership::Ownership,
        queue::{Key, Queue, Work},
        traces,
    },
};

const CONTROLLER: &str = "placement";
pub(super) const QUEUE: QueueLabels = QueueLabels { name: "placement" };
const FIRST_PAUSE: Duration = Duration::from_millis(25);
const LONGEST_PAUSE: Duration = Duration::from_mins(1);
const LONGEST_CONFLICT: Duration = Duration::from_millis(500);
/// What is refused is tried again after this: the reason may be gone.
pub(super) const REFUSED_PAUSE: Duration = Duration::from_mins(5);
/// An eviction that nobody has seen the effect of counts for so long.
const REMOVED_FOR: Duration = Duration::from_mins(1);
/// When a workload has another number of pods than is shown for so long, somebody made pods without us, or some went unseen.
const UNLIKE_FOR: Duration = Duration::from_secs(2);

/// Everything that placement works with. All of it is passed in.
#[expect(missing_debug_implementations, reason = "kube's client has none")]
pub struct Placer {
    pub configured: Configured,
    pub cluster: Cluster,
    /// The way in for admission: with a budget of its own, since the API server waits for it.
    pub admission: Cluster,
    /// Below the deadline of the server, which is below the timeout of the webhook.
    pub admission_deadline: Duration,
    pub queue: Queue,
    pub clock: Clock,
    pub jitter: Jitter,
    pub metrics: Metrics,
    pub events: Events,
    pub ownership: Ownership,
    /// This process decides about workloads; otherwise it only answers admission and frees what nobody attends to.
    pub decides: bool,
    /// Say what would be done, and do nothing.
    pub dry_run: bool,
    pub state: Mutex<State>,
}

/// What placement has in memory.
#[derive(Debug, Default)]
pub struct State {
    pub view: View,
    attempts: HashMap<Key, u32>,
    /// The term of ownership in which a workload's pods were read afresh.
    read_in: HashMap<Key, u64>,
    /// Since when a workload has another number of pods than is shown, and how often they were read for that.
    unlike: HashMap<Key, (Instant, u32)>,
    /// Pods that were evicted or deleted, until that is seen.
    pub(super) removed: HashMap<String, Instant>,
    pub(super) standings: HashMap<Key, Standing>,
}

/// How a workload was found at the last look.
#[derive(Clone, Copy, Debug)]
pub(super) struct Standing {
    pub(super) counts: Counts,
    pub(super) short: bool,
}

impl State {
    /// Our evictions that the caches do not show yet. Other writes are taken in with their answers.
    fn pending_writes(&mut self, pods: &[PodView]) -> PendingWrites {
        self.removed.retain(|_, since| since.elapsed() < REMOVED_FOR);
        let unseen = pods.iter().filter(|pod| !pod.deleting && self.removed.contains_key(&pod.uid));
        PendingWrites { removed: unseen.map(|pod| pod.uid.clone()).collect(), state: None }
    }
}

/// What is known of a workload, and what follows.
enum Step {
    /// There is no such workload.
    Gone,
    /// Its pods have to be read first.
    Behind(Box<(WorkloadEntry, Workload)>),
    Act(Box<(Workload, Decision)>),
}

/// What came of looking at a workload.
enum Done {
    Quiet,
    Again,
    Later(Duration),
}

impl Placer {
    pub fn on<K: Observed>(&self, event: Event<K>) {
        let patience = match &event {
            Event::Apply(object) | Event::Delete(object) => object.patience(),
            Event::Init | Event::InitApply(_) | Event::InitDone => Duration::ZERO,
        };
        let asks = {
            let mut state = self.lock();
            let reading = Reading { configured: &self.configured, now: self.clock.now(), listed: false };
            state.view.on(event, reading)
        };
        self.ask(asks, patience);
    }

    /// The keeper's watch of nodes serves both.
    pub fn on_node(&self, event: &Event<Node>) {
        self.on(match event {
            Event::Init => Event::Init,
            Event::InitDone => Event::InitDone,
            Event::InitApply(node) => Event::InitApply(node),
            Event::Apply(node) => Event::Apply(node),
            Event::Delete(node) => Event::Delete(node),
        });
    }

    pub fn is_synced(&self) -> bool {
        self.lock().view.is_synced()
    }

    /// Looks at every workload. Costs no request where nothing is to be done.
    pub fn resync(&self) {
        let asks = self.lock().view.everything();
        self.ask(asks, Duration::ZERO);
    }

    fn ask(&self, asks: Asks, patience: Duration) {
        if !self.decides {
            return;
        }
        for key in asks {
            if self.ownership.is_ours(self.ownership.shard_of(shard_key(&key))) {
                self.metrics.queue_adds.get_or_create(&QUEUE).inc();
                self.queue.add_after(&key, Priority::Restore, patience);
            }
        }
    }

    /// Works until the queue is closed.
    pub async fn work(self: Arc<Self>) {
        while let Some(work) = self.queue.next().await {
            self.metrics.queue_duration.get_or_create(&QUEUE).observe(work.waited.as_secs_f64());
            let start = Instant::now();
            // Another replica's by now: it has seen the same events.
            let Some(permit) = self.ownership.may_act(shard_key(&work.key)) else {
                self.forget(&work.key);
                continue;
            };
            let span = info_span!(target: traces::TARGET, "placement", workload = &*work.key, outcome = field::Empty);
            let settled = self.settle(&work.key, permit.term()).instrument(span.clone());
            let settled = tokio::time::timeout(permit.remaining(), settled).await;
            drop(permit);
            let outcome = self.conclude(&work, settled.unwrap_or(Ok(Done::Again)));
            span.record("outcome", outcome.as_str());
            self.metrics.queue_work_duration.get_or_create(&QUEUE).observe(start.elapsed().as_secs_f64());
            self.metrics.reconciled(CONTROLLER, outcome, start.elapsed());
        }
    }

    /// Somebody is there to place what is gated.
    pub(super) fn is_attended(&self, key: &str) -> bool {
        self.ownership.is_attended(self.ownership.shard_of(shard_key(key)))
    }

    /// A pod may wait for its place: somebody is there to give it. Whoever cannot watch, for lack of a permission, cannot place or free
    /// what was gated, and neither can the others, who have the same permissions. Whoever stops does not know who is still there.
    pub(super) fn may_gate(&self, key: &str) -> bool {
        self.is_attended(key) && self.is_synced() && !self.queue.is_closed()
    }

    fn forget(&self, key: &Key) {
        let mut state = self.lock();
        state.standings.remove(key);
        state.read_in.remove(key);
        state.attempts.remove(key);
        state.unlike.remove(key);
    }

    /// Decides when to look again.
    fn conclude(&self, work: &Work, done: Result<Done, Error>) -> Outcome {
        let key = &work.key;
        match done {
            Ok(Done::Quiet) => {
                self.lock().attempts.remove(key);
                Outcome::Success
            }
            Ok(Done::Again) => {
                self.queue.add(key, work.priority);
                Outcome::Requeue
            }
            Ok(Done::Later(pause)) => {
                self.lock().attempts.remove(key);
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
                let backoff = self.jitter.backoff(attempt, FIRST_PAUSE, LONGEST_PAUSE);
                let pause = match error.category() {
                    Category::Throttled => error.retry_after().unwrap_or(backoff).max(backoff),
                    // Somebody was faster: what they wrote is on its way to us.
                    Category::Conflict => backoff.min(LONGEST_CONFLICT),
                    Category::Refused | Category::Forbidden => {
                        REFUSED_PAUSE.mul_f64(0.9 + self.jitter.fraction() / 5.0)
                    }
                    _ => backoff,
                };
                self.report(key, &error, attempt, pause);
                self.metrics.queue_retries.get_or_create(&QUEUE).inc();
                self.queue.add_after(key, work.priority, pause);
                if error.category() == Category::Conflict { Outcome::Requeue } else { Outcome::Error }
            }
        }
    }

    pub(super) fn report(&self, workload: &str, error: &Error, attempt: u32, pause: Duration) {
        let category = error.category();
        let why = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
        let retry_in = pause.as_secs_f32();
        if category == Category::Conflict {
            debug!(workload, why, retry_in, "{error}: somebody was faster");
            return;
        }
        self.metrics.failed(category.as_str());
        if let Some(missing) = error.missing_permission() {
            warn!(workload, missing, why, retry_in, "{error}: a permission is missing");
        } else {
            warn!(workload, category = category.as_str(), attempt, why, retry_in, "{error}");
        }
    }

    async fn settle(&self, key: &Key, term: u64) -> Result<Done, Error> {
        let mut decision = self.decide(key, term);
        if let Step::Behind(behind) = &decision {
            let (entry, workload) = &**behind;
            self.read_afresh(key, entry, workload, term).await?;
            decision = self.decide(key, term);
        }
        match decision {
            Step::Gone => {
                self.forget(key);
                Ok(Done::Quiet)
            }
            Step::Behind(_) => Ok(Done::Again),
            Step::Act(act) => {
                let (workload, decision) = *act;
                self.act(key, &workload, &decision).await
            }
        }
    }

    /// Looks at a workload and decides. All of it at once, so that no pod is given a place meanwhile that the plan gives to another.
    fn decide(&self, key: &Key, term: u64) -> Step {
        let now = self.clock.now();
        let mut state = self.lock();
        let Some(mut workload) = state.view.index.observe(key, &self.configured, now) else { return Step::Gone };
        if workload.managed_spec().is_none() {
            let decision = decide(&workload);
            return Step::Act(Box::new((workload, decision)));
        }
        if self.is_behind(&mut state, key, &workload, term) {
            let Some(entry) = state.view.index.workload(key).cloned() else { return Step::Gone };
            return Step::Behind(Box::new((entry, workload)));
        }
        workload.pods.extend(state.view.index.places.expected(&workload.replica_sets, now));
        workload.pending = state.pending_writes(&workload.pods);
        let mut decision = decide(&workload);
        state.view.index.places.open(std::mem::take(&mut decision.open), term);
        Step::Act(Box::new((workload, decision)))
    }

    /// A place for a pod of this workload that is just being created, where it is known: the workload is ours, and was looked at.
    pub(super) fn give_place(&self, key: &str, set: &str) -> Option<Place> {
        let permit =
            self.ownership.may_act(shard_key(key)).filter(|_| self.decides && self.ownership.is_exclusive())?;
        // As for every request: it must be over before another may decide.
        if permit.remaining() < self.admission_deadline {
            return None;
        }
        self.lock().view.index.places.give(set, permit.term(), self.clock.now())
    }

    /// Whether the caches may lack pods of this workload, or have some that are gone.
    fn is_behind(&self, state: &mut State, key: &Key, observed: &Workload, term: u64) -> bool {
        if state.read_in.get(key) != Some(&term) {
            return true;
        }
        let shown = observed.pods.iter().filter(|pod| pod.occupies()).count();
        let workload = &observed.view;
        let current = usize::try_from(workload.current).unwrap_or_default();
        // While it grows its controller's count comes after the pods; once it says that all are there, there are no more.
        let complete = workload.current == workload.replicas && workload.observed_generation >= workload.generation;
        if current == shown || current < shown && !complete {
            state.unlike.remove(key);
            return false;
        }
        let (since, reads) = *state.unlike.entry(Arc::clone(key)).or_insert_with(|| (Instant::now(), 0));
        // What reading did not change will hardly change by reading it again soon.
        let patience = UNLIKE_FOR * (1 << reads.min(5));
        if since.elapsed() < patience {
            self.queue.add_after(key, Priority::Capture, patience);
            return false;
        }
        true
    }

    /// Reads the workload's pods, and takes in those that were made without us.
    async fn read_afresh(&self, key: &Key, entry: &WorkloadEntry, workload: &Workload, term: u64) -> Result<(), Error> {
        let listed = self.cluster.list_pods(entry).await?;
        let foreign: Vec<PodRef> = {
            let mut state = self.lock();
            let reading = Reading { configured: &self.configured, now: self.clock.now(), listed: true };
            let owners: Vec<&str> = std::iter::once(workload.view.uid.as_str())
                .chain(workload.replica_sets.iter().map(|set| set.uid.as_str()))
                .collect();
            let index = &mut state.view.index;
            let mut foreign = Vec::new();
            // The watch shows only what has our label: of what else was read before, nothing but a list says that it is gone.
            let there: HashSet<String> = listed.pods.iter().filter_map(|pod| pod.metadata.uid.clone()).collect();
            index.retain_pods_of(&owners, listed.as_of, |uid| there.contains(uid));
            for pod in listed.pods {
                let before = index.pod(pod.metadata.uid.as_deref().unwrap_or_default());
                let entry = pod_entry(pod, before, &reading);
                if !owners.contains(&entry.view.owner.as_str()) {
                    continue;
                }
                if !entry.labelled && entry.view.occupies() {
                    foreign.push(PodRef::from(&entry.view));
                }
                index.put_pod(entry);
            }
            foreign
        };
        if !self.dry_run && !foreign.is_empty() {
            info!(workload = &**key, pods = foreign.len(), "taking in pods that were made without us");
            let namespace = &workload.view.namespace;
            let adopting = foreign.iter().map(|pod| self.cluster.adopt(namespace, pod).boxed()).collect();
            for (pod, answer) in foreign.iter().zip(side_by_side(adopting).await) {
                match answer {
                    Ok(pod) => self.take(pod),
                    // It went meanwhile. The watch, which shows only what has our label, will never say so.
                    Err(error) if matches!(error.category(), Category::NotFound | Category::Conflict) => {
                        self.lock().view.index.remove_pod(&pod.uid);
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        let mut state = self.lock();
        state.read_in.insert(Arc::clone(key), term);
        if let Some((since, reads)) = state.unlike.get_mut(key) {
            (*since, *reads) = (Instant::now(), reads.saturating_add(1));
        }
        Ok(())
    }

    async fn act(&self, key: &Key, workload: &Workload, decided: &Decision) -> Result<Done, Error> {
        let now = self.clock.now();
        self.note(key, workload, decided);
        if self.dry_run {
            for action in decided.actions.iter().filter_map(perennial_core::placement::explain::sentence) {
                info!(workload = &**key, action, "would do");
            }
        } else {
            let pause = self.execute(workload, decided).await?;
            if let Some(pause) = pause {
                return Ok(Done::Later(pause));
            }
        }
        // Where nothing is done, the next look finds the same.
        let least = if self.dry_run { LONGEST_PAUSE } else { FIRST_PAUSE };
        match decided.revisit {
            Some(again) => {
                Ok(Done::Later(Duration::try_from(again.duration_since(now)).unwrap_or_default().max(least)))
            }
            None => Ok(Done::Quiet),
        }
    }

    /// Keeps what was found, and tells the people.
    fn note(&self, key: &Key, workload: &Workload, decided: &Decision) {
        if workload.managed_spec().is_some() {
            let standing = Standing { counts: decided.counts, short: workload.state().breaker.is_open() };
            self.lock().standings.insert(Arc::clone(key), standing);
        } else {
            self.lock().standings.remove(key);
        }
        for action in &decided.actions {
            if let Action::Report(event) = action {
                let severity = if event.warning { Severity::Warning } else { Severity::Normal };
                let (about, message) = (about(&workload.view), event.message.clone());
                if event.lasting {
                    self.events.stands(about, severity, event.reason, message);
                } else {
                    self.events.say(about, severity, event.reason, || message);
                }
            }
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
