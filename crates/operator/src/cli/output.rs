//! Prints tables, JSON and YAML. Lists are printed page by page as they are read.

use std::io::Write;

use clap::ValueEnum;
use serde::Serialize;
use serde_json::{Value, json};

use super::terminal::{Colour, colours, paint_state};
use crate::inspect::diff::Change;

/// Output format of a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    #[default]
    Table,
    Wide,
    Json,
    Yaml,
    Name,
}

/// Output format of a single object: without `wide` and `name`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Telling {
    #[default]
    Table,
    Json,
    Yaml,
}

impl Telling {
    /// Prints the value as JSON or YAML, or the text. Builds only the one that is printed.
    pub(super) fn print<V: Serialize>(
        self,
        value: impl FnOnce() -> V,
        text: impl FnOnce() -> String,
    ) -> anyhow::Result<()> {
        print_text(&match self {
            Self::Table => text(),
            Self::Json => serde_json::to_string_pretty(&value())? + "\n",
            Self::Yaml => serde_saphyr::to_string(&value())?,
        })
    }
}

/// Prints one object, or several as a list.
pub(super) fn print_all(format: Telling, mut objects: Vec<(Value, String)>) -> anyhow::Result<()> {
    match objects.as_mut_slice() {
        [] => Ok(()),
        [(value, text)] => format.print(|| std::mem::take(value), || std::mem::take(text)),
        several => {
            let values: Vec<&Value> = several.iter().map(|(value, _)| value).collect();
            let texts: Vec<&str> = several.iter().map(|(_, text)| text.as_str()).collect();
            format.print(|| json!({"kind": "List", "items": values}), || texts.join("\n"))
        }
    }
}

/// Prints text. A closed pipe (`| head`) ends the program: see [`is_broken_pipe`].
pub(super) fn print_text(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// Whether an error is a closed standard output.
pub(super) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}

/// A table in kubectl's layout: no lines, columns three spaces apart. A column is as wide as its
/// widest cell so far.
#[derive(Debug)]
pub(super) struct Table {
    header: Option<Vec<String>>,
    widths: Vec<usize>,
    colours: bool,
}

const GAP: usize = 3;

impl Table {
    pub(super) fn new(header: &[&str]) -> Self {
        let header: Vec<String> = header.iter().map(|&name| name.to_owned()).collect();
        Self {
            widths: header.iter().map(|name| name.chars().count()).collect(),
            header: Some(header),
            colours: colours(),
        }
    }

