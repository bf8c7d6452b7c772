//! `perennial workloads`: list the workloads that ask for placement.

use std::{collections::HashMap, process::ExitCode, time::Duration};

use anyhow::Context as _;
use clap::Args;
use futures::StreamExt;
use jiff::Timestamp;
use perennial_core::placement::{decide::decide, decision::Decision, explain::why, spec::Spec, workload::Workload};
use serde_json::{Value, json};

use super::{
    Global, block_on,
    nodes::selector,
    output::{Format, Item, Listing},
};
use crate::{
    inspect::progress::Progress,
    placement::{
        cache::key_of,
        settings::Configured,
        snapshot::{Snapshot, changes},
    },
};

#[derive(Debug, Args)]
pub(super) struct Workloads {
    /// All namespaces, whatever -n says; so it is without -n too
    #[arg(short = 'A', long)]
    all_namespaces: bool,
    /// Only Deployments and StatefulSets with such labels
    #[arg(short = 'l', long, value_name = "SELECTOR", value_parser = selector)]
    selector: Option<String>,
    /// After the list, print what changes
    #[arg(short, long)]
    watch: bool,
    /// How to print: table, wide, json, yaml or name
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Format,
}

/// One workload that asks for something.
pub(super) struct Row {
    pub(super) workload: Workload,
    /// What it asks for and what would be done, or why it is left alone.
    pub(super) outcome: Result<(Spec, Decision), String>,
}

const HEADER: [&str; 10] =
    ["NAMESPACE", "WORKLOAD", "REPLICAS", "SPOT", "ON-DEMAND", "READY", "DRIFT", "FALLBACK", "WHY", "ASKED"];
const NARROW: usize = 9;
/// What changes within so long is one look.
const TOGETHER: Duration = Duration::from_millis(200);

impl Workloads {
    /// All namespaces, or the one that `-n` says.
    pub(super) fn execute(&self, global: &Global) -> anyhow::Result<ExitCode> {
        block_on(async {
            let (client, mut all) = read(global, self.selector.as_deref()).await?;
            let mut listing = Listing::new(self.output, "WorkloadList", &HEADER, NARROW).watched(self.watch);
            let rows = self.rows(&all, global);
            listing.page(rows.iter().map(item).collect())?;
            if !self.watch {
                listing.end("No workload asks for placement.")?;
                return Ok(ExitCode::SUCCESS);
            }
            let mut printed: HashMap<String, String> =
                rows.iter().map(|row| (key_of(&row.workload.view).to_string(), told(&item(row)))).collect();
            let mut changes = std::pin::pin!(changes(&client, self.selector.as_deref()));
            while let Some(change) = changes.next().await {
                all.apply(change);
                let enough = tokio::time::sleep(TOGETHER);
                let mut enough = std::pin::pin!(enough);
                loop {
                    tokio::select! {
                        () = &mut enough => break,
                        Some(change) = changes.next() => all.apply(change),
                    }
                }
                if !all.cache.is_synced() {
                    continue;
                }
                all.now = Timestamp::now();
                for row in self.rows(&all, global) {
                    let item = item(&row);
                    let told = told(&item);
                    if printed.insert(key_of(&row.workload.view).to_string(), told.clone()) != Some(told) {
                        listing.page(vec![item])?;
                    }
                }
            }
            Ok(ExitCode::SUCCESS)
        })
    }

    fn rows(&self, all: &Snapshot, global: &Global) -> Vec<Row> {
        let wanted = |namespace: &str| {
            self.all_namespaces || global.namespace.as_ref().is_none_or(|wanted| namespace == wanted.as_str())
        };
        let workloads = all.cache.workloads().filter(|workload| wanted(&workload.view.namespace));
        let mut rows: Vec<Row> = workloads.filter_map(|workload| row(all, &workload.key)).collect();
        rows.sort_by_cached_key(|row| key_of(&row.workload.view));
        rows
    }
}

/// What counts as a change while it is watched: that time goes by does not.
fn told(item: &Item) -> String {
    let (counts, why) = item.row.split_at(NARROW - 1);
    format!("{counts:?} {}", why.concat().replace(|letter: char| letter.is_ascii_digit(), ""))
}

fn item(row: &Row) -> Item {
    let view = &row.workload.view;
    let name = format!("{}/{}", view.kind.as_str().to_ascii_lowercase(), view.name);
    let dash = || "-".to_owned();
    let cells = match &row.outcome {
        Ok((spec, decision)) => {
            let counts = &decision.counts;
            [
                counts.replicas.to_string(),
                format!("{}/{}", counts.spot, counts.desired_spot),
                format!("{}/{}", counts.on_demand, counts.desired_on_demand),
                counts.ready_on_demand.to_string(),
                counts.drift.to_string(),
                counts.fallback.to_string(),
                why(&row.workload, spec, decision),
                format!("{}% on spot, {} on-demand at least", spec.split.percentage(), spec.split.floor()),
            ]
        }
        Err(problems) => {
            let replicas = view.replicas.to_string();
            [replicas, dash(), dash(), dash(), dash(), dash(), format!("left alone: {problems}"), dash()]
        }
    };
    Item {
        name: key_of(view).to_string(),
        row: [view.namespace.clone(), name].into_iter().chain(cells).collect(),
        value: as_json(row),
    }
}

/// The cluster and what is in it.
pub(super) async fn read(global: &Global, selector: Option<&str>) -> anyhow::Result<(kube::Client, Snapshot)> {
    // Here -n is the namespace of workloads, not Perennial's own.
    let global = Global { namespace: None, ..global.clone() };
    let client = global.connect().await?;
    let (settings, _) = global.load_from(&client).await?;
    let configured = Configured::new(&settings).context("nodeLabels cannot be used")?;
    let mut progress = Progress::new("nodes, workloads and pods", false);
    let all = Snapshot::read(&client, configured, selector, Timestamp::now(), |count| progress.advance(count)).await?;
    Ok((client, all))
}

/// None: it asks for nothing.
pub(super) fn row(all: &Snapshot, key: &str) -> Option<Row> {
    let workload = all.observe(key)?;
    let outcome = match &workload.spec {
        Ok(None) => return None,
        Ok(Some(spec)) => Ok((spec.clone(), decide(&workload))),
        Err(problems) => Err(problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")),
    };
    Some(Row { workload, outcome })
}

pub(super) fn as_json(row: &Row) -> Value {
    let view = &row.workload.view;
    let (decision, why, problems) = match &row.outcome {
        Ok((spec, decision)) => (Some(decision), Some(why(&row.workload, spec, decision)), None),
        Err(problems) => (None, None, Some(problems)),
    };
    json!({
        "namespace": view.namespace,
        "kind": view.kind.as_str(),
        "name": view.name,
        "counts": decision.map(|decision| decision.counts),
        "why": why,
        "actions": decision.map(|decision| &decision.actions),
        "problems": problems,
    })
}
