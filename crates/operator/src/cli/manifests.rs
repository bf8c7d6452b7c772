//! `perennial manifests`: what is installed in a cluster, for these settings.

use std::process::ExitCode;

use clap::{Args, ValueEnum};

use super::{Global, output::print_text};
use crate::manifests::{Install, subject, yaml};

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
    /// Whether there are ValidatingAdmissionPolicies among them, which need Kubernetes 1.30
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    admission_policies: bool,
    /// Who else may write records with our commands: User:NAME, Group:NAME or ServiceAccount:NAMESPACE/NAME. May be repeated
    #[arg(long = "record-writer", value_name = "SUBJECT", value_parser = subject)]
    record_writers: Vec<serde_json::Value>,
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
    /// Who may write records, and what our account may change on nodes
    Policies,
    /// The config, the Deployment, the Service and the PodDisruptionBudget
    Workload,
}

impl Manifests {
    pub(super) fn execute(self, global: &Global) -> anyhow::Result<ExitCode> {
        let settings = global.load(self.set)?.settings;
        let mut install = Install::new(&settings);
        install.replicas = self.replicas;
        install.image = self.image.unwrap_or(install.image);
        install.admission_policies = self.admission_policies;
        install.record_writers = self.record_writers;
        let objects = match self.part {
            Part::All => install.all(),
            Part::Crds => Install::crds(),
            Part::Permissions => install.permissions(),
            Part::Policies => install.policies(),
            Part::Workload => install.workload(),
        };
        print_text(&yaml(&objects)?)?;
        Ok(ExitCode::SUCCESS)
    }
}
