//! `perennial man`: man pages of all commands.

use std::{path::PathBuf, process::ExitCode};

use anyhow::Context as _;
use clap::{Args, CommandFactory};

use super::Cli;

/// Write a man page for each command
#[derive(Debug, Args)]
pub(super) struct Man {
    /// Directory to write to
    folder: PathBuf,
}

impl Man {
    pub(super) fn execute(&self) -> anyhow::Result<ExitCode> {
        std::fs::create_dir_all(&self.folder).with_context(|| format!("could not create {}", self.folder.display()))?;
        clap_mangen::generate_to(Cli::command(), &self.folder)
            .with_context(|| format!("could not write to {}", self.folder.display()))?;
        Ok(ExitCode::SUCCESS)
    }
}
