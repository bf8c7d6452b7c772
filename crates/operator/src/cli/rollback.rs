//! `perennial rollback`: write an earlier version of a record, and apply it to the node.

use std::{collections::BTreeSet, process::ExitCode};

use anyhow::Context as _;
use clap::Args;
use perennial_core::keeper::{
    commands::rollback,
    decide::Restore,
    mark::Mark,
    record::{HistoryEntry, Record},
};

use super::{
    Global, block_on,
    edit::{EditedNode, TRIES, is_conflict, write},
};
use crate::inspect::format::pairs;

#[derive(Debug, Args)]
pub(super) struct Rollback {
    /// Name of the node, which may be deleted
    #[arg(value_parser = super::node_name, add = super::completion::recorded())]
    node: String,
    /// Sequence number to roll back to, as shown by `perennial history`. Defaults to the previous
    /// one
    #[arg(long, value_name = "SEQUENCE")]
    to: Option<u64>,
    /// Print what would be written, and write nothing
    #[arg(long)]
    dry_run: bool,
}

impl Rollback {
    pub(super) fn execute(self, global: &Global) -> anyhow::Result<ExitCode> {
        block_on(async {
            let session = global.open_session().await?;
            session.require_operator_settings()?;
            // Chosen once: an attempt that fails between its two writes has already changed the
            // history.
            let mut chosen = None;
            for _ in 0..TRIES {
                let subject = EditedNode::read(&session, &self.node).await?;
                let record = subject.record()?;
                let entry = match &chosen {
                    Some(entry) => entry,
                    None => chosen.insert(self.entry(&record)?.clone()),
                };
                let mut change = rollback(&subject.case, &record, entry);
                subject.supersede_last_state(&mut change.record);
                println!("record: {} -> {}", pairs(&record.kept), pairs(&change.record.kept));
                for (key, value) in &change.set {
                    println!("node:   set {key}={value}");
                }
                for key in &change.remove {
                    println!("node:   remove {key}");
                }
                if self.dry_run {
                    return Ok(ExitCode::SUCCESS);
                }
                let restore = Restore {
                    set: change.set,
                    remove: change.remove,
                    // `change_node` leaves the mark unchanged.
                    mark: Mark::default(),
                    withheld: BTreeSet::new(),
                    waits: true,
                };
                match write(&session, &subject, &change.record, Some(&restore)).await {
                    Err(error) if is_conflict(&error) => {}
                    done => {
                        done?;
                        println!("node/{} rolled back to {}", self.node, entry.sequence);
                        return Ok(ExitCode::SUCCESS);
                    }
                }
            }
            anyhow::bail!("gave up on node {} after 5 conflicts", self.node)
        })
    }

    fn entry<'a>(&self, record: &'a Record) -> anyhow::Result<&'a HistoryEntry> {
        let known = || record.history.iter().map(|entry| entry.sequence.to_string()).collect::<Vec<_>>().join(", ");
        match self.to {
            _ if record.history.is_empty() => {
                anyhow::bail!("the record of node {} has no earlier version", self.node)
            }
            None => Ok(&record.history[0]),
            Some(to) => record.history.iter().find(|entry| entry.sequence == to).with_context(|| {
                format!("the history of node {} has no version {to}; known versions: {}", self.node, known())
            }),
        }
    }
}
