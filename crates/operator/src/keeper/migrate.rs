//! When the identity setting changes, records move to the names that it gives them.

use perennial_core::keeper::{commands::migrate, identity::RecordName, stored_record::Stored};
use tracing::{info, warn};

use super::{
    Priority,
    apply::{Error, Held},
    controller::Keeper,
    policies::labels_of,
};
use crate::runtime::error_category::Category;

impl Keeper {
    /// Moves the records that the identity in force would look for under another name.
    pub(super) async fn migrate(&self) -> Result<(), Error> {
        let mut moves: Vec<(Held, perennial_core::keeper::record::Record)> = Vec::new();
        self.each_record(|held| {
            if let Stored::Good(record) = &held.stored {
                let identity = &self.policies.of_labels(&labels_of(record)).identity;
                if let Some(moved) = migrate(record, identity, &self.identity, self.clock.now()) {
                    moves.push((held, moved));
                }
            }
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
                        "a record of this identity exists already; both stay"
                    );
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
