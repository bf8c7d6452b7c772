//! `perennial status`: replicas, shards, nodes, records, lag and throughput.

use std::{fmt::Write as _, process::ExitCode};

use clap::Args;

use super::{
    Global, block_on,
    output::Telling,
    terminal::{Colour, colours, paint_state},
};
use crate::inspect::{
    format::{node_counts, span},
    overview::Overview,
};

#[derive(Debug, Args)]
pub(super) struct Status {
    /// URL of the metrics of an operator: http://HOST:PORT/metrics. Defaults to its pods, read
    /// through the API server
    #[arg(long, value_name = "URL")]
    metrics: Option<String>,
    /// Output format: table, json or yaml
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Telling,
}

impl Status {
    pub(super) fn execute(&self, global: &Global) -> anyhow::Result<ExitCode> {
        block_on(async {
            let session = global.open_session().await?;
            let overview = Overview::read(&session, self.metrics.as_deref()).await?;
            self.output.print(|| overview.as_json(), || to_text(&overview))?;
            Ok(ExitCode::SUCCESS)
        })
    }
}

fn to_text(overview: &Overview) -> String {
    let colours = colours();
    let mut text = String::new();
    write_replicas(overview, &mut text, colours);
    let counts = node_counts(&overview.nodes, |state| paint_state(state.as_str(), colours));
    let _ = writeln!(text, "Nodes:      {counts}");
    let records: Vec<String> = overview
        .records
        .iter()
        .map(|(state, count)| format!("{count} {}", paint_state(state.as_str(), colours)))
        .collect();
    let total: usize = overview.records.values().sum();
    let held = if overview.held == 0 { String::new() } else { format!(", {} held", overview.held) };
    let _ = writeln!(text, "Records:    {total} in namespace {} ({}){held}", overview.namespace, or_none(&records));
    let oldest = overview.lag.oldest.map(|age| format!(", oldest node waiting for {}", span(age))).unwrap_or_default();
    let _ = writeln!(text, "Lag:        {} node(s) with a pending write{oldest}", overview.lag.due);
    let _ = writeln!(
        text,
        "Throughput: {} record(s) written in the last minute, {} in the last hour",
        overview.lag.minute, overview.lag.hour
    );
    for (from, samples) in &overview.samples {
        let _ = writeln!(text, "            {from}: {}", samples.sentence());
    }
    let _ = writeln!(text, "Webhooks:   {}", or_none(&overview.webhooks));
    let bad = if overview.bad_policies.is_empty() {
        String::new()
    } else {
        format!(", {} invalid: {}", overview.bad_policies.len(), overview.bad_policies.join(", "))
    };
    let _ = writeln!(text, "Policies:   {}{bad}", overview.policies);
    text
}

fn write_replicas(overview: &Overview, text: &mut String, colours: bool) {
    let groups = overview.leases.iter().flat_map(|found| &found.groups);
    let mut none = true;
    for group in groups {
        none = false;
        if group.members.is_empty() {
            let _ = writeln!(text, "Replicas:   {} of {}", Colour::Red.paint("none", colours), group.name);
        }
        for (place, member) in group.members.iter().enumerate() {
            let head = if place == 0 { "Replicas:" } else { "" };
            let state = if member.alive {
                Colour::Green.paint("alive", colours)
            } else {
                Colour::Red.paint(&format!("no heartbeat for {}", span(member.silent)), colours)
            };
            let _ = writeln!(text, "{head:<12}{}  {state}", member.identity);
        }
        let count = group.shard_count();
        for (place, shard) in group.shards.iter().enumerate() {
            let head = if place == 0 { "Shards:" } else { "" };
            let holder = match (shard.held, shard.holder.is_empty()) {
                (true, _) => shard.holder.clone(),
                (false, true) => Colour::Red.paint("no holder", colours),
                (false, false) => {
                    Colour::Red.paint(&format!("{}, no heartbeat for {}", shard.holder, span(shard.silent)), colours)
                }
            };
            let _ = writeln!(text, "{head:<12}{} of {count}  {holder}", shard.number());
        }
        let unheld = group.unheld();
        if !unheld.is_empty() {
            let _ = writeln!(
                text,
                "{:<12}{}",
                "",
                Colour::Red.paint(&format!("no replica holds {}", unheld.join(", ")), colours)
            );
        }
    }
    if let Some(why) = &overview.unread {
        let _ = writeln!(text, "Replicas:   unknown: {why}");
    } else if none {
        let _ = writeln!(
            text,
            "Replicas:   {} (an operator without leader election or with --dry-run holds no Lease)",
            Colour::Red.paint("none", colours)
        );
    }
}

fn or_none(items: &[String]) -> String {
    if items.is_empty() { "none".to_owned() } else { items.join(", ") }
}
