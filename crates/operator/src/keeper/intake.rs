//! Caches what watches, lists and responses deliver, and queues the nodes that may need work.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::TryStreamExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::runtime::watcher::Event;
use perennial_core::keeper::selection;
use tokio::time::Instant;
use tracing::debug;

use super::{
    NodeKey, Priority,
    apply::{KeeperClient, KeeperError, LoadedRecord},
    cache::{KeeperCache, ReconcileRequests},
    node::Node,
};
use crate::runtime::{ownership::Ownership, reconciler::Reconciler};

/// Minimum time between two captures of a node. Of a burst of changes, the first and the last state
/// are captured.
const CAPTURE_PAUSE: Duration = Duration::from_secs(1);
/// Number of changes back and forth after which a node is captured less often.
pub(super) const FLAPS: u32 = 3;
const FLAP_MEMORY: Duration = Duration::from_mins(5);

/// The way from an event to the queue.
#[derive(Debug)]
pub(super) struct Intake {
    cluster: KeeperClient,
    cache: Arc<KeeperCache>,
    reconciler: Reconciler<NodeKey, Priority>,
    ownership: Ownership,
    pace: Mutex<Pace>,
}

/// Recent captures, which delay the next ones.
#[derive(Debug, Default)]
struct Pace {
    captured: HashMap<NodeKey, Instant>,
    /// Number of recent changes back and forth of a node's labels, and the time of the last one.
    flaps: HashMap<NodeKey, (u32, Instant)>,
}

impl Pace {
    fn pause(&self, key: &NodeKey) -> Duration {
        let flaps = self.flaps.get(key).map_or(0, |(count, _)| *count);
        let pause = if flaps < FLAPS { CAPTURE_PAUSE } else { CAPTURE_PAUSE * 2u32.pow((flaps - FLAPS + 2).min(6)) };
        self.captured.get(key).map_or(Duration::ZERO, |at| pause.saturating_sub(at.elapsed()))
    }
}

impl Intake {
    pub(super) fn new(
        cluster: KeeperClient,
        cache: Arc<KeeperCache>,
        reconciler: Reconciler<NodeKey, Priority>,
        ownership: Ownership,
    ) -> Self {
        Self { cluster, cache, reconciler, ownership, pace: Mutex::default() }
    }

    fn pace(&self) -> MutexGuard<'_, Pace> {
        self.pace.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn reconciler(&self) -> &Reconciler<NodeKey, Priority> {
        &self.reconciler
    }

    pub(super) fn on_node(&self, event: Event<Node>) {
        self.enqueue(self.cache.on_node(event));
    }

    pub(super) fn on_record(&self, event: Event<ConfigMap>) {
        self.enqueue(self.cache.on_record(event));
    }

    /// Caches a node from a response, as if the watch had delivered it.
    pub(super) fn learn_node(&self, node: &selection::Node) {
        self.enqueue(self.cache.learn_node(node));
    }

    /// Caches a record from a response, as if the watch had delivered it.
    pub(super) fn learn_record(&self, held: &LoadedRecord) {
        self.enqueue(self.cache.learn_record(held));
    }

    /// Caches a node again after the policies have changed.
    pub(super) fn reconsider(&self, node: &selection::Node) {
        self.enqueue(self.cache.reconsider(node));
    }

    /// Queues all nodes that may need work, from the cache. Sends no requests.
    pub(super) fn resync(&self) {
        let requests = self.cache.everything();
        debug!(nodes = requests.len(), "resync");
        self.enqueue(requests);
    }

    /// Queues the nodes that this replica owns.
    fn enqueue(&self, requests: ReconcileRequests) {
        for (key, priority) in requests {
            if !self.ownership.is_ours(self.ownership.shard_of(&key)) {
                self.cache.take_hot(&key);
                continue;
            }
            let pause = if priority == Priority::Capture { self.pace().pause(&key) } else { Duration::ZERO };
            self.reconciler.add_after(&key, priority, pause);
        }
    }

    /// Records a capture, which delays the next one.
    pub(super) fn note_capture(&self, key: &NodeKey) {
        self.pace().captured.insert(Arc::clone(key), Instant::now());
    }

    /// Records labels that went back and forth. Returns how often they did so recently.
    pub(super) fn note_flap(&self, key: &NodeKey) -> u32 {
        let mut pace = self.pace();
        let flap = pace.flaps.entry(Arc::clone(key)).or_insert((0, Instant::now()));
        *flap = (if flap.1.elapsed() < FLAP_MEMORY { flap.0 + 1 } else { 1 }, Instant::now());
        flap.0
    }

    /// Drops what is too old to matter.
    pub(super) fn expire(&self) {
        let mut pace = self.pace();
        pace.flaps.retain(|_, (_, at)| at.elapsed() < FLAP_MEMORY);
        pace.captured.retain(|_, at| at.elapsed() < FLAP_MEMORY);
        self.cache.expire();
    }

    /// Lists and caches all records.
    pub(super) async fn each_record(&self, mut on: impl FnMut(LoadedRecord)) -> Result<(), KeeperError> {
        let mut pages = std::pin::pin!(self.cluster.all_records());
        while let Some(page) = pages.try_next().await? {
            for held in page {
                self.learn_record(&held);
                on(held);
            }
        }
        Ok(())
    }

    /// Lists all nodes.
    pub(super) async fn each_node(&self, mut on: impl FnMut(selection::Node)) -> Result<(), KeeperError> {
        let mut pages = std::pin::pin!(self.cluster.all_nodes());
        while let Some(page) = pages.try_next().await? {
            page.into_iter().for_each(&mut on);
        }
        Ok(())
    }
}
