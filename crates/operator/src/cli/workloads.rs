//! `perennial workloads`, `explain` of a workload, and `simulate`.

use std::{fmt::Write as _, process::ExitCode};

use anyhow::Context as _;
use clap::Args;
use jiff::Timestamp;
use perennial_core::placement::{
    action::{Action, Plan},
    explain::{LEGEND, explain, filled, simulate},
    fallback::State,
    slots::Split,
    spec::Spec,
};
use serde_json::{Value, json};

use super::{
    Global, block_on,
    output::{Format, Table, print_text, print_value},
};
use crate::placement::{
    index::{Look, key},
    roll_call::RollCall,
    settings::Configured,
};

#[derive(Debug, Args)]
pub(super) struct Workloads {
    /// All namespaces, whatever -n says; so it is without -n too
    #[arg(short = 'A', long)]
    all_namespaces: bool,
    /// How to print: table, wide, json, yaml or name
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Format,
}

#[derive(Debug, Args)]
pub(super) struct Simulate {
    /// How many replicas
    #[arg(long, value_name = "COUNT")]
    replicas: u32,
    /// How many of a hundred replicas may run on spot
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(0..=100))]
    spot: u8,
    /// The least number of on-demand replicas
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    min_on_demand: u32,
    /// How to print: table, json or yaml
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Format,
}

/// One workload that asks for something.
struct Row {
    look: Look,
    /// What it asks for and what would be done, or why it is left alone.
    outcome: Result<(Spec, Plan), String>,
}

impl Workloads {
    /// All namespaces, or the one that `-n` says.
    pub(super) fn execute(&self, global: &Global) -> anyhow::Result<ExitCode> {
        block_on(async {
            let (all, _) = read(global).await?;
            let mut rows: Vec<Row> = all
                .view
                .index
                .workloads()
                .filter(|workload| {
                    self.all_namespaces
                        || global.namespace.as_ref().is_none_or(|namespace| workload.namespace == *namespace)
                })
                .filter_map(|workload| row(&all, &workload.key))
                .collect();
            rows.sort_by(|a, b| a.look.workload.key.cmp(&b.look.workload.key));
            match self.output {
                Format::Json | Format::Yaml => {
                    print_value(&rows.iter().map(as_json).collect::<Vec<_>>(), self.output)?;
                }
                Format::Name => {
                    for row in &rows {
                        print_text(&format!("{}\n", row.look.workload.key))?;
                    }
                }
                Format::Table | Format::Wide => print(&rows)?,
            }
            Ok(ExitCode::SUCCESS)
        })
    }
}

fn print(rows: &[Row]) -> anyhow::Result<()> {
    if rows.is_empty() {
        eprintln!("No workload asks for placement.");
        return Ok(());
    }
    let header = ["NAMESPACE", "WORKLOAD", "REPLICAS", "SPOT", "ON-DEMAND", "READY", "DRIFT", "FALLBACK", "WHY"];
    let mut lines = Vec::new();
    for row in rows {
        let workload = &row.look.workload;
        let name = format!("{}/{}", workload.kind.to_ascii_lowercase(), workload.name);
        let dash = || "-".to_owned();
        let cells = match &row.outcome {
            Ok((_, plan)) => {
                let counts = &plan.counts;
                [
                    counts.replicas.to_string(),
                    format!("{}/{}", counts.spot, counts.desired_spot),
                    format!("{}/{}", counts.on_demand, counts.desired_on_demand),
                    counts.ready_on_demand.to_string(),
                    counts.drift.to_string(),
                    counts.fallback.to_string(),
                    why(plan),
                ]
            }
            Err(problems) => {
                let replicas = workload.view.replicas.to_string();
                [replicas, dash(), dash(), dash(), dash(), dash(), format!("left alone: {problems}")]
            }
        };
        lines.push([workload.namespace.clone(), name].into_iter().chain(cells).collect());
    }
    Table::new(&header).print(&lines)
}

/// The first thing that it waits for or that is done about it.
pub(crate) fn why(plan: &Plan) -> String {
    let reason = plan.actions.iter().find_map(|action| match action {
        Action::Wait { reason, .. } | Action::Hold { reason, .. } | Action::Evict { reason, .. } => {
            Some(reason.clone())
        }
        Action::Tell(event) if event.warning => Some(event.message.clone()),
        _ => None,
    });
    reason.unwrap_or_else(|| if plan.counts.drift == 0 { "as asked for".to_owned() } else { "-".to_owned() })
}

