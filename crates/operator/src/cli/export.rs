//! `perennial export`: records as YAML for `perennial import`.

use std::process::ExitCode;

use clap::Args;
use perennial_core::{
    config::LabelSelector,
    keeper::{
        collect::HOLD,
        import::export::{API_VERSION, KIND, item},
        keys::TRUE,
        record::Record,
        stored_record::{Stored, Substitute},
    },
};

use super::{Global, block_on, output::print_text};
use crate::{inspect::progress::Progress, keeper::apply::LoadedRecord};

#[derive(Debug, Args)]
pub(super) struct Export {
    /// Selector on the labels in the record, for example 'team=ml,tier in (gold, silver),!old'
    #[arg(short = 'l', long, value_name = "SELECTOR", value_parser = LabelSelector::parse)]
    selector: Option<LabelSelector>,
}

impl Export {
    /// Exits with 1 if a quarantined record was left out.
    pub(super) fn execute(&self, global: &Global) -> anyhow::Result<ExitCode> {
        block_on(async {
            let session = global.open_session().await?;
            let mut progress = Progress::new("records", true);
            let (mut some, mut skipped) = (false, 0_usize);
            print_text(&format!("apiVersion: {API_VERSION}\nkind: {KIND}\nitems:"))?;
            session
                .each_record(|page| {
                    progress.advance(page.len());
                    let mut text = String::new();
                    for held in &page {
                        match record(held) {
                            Ok(record) if !self.selects(record) => {}
                            Ok(record) => {
                                if !std::mem::replace(&mut some, true) {
                                    text.push('\n');
                                }
                                let held = held.annotations().get(HOLD).is_some_and(|value| value == TRUE);
                                text.push_str(&serde_saphyr::to_string(&[item(record, held)])?);
                            }
                            Err(why) => {
                                skipped += 1;
                                eprintln!("warning: record {} is not exported: {why}", held.name());
                            }
                        }
                    }
                    print_text(&text)
                })
                .await?;
            if !some {
                print_text(" []\n")?;
            }
            Ok(if skipped == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        })
    }

    fn selects(&self, record: &Record) -> bool {
        self.selector.as_ref().is_none_or(|selector| selector.matches(&record.labels()))
    }
}

fn record(held: &LoadedRecord) -> Result<&Record, String> {
    match held.stored() {
        Stored::Good(record) | Stored::Bad { good: Substitute::Recovered(record), .. } => Ok(record),
        Stored::Bad { fault, .. } => Err(fault.to_string()),
    }
}
