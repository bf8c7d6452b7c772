//! `perennial manifests`: what is installed in a cluster, for these settings.

use std::process::ExitCode;

use clap::{Args, ValueEnum};

use super::{Global, output::print_text};
use crate::manifests::{Install, yaml};

#[derive(Debug, Args)]
pub(super) struct Manifests {
    /// Which of them
    #[arg(value_enum, default_value_t)]
    part: Part,
    /// The image that runs
    #[arg(long)]
    image: Option<String>,
    /// How many replicas run
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(i32).range(0..=100))]
    replicas: i32,
    /// Set any key of the config file: --set placement.enabled=false
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = super::run::pair)]
    set: Vec<(String, String)>,
}

#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum Part {
    /// Everything, ready for `kubectl apply -f -`
    #[default]
    All,
    /// The CustomResourceDefinitions
    Crds,
    /// The namespace, the account and what it may do
    Permissions,
    /// The config, the Deployment, the Service and the PodDisruptionBudget
    Workload,
}

impl Manifests {
    pub(super) fn execute(self, global: &Global) -> anyhow::Result<ExitCode> {
        let settings = global.load(self.set)?.settings;
        let mut install = Install::new(&settings);
        install.replicas = self.replicas;
        install.image = self.image.unwrap_or(install.image);
        let objects = match self.part {
            Part::All => install.all(),
            Part::Crds => Install::crds(),
            Part::Permissions => install.permissions(),
            Part::Workload => install.workload(),
        };
        print_text(&yaml(&objects)?)?;
        Ok(ExitCode::SUCCESS)
    }
}
