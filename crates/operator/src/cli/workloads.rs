//! `perennial workloads`: list workloads with placement annotations.

use std::{collections::HashMap, process::ExitCode, time::Duration};

use anyhow::Context as _;
use clap::Args;
use futures::StreamExt;
use jiff::Timestamp;
use perennial_core::placement::{
    decide::decide,
    decision::PlacementDecision,
    explain::why,
    spec::Spec,
    workload::{Kind, Workload},
};
use serde_json::{Value, json};

use super::{
    Global, block_on,
    nodes::selector,
    output::{Format, Item, Listing},
    watch::Outage,
};
use crate::{
    inspect::{
        namespace::{other_settings, require_namespace},
        progress::Progress,
    },
    placement::{
        cache::key_of,
        settings::Configured,
        snapshot::{Snapshot, changes},
    },
};

#[derive(Debug, Args)]
pub(super) struct Workloads {
    /// List workloads in all namespaces (default)
    #[arg(short = 'A', long)]
    all_namespaces: bool,
    /// Selector on labels of Deployments and StatefulSets
    #[arg(short = 'l', long, value_name = "SELECTOR", value_parser = selector)]
    selector: Option<String>,
    /// Watch for changes after listing
    #[arg(short, long)]
    watch: bool,
    /// Output format: table, wide, json, yaml or name
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Format,
}

/// One workload with placement annotations.
pub(super) struct PlannedWorkload {
    pub(super) workload: Workload,
    /// The requested placement and the plan for it, or why the annotations are invalid.
    pub(super) plan: Result<(Spec, PlacementDecision), String>,
}

const HEADER: [&str; 10] =
    ["NAMESPACE", "WORKLOAD", "REPLICAS", "SPOT", "ON-DEMAND", "READY", "DRIFT", "FALLBACK", "WHY", "ASKED"];
const NARROW: usize = 9;
/// Time to collect changes before the list is evaluated again.
const DEBOUNCE: Duration = Duration::from_millis(200);

impl Workloads {
    pub(super) fn execute(&self, global: &Global) -> anyhow::Result<ExitCode> {
        block_on(async {
            let (client, mut all) = read(global, self.selector.as_deref()).await?;
            let mut listing = Listing::new(self.output, "WorkloadList", &HEADER, NARROW).watched(self.watch);
            let rows = self.rows(&all, global);
            listing.page(rows.iter().map(item).collect())?;
            if !self.watch {
                listing.end("No workloads with placement annotations found.")?;
                return Ok(ExitCode::SUCCESS);
            }
            let mut printed: HashMap<String, String> =
                rows.iter().map(|row| (key_of(&row.workload.view).to_string(), significant(&item(row)))).collect();
            let mut changes = std::pin::pin!(changes(&client, self.selector.as_deref()));
            let outage = Outage::default();
            while let Some(change) = changes.next().await {
                let Some(change) = outage.report(change) else { continue };
                all.apply(change);
                let debounce = tokio::time::sleep(DEBOUNCE);
                let mut debounce = std::pin::pin!(debounce);
                loop {
                    tokio::select! {
                        () = &mut debounce => break,
                        Some(change) = changes.next() => {
                            if let Some(change) = outage.report(change) {
                                all.apply(change);
                            }
                        }
                    }
                }
                if !all.cache.is_synced() {
                    continue;
                }
                all.now = Timestamp::now();
                for row in self.rows(&all, global) {
                    let item = item(&row);
                    let shown = significant(&item);
                    if printed.insert(key_of(&row.workload.view).to_string(), shown.clone()) != Some(shown) {
                        listing.page(vec![item])?;
                    }
                }
            }
            Ok(ExitCode::SUCCESS)
        })
    }

    fn rows(&self, all: &Snapshot, global: &Global) -> Vec<PlannedWorkload> {
        let selected = |namespace: &str| {
            self.all_namespaces || global.namespace.as_ref().is_none_or(|wanted| namespace == wanted.as_str())
        };
        // The labels of other workloads are not read.
        let selectable = |kind: &Kind| matches!(kind, Kind::Deployment | Kind::StatefulSet { .. });
        let workloads = all.cache.workloads().filter(|workload| {
            let view = &workload.view;
            selected(&view.namespace) && (self.selector.is_none() || selectable(&view.kind))
        });
        let mut rows: Vec<PlannedWorkload> = workloads.filter_map(|workload| row(all, &workload.key)).collect();
        rows.sort_by_cached_key(|row| key_of(&row.workload.view));
        rows
    }
}

