//! Completeness of the cached pods of each workload.
//!
//! A new owner must read the pods of a workload before it decides. Later, a workload whose status
//! counts other pods than the cache for some time is read again: pods without the label are not
//! watched, and deletions may have been missed.

use std::{collections::HashMap, sync::Arc, time::Duration};

use perennial_core::placement::workload::Workload;
use tokio::time::Instant;

use super::super::WorkloadKey;

/// Time for which the status of a workload may differ from the cache before its pods are read
/// again.
const MISMATCH_PATIENCE: Duration = Duration::from_secs(2);
/// Maximum number of times that the patience doubles.
const MAX_DOUBLINGS: u32 = 5;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Completeness {
    Complete,
    /// The pods differ from the status, but not for long enough. The workload is checked again
    /// after the delay.
    Mismatch(Duration),
    /// The pods must be read before a decision.
    Stale,
}

#[derive(Debug, Default)]
pub(super) struct PodFreshness {
    /// The term of ownership in which the pods of a workload were read.
    read_in: HashMap<WorkloadKey, u64>,
    mismatches: HashMap<WorkloadKey, Mismatch>,
}

#[derive(Debug, Clone, Copy)]
struct Mismatch {
    since: Instant,
    /// Number of reads that did not end the mismatch.
    reads: u32,
}

impl PodFreshness {
    pub(super) fn check(&mut self, key: &WorkloadKey, workload: &Workload, term: u64) -> Completeness {
        if !self.was_read(key, term) {
            return Completeness::Stale;
        }
        let cached = workload.pods.iter().filter(|pod| pod.occupies()).count();
        let view = &workload.view;
        let counted = usize::try_from(view.current).unwrap_or_default();
        // While a workload grows, its status lags behind its pods. A complete status counts every
        // pod.
        let complete = view.current == view.replicas && view.observed_generation >= view.generation;
        if counted == cached || counted < cached && !complete {
            self.mismatches.remove(key);
            return Completeness::Complete;
        }
        let mismatch =
            *self.mismatches.entry(Arc::clone(key)).or_insert_with(|| Mismatch { since: Instant::now(), reads: 0 });
        // A mismatch that reading did not end will probably not end by reading again soon.
        let patience = MISMATCH_PATIENCE * (1 << mismatch.reads.min(MAX_DOUBLINGS));
        if mismatch.since.elapsed() < patience { Completeness::Mismatch(patience) } else { Completeness::Stale }
    }

    /// Returns whether the pods of a workload were read in this term.
    pub(super) fn was_read(&self, key: &WorkloadKey, term: u64) -> bool {
        self.read_in.get(key) == Some(&term)
    }

    /// Notes that the pods of a workload were read.
    pub(super) fn mark_read(&mut self, key: &WorkloadKey, term: u64) {
        self.read_in.insert(Arc::clone(key), term);
        if let Some(mismatch) = self.mismatches.get_mut(key) {
            *mismatch = Mismatch { since: Instant::now(), reads: mismatch.reads.saturating_add(1) };
        }
    }

    pub(super) fn forget(&mut self, key: &WorkloadKey) {
        self.read_in.remove(key);
        self.mismatches.remove(key);
    }
}
