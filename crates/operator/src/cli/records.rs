//! `perennial records`: list records.

use std::process::ExitCode;

use clap::Args;
use jiff::Timestamp;
use perennial_core::{config::LabelSelector, keeper::stored_record::Stored};

use super::{
    Global, block_on,
    output::{Format, Item, Listing},
    watch,
};
use crate::{
    inspect::{format::age, progress::Progress, records::as_json, states::RecordState},
    keeper::apply::Held,
};

#[derive(Debug, Args)]
pub(super) struct Records {
    /// Selector on the labels in the record, for example 'team=ml,tier in (gold, silver),!old'
    #[arg(short = 'l', long, value_name = "SELECTOR", value_parser = LabelSelector::parse)]
    selector: Option<LabelSelector>,
    /// Watch for changes after listing
    #[arg(short, long)]
    watch: bool,
    /// Output format: table, wide, json, yaml or name
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Format,
}

const HEADER: [&str; 8] = ["NODE", "STATE", "LABELS", "SEQUENCE", "CAPTURED", "RECORD", "UID", "BY"];
const NARROW: usize = 5;

impl Records {
    pub(super) fn execute(self, global: &Global) -> anyhow::Result<ExitCode> {
        block_on(async {
            let session = global.open_session().await?;
            let mut listing = Listing::new(self.output, "RecordList", &HEADER, NARROW).watched(self.watch);
            let mut progress = Progress::new("records", true);
            let now = Timestamp::now();
            session
                .each_record(|page| {
                    progress.advance(page.len());
                    listing.page(page.iter().filter(|held| self.selects(held)).map(|held| item(held, now)).collect())
                })
                .await?;
            let none = format!("No records found in namespace {}.", session.settings.namespace);
            if self.watch {
                return watch::records(&session, listing, |held| {
                    self.selects(held).then(|| item(held, Timestamp::now()))
                })
                .await;
            }
            listing.end(&none)?;
            Ok(ExitCode::SUCCESS)
        })
    }

    fn selects(&self, held: &Held) -> bool {
        match (&self.selector, held.stored()) {
            (None, _) => true,
            (Some(selector), Stored::Good(record)) => selector.matches(&record.labels()),
            (Some(_), Stored::Bad { .. }) => false,
        }
    }
}

fn item(held: &Held, now: Timestamp) -> Item {
    let mut row = vec![held.node_name().to_owned(), RecordState::of(held.stored()).to_string()];
    match held.stored() {
        Stored::Good(record) => row.extend([
            record.kept.len().to_string(),
            record.sequence.to_string(),
            age(record.captured_at, now),
            held.name().to_owned(),
            record.node.uid.clone(),
            record.captured_by.clone(),
        ]),
        Stored::Bad { fault, .. } => {
            let dash = || "-".to_owned();
            row.extend([dash(), dash(), dash(), held.name().to_owned(), dash(), fault.to_string()]);
        }
    }
    Item { name: format!("configmap/{}", held.name()), row, value: as_json(held) }
}
