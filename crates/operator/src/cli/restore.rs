//! `perennial restore`: apply records to their nodes; the values of the records win.

use std::process::ExitCode;

use clap::Args;
use perennial_core::keeper::{
    commands::restore_now,
    explain::explain,
    keys::{Kept, Key},
    next_incarnation::next_incarnation,
    record::Record,
};

use super::{
    Global, block_on,
    edit::{EditedNode, TRIES},
    for_each,
};
use crate::{
    inspect::{explain::key::words, format::pairs, inspected_node::InspectedNode, session::Session},
    runtime::{error_category::Category, reporter::CategorizedError as _},
};

#[derive(Debug, Args)]
pub(super) struct RestoreArgs {
    /// Names of the nodes
    #[arg(required = true, value_name = "NODE", value_parser = super::node_name, add = super::completion::recorded())]
    nodes: Vec<String>,
    /// Print what would be written, and write nothing
    #[arg(long)]
    dry_run: bool,
}

/// Returns the keys of the record that the node neither has nor is given, each with the reason.
fn left_out(subject: &EditedNode, record: &Record, set: &Kept) -> Vec<String> {
    let look = InspectedNode { case: subject.case.clone(), held: Some(subject.held.clone()) };
    let lacks = |(key, value): &(&Key, &String)| !set.contains_key(key) && look.case.kept().get(key) != Some(value);
    let left = record.kept.iter().filter(lacks);
    left.map(|(key, _)| format!("{key}: {}", words(key, &explain(key, &look.case), &look).0)).collect()
}

impl RestoreArgs {
    pub(super) fn execute(self, global: &Global) -> anyhow::Result<ExitCode> {
        block_on(async {
            let session = global.open_session().await?;
            session.require_operator_settings()?;
            for_each(&self.nodes, async |node| self.restore(&session, node).await).await
        })
    }

    async fn restore(&self, session: &Session, name: &str) -> anyhow::Result<()> {
        for _ in 0..TRIES {
            let subject = EditedNode::read(session, name).await?;
            let Some(node) = subject.case.node() else {
                match next_incarnation(&subject.case) {
                    Ok(_) => {
                        anyhow::bail!("node {name} does not exist; its record is restored when it is created again")
                    }
                    Err(why) => {
                        anyhow::bail!("node {name} does not exist; nothing is restored when it is created again: {why}")
                    }
                }
            };
            let record = subject.record()?;
            let Some(restore) = restore_now(&subject.case) else {
                let left = left_out(&subject, &record, &Kept::new());
                anyhow::ensure!(left.is_empty(), "nothing was restored to node {name}: {}", left.join("; "));
                println!("node/{name} already has everything in its record");
                return Ok(());
            };
            println!("node:   set {}", pairs(&restore.set));
            for line in left_out(&subject, &record, &restore.set) {
                println!("left out: {line}");
            }
            if self.dry_run {
                return Ok(());
            }
            match session.cluster.patch_node(node, &restore).await {
                Err(error) if error.category() == Category::Conflict => {}
                done => {
                    done?;
                    println!("node/{name} restored");
                    return Ok(());
                }
            }
        }
        anyhow::bail!("gave up on node {name} after 5 conflicts; nothing was written")
    }
}