/// Returns the part of a row whose change is printed while watching: everything but times.
fn significant(item: &Item) -> String {
    let (counts, why) = item.row.split_at(NARROW - 1);
    format!("{counts:?} {}", why.concat().replace(|letter: char| letter.is_ascii_digit(), ""))
}

fn item(row: &PlannedWorkload) -> Item {
    let view = &row.workload.view;
    let name = format!("{}/{}", view.kind.as_str().to_ascii_lowercase(), view.name);
    let dash = || "-".to_owned();
    let cells = match &row.plan {
        Ok((spec, decision)) => {
            let counts = &decision.counts;
            [
                counts.replicas.to_string(),
                format!("{}/{}", counts.spot, counts.desired_spot),
                format!("{}/{}", counts.on_demand, counts.desired_on_demand),
                format!("{}/{}", ready(&row.workload), counts.replicas),
                counts.drift.to_string(),
                counts.fallback.to_string(),
                why(&row.workload, spec, decision),
                spec.split.describe(),
            ]
        }
        Err(problems) => {
            let replicas = view.replicas.to_string();
            [replicas, dash(), dash(), dash(), dash(), dash(), format!("not managed: {problems}"), dash()]
        }
    };
    Item {
        name: key_of(view).to_string(),
        row: [view.namespace.clone(), name].into_iter().chain(cells).collect(),
        value: as_json(row),
    }
}

/// Number of replicas of both classes that are Ready.
pub(crate) fn ready(workload: &Workload) -> usize {
    workload.pods.iter().filter(|pod| pod.occupies() && pod.ready).count()
}

/// Connects, and reads all nodes, workloads and pods.
pub(super) async fn read(global: &Global, selector: Option<&str>) -> anyhow::Result<(kube::Client, Snapshot)> {
    // `-n` selects workloads here, not the namespace of Perennial.
    let global = Global { namespace: None, ..global.clone() };
    let client = global.connect().await?;
    let (settings, source) = global.load_from(&client).await?;
    match &source {
        Err(why) => eprintln!("{}", other_settings(why)),
        // The namespace matters only for the settings.
        Ok(_) => match require_namespace(&client, &settings, &source).await {
            Err(why) => eprintln!("{}", other_settings(&format!("{why:#}"))),
            Ok(warning) => warning.iter().for_each(|warning| eprintln!("{warning}")),
        },
    }
    let configured = Configured::new(&settings).context("invalid nodeLabels")?;
    let mut progress = Progress::new("nodes, workloads and pods", false);
    let all = Snapshot::read(&client, configured, selector, Timestamp::now(), |count| progress.advance(count)).await?;
    Ok((client, all))
}

/// Returns `None` for a workload without placement annotations.
pub(super) fn row(all: &Snapshot, key: &str) -> Option<PlannedWorkload> {
    let workload = all.observe(key)?;
    let plan = match &workload.spec {
        Ok(None) => return None,
        Ok(Some(spec)) => Ok((spec.clone(), decide(&workload))),
        Err(problems) => Err(problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")),
    };
    Some(PlannedWorkload { workload, plan })
}

pub(super) fn as_json(row: &PlannedWorkload) -> Value {
    let view = &row.workload.view;
    let (decision, why, problems) = match &row.plan {
        Ok((spec, decision)) => (Some(decision), Some(why(&row.workload, spec, decision)), None),
        Err(problems) => (None, None, Some(problems)),
    };
    json!({
        "namespace": view.namespace,
        "kind": view.kind.as_str(),
        "name": view.name,
        "counts": decision.map(|decision| decision.counts),
        "ready": ready(&row.workload),
        "why": why,
        "actions": decision.map(|decision| &decision.actions),
        "problems": problems,
    })
}
