//! `perennial explain deploy/NAME`: the placement of one workload.

use std::{fmt::Write as _, process::ExitCode};

use jiff::Timestamp;
use perennial_core::placement::{
    explain::{LEGEND, explain as explain_plan, filled},
    fallback::State,
};
use serde_json::{Value, json};

use crate::{
    cli::{
        Global, block_on,
        output::Telling,
        workloads::{WorkloadRow, as_json, read, row},
    },
    placement::index::key,
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
        if all.view.index.workload(&key).is_none() {
            anyhow::bail!("{kind} {name} not found in namespace {namespace}; select another with -n");
        }
        let Some(row) = row(&all, &key) else {
            let why = "has no placement annotations: its pods run where the scheduler puts them";
            let value =
                || json!({"namespace": namespace, "kind": kind, "name": name, "counts": Value::Null, "why": why});
            output.print(value, || format!("{key} {why}\n"))?;
            return Ok(ExitCode::SUCCESS);
        };
        output.print(|| as_json(&row, all.now), || to_text(&row, all.now))?;
        Ok(ExitCode::SUCCESS)
    })
}

fn to_text(row: &WorkloadRow, now: Timestamp) -> String {
    let workload = &row.look.workload;
    let mut text = format!("{}\n", workload.key);
    match &row.plan {
        Err(problems) => {
            let _ = writeln!(text, "  left alone, because its annotations are invalid: {problems}");
        }
        Ok((spec, plan)) => {
            let (state, _) = State::read(workload.view.state.as_deref());
            for line in explain_plan(spec, &state, plan, now) {
                let _ = writeln!(text, "  {line}");
            }
            let slots = filled(spec.split, workload.view.replicas, &row.look.pods, spec.strength);
            if workload.kind == "Deployment" && !slots.is_empty() {
                let _ = writeln!(text, "  slots: {slots}\n         ({LEGEND})");
            }
        }
    }
    text
}