/// Explains one workload: `kind` as people write it, in the namespace that -n says.
pub(super) fn explain_workload(kind: &str, name: &str, output: Format, global: &Global) -> anyhow::Result<ExitCode> {
    let kind = match kind {
        "deploy" | "deployment" | "deployments" | "deployment.apps" => "Deployment",
        "sts" | "statefulset" | "statefulsets" | "statefulset.apps" => "StatefulSet",
        _ => anyhow::bail!("`{kind}` is neither node, deploy nor statefulset"),
    };
    block_on(async {
        let (all, default) = read(global).await?;
        // As kubectl has it: -n, else the namespace of the context.
        let namespace = global.namespace.as_deref().unwrap_or(&default);
        let key = key(kind, namespace, name);
        if all.view.index.workload(&key).is_none() {
            anyhow::bail!("there is no {kind} {name} in namespace {namespace}; -n says another one");
        }
        let Some(row) = row(&all, &key) else {
            print_text(&format!("{key} asks for nothing: its pods run where the scheduler puts them\n"))?;
            return Ok(ExitCode::SUCCESS);
        };
        match output {
            Format::Json | Format::Yaml => print_value(&as_json(&row), output)?,
            Format::Name => print_text(&format!("{key}\n"))?,
            Format::Table | Format::Wide => print_text(&story(&row, all.now))?,
        }
        Ok(ExitCode::SUCCESS)
    })
}

fn story(row: &Row, now: Timestamp) -> String {
    let workload = &row.look.workload;
    let mut text = format!("{}\n", workload.key);
    match &row.outcome {
        Err(problems) => {
            let _ = writeln!(text, "  left alone, since its annotations cannot be obeyed: {problems}");
        }
        Ok((spec, plan)) => {
            let (state, _) = State::read(workload.view.state.as_deref());
            for line in explain(spec, &state, plan, now) {
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

impl Simulate {
    pub(super) fn execute(&self) -> anyhow::Result<ExitCode> {
        let simulation = simulate(Split::new(self.spot, self.min_on_demand), self.replicas);
        match self.output {
            Format::Json | Format::Yaml => print_value(&simulation, self.output)?,
            Format::Table | Format::Wide | Format::Name => {
                let mut text = format!(
                    "{} replicas: {} on spot, {} on-demand\n{}\n({LEGEND})\n",
                    simulation.replicas, simulation.spot, simulation.on_demand, simulation.slots
                );
                for note in simulation.notes {
                    let _ = writeln!(text, "note: {note}");
                }
                print_text(&text)?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The cluster, and the namespace of the context.
async fn read(global: &Global) -> anyhow::Result<(RollCall, String)> {
    // Here -n is the namespace of workloads, not Perennial's own.
    let global = Global { namespace: None, ..global.clone() };
    let client = global.connect().await?;
    let (settings, _) = global.load_from(&client).await?;
    let configured = Configured::new(&settings).context("nodeLabels cannot be used")?;
    let all = RollCall::of(&client, configured, Timestamp::now()).await?;
    Ok((all, client.default_namespace().to_owned()))
}

/// None: it asks for nothing.
fn row(all: &RollCall, key: &str) -> Option<Row> {
    let look = all.view.index.look(key, &all.configured.prefixes)?;
    let outcome = match &look.spec {
        Ok(None) => return None,
        Ok(Some(spec)) => Ok((spec.clone(), all.plan(&look, spec))),
        Err(problems) => Err(problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")),
    };
    Some(Row { look, outcome })
}

fn as_json(row: &Row) -> Value {
    let workload = &row.look.workload;
    let (plan, problems) = match &row.outcome {
        Ok((_, plan)) => (Some(plan), None),
        Err(problems) => (None, Some(problems)),
    };
    json!({
        "namespace": workload.namespace,
        "kind": workload.kind,
        "name": workload.name,
        "counts": plan.map(|plan| plan.counts),
        "why": plan.map(why),
        "actions": plan.map(|plan| &plan.actions),
        "problems": problems,
    })
}
