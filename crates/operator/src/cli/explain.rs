//! `perennial explain`: why a node, one of its keys or a workload is as it is.

mod workload;

use std::process::ExitCode;

use clap::Args;

use super::{Global, block_on, output::Telling};
use crate::inspect::explain::{key::KeyExplanation, node::NodeExplanation};

#[derive(Debug, Args)]
pub(super) struct Explain {
    /// Name of a node, which may be deleted; a key with --node; or deploy/NAME or statefulset/NAME with -n
    #[arg(add = super::completion::nodes())]
    what: String,
    /// Explain a key of this node: a label KEY, annotation:KEY, taint:KEY:EFFECT or cordon:
    #[arg(long, value_name = "NODE", add = super::completion::nodes())]
    node: Option<String>,
    /// Output format: table, json or yaml
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Telling,
}

impl Explain {
    pub(super) fn execute(self, global: &Global) -> anyhow::Result<ExitCode> {
        if let Some(node) = &self.node {
            return self.explain_key(node, global);
        }
        match self.what.split_once('/') {
            None => self.explain_node(&self.what, global),
            Some(("node" | "nodes" | "no", name)) => self.explain_node(name, global),
            Some((kind, _)) if kind.split_once('.').is_some_and(|(_, group)| group != "apps") => {
                anyhow::bail!("`{}` looks like a label key; name its node with --node NODE", self.what)
            }
            Some((kind, name)) => workload::explain(kind, name, self.output, global),
        }
    }

    fn explain_node(&self, name: &str, global: &Global) -> anyhow::Result<ExitCode> {
        block_on(async {
            let session = global.open_session().await?;
            let look = session.look(name).await?;
            let explanation = NodeExplanation::read(&session, &look).await;
            self.output.print(|| explanation.to_json(), || explanation.to_text())?;
            Ok(ExitCode::SUCCESS)
        })
    }

    fn explain_key(&self, node: &str, global: &Global) -> anyhow::Result<ExitCode> {
        block_on(async {
            let session = global.open_session().await?;
            let look = session.look(node).await?;
            let explanation = KeyExplanation::read(&session, &look, &self.what).await;
            self.output.print(|| explanation.to_json(), || explanation.to_text())?;
            Ok(ExitCode::SUCCESS)
        })
    }
}
