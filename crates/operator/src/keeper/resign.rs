//! Signs records again after `records.hmac` was enabled or a new key was added.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use perennial_core::{config::settings::Hmac, keeper::identity::RecordName};
use tracing::{info, warn};

use super::{
    Priority,
    apply::{KeeperClient, KeeperError},
    cache::KeeperCache,
    controller::Duties,
    intake::Intake,
};
use crate::runtime::{
    error_category::Category,
    error_chain::Chain,
    ownership::Ownership,
    reporter::{CategorizedError as _, Reporter},
};

/// Interval at which the keys are read again.
const KEYS_EVERY: Duration = Duration::from_secs(30);

/// Keeps records signed with the newest key.
#[derive(Debug)]
pub(super) struct Signer {
    pub(super) cluster: KeeperClient,
    pub(super) cache: Arc<KeeperCache>,
    pub(super) intake: Arc<Intake>,
    pub(super) duties: Duties,
    pub(super) ownership: Ownership,
    pub(super) reporter: Reporter,
    /// Number of key changes after which all records were last verified.
    pub(super) verified_after: AtomicU64,
}

impl Signer {
    /// Reads the keys periodically, and signs the records of this replica that the newest key has
    /// not signed.
    pub(super) async fn run(&self) {
        let signatures = self.cluster.signatures();
        if signatures.mode() == Hmac::None {
            return;
        }
        if let Err(error) = signatures.refresh_after(KEYS_EVERY).await {
            self.reporter.count(Category::Refused);
            warn!(error = %Chain(&error), "signing keys cannot be read; the known keys stay in use");
        }
        // The keys have changed since records were last verified: verify all of them again. Some
        // may be valid now, others no longer.
        let changes = signatures.changes();
        if self.verified_after.load(Ordering::Relaxed) != changes {
            match self.intake.each_record(|_| {}).await {
                Ok(()) => self.verified_after.store(changes, Ordering::Relaxed),
                Err(error) => self.report_failure(&error),
            }
        }
        if let Err(error) = self.sign_unsigned().await {
            self.report_failure(&error);
        }
    }

    async fn sign_unsigned(&self) -> Result<(), KeeperError> {
        if !self.duties.may_write_records() {
            return Ok(());
        }
        let unsigned = self.cache.unsigned();
        let mut signed = 0usize;
        for (record, node) in unsigned {
            if self.ownership.may_act(&node).is_none() {
                continue;
            }
            let name = RecordName(record.to_string());
            let Some(held) = self.cluster.read_record(&name, Priority::Collect).await? else { continue };
            if !held.is_unsigned() {
                self.intake.learn_record(&held);
                continue;
            }
            match self.cluster.sign_record(&held).await {
                Ok(written) => self.intake.learn_record(&written),
                // The writer of the conflicting version has signed it.
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

    fn report_failure(&self, error: &KeeperError) {
        self.reporter.count(error.category());
        warn!(category = error.category().as_str(), error = %Chain(error), "records not signed yet, retrying");
    }
}
