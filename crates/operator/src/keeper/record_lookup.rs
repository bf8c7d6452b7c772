//! Finds the record of a node under every identity in use.

use std::sync::Arc;

use perennial_core::keeper::{
    identity::{Identified, RecordName},
    lookup::believed_mark,
    policy_set::PolicySet,
    selection::Node,
    stored_record::Stored,
};
use tracing::warn;

use super::{
    Priority,
    apply::{KeeperClient, KeeperError, LoadedRecord},
    cases::Cases,
};

impl Cases {
    /// Returns the identities that the record of a node may be filed under, as far as such records
    /// exist. The one by its own labels comes first, whether its record exists or not.
    pub(super) fn identities_of(&self, node: &Node) -> Vec<Identified> {
        let policies = self.policies.current();
        let own = policies.identify(node);
        let mut all = policies.identities_of(node, &self.cache.identities_in_use());
        all.retain(|identity| {
            own.as_ref() == Some(identity) || self.cache.may_have_record(&node.name, &identity.record_name())
        });
        all
    }

    /// Whether the record of a node may be filed under another identity than the one by its own
    /// labels.
    pub(super) fn has_other_records(&self, node: &Node) -> bool {
        let own = self.policies.current().identify(node);
        self.identities_of(node).iter().any(|identity| own.as_ref() != Some(identity))
    }

    /// Reads the record of a node. Fails while it may be under another name: a second one would be
    /// written beside it.
    pub(super) async fn read_record(
        &self,
        cluster: &KeeperClient,
        node: &Node,
        priority: Priority,
    ) -> Result<Option<LoadedRecord>, KeeperError> {
        let identities = self.identities_of(node);
        let names: Vec<RecordName> = identities.iter().map(Identified::record_name).collect();
        let found = read_all(cluster, identities, priority).await?;
        let is_found = |name: &RecordName| found.iter().any(|(_, held)| held.name() == name.0);
        let moved = names.into_iter().find(|name| !is_found(name) && self.may_have_moved(cluster, node, name));
        match moved {
            Some(RecordName(record)) => Err(KeeperError::Moved { record }),
            None => Ok(choose(&self.policies.current(), node, found)),
        }
    }

    /// Whether a record that does not exist may have been moved to another identity of the node. The
    /// watch delivers it under its new name before it delivers the deletion, so it is there if the
    /// cache lists neither.
    pub(super) fn may_have_moved(&self, cluster: &KeeperClient, node: &Node, record: &RecordName) -> bool {
        let has_others = || self.policies.current().identities_of(node, &self.cache.identities_in_use()).len() > 1;
        self.cache.lists_record(record) && has_others() && !cluster.is_deleting(record)
    }

    /// Reads a node. Last states that were cached before and cannot precede it belong to a history
    /// that a restore of etcd took back, and are dropped.
    pub(super) async fn read_node(
        &self,
        cluster: &KeeperClient,
        name: &str,
        priority: Priority,
    ) -> Result<Option<Node>, KeeperError> {
        let known = self.cache.newest_last_state(name);
        let node = cluster.read_node(name, priority).await?;
        if let Some(node) = node.as_ref().filter(|node| node.resource_version <= known) {
            let uid = &node.uid;
            warn!(node = name, uid, "last states of a lost history, as before a restore of etcd; dropped");
            self.cache.drop_lost_history(node, known);
        }
        Ok(node)
    }
}

/// Reads the records of these identities, and returns the one that belongs to the node.
pub(crate) async fn read_record(
    policies: &PolicySet,
    cluster: &KeeperClient,
    identities: Vec<Identified>,
    node: &Node,
    priority: Priority,
) -> Result<Option<LoadedRecord>, KeeperError> {
    Ok(choose(policies, node, read_all(cluster, identities, priority).await?))
}

/// Reads the records of these identities that exist.
async fn read_all(
    cluster: &KeeperClient,
    identities: Vec<Identified>,
    priority: Priority,
) -> Result<Vec<(Identified, LoadedRecord)>, KeeperError> {
    let mut found = Vec::new();
    for identity in identities {
        let held = cluster.read_record(&identity.record_name(), priority).await?;
        found.extend(held.map(|held| (identity, held)));
    }
    Ok(found)
}

/// Returns the record that belongs to a node, among those that were found under its identities.
pub(crate) fn choose(
    policies: &PolicySet,
    node: &Node,
    mut found: Vec<(Identified, LoadedRecord)>,
) -> Option<LoadedRecord> {
    let stored: Vec<(Identified, Arc<Stored>)> =
        found.iter().map(|(identity, held)| (identity.clone(), held.share())).collect();
    let chosen = policies.choose_record(node, believed_mark(node).as_ref(), &stored)?;
    Some(found.swap_remove(chosen).1)
}
