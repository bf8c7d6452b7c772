//! `perennial explain`: why nodes, keys of a node or workloads are as they are.

mod workload;

use std::process::ExitCode;

use clap::Args;
use serde_json::Value;

use self::workload::WorkloadName;
use super::{
    Global, block_on, for_each,
    output::{Telling, print_all},
    workloads::read as read_workloads,
};
use crate::inspect::{
    explain::{key::KeyExplanation, node::NodeExplanation},
    session::Session,
};

#[derive(Debug, Args)]
pub(super) struct Explain {
    /// Names of nodes, which may be deleted; keys with --node; or deploy/NAME or statefulset/NAME
    /// with -n, also as deploy/NAMESPACE/NAME
    #[arg(required = true, value_name = "WHAT", add = super::completion::nodes())]
    what: Vec<String>,
    /// Explain keys of this node: a label KEY, annotation:KEY, taint:KEY:EFFECT or cordon:
    #[arg(long, value_name = "NODE", value_parser = super::node_name, add = super::completion::nodes())]
    node: Option<String>,
    /// Output format: table, json or yaml
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Telling,
}

/// The object that an argument without `--node` refers to.
#[derive(Debug, PartialEq, Eq)]
enum ExplainTarget {
    Node(String),
    Workload(WorkloadName),
}

impl ExplainTarget {
    fn parse(text: &str) -> anyhow::Result<Self> {
        match text.split_once('/') {
            None => Ok(Self::Node(text.to_owned())),
            Some(("node" | "nodes" | "no" | "configmap", _)) => {
                Ok(Self::Node(super::node_name(text).unwrap_or_default()))
            }
            Some((kind, name))
                if !name.contains('/') && kind.split_once('.').is_some_and(|(_, group)| group != "apps") =>
            {
                anyhow::bail!("`{text}` looks like a label key; name its node with --node NODE")
            }
            Some((kind, name)) => WorkloadName::parse(kind, name).map(Self::Workload),
        }
    }
}

impl Explain {
    pub(super) fn execute(self, global: &Global) -> anyhow::Result<ExitCode> {
        block_on(async {
            let mut shown = Vec::new();
            let code = match &self.node {
                Some(node) => {
                    let session = global.open_session().await?;
                    let look = session.look(node).await?;
                    for_each(&self.what, async |key| {
                        let explanation = KeyExplanation::read(&session, &look, key).await;
                        shown.push((explanation.to_json(), explanation.to_text()));
                        Ok(())
                    })
                    .await?
                }
                None => self.explain_subjects(global, &mut shown).await?,
            };
            print_all(self.output, shown)?;
            Ok(code)
        })
    }

    async fn explain_subjects(&self, global: &Global, shown: &mut Vec<(Value, String)>) -> anyhow::Result<ExitCode> {
        let subjects =
            self.what.iter().map(|what| ExplainTarget::parse(what)).collect::<anyhow::Result<Vec<ExplainTarget>>>()?;
        let has_nodes = subjects.iter().any(|subject| matches!(subject, ExplainTarget::Node(_)));
        let has_workloads = subjects.iter().any(|subject| matches!(subject, ExplainTarget::Workload(_)));
        let session = if has_nodes { Some(global.open_session().await?) } else { None };
        let workloads = if has_workloads { Some(read_workloads(global, None).await?) } else { None };
        let mut subjects = subjects.iter();
        for_each(&self.what, async |_| {
            match (subjects.next(), &session, &workloads) {
                (Some(ExplainTarget::Node(name)), Some(session), _) => shown.push(explain_node(session, name).await?),
                (Some(ExplainTarget::Workload(name)), _, Some((client, all))) => {
                    shown.push(workload::explain(name, client, all, global)?);
                }
                _ => {}
            }
            Ok(())
        })
        .await
    }
}

async fn explain_node(session: &Session, name: &str) -> anyhow::Result<(Value, String)> {
    let look = session.look(name).await?;
    let explanation = NodeExplanation::read(session, &look).await;
    Ok((explanation.to_json(), explanation.to_text()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_accepted_as_they_are_printed() {
        let node = |name: &str| ExplainTarget::Node(name.to_owned());
        let workload = |kind: &str, namespace: Option<&str>, name: &str| {
            let kind = kind.to_owned();
            ExplainTarget::Workload(WorkloadName {
                kind,
                namespace: namespace.map(str::to_owned),
                name: name.to_owned(),
            })
        };
        for (text, subject) in [
            ("worker-1", node("worker-1")),
            ("node/worker-1", node("worker-1")),
            ("configmap/node-worker-1", node("worker-1")),
            ("deploy/web", workload("Deployment", None, "web")),
            ("deployment/shop/web", workload("Deployment", Some("shop"), "web")),
            ("statefulset.apps/shop/db", workload("StatefulSet", Some("shop"), "db")),
            ("rs/web-1", workload("ReplicaSet", None, "web-1")),
            ("cloneset.apps.kruise.io/shop/web", workload("cloneset.apps.kruise.io", Some("shop"), "web")),
        ] {
            assert_eq!(ExplainTarget::parse(text).unwrap(), subject, "{text}");
        }
        assert!(ExplainTarget::parse("example.com/team").unwrap_err().to_string().contains("--node"));
        ExplainTarget::parse("pod/x").unwrap_err();
    }
}
