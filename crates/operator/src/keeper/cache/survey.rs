//! Counts of nodes and records by state.

use perennial_core::keeper::status::{KeepState, NodeCounts};

use super::{
    entries::{NodeEntry, hash},
    index::Index,
};

/// Number of nodes and records in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Survey {
    pub nodes: NodeCounts,
    pub records: usize,
    pub tombstones: usize,
    pub bad_records: usize,
    pub unsigned: usize,
    pub absent: usize,
}

impl Index {
    /// Returns the number of nodes that a policy applies to, and how many of them have a record.
    pub(super) fn matched(&self, policy: &str) -> (usize, usize) {
        let policy = hash(&policy);
        let nodes = self.nodes.values().filter(|node| node.policy == policy);
        let has_record = |node: &NodeEntry| node.record.as_ref().is_some_and(|record| self.has_record(record));
        nodes.fold((0, 0), |(nodes, records), node| (nodes + 1, records + usize::from(has_record(node))))
    }

    pub(super) fn survey(&mut self) -> Survey {
        if let Some(known) = self.surveyed {
            return known;
        }
        let absent = self.absent.len();
        let mut survey = Survey {
            records: self.records.len() + absent,
            absent,
            tombstones: self.absent.tombstones(),
            ..Survey::default()
        };
        for node in self.nodes.values() {
            survey.nodes.add(self.state(node));
        }
        for (name, record) in &self.records {
            survey.bad_records += usize::from(record.fingerprint.is_bad());
            survey.unsigned += usize::from(record.unsigned);
            survey.tombstones += usize::from(record.fingerprint.is_tombstone());
            survey.absent += usize::from(!self.has_live_node(name, record));
        }
        self.surveyed = Some(survey);
        survey
    }

    /// Returns the state of a live node, as computed from fingerprints.
    pub(super) fn state(&self, node: &NodeEntry) -> KeepState {
        if self.has_unread_record(node) && !node.fingerprint.is_ignored() {
            return KeepState::Unsettled;
        }
        let record = self.record_of(node).map(|record| &record.fingerprint);
        let contested = node.record.as_ref().is_some_and(|record| self.claimants(record).nth(1).is_some());
        node.fingerprint.state(record, contested, self.is_clean(node))
    }
}
