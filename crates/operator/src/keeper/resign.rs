//! Keeping the keys of records up to date, and records signed by the one that signs now: after `records.hmac` was switched
//! on, and after a new key came.

use std::time::Duration;

use perennial_core::{config::settings::Hmac, keeper::identity::RecordName};
use tracing::{info, warn};

use super::{Priority, apply::Error, controller::Keeper};
use crate::runtime::{error_category::Category, error_chain::Chain};

/// How often the keys are read again without a reason.
const KEYS_EVERY: Duration = Duration::from_secs(30);

impl Keeper {
    /// Reads the keys again now and then, and signs those of our records that the newest key has not signed.
    pub async fn keep_signed(&self) {
        let signatures = self.cluster.signatures();
        if signatures.mode() == Hmac::None {
            return;
        }
        if let Err(error) = signatures.refresh_after(KEYS_EVERY).await {
            self.metrics.failed(Category::Refused.as_str());
            warn!(why = %Chain(&error), "the keys of records cannot be read; those that were known are used");
        }
        // Others than those that records were judged by, be it that they were just read or that a record named one: every record is
        // judged anew. Some may be good now, others not any more.
        let changes = signatures.changes();
        if self.lock().judged_after != changes {
            match self.each_record(|_| {}).await {
                Ok(()) => self.lock().judged_after = changes,
                Err(error) => self.not_signed(&error),
            }
        }
        if let Err(error) = self.sign_unsigned().await {
            self.not_signed(&error);
        }
    }

    async fn sign_unsigned(&self) -> Result<(), Error> {
        if self.duties.dry_run || !self.duties.capture {
            return Ok(());
        }
        let unsigned = self.lock().view.index.unsigned();
        let mut signed = 0usize;
        for (record, node) in unsigned {
            if self.ownership.may_act(&node).is_none() {
                continue;
            }
            let name = RecordName(record.to_string());
            let Some(held) = self.cluster.read_record(&name, Priority::Collect).await? else { continue };
            if !held.is_unsigned() {
                self.learn_record(&held);
                continue;
            }
            match self.cluster.sign_record(&held).await {
                Ok(written) => self.learn_record(&written),
                // Whoever wrote it has signed it.
                Err(error) if error.category() == Category::Conflict => continue,
                Err(error) => return Err(error),
            }
            signed += 1;
        }
        if signed > 0 {
            info!(records = signed, "records signed");
        }
        Ok(())
    }

    fn not_signed(&self, error: &Error) {
        self.metrics.failed(error.category().as_str());
        warn!(category = error.category().as_str(), why = %Chain(error), "not all records are signed yet");
    }
}
