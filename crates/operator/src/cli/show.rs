//! `perennial show NODE`: the record of a node.

use std::{fmt::Write as _, process::ExitCode};

use clap::Args;
use jiff::Timestamp;
use perennial_core::keeper::{
    keys::{Content, Kept, Key},
    record::Record,
    stored_record::Stored,
};
use serde_json::{Value, json};

use super::{
    Global, block_on, for_each,
    output::{Telling, print_all},
};
use crate::inspect::{
    collection::RecordLifetime,
    format::{age, pairs},
    inspected_node::InspectedNode,
    records::as_json,
    states::RecordState,
};

#[derive(Debug, Args)]
pub(super) struct Show {
    /// Names of the nodes, which may be deleted
    #[arg(required = true, value_name = "NODE", value_parser = super::node_name, add = super::completion::nodes())]
    nodes: Vec<String>,
    /// Output format: table, json or yaml
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Telling,
}

impl Show {
    pub(super) fn execute(self, global: &Global) -> anyhow::Result<ExitCode> {
        block_on(async {
            let session = global.open_session().await?;
            let mut shown = Vec::new();
            let code = for_each(&self.nodes, async |name| {
                let look = session.look(name).await?;
                let standing = look.status().sentence();
                let max_absent = session.settings.keeper.max_absent;
                shown.push((to_value(name, &look, &standing), to_text(name, &look, &standing, max_absent)));
                Ok(())
            })
            .await?;
            print_all(self.output, shown)?;
            Ok(code)
        })
    }
}

fn to_value(name: &str, look: &InspectedNode, standing: &str) -> Value {
    json!({
        "node": name,
        "standing": standing,
        "live": look.node().map(|node| json!({
            "uid": node.uid,
            "kept": look.kept().map(Content::from),
            "mark": look.mark(),
        })),
        "record": look.held.as_ref().map(as_json),
        "collection": RecordLifetime::of(look).map(RecordLifetime::to_json),
    })
}

fn to_text(name: &str, look: &InspectedNode, standing: &str, max_absent: u32) -> String {
    let held = look.held.as_ref();
    let mut text = String::new();
    let mut line = |key: &str, value: &str| {
        let _ = writeln!(text, "{key:<12}{value}");
    };
    let now = Timestamp::now();
    line("Node:", name);
    line("Status:", standing);
    line("Live UID:", look.node().map_or("-", |node| &node.uid));
    match held.map(|held| (held, held.stored())) {
        None => line("Record:", "none"),
        Some((held, Stored::Good(record))) => {
            line("Record:", &format!("{} ({})", held.name(), RecordState::of(held.stored())));
            line("Sequence:", &record.sequence.to_string());
            line("Captured:", &format!("{} ago by {}", age(record.captured_at, now), record.captured_by));
            line("From UID:", &record.node.uid);
        }
        Some((held, Stored::Bad { fault, .. })) => {
            line("Record:", &format!("{} (Invalid: {fault})", held.name()));
        }
    }
    if let Some(lifetime) = RecordLifetime::of(look) {
        line("Hold:", if lifetime.hold { "yes" } else { "no" });
        line("Collected:", &lifetime.limited(max_absent).words(now));
    }
    let record = held.and_then(|held| held.stored().good());
    text.push_str(&keys(look.kept(), record));
    if let Some(record) = record.filter(|record| !record.history.is_empty()) {
        text.push_str("History:\n");
        for entry in &record.history {
            let kept = Kept::from(entry.content.clone());
            let _ = writeln!(text, "  {:>4}  {:>5} ago  {}", entry.sequence, age(entry.captured_at, now), pairs(&kept));
        }
    }
    text
}

fn keys(live: Option<&Kept>, record: Option<&Record>) -> String {
    let empty = Kept::new();
    let on_node = live.unwrap_or(&empty);
    let kept = record.map_or(&empty, |record| &record.kept);
    let all: std::collections::BTreeSet<&Key> = on_node.keys().chain(kept.keys()).collect();
    if all.is_empty() {
        return "Kept:       none\n".to_owned();
    }
    let mut text = "Kept:\n".to_owned();
    for key in all {
        let (node, record) = (on_node.get(key), kept.get(key));
        let remark = match (node, record) {
            (Some(now), Some(then)) if now == then => String::new(),
            (Some(_), Some(then)) => format!("   (record: {then})"),
            (Some(_), None) => "   (not in the record)".to_owned(),
            (None, _) if live.is_none() => String::new(),
            (None, _) => "   (not on the node)".to_owned(),
        };
        let _ = writeln!(text, "  {key}={}{remark}", node.or(record).map_or("", String::as_str));
    }
    text
}
