//! `perennial records`: list records.

use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;
use jiff::Timestamp;
use perennial_core::{config::LabelSelector, keeper::stored_record::Stored};

use super::{
    Global, block_on, for_each,
    output::{Format, Item, Listing},
    watch,
};
use crate::{
    inspect::{collection::RecordLifetime, format::age, progress::Progress, records::as_json, states::RecordState},
    keeper::apply::LoadedRecord,
};

#[derive(Debug, Args)]
pub(super) struct Records {
    /// Names of the nodes, which may be deleted. Defaults to all records
    #[arg(value_name = "NODE", value_parser = super::node_name, add = super::completion::recorded())]
    nodes: Vec<String>,
    /// Selector on the labels in the record, for example 'team=ml,tier in (gold, silver),!old'
    #[arg(short = 'l', long, value_name = "SELECTOR", value_parser = LabelSelector::parse, conflicts_with = "nodes")]
    selector: Option<LabelSelector>,
    /// Watch for changes after listing
    #[arg(short, long, conflicts_with = "nodes")]
    watch: bool,
    /// Output format: table, wide, json, yaml or name
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Format,
}

const HEADER: [&str; 10] =
    ["NODE", "STATE", "LABELS", "SEQUENCE", "HOLD", "CAPTURED", "COLLECTED", "RECORD", "UID", "BY"];
const NARROW: usize = 6;

impl Records {
    pub(super) fn execute(self, global: &Global) -> anyhow::Result<ExitCode> {
        block_on(async {
            let session = global.open_session().await?;
            let mut listing = Listing::new(self.output, "RecordList", &HEADER, NARROW).watched(self.watch);
            let mut progress = Progress::new("records", true);
            let now = Timestamp::now();
            let policies = session.policies.current();
            let item =
                |held: &LoadedRecord, now: Timestamp| item(held, &RecordLifetime::of_record(held, &policies), now);
            let empty = format!("No records found in namespace {}.", session.settings.namespace);
            if !self.nodes.is_empty() {
                let mut found = Vec::new();
                let code = for_each(&self.nodes, async |name| {
                    let node = session.node(name).await?;
                    let held = session.record(name, node.as_ref()).await?;
                    let held = held.with_context(|| format!("there is no record for node {name}"))?;
                    let lifetime = RecordLifetime::of(&session.pair(node, Some(held.clone())));
                    found.extend(lifetime.map(|lifetime| self::item(&held, &lifetime, now)));
                    Ok(())
                })
                .await?;
                listing.page(found)?;
                listing.end(&empty)?;
                return Ok(code);
            }
            session
                .each_record(|page| {
                    progress.advance(page.len());
                    listing.page(page.iter().filter(|held| self.selects(held)).map(|held| item(held, now)).collect())
                })
                .await?;
            if self.watch {
                return watch::records(&session, listing, |held| {
                    self.selects(held).then(|| item(held, Timestamp::now()))
                })
                .await;
            }
            listing.end(&empty)?;
            Ok(ExitCode::SUCCESS)
        })
    }

    fn selects(&self, held: &LoadedRecord) -> bool {
        match (&self.selector, held.stored()) {
            (None, _) => true,
            (Some(selector), Stored::Good(record)) => selector.matches(&record.labels()),
            (Some(_), Stored::Bad { .. }) => false,
        }
    }
}

fn item(held: &LoadedRecord, lifetime: &RecordLifetime, now: Timestamp) -> Item {
    let (on_hold, collected) = (RecordLifetime::hold_cell(Some(lifetime)), RecordLifetime::cell(Some(lifetime), now));
    let mut row = vec![held.node_name().to_owned(), RecordState::of(held.stored()).to_string()];
    match held.stored() {
        Stored::Good(record) => row.extend([
            record.kept.len().to_string(),
            record.sequence.to_string(),
            on_hold,
            age(record.captured_at, now),
            collected,
            held.name().to_owned(),
            record.node.uid.clone(),
            record.captured_by.clone(),
        ]),
        Stored::Bad { fault, .. } => {
            let dash = || "-".to_owned();
            row.extend([dash(), dash(), on_hold, dash(), collected, held.name().to_owned(), dash(), fault.to_string()]);
        }
    }
    let mut value = as_json(held);
    value["collection"] = lifetime.to_json();
    Item { name: format!("configmap/{}", held.name()), row, value }
}
