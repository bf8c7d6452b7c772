//! The status of KeepPolicies: whether they are in force, and the number of nodes they apply to.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use serde_json::{Value, json};
use tracing::{debug, warn};

use super::{
    apply::KeeperClient,
    cache::KeeperCache,
    policies::{Entry, Policies},
};
use crate::runtime::{
    clock::Clock,
    events::{EventObject, Events, Severity},
    ownership::Ownership,
};

/// Reports the status of KeepPolicies.
#[derive(Debug)]
pub(super) struct PolicyReporter {
    pub(super) policies: Policies,
    pub(super) cluster: KeeperClient,
    pub(super) cache: Arc<KeeperCache>,
    pub(super) clock: Clock,
    pub(super) events: Events,
    pub(super) ownership: Ownership,
    pub(super) dry_run: bool,
}

impl PolicyReporter {
    /// Updates the status of every policy, if it changed.
    pub(super) async fn run(&self) {
        // Only the owner of the shard of the policy's name reports it.
        let entries: BTreeMap<String, Entry> = self.policies.entries();
        for (name, entry) in entries {
            if self.ownership.may_act(&name).is_none() {
                continue;
            }
            let counts = self.cache.matched(&name);
            let wanted = status(&entry, counts, self.clock.now());
            if wanted == entry.status || self.dry_run {
                continue;
            }
            if let Err(problems) = &entry.read {
                let about = EventObject {
                    api_version: "perennial.dev/v1alpha1".into(),
                    kind: "KeepPolicy".into(),
                    namespace: None,
                    name: name.clone(),
                    uid: entry.uid.clone(),
                };
                warn!(policy = name, problems = problems.join("; "), "invalid KeepPolicy ignored");
                self.events.occurred(about, Severity::Warning, "Ignored", || problems.join("; "));
            }
            let patch = json!({ "metadata": { "resourceVersion": entry.resource_version }, "status": wanted });
            match self.cluster.report_policy(&name, patch).await {
                Ok(()) => debug!(policy = name, "status written"),
                Err(error) => debug!(policy = name, %error, "status not written"),
            }
        }
    }
}

fn status(entry: &Entry, (nodes, records): (usize, usize), now: Timestamp) -> Value {
    let (ready, reason, message) = match &entry.read {
        Ok(_) => ("True", "InForce", "the policy is in force".to_owned()),
        Err(problems) => ("False", "Invalid", format!("ignored: {}", problems.join("; "))),
    };
    let before = entry.status.pointer("/conditions/0");
    let since = before
        .filter(|before| before["status"] == ready)
        .and_then(|before| before["lastTransitionTime"].as_str().map(str::to_owned));
    // Kubernetes stores whole seconds.
    let now = Timestamp::from_second(now.as_second()).unwrap_or(now).to_string();
    json!({
        "observedGeneration": entry.generation,
        "nodes": nodes,
        "records": records,
        "conditions": [{
            "type": "Ready",
            "status": ready,
            "observedGeneration": entry.generation,
            "lastTransitionTime": since.unwrap_or(now),
            "reason": reason,
            "message": message,
        }],
    })
}