    /// Renders rows, with the header before the first ones.
    fn render(&mut self, rows: &[Vec<String>]) -> String {
        for row in rows {
            for (width, cell) in self.widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let mut text = String::new();
        if let Some(header) = self.header.take() {
            self.line(&mut text, &header, false);
        }
        for row in rows {
            self.line(&mut text, row, self.colours);
        }
        text
    }

    fn line(&self, text: &mut String, cells: &[String], colours: bool) {
        let last = cells.len().saturating_sub(1);
        for (column, (cell, width)) in cells.iter().zip(&self.widths).enumerate() {
            text.push_str(&paint_state(cell, colours));
            if column < last {
                let room = width.saturating_sub(cell.chars().count()) + GAP;
                text.extend(std::iter::repeat_n(' ', room));
            }
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
}

/// One object of a list.
#[derive(Debug)]
pub(super) struct Item {
    /// Printed by `-o name`: `node/worker-1`.
    pub(super) name: String,
    /// Cells; those after the first `narrow` are printed by `-o wide` only.
    pub(super) row: Vec<String>,
    pub(super) value: Value,
}

/// A list that is printed while it is read. At most one page is in memory.
#[derive(Debug)]
pub(super) struct Listing {
    format: Format,
    kind: &'static str,
    table: Table,
    narrow: usize,
    count: usize,
    watched: bool,
}

impl Listing {
    /// `header` names all columns; without `-o wide` only the first `narrow` are printed.
    pub(super) fn new(format: Format, kind: &'static str, header: &[&str], narrow: usize) -> Self {
        let narrow = if format == Format::Wide { header.len() } else { narrow };
        Self { format, kind, table: Table::new(&header[..narrow]), narrow, count: 0, watched: false }
    }

    /// Marks the list as unbounded: JSON and YAML are printed one object after the other, as
    /// kubectl does with `-w`.
    pub(super) fn watched(self, watched: bool) -> Self {
        Self { watched, ..self }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(super) fn page(&mut self, items: Vec<Item>) -> anyhow::Result<()> {
        if items.is_empty() {
            return Ok(());
        }
        let first = self.count == 0;
        self.count += items.len();
        let text = match self.format {
            Format::Table | Format::Wide => {
                let cut = |mut item: Item| {
                    item.row.truncate(self.narrow);
                    item.row
                };
                self.table.render(&items.into_iter().map(cut).collect::<Vec<_>>())
            }
            Format::Name => items.into_iter().map(|item| item.name + "\n").collect(),
            Format::Json if self.watched => {
                let mut text = String::new();
                for item in &items {
                    text.push_str(&serde_json::to_string_pretty(&item.value)?);
                    text.push('\n');
                }
                text
            }
            Format::Yaml if self.watched => {
                let mut text = String::new();
                for item in &items {
                    text.push_str("---\n");
                    text.push_str(&serde_saphyr::to_string(&item.value)?);
                }
                text
            }
            Format::Json => {
                let mut text = if first { self.json_head() } else { String::new() };
                for (number, item) in items.iter().enumerate() {
                    text.push_str(if first && number == 0 { "\n" } else { ",\n" });
                    let value = serde_json::to_string_pretty(&item.value)?;
                    text.push_str(&value.lines().map(|line| format!("    {line}")).collect::<Vec<_>>().join("\n"));
                }
                text
            }
            Format::Yaml => {
                let mut text = if first { format!("kind: {}\nitems:\n", self.kind) } else { String::new() };
                for item in &items {
                    text.push_str(&serde_saphyr::to_string(&[&item.value])?);
                }
                text
            }
        };
        print_text(&text)
    }

    fn json_head(&self) -> String {
        format!("{{\n  \"kind\": \"{}\",\n  \"items\": [", self.kind)
    }

    /// Finishes the list. Prints `none` on standard error if the list is empty.
    pub(super) fn end(self, none: &str) -> anyhow::Result<()> {
        match self.format {
            Format::Json if self.is_empty() => print_text(&(self.json_head() + "]\n}\n")),
            Format::Json => print_text("\n  ]\n}\n"),
            Format::Yaml if self.is_empty() => print_text(&format!("kind: {}\nitems: []\n", self.kind)),
            Format::Table | Format::Wide if self.is_empty() => {
                eprintln!("{none}");
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// `+ key=value`, `- key=value` or `~ key=old -> new`.
pub(super) fn change_line(change: &Change, colours: bool) -> String {
    let Change { key, before, after } = change;
    match (before, after) {
        (None, Some(after)) => Colour::Green.paint(&format!("+ {key}={after}"), colours),
        (Some(before), None) => Colour::Red.paint(&format!("- {key}={before}"), colours),
        (Some(before), Some(after)) => Colour::Yellow.paint(&format!("~ {key}={before} -> {after}"), colours),
        (None, None) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use perennial_core::keeper::keys::{Kept, Key};

    use crate::inspect::diff::changes;

    use super::*;

    fn row(cells: &[&str]) -> Vec<String> {
        cells.iter().map(|&cell| cell.to_owned()).collect()
    }

    #[test]
    fn table_columns_widen_as_rows_arrive() {
        let mut table = Table::new(&["NODE", "STATE"]);
        assert_eq!(table.render(&[row(&["n1", "Current"])]), "NODE   STATE\nn1     Current\n");
        assert_eq!(table.render(&[row(&["a-long-name", ""])]), "a-long-name\n");
        assert_eq!(table.render(&[row(&["n2", "Away"])]), "n2            Away\n");
    }

    #[test]
    fn change_is_printed_on_one_line() {
        let kept =
            |pairs: &[(&str, &str)]| pairs.iter().map(|(k, v)| (Key::label(k), (*v).to_owned())).collect::<Kept>();
        let lines: Vec<String> =
            changes(&kept(&[("a", "1"), ("b", "1"), ("c", "1")]), &kept(&[("a", "2"), ("c", "1"), ("d", "1")]))
                .iter()
                .map(|change| change_line(change, false))
                .collect();
        assert_eq!(lines, ["~ a=1 -> 2", "- b=1", "+ d=1"]);
    }
}
