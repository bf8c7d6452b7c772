//! The error for programs that no source provided: each attempt, why it failed, and what to do.

use std::fmt;

use super::Program;

/// A source that was tried and failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// The source, for example `cache /home/me/.cache/localplane/kwok-v0.8.0`.
    pub source: String,
    /// Why it failed.
    pub reason: String,
}

impl Attempt {
    pub(crate) fn new(source: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { source: source.into(), reason: reason.into() }
    }
}

/// Programs that no source provided.
#[derive(Debug, Clone, thiserror::Error)]
pub struct Unavailable {
    /// The missing programs.
    pub programs: Vec<Program>,
    /// Their version.
    pub version: String,
    /// Every source that was tried, in order.
    pub attempts: Vec<Attempt>,
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.programs.iter().map(|p| p.file_name()).collect::<Vec<_>>().join(", ");
        writeln!(f, "cannot find {names} ({}). Tried:", self.version)?;
        for (number, attempt) in (1..).zip(&self.attempts) {
            // Indent continuation lines, such as compiler output.
            writeln!(f, "  {number}. {}: {}", attempt.source, attempt.reason.trim_end().replace('\n', "\n     "))?;
        }
        writeln!(f, "To fix this, do one of the following:")?;
        writeln!(
            f,
            "  - install Go 1.26 or newer (https://go.dev/dl, or the package golang) and allow access to its module proxy"
        )?;
        writeln!(
            f,
            "  - allow access to the download addresses above, or set mirrors in {}",
            super::download::ENVS.join(", ")
        )?;
        write!(f, "  - put {names} into a folder and set {} (or --assets)", super::ASSETS_ENV)
    }
}
