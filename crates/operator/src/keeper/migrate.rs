//! Moves records to the names that a changed identity setting gives them.

use perennial_core::keeper::{case::Case, commands::migrate, identity::RecordName, record::Record};
use tracing::{info, warn};

use super::{
    Priority,
    apply::{Error, Held},
    controller::Keeper,
};
use crate::runtime::error_category::Category;

impl Keeper {
    /// Moves the records whose name differs under the identity in force.
    pub(super) async fn migrate(&self) -> Result<(), Error> {
        let mut moves: Vec<(Held, Record)> = Vec::new();
        let policies = self.policies.current();
        self.each_record(|held| {
            let case = Case::absent(Some(held.share()), &self.context(&policies));
            moves.extend(migrate(&case).map(|moved| (held, moved)));
        })
        .await?;
        for (held, moved) in moves {
            let RecordName(to) = moved.name();
            if self.duties.dry_run || !self.duties.capture {
                info!(node = held.node_name(), from = held.name(), to, "would move the record to its new identity");
                continue;
            }
            match self.cluster.write_record(None, &moved, Priority::Capture).await {
                Ok(_) => {
                    self.cluster.delete_record(&held).await?;
                    info!(node = held.node_name(), from = held.name(), to, "record moved to its new identity");
                }
                Err(error) if error.category() == Category::Conflict => {
                    warn!(
                        node = held.node_name(),
                        from = held.name(),
                        to,
                        "a record of this identity exists already; both are kept"
                    );
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
