//! `perennial manifests`: the objects of an installation with these settings.

use std::process::ExitCode;

use clap::{Args, ValueEnum};
use perennial_core::config::Loaded;

use super::{Global, output::print_text};
use crate::manifests::{Install, REPLICAS, share_work, subject, yaml};

#[derive(Debug, Args)]
pub(super) struct Manifests {
    /// Part of the manifests to print
    #[arg(value_enum, default_value_t)]
    part: Part,
    /// Container image of the operator
    #[arg(long)]
    image: Option<String>,
    /// Number of replicas of the operator, and of shards unless controller.shards is set
    #[arg(long, default_value_t = REPLICAS, value_parser = clap::value_parser!(i32).range(0..=100))]
    replicas: i32,
    /// Include ValidatingAdmissionPolicies, which need Kubernetes 1.30
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    admission_policies: bool,
    /// Allow a subject to write records: User:NAME, Group:NAME or ServiceAccount:NAMESPACE/NAME.
    /// Can be repeated
    #[arg(long = "record-writer", value_name = "SUBJECT", value_parser = subject)]
    record_writers: Vec<serde_json::Value>,
    /// Set a key of the config file, for example placement.enabled=false. Can be repeated
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = super::run::pair)]
    set: Vec<(String, String)>,
}

#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum Part {
    /// Everything, ready for `kubectl apply -f -`
    #[default]
    All,
    /// CustomResourceDefinitions
    Crds,
    /// Namespace, ServiceAccount, Roles and bindings
    Permissions,
    /// ValidatingAdmissionPolicies that restrict writes to records and the operator's writes to
    /// nodes
    Policies,
    /// ConfigMap, Deployment, Service and PodDisruptionBudget
    Workload,
}

impl Manifests {
    pub(super) fn execute(self, global: &Global) -> anyhow::Result<ExitCode> {
        let Loaded { mut settings, set, .. } = global.load_for_command(self.set)?;
        if !set.contains("controller.shards") {
            share_work(&mut settings, self.replicas);
        }
        let mut install = Install::new(&settings, self.replicas);
        let workload = matches!(self.part, Part::All | Part::Workload);
        if workload && self.image.is_none() {
            eprintln!("{}", local_image_note());
        }
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

/// Returns the note for manifests without `--image`: their image has to be on the nodes already.
fn local_image_note() -> String {
    format!(
        "note: no registry has the image {}: load it on every node (`make image`), or name yours with --image",
        Install::LOCAL_IMAGE
    )
}
