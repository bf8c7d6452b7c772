//! `perennial webhook disable`: remove the webhook configurations.

use std::process::ExitCode;

use clap::Subcommand;

use super::{Global, block_on};
use crate::admission::configuration::Configurations;

#[derive(Debug, Subcommand)]
pub(super) enum Webhook {
    /// Remove the webhook configurations. A running operator with webhooks enabled creates them again
    Disable,
}

impl Webhook {
    pub(super) fn execute(&self, global: &Global) -> anyhow::Result<ExitCode> {
        let Self::Disable = self;
        block_on(async {
            let session = global.open_session().await?;
            Configurations::new(session.client).remove().await?;
            println!("webhook configurations removed");
            Ok(ExitCode::SUCCESS)
        })
    }
}
