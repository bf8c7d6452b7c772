//! `perennial forget`: empty the records of nodes. The record of a live node keeps the keys that are
//! on the node.

use std::process::ExitCode;

use clap::Args;
use perennial_core::keeper::{commands::forget, selection::IGNORE, stored_record::Stored};

use super::{
    Global, block_on,
    edit::{EditedNode, TRIES, is_conflict, write},
    for_each,
    terminal::confirm,
};
use crate::inspect::session::Session;

#[derive(Debug, Args)]
pub(super) struct Forget {
    /// Names of the nodes
    #[arg(required = true, value_name = "NODE", value_parser = super::node_name, add = super::completion::recorded())]
    nodes: Vec<String>,
    /// Do not ask for confirmation
    #[arg(short, long)]
    yes: bool,
}

impl Forget {
    pub(super) fn execute(self, global: &Global) -> anyhow::Result<ExitCode> {
        block_on(async {
            let session = global.open_session().await?;
            session.require_operator_settings()?;
            let names = self.nodes.join(", ");
            let what = format!(
                "this removes the history of the record of node {names}, and the keys in it unless they are on a live node"
            );
            confirm(self.yes, &what)?;
            for_each(&self.nodes, async |node| forget_node(&session, node).await).await
        })
    }
}

/// Returns the message for a record that has this number of keys left.
fn outcome(node: &str, left: usize) -> String {
    match left {
        0 => format!("node/{node} forgotten"),
        left => format!(
            "node/{node}: history removed; the record keeps the {left} key(s) that are on the node: remove them from \
             the node, or set the annotation {IGNORE}=true on it and run this command again"
        ),
    }
}

async fn forget_node(session: &Session, node: &str) -> anyhow::Result<()> {
    for _ in 0..TRIES {
        let subject = EditedNode::read(session, node).await?;
        let record = match subject.held.stored() {
            Stored::Good(record) => (**record).clone(),
            // A quarantined record cannot be edited, only deleted.
            Stored::Bad { .. } => {
                session.cluster.delete_record(&subject.held).await?;
                println!("record {} deleted", subject.held.name());
                return Ok(());
            }
        };
        let mut forgotten = forget(&subject.case, &record);
        subject.supersede_last_state(&mut forgotten);
        match write(session, &subject, &forgotten, None).await {
            Err(error) if is_conflict(&error) => {}
            done => {
                done?;
                println!("{}", outcome(node, forgotten.kept.len()));
                return Ok(());
            }
        }
    }
    anyhow::bail!("gave up on the record of node {node} after 5 conflicts; nothing was written")
}
