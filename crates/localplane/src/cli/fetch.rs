//! `localplane fetch`

use std::process::ExitCode;

use clap::Args;

use super::ProgramArgs;
use crate::programs::Program;

#[derive(Debug, Args)]
pub(super) struct Fetch {
    #[command(flatten)]
    selection: ProgramArgs,
}

impl Fetch {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let programs = self.selection.sources().find(self.selection.kubernetes, &Program::ALL)?;
        for (_, path) in programs.iter() {
            println!("{}", path.display());
        }
        Ok(ExitCode::SUCCESS)
    }
}
