//! `perennial webhook`: remove, install and rotate what the webhooks need.

use std::process::ExitCode;

use clap::Subcommand;

use super::{Global, block_on};
use crate::admission::{certificates::SecretStore, configuration::Configurations};

#[derive(Debug, Subcommand)]
pub(super) enum Webhook {
    /// Remove the webhook configurations. An operator that may create them does so again
    Disable,
    /// Create the webhook configurations without webhooks. A running operator adds the webhooks
    Enable,
    /// Replace the certificate authority of the webhooks, without a lost request
    ///
    /// The running operator adds the new authority to the webhook configurations, waits until every
    /// API server has it, serves a certificate of the new authority, and then removes the old one.
    Rotate,
}

impl Webhook {
    pub(super) fn execute(&self, global: &Global) -> anyhow::Result<ExitCode> {
        block_on(async {
            let session = global.open_session_anywhere().await?;
            match self {
                Self::Disable => {
                    Configurations::new(session.client).remove().await?;
                    println!("webhook configurations removed");
                }
                Self::Enable => {
                    Configurations::new(session.client).create_empty().await?;
                    println!("webhook configurations created; a running operator adds the webhooks");
                }
                Self::Rotate => {
                    let store = SecretStore::new(session.client, session.settings.namespace.as_str());
                    store.request_rotation().await?;
                    println!("rotation requested; the operator logs each step");
                }
            }
            Ok(ExitCode::SUCCESS)
        })
    }
}
