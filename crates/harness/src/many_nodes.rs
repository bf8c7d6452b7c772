//! Many nodes at once.

use std::time::Duration;

use futures::{StreamExt, stream};
use kube::api::{DeleteParams, ListParams};

use crate::{Labels, TestCluster, eventually_within, labels};

/// Maximum number of concurrent requests, similar to a cluster of kubelets.
const AT_ONCE: usize = 32;
const PATIENCE: Duration = Duration::from_mins(3);

/// Number of nodes in a mass event: `PERENNIAL_NODES`, or 1,000.
pub fn node_count() -> usize {
    node_count_or(1000)
}

/// Number of nodes in a mass event: `PERENNIAL_NODES`, or `usual`.
pub fn node_count_or(usual: usize) -> usize {
    std::env::var("PERENNIAL_NODES").ok().map_or(usual, |text| text.parse().expect("PERENNIAL_NODES is a number"))
}

/// Name of the node with this number.
pub(crate) fn name(number: usize) -> String {
    format!("node-{number:05}")
}

/// Ten labels that are unique to this node.
pub fn ten_labels(number: usize) -> Labels {
    labels((0..10).map(|key| (format!("example.com/key-{key}"), format!("value-{key}-of-{number}"))))
}

impl TestCluster {
    /// Creates `count` nodes, each with its own labels.
    pub async fn create_many(&self, count: usize, labels_of: impl Fn(usize) -> Labels) {
        let creates = (0..count).map(|number| self.node(&name(number)).labels(labels_of(number)).create());
        stream::iter(creates).buffer_unordered(AT_ONCE).for_each(async |_| ()).await;
    }

    /// Deletes all nodes. Retries if the API server ends the request after its timeout of one
    /// minute.
    pub async fn delete_all_nodes(&self) {
        for _ in 0..10 {
            match self.nodes().delete_collection(&DeleteParams::default(), &ListParams::default()).await {
                Err(kube::Error::Service(_)) => {}
                deleted => return drop(deleted.expect("deleting all nodes")),
            }
        }
        panic!("the API server ended each of ten requests to delete all nodes");
    }

    /// Returns the number of nodes that have exactly their ten labels, and the name of one that has
    /// not.
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

    /// Waits until `count` nodes have exactly their ten labels.
    pub async fn wait_for_complete_nodes(&self, count: usize) {
        eventually_within(PATIENCE, format!("{count} nodes are complete"), async || {
            let (found, other) = self.complete_nodes().await;
            if found >= count { Ok(()) } else { Err(format!("{found} are, {other:?} is not")) }
        })
        .await;
    }

    /// Waits until there are `count` records.
    pub async fn wait_for_records(&self, count: usize) {
        eventually_within(PATIENCE, format!("{count} records are there"), async || {
            let found = self.record_count().await;
            if found >= count { Ok(()) } else { Err(found) }
        })
        .await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_node_has_ten_labels_of_its_own() {
        let (first, second) = (ten_labels(1), ten_labels(2));
        assert_eq!((first.len(), second.len()), (10, 10));
        assert!(first.iter().all(|(key, value)| second.get(key).is_some_and(|other| other != value)));
    }
}
