//! Conditional changes of a node and its record, shared by the commands that write.

use anyhow::Context as _;
use perennial_core::keeper::{case::Case, decide::Restore, record::Record, stored_record::Stored};

use crate::{
    inspect::{inspected_node::InspectedNode, session::Session},
    keeper::{
        Priority,
        apply::{KeeperError, LoadedRecord},
    },
    runtime::{error_category::Category, reporter::CategorizedError as _},
};

/// Maximum number of attempts of a write that keeps conflicting.
pub(super) const TRIES: usize = 5;

/// The case of a node that has a record, read for one attempt.
pub(super) struct EditedNode {
    pub(super) case: Case,
    pub(super) held: LoadedRecord,
    /// A resourceVersion at which the node was absent.
    absent_at: Option<u64>,
}

impl EditedNode {
    pub(super) async fn read(session: &Session, name: &str) -> anyhow::Result<Self> {
        let node = session.node(name).await?;
        let absent_at = match node {
            Some(_) => None,
            None => Some(session.cluster.now().await?),
        };
        let held = session.record(name, node.as_ref()).await?;
        let InspectedNode { case, held } = session.pair(node, held);
        let held = held.with_context(|| format!("there is no record for node {name}"))?;
        Ok(Self { case, held, absent_at })
    }

    pub(super) fn record(&self) -> anyhow::Result<Record> {
        match self.held.stored() {
            Stored::Good(record) => Ok((**record).clone()),
            Stored::Bad { fault, .. } => anyhow::bail!(
                "record {} is quarantined: {fault}; run `perennial explain {}` for its state",
                self.held.name(),
                self.held.node_name()
            ),
        }
    }

    /// Makes the record newer than every last state of an absent node that an operator may still
    /// have to write.
    pub(super) fn supersede_last_state(&self, record: &mut Record) {
        record.node.resource_version = record.node.resource_version.max(self.absent_at.unwrap_or_default());
    }
}

/// Writes the record first, then the node: in between, the controller finds the record current.
pub(super) async fn write(
    session: &Session,
    subject: &EditedNode,
    record: &Record,
    restore: Option<&Restore>,
) -> anyhow::Result<()> {
    session.cluster.write_record(Some(&subject.held), record, Priority::Restore).await?;
    if let (Some(node), Some(restore)) = (subject.case.node(), restore)
        && !restore.changes_nothing()
    {
        session.cluster.change_node(node, restore).await?;
    }
    Ok(())
}

pub(super) fn is_conflict(error: &anyhow::Error) -> bool {
    error.downcast_ref::<KeeperError>().is_some_and(|error| error.category() == Category::Conflict)
}
