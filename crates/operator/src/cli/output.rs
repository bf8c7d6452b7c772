//! Printing objects: tables for people, JSON and YAML for programs.

use std::io::Write;

use clap::ValueEnum;
use comfy_table::{ContentArrangement, Table, presets};
use perennial_core::keeper::kept::Kept;
use serde::Serialize;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    #[default]
    Table,
    Wide,
    Json,
    Yaml,
    Name,
}

/// Prints a value as JSON or YAML.
pub(super) fn print_value(value: &impl Serialize, format: Format) -> anyhow::Result<()> {
    let text = match format {
        Format::Yaml => serde_saphyr::to_string(value)?,
        _ => serde_json::to_string_pretty(value)? + "\n",
    };
    print_text(&text)
}

/// Prints text. A reader that has seen enough (`| head`) is not an error.
pub(super) fn print_text(text: &str) -> anyhow::Result<()> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => Ok(other?),
    }
}

/// A table as kubectl prints them: no lines, columns three spaces apart.
pub(super) fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header(header.to_vec());
    table
}

pub(super) fn print_table(table: &mut Table) -> anyhow::Result<()> {
    for column in table.column_iter_mut() {
        column.set_padding((0, 3));
    }
    let text: String = table.lines().map(|line| line.trim_end().to_owned() + "\n").collect();
    print_text(&text)
}

/// How long ago, as kubectl says it: `42s`, `5m`, `3h`, `12d`.
pub(super) fn age(then: jiff::Timestamp, now: jiff::Timestamp) -> String {
    let seconds = now.as_second().saturating_sub(then.as_second()).max(0);
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7_200 => format!("{}m", seconds / 60),
        7_200..172_800 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// Keys and values on one line.
pub(super) fn pairs(kept: &Kept) -> String {
    if kept.is_empty() {
        return "(nothing)".to_owned();
    }
    kept.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",")
}
