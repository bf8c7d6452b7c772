//! `perennial explain deploy/NAME`: the placement of one workload.

use std::{fmt::Write as _, process::ExitCode};

use perennial_core::placement::{
    explain::{LEGEND, explain as explain_decision, filled},
    workload::Kind,
};
use serde_json::{Value, json};

use crate::{
    cli::{
        Global, block_on,
        output::Telling,
        workloads::{WorkloadRow, as_json, read, row},
    },
    placement::cache::{key, key_of},
};

/// Explains one workload. `kind` may be an abbreviation.
pub(super) fn explain(kind: &str, name: &str, output: Telling, global: &Global) -> anyhow::Result<ExitCode> {
    let kind = match kind {
        "deploy" | "deployment" | "deployments" | "deployment.apps" => "Deployment",
        "sts" | "statefulset" | "statefulsets" | "statefulset.apps" => "StatefulSet",
        _ => anyhow::bail!("unknown kind `{kind}`; expected node, deployment or statefulset"),
    };
    block_on(async {
        let (client, all) = read(global, None).await?;
        // As in kubectl: -n, or the namespace of the context.
        let namespace = global.namespace.as_deref().unwrap_or(client.default_namespace());
        let key = key(kind, namespace, name);
        if all.cache.workload(&key).is_none() {
            anyhow::bail!("{kind} {name} not found in namespace {namespace}; select another with -n");
        }
        let Some(row) = row(&all, &key) else {
            let why = "has no placement annotations: its pods run where the scheduler puts them";
            let value =
                || json!({"namespace": namespace, "kind": kind, "name": name, "counts": Value::Null, "why": why});
            output.print(value, || format!("{key} {why}\n"))?;
            return Ok(ExitCode::SUCCESS);
        };
        output.print(|| as_json(&row), || to_text(&row))?;
        Ok(ExitCode::SUCCESS)
    })
}

fn to_text(row: &WorkloadRow) -> String {
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
            if workload.view.kind == Kind::Deployment && !slots.is_empty() {
                let _ = writeln!(text, "  slots: {slots}\n         ({LEGEND})");
            }
        }
    }
    text
}
