//! What is wrong with a configuration: every problem at once, each with its path and where the value came from.

use std::fmt;

/// The layer that a value came from; later ones win.
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

/// One problem, or one warning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// `controller.qps`, `keeper.keep[2]`; empty when it is about the whole.
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

/// A configuration that was refused.
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

/// Collects problems while values are read; knows the path that is being read.
#[derive(Debug, Default)]
pub(super) struct Report {
    path: String,
    source: Source,
    pub(super) problems: Vec<Problem>,
}

impl Report {
    pub(super) fn problem(&mut self, message: impl Into<String>) {
        let (path, source) = (self.path.clone(), self.source.clone());
        self.problems.push(Problem { path, source, message: message.into() });
    }

    /// Reads `read` at the path and source given.
    pub(super) fn from<T>(&mut self, source: Source, path: &str, read: impl FnOnce(&mut Self) -> T) -> T {
        self.source = source;
        path.clone_into(&mut self.path);
        let result = read(self);
        self.path.clear();
        result
    }

    /// Reads a part of the present value: `.key` or `[2]` is put behind the path.
    pub(super) fn within<T>(&mut self, part: &str, read: impl FnOnce(&mut Self) -> T) -> T {
        let length = self.path.len();
        self.path.push_str(part);
        let result = read(self);
        self.path.truncate(length);
        result
    }

    pub(super) fn count(&self) -> usize {
        self.problems.len()
    }
}

/// The candidate nearest to a mistyped word, if one is near enough to be meant.
pub(super) fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let lower = word.to_lowercase();
    candidates
        .into_iter()
        .map(|candidate| (strsim::damerau_levenshtein(&lower, &candidate.to_lowercase()), candidate))
        .filter(|(distance, candidate)| *distance <= candidate.len().max(3) / 3)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// `; did you mean x?`, or nothing.
pub(super) fn hint(suggestion: Option<impl fmt::Display>) -> String {
    suggestion.map(|word| format!("; did you mean `{word}`?")).unwrap_or_default()
}
