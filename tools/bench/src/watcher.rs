//! Observes with a watch since when each node has all its labels.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

use futures::{StreamExt, future};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api,
    core::PartialObjectMeta,
    runtime::watcher::{self, Event},
};
use perennial_harness::TestCluster;
use tokio::task::JoinHandle;

use crate::fleet::{State, number, state};

/// Time at which each node was first observed with exactly its ten labels, by UID.
#[derive(Clone, Debug, Default)]
pub(crate) struct Complete(Arc<Mutex<HashMap<String, Instant>>>);

impl Complete {
    pub(crate) fn watch(cluster: &TestCluster) -> (Self, JoinHandle<()>) {
        let complete = Self::default();
        let seen = complete.clone();
        let nodes: Api<PartialObjectMeta<Node>> = Api::all(cluster.client());
        let stream = watcher::watcher(nodes, watcher::Config::default());
        let task = tokio::spawn(stream.for_each(move |event| {
            if let Ok(Event::Apply(node) | Event::InitApply(node)) = event {
                let number = number(node.metadata.name.as_deref().unwrap_or_default());
                if state(node.metadata.labels.as_ref(), number) == State::Complete {
                    seen.lock().entry(node.metadata.uid.unwrap_or_default()).or_insert_with(Instant::now);
                }
            }
            future::ready(())
        }));
        (complete, task)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the time at which a node was complete.
    pub(crate) fn when(&self, uid: &str) -> Option<Instant> {
        self.lock().get(uid).copied()
    }

    /// Returns the number of complete nodes.
    pub(crate) fn count(&self) -> usize {
        self.lock().len()
    }
}
