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
    action::{Action, Counts, Plan, PodRef},
    fallback::State as Remembered,
    release::Why,
    spec::{Problem, Spec, Strength},
    view::{OwnWrite, OwnWrites, Place, PodView},
};
use tokio::time::Instant;
use tracing::{Span, field, info, info_span};

use super::{
    Key,
    apply::{Cluster, Error},
    execute::side_by_side,
    index::{Look, Reading, shard_key},
    observe::{Asks, Observed, View, pod_entry},
    settings::Configured,
};
use crate::{
    keeper::node::Node,
    runtime::{
        budget::Urgency,
        clock::Clock,
        error_category::Category,
        events::{Events, Severity},
        jitter::Jitter,
        metrics::Metrics,
        ownership::Ownership,
        queue::Work,
        reconciler::{Action as Next, Reconcile, Reconciler, RetryPolicy},
        reporter::{CategorizedError, Reporter, Retry, log_failure},
        traces,
    },
};

/// The name of the controller and its queue, in metrics.
pub const CONTROLLER: &str = "placement";
const FIRST_PAUSE: Duration = Duration::from_millis(25);
const LONGEST_PAUSE: Duration = Duration::from_mins(1);
const LONGEST_CONFLICT: Duration = Duration::from_millis(500);
pub const RETRY: RetryPolicy = RetryPolicy {
    backoff: (FIRST_PAUSE, LONGEST_PAUSE),
    immediate_conflicts: 0,
    longest_conflict: LONGEST_CONFLICT,
    refused: (Duration::from_secs(270), Duration::from_secs(330)),
    forbidden: (Duration::from_secs(270), Duration::from_secs(330)),
};
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
    pub reconciler: Reconciler<Key, Urgency>,
    pub clock: Clock,
    pub jitter: Jitter,
    pub metrics: Metrics,
    pub events: Events,
    pub reporter: Reporter,
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
    fn own_writes(&mut self, pods: &[PodView]) -> OwnWrites {
        self.removed.retain(|_, since| since.elapsed() < REMOVED_FOR);
        let unseen = pods.iter().filter(|pod| !pod.deleting && self.removed.contains_key(&pod.uid));
        OwnWrites { pods: unseen.map(|pod| (pod.uid.clone(), OwnWrite::Removed)).collect(), state: None }
    }
}

