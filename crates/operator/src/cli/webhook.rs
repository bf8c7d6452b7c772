//! `perennial webhook`: remove, install and rotate what the webhooks need.

use std::process::ExitCode;

use clap::Subcommand;

use super::{Global, block_on};
use crate::{
    admission::{certificates::SecretStore, configuration::Configurations},
    inspect::leases::LeaseSnapshot,
};

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
                    let configurations = Configurations::new(session.client.clone());
                    // Without permission to read them, they are removed unseen.
                    if configurations.read().await.is_ok_and(|present| present.is_empty()) {
                        println!("there are no webhook configurations");
                        return Ok(ExitCode::SUCCESS);
                    }
                    configurations.remove().await?;
                    println!("webhook configurations removed");
                    let leases = LeaseSnapshot::read(&session.client, session.settings.lease_namespace()).await;
                    if leases.is_ok_and(|leases| leases.live_members().next().is_some()) {
                        println!(
                            "an operator is running: if its account may create them, it does so again within seconds; \
                             webhook.enabled=false in its configuration keeps them away"
                        );
                    }
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
