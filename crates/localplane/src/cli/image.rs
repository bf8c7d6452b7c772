//! `localplane image`

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Context, bail};
use clap::{Args, Subcommand};

use super::{PlaneArgs, ProgramArgs};
use crate::{plane::PlaneError, programs::Program};

#[derive(Debug, Args)]
pub(super) struct Image {
    #[command(subcommand)]
    command: ImageCommand,
}

#[derive(Debug, Subcommand)]
enum ImageCommand {
    /// Load image archives (docker save, OCI) into every real node
    Load(Load),
}

#[derive(Debug, Args)]
struct Load {
    #[command(flatten)]
    plane: PlaneArgs,
    /// Folder with an existing ctr
    #[arg(long, value_name = "DIR")]
    assets: Option<PathBuf>,
    /// Image archives
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
}

impl Image {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let ImageCommand::Load(load) = self.command;
        load.run()
    }
}

impl Load {
    fn run(self) -> anyhow::Result<ExitCode> {
        let folder = self.plane.folder();
        let (Some(state), Some(spec)) = (folder.running()?, folder.spec()?) else {
            bail!(PlaneError::NotRunning { dir: folder.path().to_owned() });
        };
        if spec.real_nodes == 0 {
            bail!("the plane in {} has no real nodes; start it with --real-nodes", folder.path().display());
        }
        let selection = ProgramArgs { kubernetes: state.kubernetes.parse()?, assets: self.assets };
        let programs = selection.sources().find(selection.kubernetes, &[Program::Ctr])?;
        let ctr = programs.path(Program::Ctr).context("ctr not found")?;
        for file in &self.files {
            if !file.is_file() {
                bail!("cannot load {}: no such file", file.display());
            }
            folder.load_image(ctr, spec.real_nodes, file)?;
            eprintln!("localplane: loaded {} into {} nodes", file.display(), spec.real_nodes);
        }
        Ok(ExitCode::SUCCESS)
    }
}
