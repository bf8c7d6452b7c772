//! Fake nodes on which pods can run.

use std::{sync::atomic::AtomicUsize, sync::atomic::Ordering, thread};

use serde_json::json;

use super::{Plane, PlaneError};
use crate::api::{Api, ApiError};

/// Number of concurrent requests; enough to saturate an API server from one client.
const WORKERS: usize = 8;

impl Plane {
    /// Creates `node-0` to `node-{count-1}` for kwok; existing nodes stay unchanged. If kwok is
    /// running, returns when all are Ready and schedulable.
    pub fn create_nodes(&self, count: usize) -> Result<(), PlaneError> {
        let api = self.folder.admin_api(&self.url(0))?;
        let next = AtomicUsize::new(0);
        let work = || -> Result<(), ApiError> {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= count {
                    return Ok(());
                }
                create_node(&api, &format!("node-{number}"))?;
            }
        };
        thread::scope(|scope| {
            let workers: Vec<_> = (0..WORKERS.min(count)).map(|_| scope.spawn(work)).collect();
            workers.into_iter().try_for_each(|worker| worker.join().unwrap_or(Ok(())))
        })?;
        if self.spec.kwok { self.wait_nodes(&api, count) } else { Ok(()) }
    }
}

fn create_node(api: &Api, name: &str) -> Result<(), ApiError> {
    let node = json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {
                "type": "kwok",
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
            },
            "annotations": { "kwok.x-k8s.io/node": "fake" },
        },
    });
    match api.post("/api/v1/nodes", &node) {
        Err(ApiError::Refused { status: 409, .. }) => Ok(()),
        other => other.map(|_| ()),
    }
}
