//! `localplane kubeconfig`

use std::process::ExitCode;

use anyhow::Context;
use clap::Args;

use super::PlaneArgs;
use crate::pki::Identity;

#[derive(Debug, Args)]
pub(super) struct Kubeconfig {
    #[command(flatten)]
    plane: PlaneArgs,
    /// User of the client certificate, for example `system:node:NAME` [default: the admin]
    #[arg(long, value_name = "USER")]
    user: Option<String>,
    /// Group of the user (repeatable), for example `system:nodes`
    #[arg(long = "group", value_name = "GROUP", requires = "user")]
    groups: Vec<String>,
    /// Use a token of this existing service account
    #[arg(long, value_name = "NAMESPACE/NAME", conflicts_with_all = ["user", "groups"])]
    service_account: Option<String>,
}

impl Kubeconfig {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let folder = self.plane.folder();
        let text = match (self.user, self.service_account) {
            (_, Some(account)) => {
                let (namespace, name) =
                    account.split_once('/').context("invalid service account: expected NAMESPACE/NAME")?;
                folder.kubeconfig_for_service_account(namespace, name)?
            }
            (Some(user), None) => folder.kubeconfig_for(&Identity { user, groups: self.groups })?,
            (None, None) => folder.kubeconfig_for(&Identity::admin())?,
        };
        print!("{text}");
        Ok(ExitCode::SUCCESS)
    }
}
