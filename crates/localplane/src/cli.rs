//! The command line.

mod access;
mod down;
mod fetch;
mod status;
mod supervise;
mod up;

use std::{path::PathBuf, process::ExitCode};

use clap::{Args, Parser, Subcommand};

use crate::{plane::PlaneFolder, versions::Kubernetes};

/// A real Kubernetes control plane on this machine, as child processes.
///
/// A plane is a folder (certificates, data, logs, kubeconfig). Its processes belong to a supervisor that `up` leaves
/// behind, and end with it. The programs are taken from a folder that you name (--assets, LOCALPLANE_ASSETS,
/// KUBEBUILDER_ASSETS), the cache (LOCALPLANE_CACHE, else ~/.cache/localplane), the official releases, or built with Go.
#[derive(Debug, Parser)]
#[command(name = "localplane", version, max_term_width = 110)]
pub struct Cli {
    #[command(subcommand)]
    command: Act,
}

#[derive(Debug, Subcommand)]
enum Act {
    /// Start a plane and leave it running
    Up(up::Up),
    /// End a plane and remove its folder
    Down(down::Down),
    /// Say what runs
    Status(status::Status),
    /// Print a kubeconfig for any identity
    Kubeconfig(access::Kubeconfig),
    /// Run kubectl as the plane's admin
    Kubectl(access::Kubectl),
    /// Get all programs into the cache and print where they are
    Fetch(fetch::Fetch),
    /// What `up` leaves behind
    #[command(hide = true)]
    Supervise(supervise::Supervise),
}

impl Cli {
    /// Does what was asked.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self.command {
            Act::Up(act) => act.run(),
            Act::Down(act) => act.run(),
            Act::Status(act) => act.run(),
            Act::Kubeconfig(act) => act.run(),
            Act::Kubectl(act) => act.run(),
            Act::Fetch(act) => act.run(),
            Act::Supervise(act) => act.run(),
        }
    }
}

/// Which plane.
#[derive(Debug, Args)]
struct Place {
    /// The plane's folder
    #[arg(long, value_name = "DIR", default_value = ".localplane", env = "LOCALPLANE_DIR")]
    dir: PathBuf,
}

impl Place {
    fn folder(&self) -> PlaneFolder {
        PlaneFolder::at(&self.dir)
    }
}

/// Which programs.
#[derive(Debug, Args)]
struct Selection {
    /// Which Kubernetes: 1.36 or 1.34
    #[arg(long, value_name = "VERSION", env = crate::versions::KUBERNETES_ENV, default_value_t)]
    kubernetes: Kubernetes,
    /// A folder with ready-made programs; those that it lacks come from elsewhere
    #[arg(long, value_name = "DIR")]
    assets: Option<PathBuf>,
}

impl Selection {
    fn sources(&self) -> crate::Sources {
        let sources = crate::Sources::from_env();
        match &self.assets {
            Some(folder) => sources.folder(folder),
            None => sources,
        }
    }
}
