//! The case of a node, with the ConfigMap of its record.

use std::borrow::Cow;

use jiff::Timestamp;
use perennial_core::keeper::{
    case::{Case, CaseContext, Rival},
    identity::Identified,
    keys::Kept,
    mark::Mark,
    record::Record,
    selection::{self, Policy},
    status::KeepStatus,
    stored_record::Stored,
};

use crate::keeper::{apply::LoadedRecord, policies::Policies};

/// The case of a node, with the ConfigMap of its record.
pub(crate) struct InspectedNode {
    pub(crate) case: Case,
    pub(crate) held: Option<LoadedRecord>,
}

impl InspectedNode {
    /// `rivals` are other live nodes with the same identity.
    pub(crate) fn new(
        policies: &Policies,
        node: Option<selection::Node>,
        held: Option<LoadedRecord>,
        rivals: Vec<String>,
    ) -> Self {
        let rivals = rivals.into_iter().map(|name| Rival { name, holds_record: false }).collect();
        let policies = policies.current();
        let context = CaseContext { policies: &policies, now: Timestamp::now(), by: "cli" };
        let stored = held.as_ref().map(LoadedRecord::share);
        let case = match node {
            Some(node) => Case::live(node, stored, rivals, &context),
            None => Case::absent(stored, &context),
        };
        Self { case, held }
    }

    pub(crate) fn name(&self) -> &str {
        match (self.node(), &self.held) {
            (Some(node), _) => &node.name,
            (None, Some(held)) => held.node_name(),
            (None, None) => "",
        }
    }

    /// Returns the node. `None` if it is absent.
    pub(crate) fn node(&self) -> Option<&selection::Node> {
        self.case.node()
    }

    pub(crate) fn policy(&self) -> &Policy {
        self.case.policy()
    }

    pub(crate) fn identity(&self) -> Option<&Identified> {
        self.case.identity()
    }

    /// Returns the kept keys of the node. `None` if it is absent.
    pub(crate) fn kept(&self) -> Option<&Kept> {
        self.node().map(|_| self.case.kept())
    }

    pub(crate) fn mark(&self) -> Option<&Mark> {
        self.case.mark()
    }

    pub(crate) fn stored(&self) -> Option<&Stored> {
        self.case.stored()
    }

    /// Returns the record to decide on: the stored one, or its substitute.
    pub(crate) fn record(&self) -> Option<Record> {
        self.case.record().map(Cow::into_owned)
    }

    pub(crate) fn status(&self) -> KeepStatus {
        KeepStatus::of(&self.case)
    }
}
