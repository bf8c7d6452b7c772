//! The simulated cluster: the store, the API servers in front of it, the fault rates, and a journal
//! of events that are not in the log of the store.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::future::BoxFuture;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use tokio::{sync::Notify, time::Instant};

use super::{
    authn::User,
    fault_plan::{Counts, FaultRates},
    kinds::{Kind, PODS},
    store::{BASE, Store},
};
use perennial_testkit::prng::Prng;

use crate::{broken_rule::BrokenRule, tamper};

/// Unix time at which every history starts.
pub const EPOCH: i64 = 1_800_000_000;

/// Calls the admission of one replica with a path and a review. Returns the answer, if there is
/// one.
pub type Call = Arc<dyn Fn(&'static str, Vec<u8>) -> BoxFuture<'static, Option<Vec<u8>>> + Send + Sync>;

/// An operator that serves admission.
#[derive(Clone)]
pub struct Hook {
    pub id: usize,
    pub call: Call,
    pub alive: bool,
}

/// The registered webhooks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Registered {
    pub node_create: bool,
    pub node_delete: bool,
    pub pods: bool,
}

/// One API server with its watch cache.
#[derive(Clone, Debug, Default)]
pub struct Replica {
    pub lag: Duration,
    /// ResourceVersion that its cache has reached. Never decreases.
    reached: u64,
}

/// An operator read a node, or received it in a review.
#[derive(Clone, Debug)]
pub struct NodeRead {
    pub who: User,
    pub at: Duration,
    pub node: String,
    /// 0 if the node did not exist.
    pub rv: u64,
}

/// A node's deletion reached an operator's watch.
#[derive(Clone, Copy, Debug)]
pub struct Delivery {
    pub who: User,
    pub at: Duration,
    pub rv: u64,
}

/// Events that are not changes in the store.
#[derive(Default)]
pub struct Journal {
    pub node_reads: Vec<NodeRead>,
    pub deliveries: Vec<Delivery>,
    /// Times of rate-limited requests, by operator.
    pub requests: BTreeMap<usize, Vec<Duration>>,
    /// Times of faults, by operator.
    pub faults: BTreeMap<usize, Vec<Duration>>,
    /// Start and end of each operator.
    pub lives: BTreeMap<usize, (Duration, Option<Duration>)>,
    pub violations: Vec<(&'static str, String)>,
    pub lines: Vec<String>,
    digest: DefaultHasher,
    pub answers: u64,
}

pub struct State {
    pub store: Store,
    pub prng: Prng,
    pub fault_rates: FaultRates,
    pub faults: Counts,
    pub seen: Counts,
    pub replicas: Vec<Replica>,
    pub hooks: Vec<Hook>,
    pub registered: Registered,
    /// Until when an operator is cut off from the network.
    pub cut_off: BTreeMap<usize, Instant>,
    /// Time of the last restore of etcd. Requests and watches from before it are lost.
    pub restored_at: Option<Duration>,
    /// Until when an admission policy refuses every write of a record.
    pub records_refused: Option<Instant>,
    /// Label of a nodeSelector that an admission policy refuses in pods.
    pub refused_selector: Option<(&'static str, &'static str)>,
    pub journal: Journal,
    /// `sendInitialEvents` is answered with 422.
    pub no_streaming: bool,
    /// Kinds that this cluster does not serve.
    pub missing: Vec<&'static str>,
    pub verbose: bool,
    pub latency: (u64, u64),
    /// Additional latency of record writes.
    pub record_writes_take: Duration,
    /// State of the rule that is broken.
    pub tampering: tamper::Memory,
    start: Instant,
}

/// The simulated cluster, shared.
#[derive(Clone)]
pub struct World(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    changed: Notify,
    broken: Option<BrokenRule>,
    start: Instant,
    epoch: Timestamp,
}

impl World {
    pub fn new(prng: Prng, verbose: bool, broken: Option<BrokenRule>) -> Self {
        let state = State {
            store: Store::default(),
            prng,
            fault_rates: FaultRates::default(),
            faults: Counts::default(),
            seen: Counts::default(),
            replicas: vec![Replica::default()],
            hooks: Vec::new(),
            registered: Registered::default(),
            cut_off: BTreeMap::new(),
            restored_at: None,
            records_refused: None,
            refused_selector: None,
            journal: Journal::default(),
            no_streaming: false,
            missing: Vec::new(),
            verbose,
            latency: (1, 12),
            record_writes_take: Duration::ZERO,
            tampering: tamper::Memory::default(),
            start: Instant::now(),
        };
        let epoch = Timestamp::from_second(EPOCH).unwrap_or(Timestamp::UNIX_EPOCH);
        let (state, changed, start) = (Mutex::new(state), Notify::new(), Instant::now());
        Self(Arc::new(Shared { state, changed, broken, start, epoch }))
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The rule of the operator that is broken in this history.
    pub fn broken(&self) -> Option<BrokenRule> {
        self.0.broken
    }

    /// Time since the start of the history.
    pub fn elapsed(&self) -> Duration {
        self.0.start.elapsed()
    }

    pub fn start(&self) -> Instant {
        self.0.start
    }

    /// Returns the wall-clock time at which the history started.
    pub fn start_of_day(&self) -> Timestamp {
        self.0.epoch
    }

    /// Returns the wall-clock time.
    pub fn now(&self) -> Timestamp {
        self.0.epoch + SignedDuration::try_from(self.elapsed()).unwrap_or_default()
    }

    /// Notified of every change.
    pub fn changed(&self) -> &Notify {
        &self.0.changed
    }

    /// Adds a line to the log of the history and to its digest.
    pub fn note(&self, line: impl FnOnce() -> String) {
        let at = self.elapsed();
        self.lock().note(at, line);
    }
}

impl State {
    pub fn note(&mut self, at: Duration, line: impl FnOnce() -> String) {
        let line = line();
        at.as_millis().hash(&mut self.journal.digest);
        line.hash(&mut self.journal.digest);
        if self.verbose {
            self.journal.lines.push(format!("{:>9.3} {line}", at.as_secs_f64()));
        }
    }

