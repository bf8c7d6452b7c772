//! `perennial plan -f FILE`: what a manifest would get. Needs no cluster.

use std::{fmt::Write as _, io::Read as _, path::PathBuf, process::ExitCode};

use anyhow::Context as _;
use clap::Args;
use perennial_core::placement::{
    explain::{LEGEND, simulate},
    labels::Choice,
    spec::parse,
};
use serde::Deserialize as _;
use serde_json::Value;

use super::{
    Global,
    output::{Format, print_text, print_value},
};
use crate::placement::{
    index::Workload,
    objects::{Deployment, StatefulSet},
    observe::{deployment, stateful_set},
    settings::Configured,
};

#[derive(Debug, Args)]
pub(super) struct PlanFile {
    /// A file with Deployments and StatefulSets; - for standard input
    #[arg(short, long, value_name = "FILE")]
    filename: PathBuf,
    /// How to print: table, json or yaml
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Format,
}

impl PlanFile {
    /// Fails where a workload asks for something that cannot be obeyed.
    pub(super) fn execute(&self, global: &Global) -> anyhow::Result<ExitCode> {
        let settings = global.load(Vec::new())?.settings;
        let configured = Configured::new(&settings).context("nodeLabels cannot be used")?;
        let text = self.read()?;
        let objects: Vec<Value> = serde_saphyr::from_multiple(&text)
            .map_err(|error| anyhow::anyhow!("{} is not YAML: {error}", self.filename.display()))?;
        let workloads: Vec<Workload> = objects.iter().filter_map(|object| workload(object, &configured)).collect();
        if workloads.is_empty() {
            anyhow::bail!("{} has neither a Deployment nor a StatefulSet", self.filename.display());
        }
        let mut sound = true;
        let mut values = Vec::new();
        let mut text = String::new();
        for workload in &workloads {
            let name = format!("{}/{}", workload.kind.to_ascii_lowercase(), workload.name);
            match parse(&configured.prefixes, &std::collections::BTreeMap::new(), &workload.annotations) {
                Ok(None) => {
                    let _ = writeln!(text, "{name}: asks for nothing");
                    values.push(serde_json::json!({"workload": name}));
                }
                Ok(Some(spec)) => {
                    let simulation = simulate(spec.split, workload.view.replicas);
                    let (spot, on_demand) = (simulation.spot, simulation.on_demand);
                    let _ = writeln!(
                        text,
                        "{name}: {} replicas, {spot} on spot, {on_demand} on-demand",
                        simulation.replicas
                    );
                    let _ = writeln!(text, "  {}\n  ({LEGEND})", simulation.slots);
                    if workload.view.template != Choice::Any {
                        let _ = writeln!(
                            text,
                            "  note: its pod template selects or excludes a capacity type: its pods are counted and left alone"
                        );
                    }
                    for note in &simulation.notes {
                        let _ = writeln!(text, "  note: {note}");
                    }
                    values.push(serde_json::json!({"workload": name, "simulation": simulation}));
                }
                Err(problems) => {
                    sound = false;
                    let _ = writeln!(text, "{name}: would be left alone");
                    for problem in &problems {
                        let _ = writeln!(text, "  {problem}");
                    }
                    values.push(serde_json::json!({"workload": name, "problems": problems}));
                }
            }
        }
        match self.output {
            Format::Json | Format::Yaml => print_value(&values, self.output)?,
            Format::Table | Format::Wide | Format::Name => print_text(&text)?,
        }
        Ok(if sound { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    fn read(&self) -> anyhow::Result<String> {
        if self.filename.as_os_str() == "-" {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).context("could not read standard input")?;
            return Ok(text);
        }
        std::fs::read_to_string(&self.filename).with_context(|| format!("could not read {}", self.filename.display()))
    }
}

fn workload(object: &Value, configured: &Configured) -> Option<Workload> {
    match object["kind"].as_str()? {
        "Deployment" => Deployment::deserialize(object).ok().map(|object| deployment(object, configured)),
        "StatefulSet" => StatefulSet::deserialize(object).ok().map(|object| stateful_set(object, configured)),
        _ => None,
    }
}
