//! Notices that the history of the API server went back, as after a restore of etcd from a backup.
//!
//! Resource versions only grow, unless etcd is restored: then caches, Leases and watches of this
//! process belong to a history that no longer exists, and a watch that resumes at a future version
//! stays silent for ever. Three signs are enough, each from a consistent read: a Lease that is
//! older than it was (see [`super::coordinator`]); a newest resource version that is lower than one
//! that was observed before the read was sent; and a version of a node that this node did not get
//! in the history that the API server has now. The last one holds although a busy cluster has
//! passed the observed version again ([`History::watch`]).

use std::{
    collections::BTreeMap,
    fmt::Debug,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client,
    api::{ListParams, ObjectMeta, VersionMatch},
};
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error};

use super::{error_category, tasks::Task};

/// Time between two reads of the newest resource version.
const PERIOD: Duration = Duration::from_secs(10);

/// Whether the history of the API server went back since this process started to observe it. Clones
/// share it.
#[derive(Clone, Debug, Default)]
pub struct History {
    went_back: CancellationToken,
    observed: Arc<Mutex<ObservedHistory>>,
}

/// The newest part of the history that was observed.
#[derive(Clone, Debug, Default)]
struct ObservedHistory {
    /// The highest resource version.
    highest: u64,
    /// The node that a watch delivered with the highest version of all nodes.
    node: Option<Incarnation>,
    /// The node of the last comparison. After a restore, `node` may be of the new history already.
    verified: Option<Incarnation>,
    /// The newest node when the watch was first interrupted since the last comparison. A restore
    /// interrupts every watch.
    interrupted: Option<Incarnation>,
}

/// A node as it was at its version.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Incarnation {
    name: String,
    uid: String,
    version: u64,
    /// A restored history may change the same node at the same version, but hardly in the same way.
    labels: BTreeMap<String, String>,
}

impl Incarnation {
    fn of(node: &ObjectMeta) -> Option<Self> {
        let version = node.resource_version.as_deref()?.parse().ok()?;
        let labels = node.labels.clone().unwrap_or_default();
        Some(Self { name: node.name.clone()?, uid: node.uid.clone().unwrap_or_default(), version, labels })
    }
}

impl History {
    fn observed(&self) -> MutexGuard<'_, ObservedHistory> {
        self.observed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a node that a watch delivered, or the version of its deletion. Versions of other
    /// kinds do not compare with those of nodes where the API server keeps them in another etcd.
    pub fn observe(&self, node: &ObjectMeta, exists: bool) {
        let Some(node) = Incarnation::of(node) else { return };
        let mut observed = self.observed();
        observed.highest = observed.highest.max(node.version);
        if exists && observed.node.as_ref().is_none_or(|known| known.version < node.version) {
            observed.node = Some(node);
        }
    }

    /// Records that the watch of nodes is interrupted: what it delivers next may be of another history.
    pub fn interrupted(&self) {
        let mut observed = self.observed();
        observed.interrupted = observed.interrupted.take().or_else(|| observed.node.clone());
    }

    /// Reports that a consistent read returned less than what was read before.
    pub fn report(&self, what: &str, before: u64, now: u64) {
        if !self.went_back.is_cancelled() {
            error!(what, before, now, "resourceVersion decreased: etcd was restored");
        }
        self.went_back.cancel();
    }

    /// Returns once the history went back.
    pub async fn went_back(&self) {
        self.went_back.cancelled().await;
    }

    /// Returns the task that compares the API server's history with the one that was observed.
    pub fn watch(&self, client: Client, stop: &CancellationToken) -> Task {
        let history = self.clone();
        let nodes: Api<Node> = Api::all(client);
        Task::until(stop, "history", async move {
            loop {
                if let Err(error) = history.compare(&nodes).await {
                    debug!(why = error_category::message(&error), "could not compare the API server's history");
                }
                if history.went_back.is_cancelled() {
                    // The supervisor stops every task now.
                    std::future::pending::<()>().await;
                }
                tokio::time::sleep(PERIOD).await;
            }
        })
    }

    async fn compare(&self, nodes: &Api<Node>) -> kube::Result<()> {
        let ObservedHistory { highest, node, verified, interrupted } = self.observed().clone();
        let newest = newest_version(nodes).await?.unwrap_or(highest);
        if newest < highest {
            self.report("newest resource version", highest, newest);
        }
        {
            let mut observed = self.observed();
            observed.highest = observed.highest.max(newest);
        }
        // Replaced before the reads: a version that is compacted by now is not read again.
        {
            let mut observed = self.observed();
            observed.verified.clone_from(&node);
            observed.interrupted = None;
        }
        let interrupted = interrupted.filter(|known| Some(known) != verified.as_ref() && Some(known) != node.as_ref());
        let verified = verified.filter(|known| Some(known) != node.as_ref());
        for known in interrupted.iter().chain(&verified).chain(&node) {
            let found = node_at(nodes, &known.name, known.version).await?;
            if found.as_ref() != Some(known) {
                self.report("resource version of a node", known.version, found.map_or(0, |found| found.version));
            }
        }
        Ok(())
    }
}

