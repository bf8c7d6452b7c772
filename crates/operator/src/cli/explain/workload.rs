//! `perennial explain deploy/NAME`: the placement of one workload.

use std::fmt::Write as _;

use kube::Client;
use perennial_core::placement::{
    explain::{LEGEND, explain as explain_decision, filled},
    workload::Kind,
};
use serde_json::{Value, json};

use crate::{
    cli::{
        Global,
        workloads::{PlannedWorkload, as_json, row},
    },
    placement::{
        cache::{key, key_of},
        snapshot::Snapshot,
    },
};

/// A workload on the command line: `deploy/NAME`, or `deployment/NAMESPACE/NAME` as `-o name` prints
/// it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct WorkloadName {
    /// As in the key of the cache: `cloneset.apps.kruise.io` for a kind of another group.
    pub(super) kind: String,
    pub(super) namespace: Option<String>,
    pub(super) name: String,
}

impl WorkloadName {
    /// Parses a name. `kind` may be an abbreviation.
    pub(super) fn parse(kind: &str, name: &str) -> anyhow::Result<Self> {
        let kind = match kind {
            "deploy" | "deployment" | "deployments" | "deployment.apps" => "Deployment",
            "sts" | "statefulset" | "statefulsets" | "statefulset.apps" => "StatefulSet",
            "rs" | "replicaset" | "replicasets" | "replicaset.apps" => "ReplicaSet",
            other if name.contains('/') && (other.contains('.') || other == "replicationcontroller") => other,
            _ => anyhow::bail!("unknown kind `{kind}`; expected node, deployment, statefulset or replicaset"),
        };
        let (namespace, name) = match name.split_once('/') {
            Some((namespace, name)) => (Some(namespace.to_owned()), name),
            None => (None, name),
        };
        Ok(Self { kind: kind.to_owned(), namespace, name: name.to_owned() })
    }
}

/// Explains one workload.
pub(super) fn explain(
    WorkloadName { kind, namespace, name }: &WorkloadName,
    client: &Client,
    all: &Snapshot,
    global: &Global,
) -> anyhow::Result<(Value, String)> {
    // As in kubectl: -n, or the namespace of the context.
    let selected = global.namespace.as_deref().unwrap_or(client.default_namespace());
    let namespace = namespace.as_deref().unwrap_or(selected);
    let key = key(kind, namespace, name);
    if all.cache.workload(&key).is_none() {
        anyhow::bail!("{kind} {name} not found in namespace {namespace}; select another with -n");
    }
    let Some(row) = row(all, &key) else {
        let why = "has no placement annotations: its pods run where the scheduler puts them";
        let value = json!({"namespace": namespace, "kind": kind, "name": name, "counts": Value::Null, "why": why});
        return Ok((value, format!("{key} {why}\n")));
    };
    Ok((as_json(&row), to_text(&row)))
}

fn to_text(row: &PlannedWorkload) -> String {
    let workload = &row.workload;
    let mut text = format!("{}\n", key_of(&workload.view));
    match &row.plan {
        Err(problems) => {
            let _ = writeln!(text, "  not managed because its annotations are invalid: {problems}");
        }
        Ok((spec, decision)) => {
            for line in explain_decision(workload, spec, decision) {
                let _ = writeln!(text, "  {line}");
            }
            let slots = filled(spec, workload.view.replicas, &workload.pods);
            if !matches!(workload.view.kind, Kind::StatefulSet { .. }) && !slots.is_empty() {
                let _ = writeln!(text, "  slots: {slots}\n         ({LEGEND})");
            }
        }
    }
    text
}
