//! `perennial restore`: apply records to their nodes; the values of the records win.

use std::process::ExitCode;

use clap::Args;
use perennial_core::keeper::commands::restore_now;

use super::{
    Global, block_on,
    edit::{Subject, TRIES},
    for_each,
};
use crate::{
    inspect::{format::pairs, session::Session},
    runtime::error_category::Category,
};

#[derive(Debug, Args)]
pub(super) struct Restore {
    /// Names of the nodes
    #[arg(required = true, value_name = "NODE", value_parser = super::node_name, add = super::completion::recorded())]
    nodes: Vec<String>,
    /// Print what would be written, and write nothing
    #[arg(long)]
    dry_run: bool,
}

impl Restore {
    pub(super) fn execute(self, global: &Global) -> anyhow::Result<ExitCode> {
        block_on(async {
            let session = global.open_session().await?;
            session.require_operator_settings()?;
            for_each(&self.nodes, async |node| self.restore(&session, node).await).await
        })
    }

    async fn restore(&self, session: &Session, name: &str) -> anyhow::Result<()> {
        for _ in 0..TRIES {
            let subject = Subject::read(session, name).await?;
            let Some(node) = subject.case.node() else {
                anyhow::bail!("node {name} does not exist; its record is restored when it is created again");
            };
            subject.record()?;
            let Some(restore) = restore_now(&subject.case) else {
                println!("node/{name} already has everything in its record");
                return Ok(());
            };
            println!("node:   set {}", pairs(&restore.set));
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
