//! `perennial plan -f FILE`: what the operator would do with the objects in a file. Needs no cluster.

use std::{collections::BTreeMap, fmt::Write as _, io::Read as _, path::PathBuf, process::ExitCode};

use anyhow::Context as _;
use clap::Args;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::runtime::watcher::Event;
use perennial_core::{
    config::Keeper,
    keeper::{identity::Identified, record::RECORD_LABEL, selection},
    placement::{
        explain::{LEGEND, simulate},
        labels::Choice,
        spec::parse,
    },
};
use serde::Deserialize as _;
use serde_json::Value;

use super::{Global, diff::difference, objects::Look, output::Telling};
use crate::{
    keeper::{
        apply::Held,
        node::Node,
        policies::{Policies, Resource},
        signatures::Signatures,
    },
    placement::{
        index::Workload,
        objects::{Deployment, StatefulSet},
        observe::{deployment, stateful_set},
        settings::Configured,
    },
};

#[derive(Debug, Args)]
pub(super) struct PlanFile {
    /// A file with Deployments, StatefulSets, Nodes, records and KeepPolicies, as kubectl prints them; - for standard input
    #[arg(short, long, value_name = "FILE")]
    filename: PathBuf,
    /// How to print: table, json or yaml
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Telling,
}

impl PlanFile {
    /// Fails where a workload asks for something that cannot be obeyed.
    pub(super) fn execute(&self, global: &Global) -> anyhow::Result<ExitCode> {
        let settings = global.load(Vec::new())?.settings;
        let configured = Configured::new(&settings).context("nodeLabels cannot be used")?;
        let text = self.read()?;
        // A file of a person's own may be as large as a cluster.
        let options = serde_saphyr::options! { budget: None };
        let objects: Vec<Value> = serde_saphyr::from_multiple_with_options(&text, options)
            .map_err(|error| anyhow::anyhow!("{} is not YAML: {error}", self.filename.display()))?;
        let objects = flat(objects);
        let workloads: Vec<Workload> = objects.iter().filter_map(|object| workload(object, &configured)).collect();
        let policies = policies(&objects, &settings.keeper);
        let looks = looks(&objects, &policies);
        if workloads.is_empty() && looks.is_empty() && policies.entries().is_empty() {
            anyhow::bail!("{} has neither workloads nor nodes, records or policies", self.filename.display());
        }
        let mut told = Told { sound: true, values: Vec::new(), text: String::new() };
        for workload in &workloads {
            told.workload(workload, &configured);
        }
        for (name, entry) in policies.entries() {
            if let Err(problems) = entry.read {
                told.bad_policy(&name, &problems);
            }
        }
        for look in &looks {
            told.node(look);
        }
        let Told { sound, values, text } = told;
        self.output.print(|| values, || text)?;
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

/// What is said in the end.
struct Told {
    sound: bool,
    values: Vec<Value>,
    text: String,
}

impl Told {
    fn workload(&mut self, workload: &Workload, configured: &Configured) {
        let name = format!("{}/{}", workload.kind.to_ascii_lowercase(), workload.name);
        match parse(&configured.prefixes, &BTreeMap::new(), &workload.annotations) {
            Ok(None) => {
                let _ = writeln!(self.text, "{name}: asks for nothing");
                self.values.push(serde_json::json!({"workload": name}));
            }
            Ok(Some(spec)) => {
                let simulation = simulate(spec.split, workload.view.replicas);
                let (spot, on_demand) = (simulation.spot, simulation.on_demand);
                let _ = writeln!(
                    self.text,
                    "{name}: {} replicas, {spot} on spot, {on_demand} on-demand",
                    simulation.replicas
                );
                let _ = writeln!(self.text, "  {}\n  ({LEGEND})", simulation.slots);
                if workload.view.template != Choice::Any {
                    let _ = writeln!(
                        self.text,
                        "  note: its pod template selects or excludes a capacity type: its pods are counted and left alone"
                    );
                }
                for note in &simulation.notes {
                    let _ = writeln!(self.text, "  note: {note}");
                }
                self.values.push(serde_json::json!({"workload": name, "simulation": simulation}));
            }
            Err(problems) => {
                self.sound = false;
                let _ = writeln!(self.text, "{name}: would be left alone");
                for problem in &problems {
                    let _ = writeln!(self.text, "  {problem}");
                }
                self.values.push(serde_json::json!({"workload": name, "problems": problems}));
            }
        }
    }

    fn bad_policy(&mut self, name: &str, problems: &[String]) {
        self.sound = false;
        let _ = writeln!(self.text, "keeppolicy/{name}: would be ignored");
        for problem in problems {
            let _ = writeln!(self.text, "  {problem}");
        }
        self.values.push(serde_json::json!({"policy": name, "problems": problems}));
    }

    fn node(&mut self, look: &Look) {
        let standing = look.standing();
        let _ = writeln!(self.text, "node/{}: {}", look.name(), standing.sentence());
        let mut changed = Vec::new();
        if let Some(difference) = difference(look) {
            let _ = writeln!(self.text, "  {}", difference.what);
            for change in &difference.changes {
                let _ = writeln!(self.text, "  {}", change.line(false));
                changed.push(serde_json::json!({"key": change.key, "before": change.before, "after": change.after}));
            }
        }
        let (name, state) = (format!("node/{}", look.name()), standing.word());
        self.values
            .push(serde_json::json!({"node": name, "state": state, "policy": look.policy.name, "changes": changed}));
    }
}

/// Objects, also those of lists.
fn flat(objects: Vec<Value>) -> Vec<Value> {
    objects
        .into_iter()
        .flat_map(|object| match object["items"].as_array() {
            Some(items) if object["kind"].as_str().is_some_and(|kind| kind.ends_with("List")) => items.clone(),
            _ => vec![object],
        })
        .collect()
}

/// The KeepPolicies of a file over the configuration.
fn policies(objects: &[Value], keeper: &Keeper) -> Policies {
    let policies = Policies::new(keeper);
    for object in objects.iter().filter(|object| object["kind"] == "KeepPolicy") {
        if let Ok(policy) = Resource::deserialize(object) {
            policies.on_event(Event::Apply(policy));
        }
    }
    policies
}

/// Nodes and records of a file, side by side.
fn looks(objects: &[Value], policies: &Policies) -> Vec<Look> {
    let (mut nodes, mut records) = (Vec::new(), BTreeMap::new());
    for object in objects {
        match object["kind"].as_str() {
            Some("Node") => nodes.extend(Node::deserialize(object).map(Node::into_view)),
            Some("ConfigMap") if object["metadata"]["labels"][RECORD_LABEL].is_string() => {
                if let Ok(found) = ConfigMap::deserialize(object) {
                    let held = Held::new(found, &Signatures::none());
                    records.insert(held.name().to_owned(), held);
                }
            }
            _ => {}
        }
    }
    let record_of = |node: &selection::Node| {
        Identified::of(&policies.of(node).identity, node).map(|identity| identity.record_name().0)
    };
    let mut claims: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for node in &nodes {
        if let Some(record) = record_of(node) {
            claims.entry(record).or_default().push(node.name.clone());
        }
    }
    let mut looks: Vec<Look> = nodes
        .into_iter()
        .map(|node| {
            let record = record_of(&node).unwrap_or_default();
            let others = claims.get(&record).into_iter().flatten().filter(|name| **name != node.name);
            let (rivals, held) = (others.cloned().collect(), records.get(&record).cloned());
            Look { rivals, ..Look::new(policies, Some(node), held) }
        })
        .collect();
    records.retain(|name, _| !claims.contains_key(name));
    looks.extend(records.into_values().map(|held| Look::new(policies, None, Some(held))));
    looks
}