    /// Returns a digest of the log: equal for equal histories.
    pub fn digest(&self) -> u64 {
        self.journal.digest.finish()
    }

    pub fn violation(&mut self, guarantee: &'static str, what: String) {
        self.journal.violations.push((guarantee, what));
    }

    pub fn fault(&mut self, what: &'static str, who: User) {
        self.faults.add(what);
        if let User::Operator(id) = who {
            let at = self.start.elapsed();
            self.journal.faults.entry(id).or_default().push(at);
        }
    }

    /// Returns the resourceVersion that the watch cache of an API server has reached, and when it
    /// reaches the next one.
    pub fn reached(&mut self, replica: usize, now: Duration) -> (u64, Option<Duration>) {
        let rv = self.store.rv();
        let replica = &mut self.replicas[replica];
        let ahead = self.store.between(replica.reached, rv);
        let due = |at: Duration| at + replica.lag;
        for change in ahead {
            if due(change.at) > now {
                return (replica.reached.max(BASE), Some(due(change.at)));
            }
            replica.reached = change.rv;
        }
        (replica.reached.max(BASE), None)
    }

    /// Restores etcd from a backup of this resourceVersion. The API servers restart with it.
    pub fn restore(&mut self, rv: u64) {
        let now = self.start.elapsed();
        let lost = self.store.rv().saturating_sub(rv);
        self.store.restore(rv);
        self.restored_at = Some(now);
        for replica in &mut self.replicas {
            replica.reached = replica.reached.min(rv);
        }
        self.journal.node_reads.retain(|look| look.rv <= rv);
        self.journal.deliveries.retain(|delivery| delivery.rv <= rv);
        self.faults.add("etcd restored from a backup");
        self.note(now, || format!("etcd is restored to {rv}; {lost} changes are lost"));
    }

    /// Returns whether a request or a watch of this time was lost in a restore.
    pub fn is_lost(&self, sent: Duration) -> bool {
        self.restored_at.is_some_and(|at| sent <= at)
    }

    /// Returns whether an admission policy refuses to write a ConfigMap now.
    pub fn refuses_records(&self) -> bool {
        self.records_refused.is_some_and(|until| until > Instant::now())
    }

    /// Returns whether an admission policy refuses this pod.
    pub fn refuses_pod(&self, kind: &Kind, pod: &Value) -> bool {
        let selects = |(key, value): (&str, &str)| pod["spec"]["nodeSelector"].get(key).is_some_and(|v| v == value);
        std::ptr::eq(kind, &PODS) && self.refused_selector.is_some_and(selects)
    }

    /// Returns whether this cluster serves a kind.
    pub fn has(&self, kind: &Kind) -> bool {
        !self.missing.contains(&kind.plural)
    }
}
