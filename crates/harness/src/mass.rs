//! Many nodes at once.

use std::time::Duration;

use futures::{StreamExt, stream};
use kube::api::{DeleteParams, ListParams};

use crate::{Labels, TestCluster, eventually_within, labels};

/// Requests under way at a time, as a cluster of kubelets would have.
const AT_ONCE: usize = 32;
const PATIENCE: Duration = Duration::from_mins(3);

/// How many nodes a mass event has: 1,000, or what `PERENNIAL_NODES` says.
pub fn node_count() -> usize {
    node_count_or(1000)
}

/// The same with another number where `PERENNIAL_NODES` says none.
pub fn node_count_or(usual: usize) -> usize {
    std::env::var("PERENNIAL_NODES").ok().map_or(usual, |text| text.parse().expect("PERENNIAL_NODES is a number"))
}

/// The name of one of many.
pub(crate) fn name(number: usize) -> String {
    format!("node-{number:05}")
}

/// Ten labels that no other of the many has.
pub fn ten_labels(number: usize) -> Labels {
    labels((0..10).map(|key| (format!("example.com/key-{key}"), format!("value-{key}-of-{number}"))))
}

impl TestCluster {
    /// Creates so many nodes, each with its own labels.
    pub async fn create_many(&self, count: usize, labels_of: impl Fn(usize) -> Labels) {
        let creates = (0..count).map(|number| self.node(&name(number)).labels(labels_of(number)).create());
        stream::iter(creates).buffer_unordered(AT_ONCE).for_each(async |_| ()).await;
    }

    /// Deletes all nodes in one request; very many in a few, since an API server ends each after a minute.
    pub async fn delete_all_nodes(&self) {
        for _ in 0..10 {
            match self.nodes().delete_collection(&DeleteParams::default(), &ListParams::default()).await {
                Err(kube::Error::Service(_)) => {}
                deleted => return drop(deleted.expect("deleting all nodes")),
            }
        }
        panic!("the API server ended each of ten requests to delete all nodes");
    }

    /// How many nodes have exactly their ten labels, and one that has not.
    pub async fn complete_nodes(&self) -> (usize, Option<String>) {
        let nodes = self.nodes().list_metadata(&ListParams::default()).await.expect("listing nodes").items;
        let mut found = 0;
        let mut other = None;
        for node in nodes {
            let name = node.metadata.name.unwrap_or_default();
            let number = name.rsplit('-').next().and_then(|number| number.parse().ok()).unwrap_or_default();
            if node.metadata.labels == Some(ten_labels(number)) { found += 1 } else { other = Some(name) }
        }
        (found, other)
    }

    /// Until so many nodes have exactly their ten labels.
    pub async fn wait_for_complete_nodes(&self, count: usize) {
        eventually_within(PATIENCE, format!("{count} nodes are complete"), async || {
            let (found, other) = self.complete_nodes().await;
            if found >= count { Ok(()) } else { Err(format!("{found} are, {other:?} is not")) }
        })
        .await;
    }

    /// Until there are so many records.
    pub async fn wait_for_records(&self, count: usize) {
        eventually_within(PATIENCE, format!("{count} records are there"), async || {
            let found = self.record_count().await;
            if found >= count { Ok(()) } else { Err(found) }
        })
        .await;
    }
}
