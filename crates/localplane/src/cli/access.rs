//! `localplane kubeconfig` and `localplane kubectl`

use std::{os::unix::process::CommandExt, process::Command, process::ExitCode};

use anyhow::{Context, bail};
use clap::Args;

use super::{Place, Selection};
use crate::{pki::Identity, plane::PlaneError, programs::Program};

#[derive(Debug, Args)]
pub(super) struct Kubeconfig {
    #[command(flatten)]
    place: Place,
    /// The user, by client certificate; a kubelet is `system:node:NAME` [default: the admin]
    #[arg(long, value_name = "USER")]
    user: Option<String>,
    /// A group of the user (repeatable); kubelets are in `system:nodes`
    #[arg(long = "group", value_name = "GROUP", requires = "user")]
    groups: Vec<String>,
    /// A service account that exists, by token
    #[arg(long, value_name = "NAMESPACE/NAME", conflicts_with_all = ["user", "groups"])]
    service_account: Option<String>,
}

impl Kubeconfig {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let folder = self.place.folder();
        let text = match (self.user, self.service_account) {
            (_, Some(account)) => {
                let (namespace, name) = account.split_once('/').context("a service account is NAMESPACE/NAME")?;
                folder.kubeconfig_for_service_account(namespace, name)?
            }
            (Some(user), None) => folder.kubeconfig_for(&Identity { user, groups: self.groups })?,
            (None, None) => folder.kubeconfig_for(&Identity::admin())?,
        };
        print!("{text}");
        Ok(ExitCode::SUCCESS)
    }
}

#[derive(Debug, Args)]
pub(super) struct Kubectl {
    #[command(flatten)]
    place: Place,
    /// A folder with a ready-made kubectl
    #[arg(long, value_name = "DIR")]
    assets: Option<std::path::PathBuf>,
    /// Arguments for kubectl, after `--`
    #[arg(last = true)]
    args: Vec<String>,
}

impl Kubectl {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let folder = self.place.folder();
        let Some(state) = folder.running()? else {
            bail!(PlaneError::NotRunning { dir: folder.path().to_owned() });
        };
        let selection = Selection { kubernetes: state.kubernetes.parse()?, assets: self.assets };
        let programs = selection.sources().find(selection.kubernetes, &[Program::Kubectl])?;
        let kubectl = programs.path(Program::Kubectl).context("kubectl was not found")?;
        let error = Command::new(kubectl).env("KUBECONFIG", folder.kubeconfig()).args(self.args).exec();
        bail!("{}: {error}", kubectl.display())
    }
}