/// What is known of a workload, and what follows.
enum Decision {
    /// There is no such workload.
    Gone,
    /// Its pods have to be read first.
    Behind(Box<Look>),
    /// It is not managed, perhaps since what it asks for cannot be understood.
    LeaveAlone(Box<Look>, Vec<Problem>),
    Act(Box<(Look, Spec, Plan)>),
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
                self.reconciler.add_after(&key, Urgency::Immediate, patience);
            }
        }
    }

    /// Works until the queue is closed.
    pub async fn work(self: Arc<Self>) {
        self.reconciler.work(&*self).await;
    }

    /// Somebody is there to place what is gated.
    pub(super) fn is_attended(&self, key: &str) -> bool {
        self.ownership.is_attended(self.ownership.shard_of(shard_key(key)))
    }

    /// A pod may wait for its place: somebody is there to give it. Whoever cannot watch, for lack of a permission, cannot place or free
    /// what was gated, and neither can the others, who have the same permissions. Whoever stops does not know who is still there.
    pub(super) fn may_gate(&self, key: &str) -> bool {
        self.is_attended(key) && self.is_synced() && !self.reconciler.is_closed()
    }

    fn forget(&self, key: &Key) {
        let mut state = self.lock();
        state.standings.remove(key);
        state.read_in.remove(key);
        state.unlike.remove(key);
    }

    pub(super) fn report(&self, workload: &str, error: &Error, retry: Retry) {
        log_failure!(self.reporter.failure(error, retry, None), workload = workload);
    }

    async fn settle(&self, key: &Key, term: u64) -> Result<Next, Error> {
        let mut decision = self.decide(key, term);
        if let Decision::Behind(look) = &decision {
            self.read_afresh(key, look, term).await?;
            decision = self.decide(key, term);
        }
        match decision {
            Decision::Gone => {
                self.forget(key);
                Ok(Next::Done)
            }
            Decision::Behind(_) => Ok(Next::Requeue),
            Decision::LeaveAlone(look, problems) => self.leave_alone(key, &look, &problems).await,
            Decision::Act(act) => {
                let (look, spec, plan) = *act;
                self.act(key, &look, &spec, &plan).await
            }
        }
    }

    /// Looks at a workload and decides. All of it at once, so that no pod is given a place meanwhile that the plan gives to another.
    fn decide(&self, key: &Key, term: u64) -> Decision {
        let now = self.clock.now();
        let mut state = self.lock();
        let Some(mut look) = state.view.index.look(key, &self.configured.prefixes) else { return Decision::Gone };
        let spec = match look.spec.clone() {
            Ok(Some(spec)) => spec,
            Ok(None) => return Decision::LeaveAlone(Box::new(look), Vec::new()),
            Err(problems) => return Decision::LeaveAlone(Box::new(look), problems),
        };
        if self.is_behind(&mut state, key, &look, term) {
            return Decision::Behind(Box::new(look));
        }
        look.pods.extend(state.view.index.places.expected(&look.replica_sets, now));
        let own = state.own_writes(&look.pods);
        let mut decided = look.plan(&self.configured.settings, &spec, &own, now);
        state.view.index.places.open(std::mem::take(&mut decided.open), term);
        Decision::Act(Box::new((look, spec, decided)))
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
    fn is_behind(&self, state: &mut State, key: &Key, look: &Look, term: u64) -> bool {
        if state.read_in.get(key) != Some(&term) {
            return true;
        }
        let shown = look.pods.iter().filter(|pod| pod.occupies()).count();
        let workload = &look.workload.view;
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
            self.reconciler.add_after(key, Urgency::Normal, patience);
            return false;
        }
        true
    }

    /// Reads the workload's pods, and takes in those that were made without us.
    async fn read_afresh(&self, key: &Key, look: &Look, term: u64) -> Result<(), Error> {
        let listed = self.cluster.list_pods(&look.workload).await?;
        let foreign: Vec<PodRef> = {
            let mut state = self.lock();
            let reading = Reading { configured: &self.configured, now: self.clock.now(), listed: true };
            let owners: Vec<&str> = std::iter::once(look.workload.view.uid.as_str())
                .chain(look.replica_sets.iter().map(|set| set.uid.as_str()))
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
            let namespace = &look.workload.namespace;
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

    /// A workload that asks for nothing, or for something that cannot be understood: its gated pods are freed as they are.
    async fn leave_alone(&self, key: &Key, look: &Look, problems: &[Problem]) -> Result<Next, Error> {
        self.lock().standings.remove(key);
        if !problems.is_empty() {
            let all: Vec<String> = problems.iter().map(ToString::to_string).collect();
            let message = format!("left alone, since its annotations cannot be obeyed: {}", all.join("; "));
            self.events.stands(look.workload.about(), Severity::Warning, "InvalidPlacement", message);
        }
        for pod in look.pods.iter().filter(|pod| pod.gated && pod.occupies()) {
            self.free(&look.workload.namespace, pod, Why::Unmanaged, Strength::Required).await?;
        }
        Ok(Next::Done)
    }

    async fn act(&self, key: &Key, look: &Look, spec: &Spec, decided: &Plan) -> Result<Next, Error> {
        let now = self.clock.now();
        self.note(key, look, decided);
        if self.dry_run {
            for action in decided.actions.iter().filter_map(perennial_core::placement::explain::sentence) {
                info!(workload = &**key, action, "would do");
            }
        } else {
            let pause = self.execute(look, spec, decided).await?;
            if let Some(pause) = pause {
                return Ok(Next::RequeueAfter(pause));
            }
        }
        // Where nothing is done, the next look finds the same.
        let least = if self.dry_run { LONGEST_PAUSE } else { FIRST_PAUSE };
        match decided.again {
            Some(again) => {
                Ok(Next::RequeueAfter(Duration::try_from(again.duration_since(now)).unwrap_or_default().max(least)))
            }
            None => Ok(Next::Done),
        }
    }

    /// Keeps what was found, and tells the people.
    fn note(&self, key: &Key, look: &Look, decided: &Plan) {
        let (remembered, _) = Remembered::read(look.workload.view.state.as_deref());
        let standing = Standing { counts: decided.counts, short: remembered.breaker.is_open() };
        self.lock().standings.insert(Arc::clone(key), standing);
        for action in &decided.actions {
            if let Action::Tell(event) = action {
                let severity = if event.warning { Severity::Warning } else { Severity::Normal };
                let (about, message) = (look.workload.about(), event.message.clone());
                if event.standing {
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

impl Reconcile for Placer {
    type Key = Key;
    type Priority = Urgency;
    type Error = Error;

    fn shard_key(key: &Key) -> &str {
        shard_key(key)
    }

    fn span(&self, key: &Key) -> Span {
        info_span!(target: traces::TARGET, "placement", workload = &**key, outcome = field::Empty)
    }

    async fn reconcile(&self, work: &Work<Key, Urgency>, term: u64) -> Result<Next, Error> {
        self.settle(&work.key, term).await
    }

    fn report(&self, key: &Key, error: &Error, retry: Retry) {
        self.report(key, error, retry);
    }

    fn disown(&self, key: &Key) {
        self.forget(key);
    }
}

impl CategorizedError for Error {
    fn category(&self) -> Category {
        self.category()
    }

    fn retry_after(&self) -> Option<Duration> {
        self.retry_after()
    }

    fn missing_permission(&self) -> Option<&'static str> {
        self.missing_permission()
    }
}
