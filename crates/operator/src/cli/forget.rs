//! `perennial forget`: empty the record of a node.

use std::process::ExitCode;

use clap::Args;
use perennial_core::keeper::{commands::forget, stored_record::Stored};

use super::{
    Global, block_on,
    edit::{Subject, TRIES, is_conflict, write},
};

#[derive(Debug, Args)]
pub(super) struct Forget {
    /// Name of the node
    #[arg(add = super::completion::recorded())]
    node: String,
    /// Confirm the operation
    #[arg(short, long)]
    yes: bool,
}

impl Forget {
    pub(super) fn execute(self, global: &Global) -> anyhow::Result<ExitCode> {
        block_on(async {
            let session = global.open_session().await?;
            session.require_operator_settings()?;
            for _ in 0..TRIES {
                let subject = Subject::read(&session, &self.node).await?;
                if !self.yes {
                    anyhow::bail!(
                        "this empties the record of node {}, including its history; confirm with --yes",
                        self.node
                    );
                }
                let record = match subject.held.stored() {
                    Stored::Good(record) => (**record).clone(),
                    // A quarantined record cannot be edited, only deleted.
                    Stored::Bad { .. } => {
                        session.cluster.delete_record(&subject.held).await?;
                        println!("record {} deleted", subject.held.name());
                        return Ok(ExitCode::SUCCESS);
                    }
                };
                let mut forgotten = forget(&subject.case, &record);
                subject.supersede_last_state(&mut forgotten);
                match write(&session, &subject, &forgotten, None).await {
                    Err(error) if is_conflict(&error) => {}
                    done => {
                        done?;
                        println!("node/{} forgotten", self.node);
                        return Ok(ExitCode::SUCCESS);
                    }
                }
            }
            anyhow::bail!("gave up on the record of node {} after 5 conflicts; nothing was written", self.node)
        })
    }
}
