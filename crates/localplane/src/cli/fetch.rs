//! `localplane fetch`

use std::process::ExitCode;

use clap::Args;

use super::ProgramArgs;
use crate::{programs::Program, versions::Kubernetes};

#[derive(Debug, Args)]
pub(super) struct Fetch {
    #[command(flatten)]
    selection: ProgramArgs,
    /// Also the programs of real nodes: kubelet, kube-proxy, containerd, runc, CNI plugins
    #[arg(long)]
    real_nodes: bool,
}

impl Fetch {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let mut wanted = Program::ALL.to_vec();
        if self.real_nodes {
            wanted.extend(Program::NODE);
            // The module of 1.30 does not build it.
            if self.selection.kubernetes != Kubernetes::V1_30 {
                wanted.push(Program::KubeProxy);
            }
        }
        let programs = self.selection.sources().find(self.selection.kubernetes, &wanted)?;
        for (_, path) in programs.iter() {
            println!("{}", path.display());
        }
        Ok(ExitCode::SUCCESS)
    }
}
