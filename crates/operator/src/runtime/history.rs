//! Notices that the history of the API server went back, as after a restore of etcd from a backup.
//!
//! Resource versions only grow, unless etcd is restored: then caches, Leases and watches of this process belong to a
//! history that no longer exists, and a watch that resumes at a future version stays silent for ever. Two signs are
//! enough, each from a consistent read: a Lease that is older than it was (see [`super::coordinator`]), and a newest
//! resource version that is lower than one that was observed before the read was sent ([`History::watch`]).

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client, api::ListParams};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error};

use super::{error_category, tasks::Task};

/// Time between two reads of the newest resource version.
const PERIOD: Duration = Duration::from_secs(10);

/// Whether the history of the API server went back since this process started to observe it. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct History {
    went_back: CancellationToken,
    /// The highest resource version that was observed.
    highest: Arc<AtomicU64>,
}

impl History {
    /// Takes in the resource version of a node that a watch delivered. Versions of other kinds do not compare with those of
    /// nodes where the API server keeps them in another etcd.
    pub fn observe(&self, version: Option<&str>) {
        if let Some(version) = version.and_then(|version| version.parse().ok()) {
            self.highest.fetch_max(version, Ordering::Relaxed);
        }
    }

    /// Reports that a consistent read returned less than what was read before.
    pub fn report(&self, what: &str, before: u64, now: u64) {
        if !self.went_back.is_cancelled() {
            error!(what, before, now, "the API server's history went back, as after a restore of etcd");
        }
        self.went_back.cancel();
    }

    /// Returns once the history went back.
    pub async fn went_back(&self) {
        self.went_back.cancelled().await;
    }

    /// Returns the task that compares the newest resource version with the highest one that was observed.
    pub fn watch(&self, client: Client, stop: &CancellationToken) -> Task {
        let history = self.clone();
        let nodes: Api<Node> = Api::all(client);
        Task::until(stop, "history", async move {
            loop {
                let highest = history.highest.load(Ordering::Relaxed);
                match newest(&nodes).await {
                    Ok(Some(version)) if version < highest => {
                        history.report("newest resource version", highest, version);
                        // The supervisor stops every task now.
                        std::future::pending::<()>().await;
                    }
                    Ok(version) => {
                        history.highest.fetch_max(version.unwrap_or_default(), Ordering::Relaxed);
                    }
                    Err(error) => {
                        debug!(why = error_category::message(&error), "could not read the newest resource version");
                    }
                }
                tokio::time::sleep(PERIOD).await;
            }
        })
    }
}

/// Reads the newest resource version of the API server: that of a consistent list of at most one object.
async fn newest(nodes: &Api<Node>) -> kube::Result<Option<u64>> {
    let page = nodes.list_metadata(&ListParams::default().limit(1)).await?;
    Ok(page.metadata.resource_version.and_then(|version| version.parse().ok()))
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::json;

    use super::*;
    use crate::runtime::tasks::Supervisor;

    /// Observes a server whose newest versions are these, one after the other; the last one stays. A watch has delivered
    /// `delivered` before.
    async fn goes_back(delivered: Option<&str>, versions: &'static [u64]) -> bool {
        let reads = AtomicU64::new(0);
        let answer = move |_: Request<Body>| {
            let read = usize::try_from(reads.fetch_add(1, Ordering::Relaxed)).unwrap();
            let version = versions[read.min(versions.len() - 1)].to_string();
            let list = json!({
                "apiVersion": "meta.k8s.io/v1",
                "kind": "PartialObjectMetadataList",
                "metadata": {"resourceVersion": version},
                "items": [],
            });
            std::future::ready(Ok::<_, Infallible>(Response::new(Body::from(list.to_string().into_bytes()))))
        };
        let client = Client::new(tower::service_fn(answer), "default");
        let (history, stop) = (History::default(), CancellationToken::new());
        history.observe(delivered);
        let _running = Supervisor::start([history.watch(client, &stop)]);
        tokio::time::timeout(Duration::from_mins(5), history.went_back()).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn a_version_that_goes_back_is_reported() {
        assert!(goes_back(None, &[7, 9, 3]).await);
    }

    #[tokio::test(start_paused = true)]
    async fn versions_that_stand_or_grow_are_not() {
        assert!(!goes_back(None, &[7, 7, 9, 100]).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_version_that_a_watch_delivered_counts() {
        assert!(goes_back(Some("30"), &[20]).await);
    }
}
