//! Detects a restore of etcd from a backup: the history of the API server went back.
//!
//! Resource versions only grow, unless etcd is restored: then caches, Leases and watches of this
//! process belong to a history that no longer exists, and a watch that resumes at a future version
//! never delivers anything. Three signs are enough, each from a consistent read: a Lease that is
//! older than it was (see [`super::coordinator`]); a newest resource version that is lower than one
//! that was observed before the read was sent; and a version of an object that this object did not
//! get in the history that the API server has now. The last one holds although a busy cluster has
//! passed the observed version again ([`History::watch`]).

use std::{
    collections::BTreeMap,
    fmt::Debug,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use kube::{
    Api,
    api::{ListParams, ObjectMeta, VersionMatch},
};
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error};

use super::{error_category, tasks::Task};

/// Time between two reads of the newest resource version.
const PERIOD: Duration = Duration::from_secs(10);

/// Detects that the history of the API server went back since this process started to observe it.
/// Clones share the state.
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
    /// The object that a watch delivered with the highest version of all.
    latest: Option<ObjectVersion>,
    /// The object of the last comparison. After a restore, `latest` may be of the new history
    /// already.
    verified: Option<ObjectVersion>,
    /// The newest object when the watch was first interrupted since the last comparison. A restore
    /// interrupts every watch.
    interrupted: Option<ObjectVersion>,
}

/// An object as it was at its version.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ObjectVersion {
    name: String,
    uid: String,
    version: u64,
    /// A restored history may change the same object at the same version, but hardly in the same
    /// way.
    labels: BTreeMap<String, String>,
}

impl ObjectVersion {
    fn of(object: &ObjectMeta) -> Option<Self> {
        let version = object.resource_version.as_deref()?.parse().ok()?;
        let labels = object.labels.clone().unwrap_or_default();
        Some(Self { name: object.name.clone()?, uid: object.uid.clone().unwrap_or_default(), version, labels })
    }
}

impl History {
    fn observed(&self) -> MutexGuard<'_, ObservedHistory> {
        self.observed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records an object that the watch of one kind delivered, or the version of its deletion.
    /// Versions of two kinds do not compare where the API server keeps them in two etcds.
    pub fn observe(&self, object: &ObjectMeta, exists: bool) {
        let Some(object) = ObjectVersion::of(object) else { return };
        let mut observed = self.observed();
        observed.highest = observed.highest.max(object.version);
        if exists && observed.latest.as_ref().is_none_or(|known| known.version < object.version) {
            observed.latest = Some(object);
        }
    }

