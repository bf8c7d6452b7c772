//! Rules that are broken on purpose, and the histories that notice it.

use std::ops::Range;

use perennial_core::mutation::Mutation;

use crate::{batch, history::Outcome};

/// For each rule a history that is known to notice that it is broken, so that nobody has to search.
const NOTICED_IN: &[(Mutation, u64)] = &[
    (Mutation::UnconditionalRecord, 0),
    (Mutation::UnconditionalPatch, 0),
    (Mutation::TrustTheCache, 26),
    (Mutation::IgnoreMark, 0),
    (Mutation::CaptureUnsettled, 1),
    (Mutation::FoldOverNewer, 0),
    (Mutation::NoFold, 15),
    (Mutation::NoTombstone, 33),
    (Mutation::BelieveIncomingMark, 506),
    (Mutation::PartialIsComplete, 1),
    (Mutation::ProtectedToAnyone, 0),
    (Mutation::DropWithheld, 0),
    (Mutation::NoRetryInDelete, 16),
    (Mutation::SuccessorFirst, 166),
    (Mutation::ForgetLastStates, 8),
    (Mutation::EverythingRides, 1),
    (Mutation::KeepForeignKeys, 0),
    (Mutation::SequenceStands, 0),
    (Mutation::WriteAgain, 1),
    (Mutation::TrustBadRecords, 6),
    (Mutation::OverwriteBadRecords, 6),
    (Mutation::RecordWins, 10),
    (Mutation::NoBudget, 140),
    (Mutation::KeepTaint, 0),
    (Mutation::CollectAtOnce, 28),
    (Mutation::CountTerminating, 9),
    (Mutation::UnconditionalPlacement, 4),
    (Mutation::ForgetExpected, 194),
    (Mutation::NoHold, 89),
    (Mutation::MoveAtOnce, 4),
    (Mutation::EverySecondIsSpot, 4),
];

/// Breaks a rule and plays histories until one notices: first the one that is known to, then these.
pub fn noticed(rule: Mutation, seeds: Range<u64>, threads: usize) -> anyhow::Result<Option<Outcome>> {
    let known = NOTICED_IN.iter().find(|(known, _)| *known == rule).map(|(_, seed)| *seed..*seed + 1);
    for seeds in known.into_iter().chain([seeds]) {
        let summary = batch::run(seeds, Some(rule), threads, |_| {}, |summary| !summary.failed.is_empty())?;
        if let Some(outcome) = summary.failed.into_iter().next() {
            return Ok(Some(outcome));
        }
    }
    Ok(None)
}
