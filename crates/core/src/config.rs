//! The configuration: defaults < YAML file < environment < flags. A configuration with problems is
//! refused, with all of them at once.
//!
//! [`Settings`] declares the keys, their types, defaults and descriptions. The reader, the writer,
//! the JSON schema and the reference page are derived from it. Nothing here reads a file or the
//! environment: their contents are arguments.

pub mod choice;
pub mod defaults;
mod document;
pub mod duration;
pub mod env;
pub mod file;
mod keys;
pub mod names;
pub mod pattern;
pub mod problem;
pub(crate) mod read;
pub mod reference;
mod schema;
pub mod selector;
pub mod settings;
mod spotalis;
mod text;
mod toleration;
pub mod validate;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

pub use file::{render, render_changes};
pub use pattern::{Pattern, PatternError, Patterns};
pub use problem::{ConfigError, Problem, Source};
pub use schema::schema;
pub use selector::LabelSelector;
pub use settings::{
    FailurePolicy, Gate, Identity, Keeper, LogFormat, LogLevel, Merge, NodeLabel, NodeLabelSettings, Role, Settings,
    Toleration,
};

use document::Document;
use keys::{ConfigKey, keys};
use problem::{hint, nearest};

/// The sources of settings over the defaults. Later fields win.
#[derive(Debug, Clone, Default)]
pub struct Layers {
    /// Content of the YAML file.
    pub file: Option<String>,
    /// Environment variables; those of other programs are ignored.
    pub environment: BTreeMap<String, String>,
    /// Path and value of each flag that sets a key: `("controller.qps", "50")`.
    pub flags: Vec<(String, String)>,
}

/// Valid settings, and warnings about those without effect.
#[derive(Debug, Clone, PartialEq)]
pub struct Loaded {
    pub settings: Settings,
    pub warnings: Vec<Problem>,
    /// Paths of the keys that a layer sets.
    pub set: BTreeSet<&'static str>,
}

/// Merges the layers over the defaults and validates the result.
pub fn load(layers: &Layers) -> Result<Loaded, ConfigError> {
    let mut document = Document::new();
    if let Some(text) = &layers.file {
        file::read(text, &mut document);
    }
    env::read(&layers.environment, &mut document);
    for (path, text) in &layers.flags {
        if let Some(key) = ConfigKey::named(path) {
            document.set_text(key, text, &Source::Flag);
        } else {
            let meant = nearest(path, keys().iter().map(|key| key.path.as_str()));
            document.problem(path, Source::Flag, format!("unknown key{}", hint(meant)));
        }
    }
    let mut settings = document.settings();
    if document.source("controller.burst").is_none() {
        settings.controller.burst = settings.controller.qps.saturating_mul(10).min(200_000);
    }

    let findings = validate::validate(&mut settings);
    let located = |(path, message): (&'static str, String)| Problem {
        path: path.to_owned(),
        source: document.source(path).cloned().unwrap_or_default(),
        message,
    };
    let warnings = findings.warnings.into_iter().map(located).collect();
    let invalid: Vec<Problem> = findings.problems.into_iter().map(located).collect();
    let set = document.set_paths();
    let mut problems = document.problems;
    problems.extend(invalid);
    if problems.is_empty() { Ok(Loaded { settings, warnings, set }) } else { Err(ConfigError { problems }) }
}
