//! `localplane kubectl`

use std::{
    os::unix::process::CommandExt,
    process::{Command, ExitCode},
};

use anyhow::{Context, bail};
use clap::Args;

use super::{PlaneArgs, ProgramArgs};
use crate::{plane::PlaneError, programs::Program};

#[derive(Debug, Args)]
pub(super) struct Kubectl {
    #[command(flatten)]
    plane: PlaneArgs,
    /// Folder with an existing kubectl
    #[arg(long, value_name = "DIR")]
    assets: Option<std::path::PathBuf>,
    /// Arguments for kubectl, after `--`
    #[arg(last = true)]
    args: Vec<String>,
}

impl Kubectl {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let folder = self.plane.folder();
        let Some(state) = folder.running()? else {
            bail!(PlaneError::NotRunning { dir: folder.path().to_owned() });
        };
        let selection = ProgramArgs { kubernetes: state.kubernetes.parse()?, assets: self.assets };
        let programs = selection.sources().find(selection.kubernetes, &[Program::Kubectl])?;
        let kubectl = programs.path(Program::Kubectl).context("kubectl not found")?;
        let error = Command::new(kubectl).env("KUBECONFIG", folder.kubeconfig()).args(self.args).exec();
        bail!("{}: {error}", kubectl.display())
    }
}
