//! `perennial restore`: apply a record to its node; the record's values win.

use std::process::ExitCode;

use clap::Args;
use perennial_core::keeper::commands::restore_now;

use super::{
    Global, block_on,
    edit::{Subject, TRIES},
};
use crate::{inspect::format::pairs, runtime::error_category::Category};

#[derive(Debug, Args)]
pub(super) struct Restore {
    /// Name of the node
    #[arg(add = super::completion::recorded())]
    node: String,
    /// Print what would be written, and write nothing
    #[arg(long)]
    dry_run: bool,
}

impl Restore {
    pub(super) fn execute(self, global: &Global) -> anyhow::Result<ExitCode> {
        block_on(async {
            let session = global.open_session().await?;
            session.require_operator_settings()?;
            for _ in 0..TRIES {
                let subject = Subject::read(&session, &self.node).await?;
                let Some(node) = subject.case.node() else {
                    anyhow::bail!("node {} does not exist; its record is restored when it is created again", self.node);
                };
                subject.record()?;
                let Some(restore) = restore_now(&subject.case) else {
                    println!("node/{} already has everything in its record", self.node);
                    return Ok(ExitCode::SUCCESS);
                };
                println!("node:   set {}", pairs(&restore.set));
                if self.dry_run {
                    return Ok(ExitCode::SUCCESS);
                }
                match session.cluster.patch_node(node, &restore).await {
                    Err(error) if error.category() == Category::Conflict => {}
                    done => {
                        done?;
                        println!("node/{} restored", self.node);
                        return Ok(ExitCode::SUCCESS);
                    }
                }
            }
            anyhow::bail!("gave up on node {} after 5 conflicts; nothing was written", self.node)
        })
    }
}
