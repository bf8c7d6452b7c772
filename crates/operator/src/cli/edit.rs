//! Conditional changes of a node and its record, shared by the commands that write.

use std::{collections::BTreeMap, sync::Arc};

use anyhow::Context as _;
use jiff::Timestamp;
use perennial_core::keeper::{
    identity::Identified,
    plan::{Context, Restore},
    record::Record,
    selection::{Incarnation, Node, Policy},
    stored_record::Stored,
};

use crate::{
    inspect::session::Session,
    keeper::Priority,
    keeper::{
        apply::{Error, Held},
        policies::labels_of,
    },
    runtime::error_category::Category,
};

/// Maximum number of attempts of a write that keeps conflicting.
pub(super) const TRIES: usize = 5;

/// A node and its record, read for one attempt.
pub(super) struct Subject {
    pub(super) node: Option<Node>,
    pub(super) seen: Option<Incarnation>,
    policy: Arc<Policy>,
    pub(super) held: Held,
    identity: Option<String>,
    /// Resource version at which the node did not exist, if it does not.
    away_at: Option<u64>,
}

impl Subject {
    pub(super) async fn read(session: &Session, name: &str) -> anyhow::Result<Self> {
        let node = session.node(name).await?;
        let away_at = match node {
            Some(_) => None,
            None => Some(session.cluster.now().await?),
        };
        let held = session.record(name, node.as_ref()).await?;
        let held = held.with_context(|| format!("there is no record for node {name}"))?;
        let policy = match (&node, &held.stored) {
            (Some(node), _) => session.policies.of(node),
            (None, Stored::Good(record)) => session.policies.of_labels(&labels_of(record)),
            (None, Stored::Bad { .. }) => session.policies.of_labels(&BTreeMap::new()),
        };
        let identity = node.as_ref().and_then(|node| Identified::of(&policy.identity, node)).and_then(|id| id.text());
        let seen = node.as_ref().map(|node| policy.select(node));
        Ok(Self { node, seen, policy, held, identity, away_at })
    }

    pub(super) fn record(&self) -> anyhow::Result<Record> {
        match &self.held.stored {
            Stored::Good(record) => Ok((**record).clone()),
            Stored::Bad { fault, .. } => anyhow::bail!("record {} is quarantined: {fault}", self.held.name()),
        }
    }

    /// Makes the record newer than every last state of an absent node that an operator may still have to write.
    pub(super) fn supersede_last_state(&self, record: &mut Record) {
        record.node.resource_version = record.node.resource_version.max(self.away_at.unwrap_or_default());
    }

    pub(super) fn context(&self) -> Context<'_> {
        let identity = self.identity.clone().or_else(|| match &self.held.stored {
            Stored::Good(record) => record.identity.clone(),
            Stored::Bad { .. } => None,
        });
        Context { policy: &self.policy, identity, now: Timestamp::now(), by: "cli" }
    }
}

/// Writes the record first, then the node: in between, the controller finds the record current.
pub(super) async fn write(
    session: &Session,
    subject: &Subject,
    record: &Record,
    restore: Option<&Restore>,
) -> anyhow::Result<()> {
    session.cluster.write_record(Some(&subject.held), record, Priority::Restore).await?;
    if let (Some(node), Some(restore)) = (&subject.node, restore)
        && !restore.changes_nothing()
    {
        session.cluster.change_node(node, restore).await?;
    }
    Ok(())
}

pub(super) fn is_conflict(error: &anyhow::Error) -> bool {
    error.downcast_ref::<Error>().is_some_and(|error| error.category() == Category::Conflict)
}
