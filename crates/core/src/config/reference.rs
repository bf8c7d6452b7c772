//! The tables of `docs/reference/configuration.md`, generated from the list of keys. A test fails
//! if the page is outdated.

use std::fmt::Write;

use serde_json::Value as Tree;

use super::file::tree;
use super::keys::keys;
use super::pattern::Patterns;
use super::settings::Settings;

/// Returns a Markdown table of all keys with their defaults and descriptions.
pub fn key_table() -> String {
    let defaults = tree(&Settings::default());
    let mut table = String::from("| key | default | meaning |\n|---|---|---|\n");
    for key in keys() {
        // Writing to a String cannot fail.
        let default = shown(&key.path, key.value(&defaults));
        let _ = writeln!(table, "| `{}` | {default} | {} |", key.path, key.description);
    }
    table
}

/// Returns the default of `keeper.drop`, one pattern per line.
pub fn drop_list() -> String {
    lines(&Settings::default().keeper.drop)
}

/// Returns the default of `keeper.dropManagers`, one pattern per line.
pub fn drop_managers_list() -> String {
    lines(&Settings::default().keeper.drop_managers)
}

fn lines(patterns: &Patterns) -> String {
    patterns.as_slice().iter().fold(String::from("```\n"), |list, pattern| format!("{list}{pattern}\n")) + "```\n"
}

fn shown(path: &str, value: &Tree) -> String {
    let text = match value {
        Tree::String(text) if text.is_empty() => return "none".to_owned(),
        Tree::Array(items) if items.len() > 5 => {
            let anchor = path.replace('.', "").to_lowercase();
            return format!("[see below](#the-default-of-{anchor})");
        }
        Tree::Object(_) => "{}".to_owned(),
        Tree::String(text) => text.clone(),
        other => other.to_string().replace('"', "").replace(',', ", "),
    };
    format!("`{text}`")
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/configuration.md");

    /// Replaces the text between `<!-- NAME -->` and `<!-- end -->`.
    fn with_part(page: &str, name: &str, part: &str) -> String {
        let (front, rest) = page.split_once(&format!("<!-- {name} -->\n")).expect("the page has the marker");
        let (_, back) = rest.split_once("<!-- end -->").expect("the part has an end");
        format!("{front}<!-- {name} -->\n{part}<!-- end -->{back}")
    }

    /// `UPDATE_DOCS=1 cargo test -p perennial-core reference` writes the page.
    #[test]
    fn the_page_lists_every_key() {
        let page = std::fs::read_to_string(PAGE).expect("docs/reference/configuration.md is there");
        let current = with_part(&with_part(&page, "keys", &key_table()), "drop", &drop_list());
        let current = with_part(&current, "dropManagers", &drop_managers_list());
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(PAGE, &current).expect("docs/reference/configuration.md can be written");
        } else {
            assert_eq!(page, current, "run: UPDATE_DOCS=1 cargo test -p perennial-core reference");
        }
    }
}
