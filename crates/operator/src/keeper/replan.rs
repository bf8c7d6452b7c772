//! Applies changes of the policies in force to all nodes and records.

use std::{sync::Arc, time::Duration};

use kube::runtime::watcher::Event;
use tokio::sync::Notify;
use tracing::warn;

use super::{
    apply::{KeeperClient, KeeperError},
    cache::KeeperCache,
    cases::Cases,
    controller::Duties,
    intake::Intake,
    policies::{KeepPolicyResource, Policies},
};
use crate::runtime::{
    error_category::Category, error_chain::Chain, jitter::Jitter, ownership::Ownership, reporter::CategorizedError as _,
};

/// Bounds of the pause after a failure.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_mins(1));

/// Applies changes of the policies in force.
#[derive(Debug)]
pub(super) struct Replanner {
    pub(super) policies: Policies,
    pub(super) cluster: KeeperClient,
    pub(super) cache: Arc<KeeperCache>,
    pub(super) cases: Cases,
    pub(super) intake: Arc<Intake>,
    pub(super) duties: Duties,
    pub(super) jitter: Jitter,
    pub(super) ownership: Ownership,
    /// Notified when records may have to move.
    pub(super) moves: Notify,
    /// Notified when the policies in force are known, or have changed.
    pub(super) changed: Notify,
}

impl Replanner {
    pub(super) fn on_policy(&self, event: Event<KeepPolicyResource>) {
        if self.policies.on_event(event) {
            self.changed.notify_one();
        }
    }

    /// Uses the configuration for all nodes where KeepPolicies do not exist. Where they cannot be
    /// read, nothing is captured or restored.
    pub(super) fn on_watch_failure(&self, category: Category) {
        if category != Category::NotFound {
            self.policies.on_failure();
        } else if self.policies.on_absent() {
            self.changed.notify_one();
        }
    }

    /// Applies policy changes to nodes and to records. Never returns.
    pub(super) async fn run(&self) {
        futures::join!(self.follow_changes(), self.follow_moves(), self.follow_ownership());
    }

    /// Caches every node again whenever the policies in force change. Only affected nodes are
    /// reconciled.
    async fn follow_changes(&self) {
        loop {
            self.changed.notified().await;
            if let Err(error) = self.replan().await {
                let category = error.category().as_str();
                warn!(category, error = %Chain(&error), "policy change not applied yet, retrying");
                tokio::time::sleep(self.jitter.backoff(3, PAUSE.0, PAUSE.1)).await;
                self.changed.notify_one();
            }
        }
    }

    async fn replan(&self) -> Result<(), KeeperError> {
        // The identities of existing records are among those that a node is looked up under.
        while !self.cache.is_listed() {
            tokio::time::sleep(PAUSE.0).await;
        }
        let known = self.cache.policies_are_known();
        if known || self.policies.has_any() || self.cache.has_other_identities() {
            self.intake.each_node(|node| self.intake.reconsider(&node)).await?;
        }
        self.cache.set_policies_known();
        self.intake.resync();
        self.moves.notify_one();
        Ok(())
    }

    /// Moves records whenever policies or the owned shards have changed.
    async fn follow_moves(&self) {
        let mut failures = 0;
        loop {
            self.moves.notified().await;
            let differ = self.policies.identities_differ() || self.cache.has_other_identities();
            if !differ && !self.cache.has_nodes_without_name() {
                continue;
            }
            if !self.policies.are_known() {
                warn!("KeepPolicies cannot be read: no record is moved to another identity");
                continue;
            }
            let moved = self.migrate().await;
            if let Err(error) = &moved {
                let category = error.category().as_str();
                warn!(category, error = %Chain(error), "records not listed, retrying to move them");
            }
            if moved.unwrap_or(false) {
                failures = 0;
            } else {
                failures += 1;
                tokio::time::sleep(self.jitter.backoff(failures, PAUSE.0, PAUSE.1)).await;
                self.moves.notify_one();
            }
        }
    }

    async fn follow_ownership(&self) {
        let mut changes = self.ownership.changes();
        loop {
            changes.next().await;
            if self.cache.is_synced() {
                self.moves.notify_one();
            }
        }
    }
}
