//! Reports kept content that is lost: records of absent nodes that another client deletes, and last
//! states that are dropped because the size limit was reached.
//!
//! The owner of the node's shard reports a loss; the other replicas see the same events.

use std::sync::Arc;

use k8s_openapi::api::core::v1::ConfigMap;
use perennial_core::keeper::collect::{Candidate, Collection, NodeList, collect};

use super::{
    apply::{KeeperClient, LoadedRecord},
    cache::{KeeperCache, LostRecord},
    cases::Cases,
    reports::Reports,
};
use crate::runtime::{clock::Clock, ownership::Ownership};

/// Reports losses.
#[derive(Debug)]
pub(super) struct Losses {
    pub(super) cluster: KeeperClient,
    pub(super) cache: Arc<KeeperCache>,
    pub(super) cases: Cases,
    pub(super) ownership: Ownership,
    pub(super) clock: Clock,
    pub(super) reports: Reports,
}

impl Losses {
    fn is_ours(&self, node: &str) -> bool {
        self.ownership.is_ours(self.ownership.shard_of(node))
    }

    /// Called when the watch delivers the deletion of a record, before it leaves the cache.
    pub(super) fn on_record_deleted(&self, config_map: &ConfigMap) {
        let held = LoadedRecord::new(config_map.clone(), self.cluster.signatures());
        let expected = self.cluster.take_deletion(&held);
        if expected || !self.cache.is_synced() || !self.is_ours(held.node_name()) || !self.cache.is_only_copy(&held) {
            return;
        }
        // A former owner of the shard may have collected it.
        let candidate = Candidate::new(&self.cases.absent(&held), held.annotations());
        if collect(&candidate, self.clock.now(), &NodeList::TRUSTED, false) != Collection::Delete {
            self.reports.record_lost(held.node_name(), held.name());
        }
    }

    /// Called when a list of records is complete, before the cache forgets those that it did not
    /// contain.
    pub(super) fn on_list_end(&self) {
        self.cache.on_own_deletions(&self.cluster.deleted_names());
    }

    /// Reports the records that were deleted while the watch was interrupted.
    pub(super) fn report_lost(&self) {
        let lost = self.cache.take_lost();
        for LostRecord { record, node } in lost.records {
            if self.is_ours(&node) {
                self.reports.record_lost(&node, &record);
            }
        }
        if lost.others > 0 && self.ownership.is_ours(0) {
            self.reports.other_records_lost(lost.others);
        }
    }

    /// Reports the last states that were dropped since the last call.
    pub(super) fn report_dropped(&self) {
        for dropped in self.cache.take_dropped() {
            if self.is_ours(&dropped.node) {
                self.reports.last_state_dropped(&dropped.node, &dropped.uid);
            }
        }
    }
}
