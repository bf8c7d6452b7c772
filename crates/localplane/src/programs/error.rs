//! The error for "nothing worked": each way that was tried, why it failed, and what to do about it.

use std::fmt;

use super::Program;

/// One way that was tried and failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// The way, as a person would name it: `cache /home/me/.cache/localplane/kwok-v0.8.0`.
    pub way: String,
    /// Why it gave nothing.
    pub why: String,
}

impl Attempt {
    pub(crate) fn new(way: impl Into<String>, why: impl Into<String>) -> Self {
        Self { way: way.into(), why: why.into() }
    }
}

/// No way led to these programs.
#[derive(Debug, Clone, thiserror::Error)]
pub struct Unavailable {
    /// What is missing.
    pub programs: Vec<Program>,
    /// Of which version.
    pub version: String,
    /// Each way that was tried, in order.
    pub attempts: Vec<Attempt>,
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.programs.iter().map(|p| p.file_name()).collect::<Vec<_>>().join(", ");
        writeln!(f, "no way led to {names} ({}). Tried:", self.version)?;
        for (number, attempt) in (1..).zip(&self.attempts) {
            // Continuation lines (the end of a compiler's output) stay under their attempt.
            writeln!(f, "  {number}. {}: {}", attempt.way, attempt.why.trim_end().replace('\n', "\n     "))?;
        }
        writeln!(f, "Any one of these helps:")?;
        writeln!(
            f,
            "  - install Go 1.26 or newer (https://go.dev/dl, or the package golang) and let it reach its module proxy"
        )?;
        writeln!(
            f,
            "  - let this machine reach the download addresses above, or name mirrors in {}",
            super::download::ENVS.join(", ")
        )?;
        write!(f, "  - put {names} into a folder and name it in {} (or --assets)", super::ASSETS_ENV)
    }
}
