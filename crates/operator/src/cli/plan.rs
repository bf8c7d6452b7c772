//! `perennial plan -f FILE`: decisions of the operator for the objects in a file. Needs no cluster.

use std::{collections::BTreeMap, fmt::Write as _, io::Read as _, path::PathBuf, process::ExitCode};

use anyhow::Context as _;
use clap::Args;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::runtime::watcher::Event;
use perennial_core::{
    config::Keeper,
    keeper::{record::RECORD_LABEL, selection},
    placement::{
        explain::{LEGEND, simulate},
        node_labels::Choice,
        spec::parse,
    },
};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{
    Global,
    output::{Telling, change_line},
};
use crate::{
    inspect::{diff::difference, inspected_node::InspectedNode, join::identities_in_use},
    keeper::{
        apply::LoadedRecord,
        node::Node,
        policies::{KeepPolicyResource, Policies},
        record_keys::Signatures,
        record_lookup::choose,
    },
    placement::{
        cache::{NamespaceEntry, WorkloadEntry, deployment, namespace_entry, replica_set, stateful_set},
        objects::{Deployment, Namespace, ReplicaSet, StatefulSet},
        settings::Configured,
    },
};

#[derive(Debug, Args)]
pub(super) struct Plan {
    /// YAML file with Deployments, StatefulSets, Namespaces, Nodes, records or KeepPolicies; -
    /// reads standard input
    #[arg(short, long, value_name = "FILE")]
    filename: PathBuf,
    /// Output format: table, json or yaml
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Telling,
}

