//! The YAML file: read key by key, and written.

use serde_json::{Value as Tree, json};
use serde_saphyr::UserMessageFormatter;

use super::document::Document;
use super::keys::{ConfigKey, ValueKind, children, join, keys};
use super::problem::{Source, hint, nearest, shown};
use super::read::without_nulls;
use super::settings::Settings;
use super::spotalis::translate;

/// Reads a file into the document.
pub(super) fn read(text: &str, document: &mut Document) {
    match parse(text) {
        Ok(tree) => section("", translate(tree), document),
        Err(message) => document.problem("", Source::File, message),
    }
}

fn parse(text: &str) -> Result<Tree, String> {
    let options = serde_saphyr::options! { with_snippet: false };
    match serde_saphyr::from_str_with_options::<Option<Tree>>(text, options) {
        Ok(tree) => Ok(without_nulls(tree.unwrap_or_else(|| json!({})))),
        Err(error) => Err(format!("not readable as YAML: {}", error.render_with_formatter(&UserMessageFormatter))),
    }
}

fn section(path: &str, tree: Tree, document: &mut Document) {
    let Tree::Object(map) = tree else {
        return document.problem(path, Source::File, format!("expected a mapping, got {}", shown(&tree)));
    };
    let known = children(path);
    for (name, value) in map {
        let at = join(path, &name);
        match (ConfigKey::named(&at), value) {
            (Some(key), Tree::String(text)) if key.kind == ValueKind::List => {
                document.set_text(key, &text, &Source::File);
            }
            (Some(key), value) => document.set(key, value, &Source::File),
            (None, value) if known.contains(&name.as_str()) => section(&at, value, document),
            (None, _) => {
                let message = format!("unknown key{}", hint(suggestion(path, &name, &known)));
                document.problem(&at, Source::File, message);
            }
        }
    }
}

/// Returns a sibling with nearly this name, or a key with exactly this name in another section.
fn suggestion(path: &str, name: &str, siblings: &[&str]) -> Option<String> {
    let elsewhere = || keys().iter().map(|key| &key.path).find(|path| path.rsplit('.').next() == Some(name));
    let sibling = nearest(name, siblings.iter().copied()).map(|sibling| join(path, sibling));
    sibling.or_else(|| elsewhere().cloned())
}

/// Renders all settings as a file.
pub fn render(settings: &Settings) -> String {
    // There are only mappings, lists and scalars, which can always be written.
    serde_saphyr::to_string(settings).unwrap_or_default()
}

/// Renders the namespace, and the settings that differ from the defaults, as a file.
pub fn render_changes(settings: &Settings) -> String {
    let (settings, defaults) = (tree(settings), tree(&Settings::default()));
    let mut file = json!({});
    for key in keys() {
        let value = key.value(&settings);
        // The default of the burst depends on another key.
        let always = ["namespace", "controller.burst"].contains(&key.path.as_str());
        if always || value != key.value(&defaults) {
            key.write(&mut file, value.clone());
        }
    }
    serde_saphyr::to_string(&file).unwrap_or_default()
}

/// Returns the settings as a document.
pub(super) fn tree(settings: &Settings) -> Tree {
    // There are only mappings with string keys, lists and scalars, which JSON always has.
    serde_json::to_value(settings).unwrap_or_default()
}
