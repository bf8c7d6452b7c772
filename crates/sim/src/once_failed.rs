//! Histories that once violated a guarantee. `make test` plays all of them.
//!
//! They are played without the variations that were added since (see [`Plan::widen`]), so that each
//! stays as close to the history that failed as the operator allows.
//!
//! [`Plan::widen`]: crate::keeper::scenario::Plan::widen

/// A seed, and the bug that its history showed.
pub const ONCE_FAILED: &[(u64, &str)] = &[
    (4, "G6: evictions were not conditional on the UID"),
    (9, "G6: evictions were not conditional on the UID"),
    (19, "G6: evictions were not conditional on the UID"),
    (24, "G6: evictions were not conditional on the UID"),
    (28, "G1: a return between two audits did not clear the note of an earlier absence"),
    (147, "G1: a watch answered with 410 was repeated from the same version"),
    (393, "cause not recorded"),
    (769, "G10: the cooldown of a move began before its eviction was answered"),
    (803, "G1: a watch answered with 410 was repeated from the same version"),
    (964, "G10: a complete workload kept the open slots of its previous plan"),
    (1024, "G10: an unlabelled pod that was deleted while it was adopted stayed in the cache"),
    (1178, "G1: the owner of a shard missed a deletion that another replica had observed"),
    (1179, "G10: a class counted as refused after one create that never appeared"),
    (1182, "G2: while records could not be written, a replica that missed a delete gave back a removed key"),
    (1310, "G1: a last state of the history before a restore of etcd hid the delete of a node after it"),
    (1459, "G10: evictions of a pod that no longer existed were repeated"),
    (1980, "G8: a restore of etcd went unnoticed because a newer node had been delivered"),
    (2219, "G8: a pod in the wrong class in the last on-demand slot left none for the pod that belongs there"),
    (2789, "G10: without leader election a replica decided on a cache that a conflict had shown to be stale"),
    (700_068, "G1: a last state was dropped while writes of records were refused"),
    (700_132, "G8: a restore of etcd went unnoticed because the cluster was ahead again"),
    (700_171, "G1: a last state was dropped while writes of records were refused"),
    (700_555, "G1: a last state was dropped while writes of records were refused"),
    (700_558, "G2: a last state without keys was not held behind one that was still to be written"),
    (701_344, "G10: placement was not exact at rest"),
    (701_959, "G10: placement was not exact at rest"),
    (703_599, "G10: placement was not exact at rest"),
    (703_664, "G10: without leader election a pod was moved that another replica had moved already"),
    (704_066, "G2: the capture of a value that was changed back landed after the delete"),
    (704_277, "G7: an unchanged return cost two writes"),
    (704_488, "G7: an unchanged return cost two writes"),
    (704_820, "G2: the removal of a protected key undone"),
    (901_339, "G10: placement was not exact at rest"),
    (902_611, "G1: labels lost"),
    (904_139, "G10: placement was not exact at rest"),
    (905_711, "G7: an unchanged return cost two writes"),
    (907_784, "G10: placement was not exact at rest"),
    (908_369, "G10: placement was not exact at rest"),
    (909_991, "G1: labels lost"),
    (910_373, "G7: an unchanged return cost two writes"),
    (911_221, "G7: an unchanged return cost two writes"),
    (911_344, "G10: placement was not exact at rest"),
    (3_002_729, "G10: probes that cost nothing lengthened the pause to the next one"),
];

/// Histories that failed after the variations of keeper histories were added. They are played with
/// them.
pub const ONCE_FAILED_VARIED: &[(u64, &str)] = &[
    (3_001_040, "G2: a last state from before a restore of etcd was written over the record of an older node"),
    (3_002_477, "G9: replicas with and without a pending last state restored a node against each other"),
    (3_002_850, "G9: replicas with and without a pending last state restored a node against each other"),
    (4_000_483, "G1: a second record was created beside one that another replica had moved, which was then deleted"),
    (5_000_187, "G1: a second record was created beside one that another replica had moved"),
    (5_002_821, "G9: replicas with different last states wrote their marks against each other"),
];

/// Those of [`ONCE_FAILED`] that have shortages of capacity. Older ones had none when they failed.
const WITH_SHORTAGES: &[u64] = &[3_002_729];

/// Returns whether the history of a seed that once failed has shortages of capacity.
pub fn has_shortages(seed: u64) -> bool {
    WITH_SHORTAGES.contains(&seed)
}

/// Returns whether the history of a seed once failed without the variations.
pub fn contains(seed: u64) -> bool {
    ONCE_FAILED.binary_search_by_key(&seed, |(failed, _)| *failed).is_ok()
}