impl Plan {
    /// Exits with 1 if an object is invalid.
    pub(super) fn execute(&self, global: &Global) -> anyhow::Result<ExitCode> {
        let settings = global.load_for_command(Vec::new())?.settings;
        let configured = Configured::new(&settings).context("invalid nodeLabels")?;
        let text = self.read()?;
        // No limit on size: the file is the user's own and may contain a whole cluster.
        let options = serde_saphyr::options! { budget: None };
        let objects: Vec<Value> = serde_saphyr::from_multiple_with_options(&text, options)
            .map_err(|error| anyhow::anyhow!("{} is not YAML: {error}", self.filename.display()))?;
        let objects = flat(objects);
        let unreadable = || format!("could not read the objects in {}", self.filename.display());
        let workloads = objects.iter().filter_map(|object| workload(object, &configured).transpose());
        let workloads: Vec<WorkloadEntry> = workloads.collect::<anyhow::Result<_>>().with_context(unreadable)?;
        let defaults = defaults(&objects, &configured).with_context(unreadable)?;
        let policies = policies(&objects, &settings.keeper).with_context(unreadable)?;
        let looks = looks(&objects, &policies).with_context(unreadable)?;
        if workloads.is_empty() && looks.is_empty() && policies.entries().is_empty() {
            anyhow::bail!("{} contains no workloads, nodes, records or policies", self.filename.display());
        }
        let mut report = PlanReport { sound: true, values: Vec::new(), text: String::new() };
        for workload in &workloads {
            let namespace = if workload.view.namespace.is_empty() { "default" } else { &workload.view.namespace };
            report.workload(workload, defaults.get(namespace), &configured);
        }
        for (name, entry) in policies.entries() {
            if let Err(problems) = entry.read {
                report.bad_policy(&name, &problems);
            }
        }
        for look in &looks {
            report.node(look);
        }
        let PlanReport { sound, values, text } = report;
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

/// Returns a Deployment or StatefulSet, or `None` for another kind.
fn workload(object: &Value, configured: &Configured) -> anyhow::Result<Option<WorkloadEntry>> {
    Ok(match object["kind"].as_str() {
        Some("Deployment") => Some(deployment(read::<Deployment>(object)?, configured)),
        Some("StatefulSet") => Some(stateful_set(read::<StatefulSet>(object)?, configured)),
        Some("ReplicaSet") => replica_set(&read::<ReplicaSet>(object)?, configured),
        _ => None,
    })
}

/// Returns the annotations of the Namespaces in a file, which are defaults of their workloads.
fn defaults(objects: &[Value], configured: &Configured) -> anyhow::Result<BTreeMap<String, NamespaceEntry>> {
    let namespaces = objects.iter().filter(|object| object["kind"] == "Namespace");
    namespaces
        .map(|object| {
            let Namespace { metadata } = read(object)?;
            Ok((metadata.name.clone().unwrap_or_default(), namespace_entry(&metadata, configured)))
        })
        .collect()
}

/// Deserializes an object as strictly as the API server does. Errors name the object.
fn read<K: DeserializeOwned>(object: &Value) -> anyhow::Result<K> {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or("?").to_owned();
    let name = format!("{}/{}", text("/kind").to_ascii_lowercase(), text("/metadata/name"));
    if let Some((key, value)) = not_text(object) {
        anyhow::bail!("{name}: annotation {key}: {value} is not a string; write it in quotes: \"{value}\"");
    }
    K::deserialize(object).map_err(|error| anyhow::anyhow!("{name}: {error}"))
}

/// Returns the first annotation that is not a string. The API server rejects such an object.
fn not_text(object: &Value) -> Option<(&str, &Value)> {
    let annotations = object.pointer("/metadata/annotations")?.as_object()?;
    annotations
        .iter()
        .map(|(key, value)| (key.as_str(), value))
        .find(|(_, value)| !value.is_string() && !value.is_null())
}

/// Output of the command.
struct PlanReport {
    sound: bool,
    values: Vec<Value>,
    text: String,
}

impl PlanReport {
    fn workload(&mut self, workload: &WorkloadEntry, defaults: Option<&NamespaceEntry>, configured: &Configured) {
        let name = format!("{}/{}", workload.view.kind.as_str().to_ascii_lowercase(), workload.view.name);
        let asked = match defaults {
            Some(namespace) if !namespace.selected => Ok(None),
            Some(namespace) => parse(&configured.annotations, &namespace.annotations, &workload.annotations),
            None => parse(&configured.annotations, &BTreeMap::new(), &workload.annotations),
        };
        match asked {
            Ok(None) => {
                let _ = writeln!(self.text, "{name}: no placement annotations");
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
                        "  note: its pod template selects or excludes a capacity type: its pods are counted but not placed"
                    );
                }
                for note in &simulation.notes {
                    let _ = writeln!(self.text, "  note: {note}");
                }
                self.values.push(serde_json::json!({"workload": name, "simulation": simulation}));
            }
            Err(problems) => {
                self.sound = false;
                let _ = writeln!(self.text, "{name}: would not be managed");
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

    fn node(&mut self, look: &InspectedNode) {
        let standing = look.status();
        let _ = writeln!(self.text, "node/{}: {}", look.name(), standing.sentence());
        let mut changed = Vec::new();
        if let Some(difference) = difference(look) {
            let _ = writeln!(self.text, "  {}", difference.what);
            for change in &difference.changes {
                let _ = writeln!(self.text, "  {}", change_line(change, false));
                changed.push(serde_json::json!({"key": change.key, "before": change.before, "after": change.after}));
            }
        }
        let (name, state) = (format!("node/{}", look.name()), standing.state().as_str());
        self.values
            .push(serde_json::json!({"node": name, "state": state, "policy": look.policy().name, "changes": changed}));
    }
}

/// Returns all objects, including the items of lists.
fn flat(objects: Vec<Value>) -> Vec<Value> {
    objects
        .into_iter()
        .flat_map(|object| match object["items"].as_array() {
            Some(items) if object["kind"].as_str().is_some_and(|kind| kind.ends_with("List")) => items.clone(),
            _ => vec![object],
        })
        .collect()
}

/// Returns the configuration with the KeepPolicies of a file.
fn policies(objects: &[Value], keeper: &Keeper) -> anyhow::Result<Policies> {
    let policies = Policies::new(keeper);
    for object in objects.iter().filter(|object| object["kind"] == "KeepPolicy") {
        policies.on_event(Event::Apply(read::<KeepPolicyResource>(object)?));
    }
    Ok(policies)
}

/// Joins the nodes and records of a file.
fn looks(objects: &[Value], policies: &Policies) -> anyhow::Result<Vec<InspectedNode>> {
    let (mut nodes, mut records) = (Vec::new(), BTreeMap::new());
    for object in objects {
        match object["kind"].as_str() {
            Some("Node") => nodes.push(read::<Node>(object)?.into_view()),
            Some("ConfigMap") if object["metadata"]["labels"][RECORD_LABEL].is_string() => {
                let held = LoadedRecord::new(read::<ConfigMap>(object)?, &Signatures::none());
                records.insert(held.name().to_owned(), held);
            }
            _ => {}
        }
    }
    let set = policies.current();
    let in_use = identities_in_use(records.values());
    let record_of = |node: &selection::Node| {
        let found = set.identities_of(node, &in_use).into_iter().filter_map(|identity| {
            let held: &LoadedRecord = records.get(&identity.record_name().0)?;
            Some((identity, held.clone()))
        });
        let found = choose(&set, node, found.collect()).map(|held| held.name().to_owned());
        found.or_else(|| Some(set.identify(node)?.record_name().0))
    };
    let mut claims: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for node in &nodes {
        if let Some(record) = record_of(node) {
            claims.entry(record).or_default().push(node.name.clone());
        }
    }
    let mut looks: Vec<InspectedNode> = nodes
        .into_iter()
        .map(|node| {
            let record = record_of(&node).unwrap_or_default();
            let others = claims.get(&record).into_iter().flatten().filter(|name| **name != node.name);
            let (rivals, held) = (others.cloned().collect(), records.get(&record).cloned());
            InspectedNode::new(policies, Some(node), held, rivals)
        })
        .collect();
    records.retain(|name, _| !claims.contains_key(name));
    looks.extend(records.into_values().map(|held| InspectedNode::new(policies, None, Some(held), Vec::new())));
    Ok(looks)
}

#[cfg(test)]
mod tests {
    use perennial_core::config::Settings;
    use serde_json::json;

    use super::*;

    fn configured() -> Configured {
        Configured::new(&Settings::default()).unwrap()
    }

    fn web(namespace: &str, annotations: &Value) -> Value {
        json!({"kind": "Deployment", "metadata": {"name": "web", "namespace": namespace, "annotations": annotations},
               "spec": {"replicas": 10}})
    }

    fn report(objects: &[Value]) -> PlanReport {
        let configured = configured();
        let defaults = defaults(objects, &configured).unwrap();
        let mut report = PlanReport { sound: true, values: Vec::new(), text: String::new() };
        for workload in objects.iter().filter_map(|object| workload(object, &configured).unwrap()) {
            report.workload(&workload, defaults.get(&workload.view.namespace), &configured);
        }
        report
    }

    #[test]
    fn annotation_without_quotes_is_rejected_with_the_name_of_its_object() {
        let unquoted = web("shop", &json!({"perennial.dev/spot-percentage": 70}));
        let error = workload(&unquoted, &configured()).unwrap_err().to_string();
        assert!(error.contains("deployment/web") && error.contains("spot-percentage: 70"), "{error}");
        assert!(error.contains("in quotes: \"70\""), "{error}");

        let strange = json!({"kind": "StatefulSet", "metadata": {"name": "db"}, "spec": {"replicas": "many"}});
        let error = workload(&strange, &configured()).unwrap_err().to_string();
        assert!(error.starts_with("statefulset/db: "), "{error}");
        let node = json!({"kind": "Node", "metadata": {"name": "n1", "labels": {"rack": 7}}});
        assert!(looks(&[node], &Policies::new(&Settings::default().keeper)).is_err());
    }

    #[test]
    fn annotations_of_a_namespace_in_the_file_are_defaults() {
        let namespace = |name: &str| {
            let annotations = json!({"perennial.dev/spot-percentage": "50", "perennial.dev/min-on-demand": "6"});
            json!({"kind": "Namespace", "metadata": {"name": name, "annotations": annotations}})
        };
        let asks = web("shop", &json!({"perennial.dev/spot-percentage": "70"}));
        assert!(report(&[web("shop", &json!({}))]).text.contains("no placement annotations"));
        assert!(report(&[namespace("shop"), web("shop", &json!({}))]).text.contains("4 on spot, 6 on-demand"));
        assert!(report(&[asks.clone(), namespace("shop")]).text.contains("4 on spot, 6 on-demand"));
        assert!(report(&[asks, namespace("other")]).text.contains("7 on spot, 3 on-demand"));
        assert!(
            report(&[namespace("kube-system"), web("kube-system", &json!({}))])
                .text
                .contains("no placement annotations")
        );
    }
}
