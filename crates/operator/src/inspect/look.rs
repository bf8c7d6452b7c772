//! A node and its record, with the policy and the identity by which the operator decides on them.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use perennial_core::keeper::{
    identity::Identified,
    plan::Context,
    record::Record,
    selection::{self, Incarnation, Policy},
    status::Standing,
    stored_record::Stored,
};

use crate::keeper::{
    apply::Held,
    policies::{Policies, labels_of},
};

/// A node and its record, as the operator would look at them.
pub(crate) struct Look {
    pub(crate) node: Option<selection::Node>,
    pub(crate) held: Option<Held>,
    pub(crate) policy: Arc<Policy>,
    /// Who it is, where it says so.
    pub(crate) identity: Option<Identified>,
    /// Other live nodes that say the same.
    pub(crate) rivals: Vec<String>,
}

impl Look {
    pub(crate) fn new(policies: &Policies, node: Option<selection::Node>, held: Option<Held>) -> Self {
        let policy = match (&node, &held) {
            (Some(node), held) => {
                let plain = policies.of(node);
                let record = held.as_ref().and_then(|held| held.stored.effective(&plain.select(node)));
                policies.with_record(node, record.as_ref())
            }
            (None, Some(Held { stored: Stored::Good(record), .. })) => policies.of_labels(&labels_of(record)),
            (None, _) => policies.of_labels(&BTreeMap::new()),
        };
        let identity = node.as_ref().and_then(|node| Identified::of(&policy.identity, node));
        Self { node, held, policy, identity, rivals: Vec::new() }
    }

    pub(crate) fn name(&self) -> &str {
        match (&self.node, &self.held) {
            (Some(node), _) => &node.name,
            (None, Some(held)) => held.node_name(),
            (None, None) => "",
        }
    }

    pub(crate) fn stored(&self) -> Option<&Stored> {
        self.held.as_ref().map(|held| &held.stored)
    }

    /// The record to decide on.
    pub(crate) fn record(&self) -> Option<Record> {
        match (self.stored()?, self.seen()) {
            (stored, Some(seen)) => stored.effective(&seen),
            (Stored::Good(record), None) => Some((**record).clone()),
            (Stored::Bad { .. }, None) => None,
        }
    }

    pub(crate) fn seen(&self) -> Option<Incarnation> {
        self.node.as_ref().map(|node| self.policy.select(node))
    }

    pub(crate) fn context(&self) -> Context<'_> {
        let identity = self.identity.as_ref().and_then(Identified::text).or_else(|| match self.stored() {
            Some(Stored::Good(record)) => record.identity.clone(),
            _ => None,
        });
        Context { policy: &self.policy, identity, now: Timestamp::now(), by: "cli" }
    }

    pub(crate) fn standing(&self) -> Standing {
        Standing::of(self.node.as_ref(), self.stored(), &self.rivals, &self.context())
    }
}
