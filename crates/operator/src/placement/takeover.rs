//! Takeover of workloads by a new owner.
//!
//! # Guarantees
//! A new owner decides only about workloads whose cached pods are at least as new as the pods were
//! when it became the owner. Where it takes over many workloads, it compares the cache with one list
//! of the versions of all labelled pods, instead of listing the pods of each workload.

use std::{collections::BTreeMap, time::Duration};

use perennial_core::placement::workload::Workload;
use tokio::{sync::Mutex, time::Instant};

use super::{
    apply::{PlacementClient, PlacementError},
    cache::SharedCache,
};
use crate::runtime::{map::HashMap, ownership::Ownership};

/// Page size of the list: only names and versions are read.
pub(super) const PAGE: u32 = 2_500;
/// Time for which the versions are stored.
const STORED_FOR: Duration = Duration::from_mins(1);

/// Versions of all labelled pods at one time.
#[derive(Debug, Default)]
pub struct PodVersions {
    /// resourceVersion of the list.
    pub as_of: u64,
    /// UID and resourceVersion of pods, by UID of their controller.
    pub by_owner: HashMap<String, HashMap<String, u64>>,
}

/// The latest list of versions, and the shards that it was read for.
#[derive(Debug, Default)]
pub(super) struct Takeover(Mutex<LatestList>);

#[derive(Debug, Default)]
struct LatestList {
    /// Shards and their terms that this process owned before it read the list.
    owned: BTreeMap<u32, u64>,
    versions: Option<(Instant, PodVersions)>,
}

impl Takeover {
    /// Returns whether the cached pods of a workload are current, as far as one list for all
    /// workloads shows it. Otherwise its pods must be listed.
    pub(super) async fn is_current(
        &self,
        workload: &Workload,
        (shard, term): (u32, u64),
        (cluster, cache, ownership): (&PlacementClient, &SharedCache, &Ownership),
    ) -> Result<bool, PlacementError> {
        let mut latest = self.0.lock().await;
        if latest.owned.get(&shard) != Some(&term) {
            let owned = |shard| Some((shard, ownership.owns(shard)?.term()));
            let owned: BTreeMap<u32, u64> = (0..ownership.shards()).filter_map(owned).collect();
            let (pods, workloads) = cache.sizes();
            let pages = 1 + pods / usize::try_from(PAGE).unwrap_or(usize::MAX);
            let versions =
                if workloads > pages { Some((Instant::now(), cluster.list_versions().await?)) } else { None };
            *latest = LatestList { owned, versions };
        }
        if latest.versions.as_ref().is_some_and(|(read, _)| read.elapsed() > STORED_FOR) {
            latest.versions = None;
        }
        let covered = latest.owned.get(&shard) == Some(&term);
        let versions = latest.versions.as_ref().filter(|_| covered);
        Ok(versions.is_some_and(|(_, versions)| cache.is_current(workload, versions)))
    }
}
