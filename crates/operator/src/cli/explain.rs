//! `perennial explain`: why things are as they are, in one command.

pub(crate) mod key;
pub(crate) mod node;

use std::process::ExitCode;

use clap::Args;

use super::{Global, output::Telling, workloads::explain_workload};

#[derive(Debug, Args)]
pub(super) struct Explain {
    /// A node, also one that is away; a label key with --node; or deploy/NAME, statefulset/NAME in the namespace that -n says
    #[arg(add = super::complete::nodes())]
    what: String,
    /// Explain this key (a label, annotation:KEY, taint:KEY:EFFECT or cordon:) on this node: why it is there or not
    #[arg(long, value_name = "NODE", add = super::complete::nodes())]
    node: Option<String>,
    /// How to print: table, json or yaml
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Telling,
}

impl Explain {
    pub(super) fn execute(self, global: &Global) -> anyhow::Result<ExitCode> {
        if let Some(node) = &self.node {
            return key::explain(&self.what, node, self.output, global);
        }
        match self.what.split_once('/') {
            None => node::explain(&self.what, self.output, global),
            Some(("node" | "nodes" | "no", name)) => node::explain(name, self.output, global),
            Some((kind, _)) if kind.split_once('.').is_some_and(|(_, group)| group != "apps") => {
                anyhow::bail!("`{}` looks like a label key: say of which node, with --node NODE", self.what)
            }
            Some((kind, name)) => explain_workload(kind, name, self.output, global),
        }
    }
}
