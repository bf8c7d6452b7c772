//! The record of a node among all records that it may be filed under.
//!
//! A policy selects nodes by labels, and identifies them by a field of its choice. A node that
//! returns without labels is therefore looked up under every identity in use, and the records that
//! are found determine the policy.

use std::{cmp::Reverse, collections::BTreeSet, sync::Arc};

use super::{
    identity::Identified, keys::digest, machine::Sameness, mark::Mark, policy_set::PolicySet, record::Record,
    selection::Node, stored_record::Stored,
};
use crate::config::settings::Identity;

impl PolicySet {
    /// Returns the identities that the record of a node may be filed under. That of the policy
    /// which selects the node by its own labels comes first; `None` while the node lacks it.
    /// `in_use` are the identities of existing records.
    pub fn identities_of(&self, node: &Node, in_use: &BTreeSet<Identity>) -> Vec<Identified> {
        let own = self.for_node(node).identity.clone();
        let mut others = self.identities();
        others.extend(in_use.iter().cloned());
        others.remove(&own);
        let mut found: Vec<Identified> = Vec::new();
        for identity in std::iter::once(own).chain(others).flat_map(|kind| Identified::spellings(&kind, node)) {
            if !found.contains(&identity) {
                found.push(identity);
            }
        }
        found
    }

    /// Returns the position of the record that belongs to a node, among the existing records under
    /// its identities. `mark` is the mark of the node, if it is trusted.
    ///
    /// Of several, those that this incarnation has written or was given and those of its machine
    /// apply, the latest first.
    pub fn choose_record(
        &self,
        node: &Node,
        mark: Option<&Mark>,
        found: &[(Identified, Arc<Stored>)],
    ) -> Option<usize> {
        let own = self.identify(node);
        let mut candidates: Vec<_> = found
            .iter()
            .enumerate()
            .filter_map(|(position, (identity, stored))| {
                let is_own = own.as_ref().is_some_and(|own| own.is_same(identity));
                let Some(record) = stored.record_for(node) else {
                    return is_own.then_some((Rank::default(), position));
                };
                let rank = Rank::new(node, mark, &record, own.as_ref());
                let policy = self.for_node_with_record(node, mark, &record);
                let recorded = Identified::of(&policy.identity, &record.described_node());
                let is_its = |it: &Identified| it.is_same(identity) || recorded.is_some_and(|other| it.is_same(&other));
                let belongs = Identified::of(&policy.identity, node).as_ref().is_some_and(is_its)
                    || is_own
                    || record.node.uid == node.uid
                    || rank.is_of_incarnation;
                belongs.then_some((rank, position))
            })
            .collect();
        candidates.sort_by_key(|(rank, position)| (Reverse(*rank), *position));
        candidates.first().map(|(_, position)| *position)
    }
}

/// Returns the mark of a node, unless the node is being created: the mark may then come from a
/// saved manifest.
pub fn believed_mark(node: &Node) -> Option<Mark> {
    Mark::read(&node.annotations).filter(|_| !node.uid.is_empty())
}

/// Closeness of a record to a node, for choosing among several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    /// This incarnation or an earlier one of the same machine has written the record, or this one
    /// was given it.
    is_its: bool,
    machine: u8,
    resource_version: u64,
    sequence: u64,
    /// This incarnation has written the record, or was given it.
    is_of_incarnation: bool,
}

impl Rank {
    fn new(node: &Node, mark: Option<&Mark>, record: &Record, own: Option<&Identified>) -> Self {
        let given = mark.is_some_and(|mark| mark.from == digest(&record.kept));
        // Captured before the node reported which machine it is: the record of that machine, if
        // there is one, was not looked for.
        let too_early = own.is_some_and(|own| Identified::of(own.kind(), &record.described_node()).is_none());
        let is_of_incarnation = !too_early && (record.node.uid == node.uid || given);
        let machine = match node.machine.compare(&record.node.machine) {
            Sameness::Same => 2,
            _ if is_of_incarnation => 2,
            Sameness::Unknown => 1,
            Sameness::Different => 0,
        };
        Self {
            is_its: !too_early && machine == 2,
            machine,
            resource_version: record.node.resource_version,
            sequence: record.sequence,
            is_of_incarnation,
        }
    }
}

#[cfg(test)]
mod tests;
