//! The configuration: defaults < YAML file < environment < flags, refused as a whole with everything that is wrong in it.
//!
//! Nothing is read from a disk or a process here: the file's text, the variables and the flags come in as values.
//! [`keys`] is the one table that reading, writing and the reference page go by.

pub mod choice;
pub mod defaults;
pub mod duration;
pub mod env;
pub mod file;
mod keys;
mod mapped;
pub mod names;
pub mod pattern;
pub mod problem;
pub mod reference;
mod schema;
pub mod selector;
pub mod settings;
pub mod validate;
mod value;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

pub use file::{render, render_changes};
pub use pattern::{Pattern, PatternError, Patterns};
pub use problem::{ConfigError, Problem, Source};
pub use schema::schema;
pub use selector::LabelSelector;
pub use settings::{
    FailurePolicy, Gate, Identity, Keeper, Level, LogFormat, Merge, NodeLabel, NodeLabels, Role, Settings, Toleration,
};

use keys::{KEYS, Key};
use problem::{Report, hint, nearest};

/// Where settings come from, beside the defaults. Later fields win.
#[derive(Debug, Clone, Default)]
pub struct Layers {
    /// The text of the YAML file.
    pub file: Option<String>,
    /// The process's variables; those that are not ours are passed over.
    pub environment: BTreeMap<String, String>,
    /// Path and value of each flag that stands for a key: `("controller.qps", "50")`.
    pub flags: Vec<(String, String)>,
}

/// Settings that are valid, and what their author should know about them.
#[derive(Debug, Clone, PartialEq)]
pub struct Loaded {
    pub settings: Settings,
    pub warnings: Vec<Problem>,
}

/// Puts the layers over the defaults and validates the result.
pub fn load(layers: &Layers) -> Result<Loaded, ConfigError> {
    let mut settings = Settings::default();
    let mut report = Report::default();
    let mut sources: BTreeMap<&'static str, Source> = BTreeMap::new();
    if let Some(text) = &layers.file {
        sources.extend(file::read(text, &mut settings, &mut report).into_iter().map(|path| (path, Source::File)));
    }
    let variables = env::read(&layers.environment, &mut settings, &mut report);
    sources.extend(variables.into_iter().map(|(path, name)| (path, Source::Variable(name))));
    for (path, text) in &layers.flags {
        report.from(Source::Flag, path, |report| {
            if let Some(key) = Key::named(path) {
                sources.insert(key.path, Source::Flag);
                (key.from_text)(&mut settings, text, report);
            } else {
                let meant = nearest(path, KEYS.iter().map(|key| key.path));
                report.problem(format!("unknown key{}", hint(meant)));
            }
        });
    }
    if !sources.contains_key("controller.burst") {
        settings.controller.burst = settings.controller.qps.saturating_mul(10).min(200_000);
    }

    let findings = validate::validate(&mut settings);
    let located = |(path, message): (&'static str, String)| Problem {
        path: path.to_owned(),
        source: sources.get(path).cloned().unwrap_or_default(),
        message,
    };
    let mut problems = report.problems;
    problems.extend(findings.problems.into_iter().map(located));
    if problems.is_empty() {
        Ok(Loaded { settings, warnings: findings.warnings.into_iter().map(located).collect() })
    } else {
        Err(ConfigError { problems })
    }
}
