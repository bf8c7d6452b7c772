//! `perennial hold`: exclude records from garbage collection.

use std::{collections::BTreeMap, process::ExitCode};

use anyhow::Context as _;
use clap::Args;
use perennial_core::keeper::{collect::HOLD, keys::TRUE};

use super::{Global, block_on, for_each};

#[derive(Debug, Args)]
pub(super) struct Hold {
    /// Names of the nodes, which may be deleted
    #[arg(required = true, value_name = "NODE", value_parser = super::node_name, add = super::completion::recorded())]
    nodes: Vec<String>,
    /// Allow garbage collection of the records again
    #[arg(long)]
    release: bool,
}

impl Hold {
    pub(super) fn execute(self, global: &Global) -> anyhow::Result<ExitCode> {
        block_on(async {
            let session = global.open_session().await?;
            for_each(&self.nodes, async |name| {
                let node = session.node(name).await?;
                let held = session.record(name, node.as_ref()).await?;
                let held = held.with_context(|| format!("there is no record for node {name}"))?;
                let value = (!self.release).then(|| TRUE.to_owned());
                session.cluster.annotate_record(&held, &BTreeMap::from([(HOLD, value)])).await?;
                println!("record {} {}", held.name(), if self.release { "released" } else { "held" });
                Ok(())
            })
            .await
        })
    }
}
