//! `perennial diff`: nodes against records, as the operator's own plan sees them.

use std::{fmt::Write as _, process::ExitCode};

use clap::Args;
use perennial_core::keeper::{
    decide::RecordWrite,
    keys::{Kept, Key},
    status::KeepStatus,
};
use serde_json::{Value, json};

use super::{
    Global, block_on,
    nodes::selector,
    output::{Format, Item, Listing, print_text},
    session::{Look, Session},
    terminal::{Tone, colours},
};

#[derive(Debug, Args)]
pub(super) struct Diff {
    /// Names of nodes. Without any: all
    #[arg(add = super::complete::nodes())]
    nodes: Vec<String>,
    /// Only nodes with such labels
    #[arg(short = 'l', long, value_name = "SELECTOR", value_parser = selector, conflicts_with = "nodes")]
    selector: Option<String>,
    /// How to print: table, wide (also the keys that stay as they are), json, yaml or name
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Format,
}

/// What would be changed about one node.
pub(super) struct Difference {
    node: String,
    pub(super) what: &'static str,
    pub(super) changes: Vec<Change>,
    /// What is the same before and after.
    stays: Kept,
}

/// One key that would change.
pub(crate) struct Change {
    pub(crate) key: Key,
    pub(crate) before: Option<String>,
    pub(crate) after: Option<String>,
}

impl Diff {
    /// Ends with 0 where nothing differs, with 1 where something does, with 2 where it could not be found out.
    pub(super) fn execute(self, global: &Global) -> anyhow::Result<ExitCode> {
        let found = block_on(async {
            let session = Session::open(global).await?;
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

/// None where nothing would be changed.
pub(super) fn difference(look: &Look) -> Option<Difference> {
    let (what, before, after) = match look.status() {
        KeepStatus::Pending(kind, next) => {
            let before = look.record().map(|record| record.kept).unwrap_or_default();
            let what = match kind {
                RecordWrite::Capture if look.held.is_none() => "its record would be created",
                RecordWrite::Capture => "its record would follow it",
                RecordWrite::Claim => "it would take its record over",
                RecordWrite::Fold => "it would be merged into its record",
            };
            (what, before, next.kept)
        }
        KeepStatus::Unsettled(restore) => {
            let before = look.kept().cloned().unwrap_or_default();
            let mut after = before.clone();
            after.retain(|key, _| !restore.remove.contains(key));
            after.extend(restore.set);
            ("it would be given what its record has", before, after)
        }
        _ => return None,
    };
    let changes = changes(&before, &after);
    let stays = before.into_iter().filter(|(key, value)| after.get(key) == Some(value)).collect();
    Some(Difference { node: look.name().to_owned(), what, changes, stays })
}

/// What differs between two label sets.
pub(crate) fn changes(before: &Kept, after: &Kept) -> Vec<Change> {
    let keys: std::collections::BTreeSet<&Key> = before.keys().chain(after.keys()).collect();
    let changed = keys.into_iter().filter(|key| before.get(key) != after.get(key));
    changed
        .map(|key| Change { key: key.clone(), before: before.get(key).cloned(), after: after.get(key).cloned() })
        .collect()
}

impl Change {
    /// `+ key=value`, `- key=value` or `~ key=old -> new`.
    pub(super) fn line(&self, colours: bool) -> String {
        let Self { key, .. } = self;
        match (&self.before, &self.after) {
            (None, Some(after)) => Tone::Good.paint(&format!("+ {key}={after}"), colours),
            (Some(before), None) => Tone::Bad.paint(&format!("- {key}={before}"), colours),
            (Some(before), Some(after)) => Tone::Attention.paint(&format!("~ {key}={before} -> {after}"), colours),
            (None, None) => String::new(),
        }
    }
}

fn story(found: &[Difference], wide: bool) -> String {
    let colours = colours();
    let mut text = String::new();
    for difference in found {
        let _ = writeln!(text, "node/{}: {}", difference.node, difference.what);
        for change in &difference.changes {
            let _ = writeln!(text, "  {}", change.line(colours));
        }
        for (key, value) in difference.stays.iter().filter(|_| wide) {
            let _ = writeln!(text, "  {}", Tone::Quiet.paint(&format!("  {key}={value}"), colours));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_one_line() {
        let kept =
            |pairs: &[(&str, &str)]| pairs.iter().map(|(k, v)| (Key::label(k), (*v).to_owned())).collect::<Kept>();
        let lines: Vec<String> =
            changes(&kept(&[("a", "1"), ("b", "1"), ("c", "1")]), &kept(&[("a", "2"), ("c", "1"), ("d", "1")]))
                .iter()
                .map(|change| change.line(false))
                .collect();
        assert_eq!(lines, ["~ a=1 -> 2", "- b=1", "+ d=1"]);
    }
}
