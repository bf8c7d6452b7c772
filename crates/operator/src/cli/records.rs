//! `perennial records`.

use std::process::ExitCode;

use clap::Args;
use jiff::Timestamp;
use perennial_core::keeper::stored::Stored;
use serde_json::{Value, json};

use super::{
    Global, block_on,
    objects::Session,
    output::{Format, age, print_table, print_text, print_value, table},
};
use crate::keeper::apply::Held;

#[derive(Debug, Args)]
pub(super) struct Records {
    /// How to print: table, wide, json, yaml or name
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Format,
}

impl Records {
    pub(super) fn execute(self, global: &Global) -> anyhow::Result<ExitCode> {
        block_on(async {
            let session = Session::open(global).await?;
            let mut held = Vec::new();
            session.each_record(|record| held.push(record)).await?;
            match self.output {
                Format::Json | Format::Yaml => {
                    let items: Vec<Value> = held.iter().map(as_json).collect();
                    print_value(&json!({"kind": "RecordList", "items": items}), self.output)?;
                }
                Format::Name => {
                    for held in &held {
                        print_text(&format!("configmap/{}\n", held.name()))?;
                    }
                }
                Format::Table | Format::Wide if held.is_empty() => {
                    eprintln!("No records found in namespace {}.", session.settings.namespace);
                }
                Format::Table | Format::Wide => print_records(&held, self.output == Format::Wide)?,
            }
            Ok(ExitCode::SUCCESS)
        })
    }
}

fn print_records(held: &[Held], wide: bool) -> anyhow::Result<()> {
    let mut header = vec!["NODE", "STATE", "LABELS", "SEQUENCE", "CAPTURED"];
    if wide {
        header.extend(["RECORD", "UID", "BY"]);
    }
    let mut table = table(&header);
    let now = Timestamp::now();
    for held in held {
        let mut row = vec![held.node_name().to_owned(), state(&held.stored).to_owned()];
        match &held.stored {
            Stored::Good(record) => {
                row.extend([record.kept.len().to_string(), record.sequence.to_string(), age(record.captured_at, now)]);
                if wide {
                    row.extend([held.name().to_owned(), record.node.uid.clone(), record.captured_by.clone()]);
                }
            }
            Stored::Bad { fault, .. } => {
                row.extend(["-".to_owned(), "-".to_owned(), "-".to_owned()]);
                if wide {
                    row.extend([held.name().to_owned(), "-".to_owned(), fault.to_string()]);
                }
            }
        }
        table.add_row(row);
    }
    print_table(&mut table)
}

/// One word for what a record is.
pub(super) fn state(stored: &Stored) -> &'static str {
    match stored {
        Stored::Good(record) if record.is_tombstone() => "Tombstone",
        Stored::Good(record) if record.folded => "Folded",
        Stored::Good(_) => "Good",
        Stored::Bad { fault, .. } if fault.is_newer() => "Newer",
        Stored::Bad { .. } => "Invalid",
    }
}

/// A record for programs: what it holds, or why it cannot be trusted.
pub(super) fn as_json(held: &Held) -> Value {
    let mut value = json!({"name": held.name(), "node": held.node_name(), "state": state(&held.stored)});
    match &held.stored {
        Stored::Good(record) => {
            let text = record.encode().unwrap_or_default();
            value["record"] = serde_json::from_str(&text).unwrap_or_default();
        }
        Stored::Bad { fault, .. } => value["fault"] = json!(fault.to_string()),
    }
    value
}
