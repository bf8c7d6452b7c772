//! The command line.

mod down;
mod fetch;
mod image;
mod kubeconfig;
mod kubectl;
mod status;
mod supervise;
mod up;

use std::{path::PathBuf, process::ExitCode};

use clap::{Args, Parser, Subcommand};

use crate::{plane::PlaneFolder, versions::Kubernetes};

/// A real Kubernetes control plane on this machine, as child processes.
///
/// A plane is a folder with certificates, data, logs and a kubeconfig. Its processes are children
/// of a supervisor that `up` starts in the background, and end with it. The programs come from a
/// folder that you name (--assets, LOCALPLANE_ASSETS, KUBEBUILDER_ASSETS), the cache
/// (LOCALPLANE_CACHE, default ~/.cache/localplane), the official releases, or a build with Go.
#[derive(Debug, Parser)]
#[command(name = "localplane", version, max_term_width = 110)]
pub struct Cli {
    #[command(subcommand)]
    command: CliCommand,
}

#[derive(Debug, Subcommand)]
enum CliCommand {
    /// Start a plane and leave it running
    Up(up::Up),
    /// Stop a plane and remove its folder
    Down(down::Down),
    /// Show the components of a plane
    Status(status::Status),
    /// Print a kubeconfig for any identity
    Kubeconfig(kubeconfig::Kubeconfig),
    /// Run kubectl as the admin of a plane
    Kubectl(kubectl::Kubectl),
    /// Download or build all programs and print their paths
    Fetch(fetch::Fetch),
    /// Load images into the real nodes of a plane
    Image(image::Image),
    /// Run the components of a plane in the foreground (started by `up`)
    #[command(hide = true)]
    Supervise(supervise::Supervise),
}

impl Cli {
    /// Runs the command.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self.command {
            CliCommand::Up(command) => command.run(),
            CliCommand::Down(command) => command.run(),
            CliCommand::Status(command) => command.run(),
            CliCommand::Kubeconfig(command) => command.run(),
            CliCommand::Kubectl(command) => command.run(),
            CliCommand::Fetch(command) => command.run(),
            CliCommand::Image(command) => command.run(),
            CliCommand::Supervise(command) => command.run(),
        }
    }
}

/// Arguments that select a plane.
#[derive(Debug, Args)]
struct PlaneArgs {
    /// Folder of the plane
    #[arg(long, value_name = "DIR", default_value = ".localplane", env = "LOCALPLANE_DIR")]
    dir: PathBuf,
}

impl PlaneArgs {
    fn folder(&self) -> PlaneFolder {
        PlaneFolder::at(&self.dir)
    }
}

/// Arguments that select the programs.
#[derive(Debug, Args)]
struct ProgramArgs {
    /// Kubernetes version: 1.36, 1.34, 1.33 or 1.30
    #[arg(long, value_name = "VERSION", env = crate::versions::KUBERNETES_ENV, default_value_t)]
    kubernetes: Kubernetes,
    /// Folder with existing programs; missing ones come from the other sources
    #[arg(long, value_name = "DIR")]
    assets: Option<PathBuf>,
}

impl ProgramArgs {
    fn sources(&self) -> crate::Sources {
        let sources = crate::Sources::from_env();
        match &self.assets {
            Some(folder) => sources.folder(folder),
            None => sources,
        }
    }
}
