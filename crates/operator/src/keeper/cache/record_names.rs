//! The names that the record of a node may have, if policies identify nodes in several ways.
//!
//! Which of several existing records belongs to a node depends on their content. The index takes
//! the most likely one and requests the node; the reconciler reads the records and decides.

use std::{collections::BTreeSet, sync::Arc};

use perennial_core::config::Identity;

use super::{
    entries::{NodeEntry, RecordNames},
    index::Index,
};
use crate::keeper::NodeKey;

impl Index {
    /// Returns the identities that existing records are filed under.
    pub(super) fn identities_in_use(&self) -> BTreeSet<Identity> {
        let identified = self.identities.values().sum::<usize>() + self.absent.identified();
        let named = self.records.len() + self.absent.len() > identified;
        let identities = self.identities.keys().chain(self.absent.identities()).cloned();
        identities.chain(named.then_some(Identity::Name)).collect()
    }

    /// Whether there are nodes that are identified by something else than their name.
    pub(super) fn has_nodes_without_name(&self) -> bool {
        self.nodes.values().any(|node| node.own_name().is_some_and(|name| !name.starts_with("node-")))
    }

    /// Counts the identity of a record that was added, deleted or replaced.
    pub(super) fn count_identity(&mut self, old: Option<&Identity>, new: Option<&Identity>) {
        if let Some(identity) = old
            && let Some(count) = self.identities.get_mut(identity)
        {
            *count -= 1;
            if *count == 0 {
                self.identities.remove(identity);
            }
        }
        if let Some(identity) = new {
            *self.identities.entry(identity.clone()).or_default() += 1;
        }
    }

    /// Sets the most likely name of the record of a node. `old` is the entry that is replaced.
    pub(super) fn set_record_name(&self, name: &NodeKey, entry: &mut NodeEntry, old: Option<&NodeEntry>) {
        let Some(names) = &entry.names else { return };
        let decided = old.filter(|old| {
            let same = |known: &RecordNames| known.decided && known.others == names.others;
            old.names.as_deref().is_some_and(same)
                && old.fingerprint.is_same_incarnation(&entry.fingerprint)
                && old.decides_like(entry)
        });
        let (record, decided) = match decided {
            Some(old) => (old.record.clone(), true),
            None if names.own.as_ref().is_some_and(|own| self.has_record(own)) => (names.own.clone(), false),
            None => (self.unclaimed(name, &names.others).or_else(|| names.own.clone()), false),
        };
        entry.record = record;
        if let Some(names) = &mut entry.names {
            names.decided = decided;
        }
    }

    /// Returns the first name of an existing record that no other node claims.
    fn unclaimed(&self, node: &NodeKey, names: &[Arc<str>]) -> Option<Arc<str>> {
        names.iter().find(|name| self.is_unclaimed(node, name)).cloned()
    }

    /// Whether a record exists, and no live node but this one claims it.
    pub(super) fn is_unclaimed(&self, node: &str, record: &str) -> bool {
        self.has_record(record) && self.claimants(record).all(|other| **other == *node)
    }

    /// Whether several records may belong to a node, and it was not decided yet which one does.
    pub(super) fn is_undecided(&self, name: &str, entry: &NodeEntry) -> bool {
        entry
            .names
            .as_ref()
            .is_some_and(|names| !names.decided && names.others.iter().any(|other| self.is_unclaimed(name, other)))
    }

    /// Stores the record that was found to belong to a node; `None` if there is none.
    pub(super) fn decide_record_name(&mut self, name: &NodeKey, record: Option<&str>) {
        let record = record.map(|record| self.record_key(record));
        let Some(node) = self.nodes.get_mut(name) else { return };
        let Some(names) = &mut node.names else { return };
        names.decided = true;
        let record = record.or_else(|| names.own.clone());
        if node.record == record {
            return;
        }
        let before = std::mem::replace(&mut node.record, record);
        let entry = node.clone();
        self.unclaim(before.as_ref(), name);
        self.claim(name, &entry);
    }

    /// A record was added or deleted: returns the nodes that it may belong to, which are undecided
    /// from now on.
    pub(super) fn reopen(&mut self, record: &str) -> Vec<NodeKey> {
        let nodes: Vec<NodeKey> = self.lookups.get(record).into_iter().flatten().cloned().collect();
        for name in &nodes {
            let Some(mut entry) = self.nodes.get(name).cloned() else { continue };
            let before = entry.record.clone();
            entry.clean_with = None;
            self.set_record_name(name, &mut entry, None);
            self.unclaim(before.as_ref(), name);
            self.claim(name, &entry);
            self.nodes.insert(Arc::clone(name), entry);
        }
        nodes
    }

    /// Adds or removes a node under all names that its record may have.
    pub(super) fn look_up_under(&mut self, name: &NodeKey, names: &[Arc<str>], add: bool) {
        for record in names {
            if add {
                self.lookups.entry(Arc::clone(record)).or_default().insert(Arc::clone(name));
            } else if let Some(nodes) = self.lookups.get_mut(record) {
                nodes.remove(name);
                if nodes.is_empty() {
                    self.lookups.remove(record);
                }
            }
        }
    }
}

impl NodeEntry {
    /// Returns all names that the record may have, if there are several.
    pub(super) fn all_names(&self) -> Vec<Arc<str>> {
        let names = self.names.as_deref();
        names.into_iter().flat_map(|names| names.own.iter().chain(&names.others)).cloned().collect()
    }
}
