//! `perennial diff`: nodes against records, as the operator's own plan sees them.

use std::{fmt::Write as _, process::ExitCode};

use clap::Args;
use perennial_core::keeper::{
    kept::{Kept, Key},
    plan::Act,
    standing::Standing,
};
use serde_json::{Value, json};

use super::{
    Global, block_on,
    nodes::selector,
    objects::{Look, Session},
    output::{Format, print_text, print_value},
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
    /// How to print: table, json, yaml or name
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Format,
}

/// What would be changed about one node.
pub(super) struct Difference {
    node: String,
    pub(super) what: &'static str,
    pub(super) changes: Vec<Change>,
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
            let mut found = Vec::new();
            if self.nodes.is_empty() {
                let mut differs = false;
                session
                    .each_pair(self.selector.as_deref(), self.output == Format::Table, |page| {
                        let page: Vec<Difference> = page.iter().filter_map(difference).collect();
                        differs |= !page.is_empty();
                        match self.output {
                            Format::Json | Format::Yaml => found.extend(page),
                            _ => print(&page, self.output)?,
                        }
                        Ok(())
                    })
                    .await?;
                self.finish(&found)?;
                return Ok(differs);
            }
            for name in &self.nodes {
                found.extend(difference(&session.look(name).await?));
            }
            match self.output {
                Format::Json | Format::Yaml => self.finish(&found)?,
                _ => print(&found, self.output)?,
            }
            Ok(!found.is_empty())
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

    fn finish(&self, found: &[Difference]) -> anyhow::Result<()> {
        if !matches!(self.output, Format::Json | Format::Yaml) {
            return Ok(());
        }
        let items: Vec<Value> = found
            .iter()
            .map(|difference| {
                let changes: Vec<Value> = difference
                    .changes
                    .iter()
                    .map(|change| json!({"key": change.key, "before": change.before, "after": change.after}))
                    .collect();
                json!({"node": difference.node, "what": difference.what, "changes": changes})
            })
            .collect();
        print_value(&json!({"kind": "DiffList", "items": items}), self.output)
    }
}

/// None where nothing would be changed.
pub(super) fn difference(look: &Look) -> Option<Difference> {
    let (what, changes) = match look.standing() {
        Standing::Pending(act, next) => {
            let before = look.record().map(|record| record.kept).unwrap_or_default();
            let what = match act {
                Act::Capture if look.held.is_none() => "its record would be created",
                Act::Capture => "its record would follow it",
                Act::Claim => "it would take its record over",
                Act::Fold => "it would be merged into its record",
            };
            (what, changes(&before, &next.kept))
        }
        Standing::Unsettled(restore) => {
            let before = look.seen().map(|seen| seen.kept).unwrap_or_default();
            let mut after = before.clone();
            after.retain(|key, _| !restore.remove.contains(key));
            after.extend(restore.set);
            ("it would be given what its record has", changes(&before, &after))
        }
        _ => return None,
    };
    Some(Difference { node: look.name().to_owned(), what, changes })
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

fn print(found: &[Difference], format: Format) -> anyhow::Result<()> {
    let colours = colours();
    let mut text = String::new();
    for difference in found {
        if format == Format::Name {
            let _ = writeln!(text, "node/{}", difference.node);
            continue;
        }
        let _ = writeln!(text, "node/{}: {}", difference.node, difference.what);
        for change in &difference.changes {
            let _ = writeln!(text, "  {}", change.line(colours));
        }
    }
    print_text(&text)
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
