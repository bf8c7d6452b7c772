//! Periodic checks: gauges, nodes that have been gated for too long, and labels that flap.

use std::sync::Arc;

use perennial_core::keeper::{keys::Kept, record::Record, selection, stored_record::Stored};
use tokio::time::Instant;
use tracing::warn;

use super::{
    Key, Priority,
    apply::Held,
    cache::Survey,
    controller::{FLAP_MEMORY, FLAPS, Keeper},
};
use crate::runtime::{
    events::{About, Severity},
    reporter::Retry,
};

impl Keeper {
    /// Detects labels that are set back and forth. They are reported once, captured less and less
    /// often, and never reverted.
    pub(super) fn note_flap(&self, key: &Key, node: &selection::Node, held: Option<&Held>, next: &Record) {
        let Some(Stored::Good(before)) = held.map(Held::stored) else { return };
        let back = before.kept != next.kept
            && before.history.first().is_some_and(|entry| Kept::from(entry.content.clone()) == next.kept);
        if !back {
            return;
        }
        let count = {
            let mut state = self.lock();
            let flap = state.flaps.entry(Arc::clone(key)).or_insert((0, Instant::now()));
            *flap = (if flap.1.elapsed() < FLAP_MEMORY { flap.0 + 1 } else { 1 }, Instant::now());
            flap.0
        };
        self.metrics.labels_flapped();
        if count == FLAPS {
            warn!(node = node.name, "labels flap; the node is captured less often");
            self.events.occurred(About::node(&node.name, &node.uid), Severity::Warning, "LabelsFlap", || {
                let changed =
                    next.kept.keys().chain(before.kept.keys()).filter(|k| next.kept.get(*k) != before.kept.get(*k));
                let keys: std::collections::BTreeSet<String> = changed.map(ToString::to_string).collect();
                format!(
                    "another controller sets {} back and forth; let only one of them set these keys",
                    keys.into_iter().collect::<Vec<_>>().join(", ")
                )
            });
        }
    }

    /// Updates the gauges.
    pub fn survey(&self) -> Survey {
        {
            let mut state = self.lock();
            state.flaps.retain(|_, (_, at)| at.elapsed() < FLAP_MEMORY);
            state.captured.retain(|_, at| at.elapsed() < FLAP_MEMORY);
        }
        self.cache.expire();
        let survey = self.cache.survey();
        self.metrics.set_gauges(&survey);
        self.reconciler.report_depth();
        survey
    }

    /// Ungates nodes that have been gated for too long, including those of other replicas: a node
    /// must not stay gated because the owner of its shard is down.
    pub async fn free_overdue(&self) {
        let overdue = self.cache.overdue(self.gate_timeout);
        for name in overdue {
            let freed = async {
                match self.cluster.read_node(&name, Priority::Restore).await? {
                    Some(node) if node.is_gated() => self.ungate(&node).await,
                    _ => Ok(()),
                }
            };
            if let Err(error) = freed.await {
                self.report(&name, &error, Retry::default());
            }
        }
    }
}