/// Reads the newest resource version of the API server: that of a consistent list of at most one
/// object.
pub async fn newest_version<K: Clone + Debug + DeserializeOwned>(api: &Api<K>) -> kube::Result<Option<u64>> {
    let page = api.list_metadata(&ListParams::default().limit(1)).await?;
    Ok(page.metadata.resource_version.and_then(|version| version.parse().ok()))
}

/// Reads a node as it was at a version of the history. Fails if that version is compacted.
async fn node_at(nodes: &Api<Node>, name: &str, version: u64) -> kube::Result<Option<Incarnation>> {
    let params = ListParams::default()
        .fields(&format!("metadata.name={name}"))
        .at(&version.to_string())
        .matching(VersionMatch::Exact);
    let page = nodes.list_metadata(&params).await?;
    Ok(page.items.first().and_then(|node| Incarnation::of(&node.metadata)))
}

#[cfg(test)]
mod tests {
    use std::{
        convert::Infallible,
        sync::atomic::{AtomicUsize, Ordering},
    };

    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::json;

    use super::*;
    use crate::runtime::tasks::Supervisor;

    fn node(version: &str) -> ObjectMeta {
        ObjectMeta { name: Some("a".into()), resource_version: Some(version.into()), ..ObjectMeta::default() }
    }

    /// Observes a server whose newest versions are these, one after the other; the last one stays.
    /// At every version, the node `a` has the version `at`. A watch has delivered `delivered`
    /// before.
    async fn goes_back(delivered: Option<(&str, bool)>, versions: &'static [u64], at: u64) -> bool {
        let reads = AtomicUsize::new(0);
        let answer = move |request: Request<Body>| {
            let exact = request.uri().query().is_some_and(|query| query.contains("resourceVersionMatch=Exact"));
            let read = if exact { 0 } else { reads.fetch_add(1, Ordering::Relaxed) };
            let items = if exact && at > 0 { json!([{"metadata": node(&at.to_string())}]) } else { json!([]) };
            let list = json!({
                "apiVersion": "meta.k8s.io/v1",
                "kind": "PartialObjectMetadataList",
                "metadata": {"resourceVersion": versions[read.min(versions.len() - 1)].to_string()},
                "items": items,
            });
            std::future::ready(Ok::<_, Infallible>(Response::new(Body::from(list.to_string().into_bytes()))))
        };
        let client = Client::new(tower::service_fn(answer), "default");
        let (history, stop) = (History::default(), CancellationToken::new());
        if let Some((version, exists)) = delivered {
            history.observe(&node(version), exists);
        }
        let _running = Supervisor::start([history.watch(client, &stop)]);
        tokio::time::timeout(Duration::from_mins(5), history.went_back()).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn a_version_that_goes_back_is_reported() {
        assert!(goes_back(None, &[7, 9, 3], 0).await);
    }

    #[tokio::test(start_paused = true)]
    async fn versions_that_stand_or_grow_are_not() {
        assert!(!goes_back(None, &[7, 7, 9, 100], 0).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_version_that_a_watch_delivered_counts() {
        assert!(goes_back(Some(("30", true)), &[20], 30).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_never_had_its_version_is_reported_although_the_cluster_is_ahead_again() {
        assert!(goes_back(Some(("30", true)), &[500], 20).await);
        assert!(goes_back(Some(("30", true)), &[500], 0).await);
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_verified_node_counts_although_a_newer_one_was_delivered() {
        let answer = |request: Request<Body>| {
            let query = request.uri().query().unwrap_or_default().to_owned();
            // The node had version 50, and version 30 never existed in this history.
            let items =
                if query.contains("resourceVersion=50") { json!([{"metadata": node("50")}]) } else { json!([]) };
            let list = json!({
                "apiVersion": "meta.k8s.io/v1",
                "kind": "PartialObjectMetadataList",
                "metadata": {"resourceVersion": "60"},
                "items": items,
            });
            std::future::ready(Ok::<_, Infallible>(Response::new(Body::from(list.to_string().into_bytes()))))
        };
        let nodes = Api::all(Client::new(tower::service_fn(answer), "default"));
        let history = History::default();
        history.observe(&node("50"), true);
        history.compare(&nodes).await.unwrap();
        assert!(!history.went_back.is_cancelled());

        history.observed().verified = Incarnation::of(&node("30"));
        history.compare(&nodes).await.unwrap();

        assert!(history.went_back.is_cancelled());
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_had_its_version_is_not() {
        assert!(!goes_back(Some(("30", true)), &[500], 30).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_deleted_node_is_not_looked_up() {
        assert!(!goes_back(Some(("30", false)), &[500], 0).await);
    }
}
