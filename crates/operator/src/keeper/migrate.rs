//! Moves records to the names that a changed identity setting gives them.
//!
//! # Guarantees
//! Captures and restores continue during a move: a node is looked up under every identity in use.
//! A record is written under its new name before the old one is deleted, with its history, its
//! withheld keys and its annotations. A record that cannot be moved delays no other one.

use futures::TryStreamExt as _;
use perennial_core::keeper::{identity::RecordName, record::Record};
use tracing::{info, warn};

use super::{
    Priority,
    apply::{KeeperError, LoadedRecord, RecordMove},
    replan::Replanner,
};
use crate::runtime::{error_category::Category, error_chain::Chain, reporter::CategorizedError as _};

impl Replanner {
    /// Moves the records of this replica's nodes whose name differs under the identity in force.
    /// Returns whether all of them were moved.
    pub(super) async fn migrate(&self) -> Result<bool, KeeperError> {
        let mut pages = std::pin::pin!(self.cluster.all_records());
        let mut complete = true;
        while let Some(page) = pages.try_next().await? {
            for held in page {
                if let Some(moved) = self.cases.moved(&held)
                    && self.ownership.may_act(held.node_name()).is_some()
                {
                    complete &= self.move_one(&held, &moved).await;
                }
            }
        }
        Ok(complete)
    }

    /// Moves a record. Returns false if another attempt may succeed.
    async fn move_one(&self, held: &LoadedRecord, moved: &Record) -> bool {
        let RecordName(to) = moved.name();
        let (node, from) = (held.node_name(), held.name());
        if !self.duties.may_write_records() {
            info!(node, from, to, "would move the record to its new identity");
            return true;
        }
        match self.cluster.move_record(held, moved, RecordMove::Migration, Priority::Collect).await {
            Ok(written) => {
                self.intake.learn_record(&written);
                info!(node, from, to, "record moved to its new identity");
                true
            }
            Err(error @ KeeperError::WriteRecord { .. }) if error.category() == Category::Conflict => {
                warn!(node, from, to, "a record of this identity exists already; both are kept");
                true
            }
            Err(error) => {
                let category = error.category().as_str();
                warn!(node, from, to, category, error = %Chain(&error), "record not moved yet, retrying");
                false
            }
        }
    }
}
