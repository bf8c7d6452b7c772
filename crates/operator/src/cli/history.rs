//! `perennial history NODE`: the versions of a record.

use std::{fmt::Write as _, process::ExitCode};

use anyhow::Context as _;
use clap::Args;
use jiff::Timestamp;
use perennial_core::keeper::{
    keys::{Content, Kept},
    stored_record::{Stored, Substitute},
};
use serde_json::{Value, json};

use super::{
    Global, block_on,
    output::{Telling, change_line},
    terminal::colours,
};
use crate::inspect::{
    diff::changes,
    format::age,
    history::{Version, versions},
};

#[derive(Debug, Args)]
pub(super) struct History {
    /// Name of the node, which may be deleted
    #[arg(add = super::completion::nodes())]
    node: String,
    /// Output format: table, json or yaml
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Telling,
}

impl History {
    pub(super) fn execute(&self, global: &Global) -> anyhow::Result<ExitCode> {
        block_on(async {
            let session = global.open_session().await?;
            let look = session.look(&self.node).await?;
            let held = look.held.as_ref().with_context(|| format!("there is no record for node {}", self.node))?;
            let versions = match held.stored() {
                Stored::Good(record) | Stored::Bad { good: Substitute::Recovered(record), .. } => versions(record),
                Stored::Bad { fault, .. } => {
                    anyhow::bail!(
                        "record {} is quarantined: {fault}; run `perennial explain {}` for details",
                        held.name(),
                        self.node
                    )
                }
            };
            self.output.print(|| as_json(&self.node, &versions), || to_text(&self.node, &versions))?;
            Ok(ExitCode::SUCCESS)
        })
    }
}

fn as_json(node: &str, versions: &[Version]) -> Value {
    let items: Vec<Value> = versions
        .iter()
        .map(|version| {
            json!({
                "sequence": version.sequence,
                "capturedAt": version.captured_at,
                "uid": version.uid,
                "content": Content::from(&version.kept),
            })
        })
        .collect();
    json!({"kind": "History", "node": node, "items": items})
}

fn to_text(node: &str, versions: &[Version]) -> String {
    let (now, colours) = (Timestamp::now(), colours());
    let mut text = String::new();
    for (place, version) in versions.iter().enumerate() {
        let older = versions.get(place + 1);
        let current = if place == 0 { "  (current)" } else { "" };
        let _ =
            writeln!(text, "{}  {} ago  uid {}{current}", version.sequence, age(version.captured_at, now), version.uid);
        let nothing = Kept::new();
        let lines = changes(older.map_or(&nothing, |older| &older.kept), &version.kept);
        if lines.is_empty() {
            text.push_str("  no changes\n");
        }
        for change in lines {
            let _ = writeln!(text, "  {}", change_line(&change, colours));
        }
    }
    match versions.get(1) {
        Some(before) => {
            let _ = writeln!(text, "\nTo roll back: perennial rollback {node} --to {}", before.sequence);
        }
        None => text.push_str("\nThere is no earlier version.\n"),
    }
    text
}
