//! `perennial history NODE`: the versions of records.

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
    Global, block_on, for_each,
    output::{Telling, change_line, print_all},
    terminal::colours,
};
use crate::inspect::{
    diff::changes,
    format::age,
    history::{Version, versions},
    session::Session,
};

#[derive(Debug, Args)]
pub(super) struct HistoryArgs {
    /// Names of the nodes, which may be deleted
    #[arg(required = true, value_name = "NODE", value_parser = super::node_name, add = super::completion::nodes())]
    nodes: Vec<String>,
    /// Output format: table, json or yaml
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Telling,
}

impl HistoryArgs {
    pub(super) fn execute(&self, global: &Global) -> anyhow::Result<ExitCode> {
        block_on(async {
            let session = global.open_session().await?;
            let several = self.nodes.len() > 1;
            let mut shown = Vec::new();
            let code = for_each(&self.nodes, async |node| {
                let versions = read(&session, node).await?;
                let title = if several { format!("{node}:\n") } else { String::new() };
                shown.push((as_json(node, &versions), title + &to_text(node, &versions)));
                Ok(())
            })
            .await?;
            print_all(self.output, shown)?;
            Ok(code)
        })
    }
}

async fn read(session: &Session, node: &str) -> anyhow::Result<Vec<Version>> {
    let look = session.look(node).await?;
    let held = look.held.as_ref().with_context(|| format!("there is no record for node {node}"))?;
    match held.stored() {
        Stored::Good(record) | Stored::Bad { good: Substitute::Recovered(record), .. } => Ok(versions(record)),
        Stored::Bad { fault, .. } => {
            let name = held.name();
            anyhow::bail!("record {name} is quarantined: {fault}; run `perennial explain {node}` for details")
        }
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
