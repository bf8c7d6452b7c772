//! The document that the layers are written into, key by key; later layers overwrite earlier ones.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value as Tree, json};

use super::keys::{ConfigKey, ValueKind};
use super::problem::{Problem, Source};
use super::read::{self, Refusal};
use super::selector::requirements;
use super::settings::Settings;

#[derive(Debug)]
pub(super) struct Document {
    tree: Tree,
    /// The last layer that set a key, by path.
    sources: BTreeMap<&'static str, Source>,
    pub(super) problems: Vec<Problem>,
}

impl Document {
    pub(super) fn new() -> Self {
        Self { tree: json!({}), sources: BTreeMap::new(), problems: Vec::new() }
    }

    pub(super) fn problem(&mut self, path: &str, source: Source, message: impl Into<String>) {
        self.problems.push(Problem { path: path.to_owned(), source, message: message.into() });
    }

    fn refuse(&mut self, refusals: Vec<Refusal>, source: &Source) {
        let problem = |Refusal { path, message }| Problem { path, source: source.clone(), message };
        self.problems.extend(refusals.into_iter().map(problem));
    }

    /// Sets a key. A value that is refused is reported, and the key stays as it was.
    pub(super) fn set(&mut self, key: &'static ConfigKey, value: Tree, source: &Source) {
        self.sources.insert(&key.path, source.clone());
        let mut alone = json!({});
        key.write(&mut alone, value.clone());
        match read::read::<Settings>(&alone) {
            Ok(_) => key.write(&mut self.tree, value),
            Err(refusals) => self.refuse(refusals, source),
        }
    }

    /// Sets a key from a string: the text of a variable or a flag, or a list of the file that is
    /// written as a string.
    pub(super) fn set_text(&mut self, key: &'static ConfigKey, text: &str, source: &Source) {
        let before = self.problems.len();
        let value = key.kind.tree(text);
        let one_item = value.as_array().is_some_and(|items| items.len() == 1);
        self.set(key, value, source);
        for problem in self.problems[before..].iter_mut().filter(|_| one_item) {
            key.path.clone_into(&mut problem.path);
        }
    }

    /// Returns the layer that set a key, if any did.
    pub(super) fn source(&self, path: &str) -> Option<&Source> {
        self.sources.get(path)
    }

    /// Returns the paths of the keys that a layer set.
    pub(super) fn set_paths(&self) -> BTreeSet<&'static str> {
        self.sources.keys().copied().collect()
    }

    /// Returns the settings, without those that were refused.
    pub(super) fn settings(&mut self) -> Settings {
        match read::read(&self.tree) {
            Ok(settings) => settings,
            // Every key was read before.
            Err(refusals) => {
                self.refuse(refusals, &Source::File);
                Settings::default()
            }
        }
    }
}

impl ValueKind {
    /// Returns the value that a string denotes. A string that does not fit stays one, for serde
    /// to refuse.
    fn tree(self, text: &str) -> Tree {
        match self {
            Self::Bool => text.to_ascii_lowercase().parse().map_or_else(|_| Tree::from(text), Tree::Bool),
            Self::Number => text.trim().parse::<u64>().map_or_else(|_| Tree::from(text), Tree::from),
            Self::List => requirements(text).collect(),
            Self::Mapping | Self::Text => Tree::from(text),
        }
    }
}
