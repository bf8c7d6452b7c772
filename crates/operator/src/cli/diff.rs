//! `perennial diff`: what the operator would write, key by key.

use std::{fmt::Write as _, process::ExitCode};

use clap::Args;
use serde_json::{Value, json};

use super::{
    Global, block_on,
    nodes::selector,
    output::{Format, Item, Listing, change_line, print_text},
    terminal::{Colour, colours},
};
use crate::inspect::diff::{Difference, difference};

#[derive(Debug, Args)]
pub(super) struct Diff {
    /// Names of the nodes. Defaults to all nodes
    #[arg(value_parser = super::node_name, add = super::completion::nodes())]
    nodes: Vec<String>,
    /// Selector on node labels
    #[arg(short = 'l', long, value_name = "SELECTOR", value_parser = selector, conflicts_with = "nodes")]
    selector: Option<String>,
    /// Output format: table, wide (includes unchanged keys), json, yaml or name
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Format,
}

impl Diff {
    /// Exits with 0 without differences, 1 with differences and 2 on an error, as `kubectl diff`
    /// does.
    pub(super) fn execute(self, global: &Global) -> anyhow::Result<ExitCode> {
        let found = block_on(async {
            let session = global.open_session().await?;
            let mut printer = DiffPrinter::new(self.output);
            if self.nodes.is_empty() {
                let selector = self.selector.as_deref();
                session.each_pair(selector, true, |page| printer.page(page.iter().filter_map(difference))).await?;
            } else {
                let mut found = Vec::new();
                for name in &self.nodes {
                    found.extend(difference(&session.look(name).await?));
                }
                printer.page(found)?;
            }
            printer.end()
        });
        match found {
            Ok(differs) => Ok(ExitCode::from(u8::from(differs))),
            Err(error) if super::output::is_broken_pipe(&error) => Err(error),
            Err(error) => {
                super::print_error(&error);
                Ok(ExitCode::from(2))
            }
        }
    }
}

/// Prints differences as they are found.
struct DiffPrinter {
    format: Format,
    listing: Listing,
    differs: bool,
}

impl DiffPrinter {
    fn new(format: Format) -> Self {
        Self { format, listing: Listing::new(format, "DiffList", &[], 0), differs: false }
    }

    fn page(&mut self, found: impl IntoIterator<Item = Difference>) -> anyhow::Result<()> {
        let found: Vec<Difference> = found.into_iter().collect();
        self.differs |= !found.is_empty();
        match self.format {
            Format::Table => print_text(&to_text(&found, false)),
            Format::Wide => print_text(&to_text(&found, true)),
            Format::Json | Format::Yaml | Format::Name => self.listing.page(found.iter().map(item).collect()),
        }
    }

    /// Returns whether there were differences.
    fn end(self) -> anyhow::Result<bool> {
        if matches!(self.format, Format::Json | Format::Yaml) {
            self.listing.end("")?;
        }
        Ok(self.differs)
    }
}

fn item(difference: &Difference) -> Item {
    let changes: Vec<Value> = difference
        .changes
        .iter()
        .map(|change| json!({"key": change.key, "before": change.before, "after": change.after}))
        .collect();
    Item {
        name: format!("node/{}", difference.node),
        row: Vec::new(),
        value: json!({"node": difference.node, "what": difference.what, "changes": changes}),
    }
}

fn to_text(found: &[Difference], wide: bool) -> String {
    let colours = colours();
    let mut text = String::new();
    for difference in found {
        let _ = writeln!(text, "node/{}: {}", difference.node, difference.what);
        for change in &difference.changes {
            let _ = writeln!(text, "  {}", change_line(change, colours));
        }
        for (key, value) in difference.unchanged.iter().filter(|_| wide) {
            let _ = writeln!(text, "  {}", Colour::Dim.paint(&format!("  {key}={value}"), colours));
        }
    }
    text
}
