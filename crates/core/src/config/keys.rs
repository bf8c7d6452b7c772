//! The list of all keys, taken from the schema of [`Settings`]. The file, the variables, the flags
//! and the reference page go by it.

use std::sync::LazyLock;

use schemars::generate::SchemaSettings;
use serde_json::Value as Tree;

use super::settings::Settings;

/// One key of the configuration.
#[derive(Debug)]
pub(super) struct ConfigKey {
    /// `controller.leaderElection.leaseDuration`
    pub(super) path: String,
    /// Description on the reference page.
    pub(super) description: String,
    pub(super) kind: ValueKind,
}

/// The form of a value in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ValueKind {
    Bool,
    Number,
    List,
    Mapping,
    Text,
}

/// Returns all keys in the order of their declaration.
pub(super) fn keys() -> &'static [ConfigKey] {
    static KEYS: LazyLock<Vec<ConfigKey>> = LazyLock::new(|| {
        let settings = SchemaSettings::draft07().for_serialize().with(|settings| settings.inline_subschemas = true);
        let mut keys = Vec::new();
        collect("", settings.into_generator().root_schema_for::<Settings>().as_value(), &mut keys);
        keys
    });
    &KEYS
}

fn collect(path: &str, schema: &Tree, keys: &mut Vec<ConfigKey>) {
    if let Some(properties) = schema["properties"].as_object() {
        // All fields are always written, so all are required; unlike the properties these are in
        // order.
        for name in schema["required"].as_array().into_iter().flatten().filter_map(Tree::as_str) {
            collect(&join(path, name), &properties[name], keys);
        }
        return;
    }
    let kind = match schema["type"].as_str() {
        Some("boolean") => ValueKind::Bool,
        Some("integer") => ValueKind::Number,
        Some("array") => ValueKind::List,
        Some("object") => ValueKind::Mapping,
        _ => ValueKind::Text,
    };
    let description = schema["description"].as_str().unwrap_or_default().replace('\n', " ");
    keys.push(ConfigKey { path: path.to_owned(), description, kind });
}

impl ConfigKey {
    pub(super) fn named(path: &str) -> Option<&'static Self> {
        keys().iter().find(|key| key.path == path)
    }

    /// Returns `PERENNIAL_CONTROLLER_RESYNC_PERIOD` for `controller.resyncPeriod`.
    pub(super) fn variable(&self) -> String {
        let mut name = String::from("PERENNIAL_");
        for c in self.path.chars() {
            match c {
                '.' => name.push('_'),
                _ if c.is_ascii_uppercase() => name.extend(['_', c]),
                _ => name.push(c.to_ascii_uppercase()),
            }
        }
        name
    }

    /// Returns the value of the key in a document.
    pub(super) fn value<'a>(&self, document: &'a Tree) -> &'a Tree {
        self.path.split('.').fold(document, |tree, name| &tree[name])
    }

    /// Writes the value of the key into a document.
    pub(super) fn write(&self, document: &mut Tree, value: Tree) {
        *self.path.split('.').fold(document, |tree, name| &mut tree[name]) = value;
    }
}

/// Returns the path of a name in a section (`""` for the top).
pub(super) fn join(section: &str, name: &str) -> String {
    if section.is_empty() { name.to_owned() } else { format!("{section}.{name}") }
}

/// Returns the names of the keys and sections directly in a section (`""` for the top).
pub(super) fn children(section: &str) -> Vec<&'static str> {
    let prefix = join(section, "");
    let mut names: Vec<&str> =
        keys().iter().filter_map(|key| key.path.strip_prefix(&prefix)?.split('.').next()).collect();
    names.dedup();
    names
}
