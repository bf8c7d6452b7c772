//! `perennial hold`: exclude a record from garbage collection.

use std::{collections::BTreeMap, process::ExitCode};

use anyhow::Context as _;
use clap::Args;
use perennial_core::keeper::{collect::HOLD, keys::TRUE};

use super::{Global, block_on};

#[derive(Debug, Args)]
pub(super) struct Hold {
    /// Name of the node, which may be deleted
    #[arg(add = super::completion::recorded())]
    node: String,
    /// Allow garbage collection of the record again
    #[arg(long)]
    release: bool,
}

impl Hold {
    pub(super) fn execute(self, global: &Global) -> anyhow::Result<ExitCode> {
        block_on(async {
            let session = global.open_session().await?;
            let node = session.node(&self.node).await?;
            let held = session.record(&self.node, node.as_ref()).await?;
            let held = held.with_context(|| format!("there is no record for node {}", self.node))?;
            let value = (!self.release).then(|| TRUE.to_owned());
            session.cluster.annotate_record(&held, &BTreeMap::from([(HOLD, value)])).await?;
            println!("record {} {}", held.name(), if self.release { "released" } else { "held" });
            Ok(ExitCode::SUCCESS)
        })
    }
}