    /// Records that the watch is interrupted: what it delivers next may be of another history.
    pub fn interrupted(&self) {
        let mut observed = self.observed();
        observed.interrupted = observed.interrupted.take().or_else(|| observed.latest.clone());
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

    /// Returns the task that compares the API server's history of the observed kind with the one
    /// that was observed.
    pub fn watch<K>(&self, objects: Api<K>, stop: &CancellationToken) -> Task
    where
        K: Clone + Debug + DeserializeOwned + Send + Sync + 'static,
    {
        let history = self.clone();
        Task::until(stop, "history", async move {
            loop {
                if let Err(error) = history.compare(&objects).await {
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

    async fn compare<K: Clone + Debug + DeserializeOwned>(&self, objects: &Api<K>) -> kube::Result<()> {
        let ObservedHistory { highest, latest, verified, interrupted } = self.observed().clone();
        let newest = newest_version(objects).await?.unwrap_or(highest);
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
            observed.verified.clone_from(&latest);
            observed.interrupted = None;
        }
        let interrupted =
            interrupted.filter(|known| Some(known) != verified.as_ref() && Some(known) != latest.as_ref());
        let verified = verified.filter(|known| Some(known) != latest.as_ref());
        for known in interrupted.iter().chain(&verified).chain(&latest) {
            let found = version_of(objects, &known.name, known.version).await?;
            if found.as_ref() != Some(known) {
                self.report("resource version of an object", known.version, found.map_or(0, |found| found.version));
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

/// Reads an object as it was at a version of the history. Fails if that version is compacted.
async fn version_of<K: Clone + Debug + DeserializeOwned>(
    objects: &Api<K>,
    name: &str,
    version: u64,
) -> kube::Result<Option<ObjectVersion>> {
    let params = ListParams::default()
        .fields(&format!("metadata.name={name}"))
        .at(&version.to_string())
        .matching(VersionMatch::Exact);
    let page = objects.list_metadata(&params).await?;
    Ok(page.items.first().and_then(|object| ObjectVersion::of(&object.metadata)))
}

#[cfg(test)]
mod tests {
    use std::{
        convert::Infallible,
        sync::atomic::{AtomicUsize, Ordering},
    };

    use http::{Request, Response};
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::{Client, client::Body};
    use serde_json::json;

    use super::*;
    use crate::runtime::tasks::Supervisor;

    fn object(version: &str) -> ObjectMeta {
        ObjectMeta { name: Some("a".into()), resource_version: Some(version.into()), ..ObjectMeta::default() }
    }

    /// Observes a server whose newest versions are these, one after the other; the last one stays.
    /// At every version, the object `a` has the version `at`. A watch has delivered `delivered`
    /// before.
    async fn goes_back(delivered: Option<(&str, bool)>, versions: &'static [u64], at: u64) -> bool {
        let reads = AtomicUsize::new(0);
        let answer = move |request: Request<Body>| {
            let exact = request.uri().query().is_some_and(|query| query.contains("resourceVersionMatch=Exact"));
            let read = if exact { 0 } else { reads.fetch_add(1, Ordering::Relaxed) };
            let items = if exact && at > 0 { json!([{"metadata": object(&at.to_string())}]) } else { json!([]) };
            let list = json!({
                "apiVersion": "meta.k8s.io/v1",
                "kind": "PartialObjectMetadataList",
                "metadata": {"resourceVersion": versions[read.min(versions.len() - 1)].to_string()},
                "items": items,
            });
            std::future::ready(Ok::<_, Infallible>(Response::new(Body::from(list.to_string().into_bytes()))))
        };
        let objects: Api<ConfigMap> = Api::all(Client::new(tower::service_fn(answer), "default"));
        let (history, stop) = (History::default(), CancellationToken::new());
        if let Some((version, exists)) = delivered {
            history.observe(&object(version), exists);
        }
        let _running = Supervisor::start([history.watch(objects, &stop)]);
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
    async fn an_object_that_never_had_its_version_is_reported_although_the_cluster_is_ahead_again() {
        assert!(goes_back(Some(("30", true)), &[500], 20).await);
        assert!(goes_back(Some(("30", true)), &[500], 0).await);
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_verified_object_counts_although_a_newer_one_was_delivered() {
        let answer = |request: Request<Body>| {
            let query = request.uri().query().unwrap_or_default().to_owned();
            // The object had version 50, and version 30 never existed in this history.
            let items =
                if query.contains("resourceVersion=50") { json!([{"metadata": object("50")}]) } else { json!([]) };
            let list = json!({
                "apiVersion": "meta.k8s.io/v1",
                "kind": "PartialObjectMetadataList",
                "metadata": {"resourceVersion": "60"},
                "items": items,
            });
            std::future::ready(Ok::<_, Infallible>(Response::new(Body::from(list.to_string().into_bytes()))))
        };
        let objects: Api<ConfigMap> = Api::all(Client::new(tower::service_fn(answer), "default"));
        let history = History::default();
        history.observe(&object("50"), true);
        history.compare(&objects).await.unwrap();
        assert!(!history.went_back.is_cancelled());

        history.observed().verified = ObjectVersion::of(&object("30"));
        history.compare(&objects).await.unwrap();

        assert!(history.went_back.is_cancelled());
    }

    #[tokio::test(start_paused = true)]
    async fn an_object_that_had_its_version_is_not() {
        assert!(!goes_back(Some(("30", true)), &[500], 30).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_deleted_object_is_not_looked_up() {
        assert!(!goes_back(Some(("30", false)), &[500], 0).await);
    }
}
