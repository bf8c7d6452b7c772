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
    /// The node's name
    #[arg(add = super::completion::recorded())]
    node: String,
    /// Do it without asking
    #[arg(short, long)]
    yes: bool,
}

impl Forget {
    pub(super) fn execute(self, global: &Global) -> anyhow::Result<ExitCode> {
        block_on(async {
            let session = global.open_session().await?;
            session.judges_as_the_operator()?;
            for _ in 0..TRIES {
                let subject = Subject::read(&session, &self.node).await?;
                if !self.yes {
                    anyhow::bail!("this forgets what is kept for node {}, history included: say --yes", self.node);
                }
                let record = match subject.held.stored() {
                    Stored::Good(record) => (**record).clone(),
                    // What cannot be read is let go of at a person's word.
                    Stored::Bad { .. } => {
                        session.cluster.delete_record(&subject.held).await?;
                        println!("record {} deleted", subject.held.name());
                        return Ok(ExitCode::SUCCESS);
                    }
                };
                let mut forgotten = forget(&subject.case, &record);
                subject.outlast(&mut forgotten);
                match write(&session, &subject, &forgotten, None).await {
                    Err(error) if is_conflict(&error) => {}
                    done => {
                        done?;
                        println!("node/{} forgotten", self.node);
                        return Ok(ExitCode::SUCCESS);
                    }
                }
            }
            anyhow::bail!("the record of node {} kept changing meanwhile", self.node)
        })
    }
}
