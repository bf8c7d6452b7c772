//! Problems of a configuration, each with its path and the layer that the value came from.

use std::fmt;

use serde_json::Value as Tree;

/// The layer that a value came from. Later layers win.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Source {
    /// The defaults, or the file.
    #[default]
    File,
    /// The environment variable of this name.
    Variable(String),
    /// A flag of the command line.
    Flag,
}

/// A problem, or a warning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// `controller.qps`, `keeper.keep[2]`; empty for the whole file.
    pub path: String,
    pub source: Source,
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.path)?;
        match &self.source {
            Source::Variable(name) if self.path.is_empty() => f.write_str(name)?,
            Source::Variable(name) => write!(f, " ({name})")?,
            Source::Flag => f.write_str(" (flag)")?,
            Source::File if self.path.is_empty() => f.write_str("file")?,
            Source::File => {}
        }
        write!(f, ": {}", self.message)
    }
}

/// A refused configuration, with all of its problems.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    pub problems: Vec<Problem>,
}

impl std::error::Error for ConfigError {}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the configuration is not valid:")?;
        self.problems.iter().try_for_each(|problem| write!(f, "\n  {problem}"))
    }
}

/// Returns the candidate that is most similar to a mistyped word, if any is similar enough.
pub(super) fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let lower = word.to_lowercase();
    candidates
        .into_iter()
        .map(|candidate| (strsim::damerau_levenshtein(&lower, &candidate.to_lowercase()), candidate))
        .filter(|(distance, candidate)| *distance <= candidate.len().max(3) / 3)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Returns `; did you mean x?`, or an empty string.
pub(super) fn hint(suggestion: Option<impl fmt::Display>) -> String {
    suggestion.map(|word| format!("; did you mean `{word}`?")).unwrap_or_default()
}

/// Renders a value for an error message, at most 60 characters of it.
pub(super) fn shown(value: &Tree) -> String {
    let mut text = value.to_string();
    if let Some((end, _)) = text.char_indices().nth(60) {
        text.replace_range(end.., "…");
    }
    text
}

/// Renders a string for an error message, in quotes, at most 60 characters of it.
pub(super) fn quoted(text: &str) -> String {
    shown(&Tree::from(text))
}
