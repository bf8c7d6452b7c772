//! `perennial diff`: nodes against records, as the operator's own plan sees them.

use std::{fmt::Write as _, process::ExitCode};

use clap::Args;
use serde_json::{Value, json};

use super::{
    Global, block_on,
    nodes::selector,
    output::{Format, Item, Listing, change_line, print_text},
    terminal::{Tone, colours},
};
use crate::inspect::diff::{Difference, difference};

#[derive(Debug, Args)]
pub(super) struct Diff {
    /// Names of nodes. Without any: all
    #[arg(add = super::completion::nodes())]
    nodes: Vec<String>,
    /// Only nodes with such labels
    #[arg(short = 'l', long, value_name = "SELECTOR", value_parser = selector, conflicts_with = "nodes")]
    selector: Option<String>,
    /// How to print: table, wide (also the keys that stay as they are), json, yaml or name
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Format,
}

impl Diff {
    /// Ends with 0 where nothing differs, with 1 where something does, with 2 where it could not be found out.
    pub(super) fn execute(self, global: &Global) -> anyhow::Result<ExitCode> {
        let found = block_on(async {
            let session = global.open_session().await?;
            let mut shown = Shown::new(self.output);
            if self.nodes.is_empty() {
                let selector = self.selector.as_deref();
                session.each_pair(selector, true, |page| shown.page(page.iter().filter_map(difference))).await?;
            } else {
                let mut found = Vec::new();
                for name in &self.nodes {
                    found.extend(difference(&session.look(name).await?));
                }
                shown.page(found)?;
            }
            shown.end()
        });
        match found {
            Ok(differs) => Ok(ExitCode::from(u8::from(differs))),
            Err(error) if super::output::is_enough(&error) => Err(error),
            Err(error) => {
                super::complain(&error);
                Ok(ExitCode::from(2))
            }
        }
    }
}

/// What differs, printed as it is found.
struct Shown {
    format: Format,
    listing: Listing,
    differs: bool,
}

impl Shown {
    fn new(format: Format) -> Self {
        Self { format, listing: Listing::new(format, "DiffList", &[], 0), differs: false }
    }

    fn page(&mut self, found: impl IntoIterator<Item = Difference>) -> anyhow::Result<()> {
        let found: Vec<Difference> = found.into_iter().collect();
        self.differs |= !found.is_empty();
        match self.format {
            Format::Table => print_text(&story(&found, false)),
            Format::Wide => print_text(&story(&found, true)),
            Format::Json | Format::Yaml | Format::Name => self.listing.page(found.iter().map(item).collect()),
        }
    }

    /// Whether anything differs.
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

fn story(found: &[Difference], wide: bool) -> String {
    let colours = colours();
    let mut text = String::new();
    for difference in found {
        let _ = writeln!(text, "node/{}: {}", difference.node, difference.what);
        for change in &difference.changes {
            let _ = writeln!(text, "  {}", change_line(change, colours));
        }
        for (key, value) in difference.stays.iter().filter(|_| wide) {
            let _ = writeln!(text, "  {}", Tone::Quiet.paint(&format!("  {key}={value}"), colours));
        }
    }
    text
}
