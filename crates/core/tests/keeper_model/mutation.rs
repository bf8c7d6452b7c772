//! Rules switched off one at a time, by altering the input and the output of the real `decide`.

use std::collections::BTreeSet;

use perennial_core::keeper::{
    case::{Case, CaseContext, Phase},
    decide::{Decision, Reason, RecordWrite, Restore, decide},
    keys::{Kept, digest},
    mark::{MARK, Mark},
    record::Record,
    selection::Node,
};

#[expect(clippy::large_enum_variant, reason = "few exist at a time")]
pub(crate) enum Outcome {
    Decision(Decision),
    DeleteRecord,
    /// A create passes unchanged, with its mark.
    AsItCame,
    /// A create passes without a mark.
    Unmarked,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mutation {
    None,
    /// The mark is not read.
    IgnoreMark,
    /// The mark does not list given keys: a two-way merge.
    ForgetGiven,
    /// Keys of the node count as given.
    OwnCountsAsGiven,
    /// Keys of the node are in no set of the mark.
    DropOwn,
    /// A record that became empty is deleted.
    NoTombstone,
    /// A tombstone leaves no mark on a created node.
    NoMarkFromTombstone,
    /// Versions are compared within one incarnation only.
    NoVersionGuard,
    /// A fold makes the node the record's owner.
    FoldOwns,
    /// Keys of an unsettled node are not folded in.
    NoFold,
    /// The same incarnation decides against its own fold.
    FoldWithoutBefore,
    /// A create trusts the mark in the manifest.
    BelieveIncomingMark,
    /// A create that left keys out counts as complete.
    PartialIsComplete,
    /// A decision that leaves the labels equal is not written.
    NoEvidence,
    /// The UID alone makes a node the owner of its record.
    OwnerByUidOnly,
    /// An unsettled node with every key does not claim the record.
    NoClaim,
    /// Every node counts as settled.
    CaptureUnsettled,
    /// Protected keys are given to any machine.
    GiveProtectedToAnyone,
    /// Protected keys of other machines are dropped when a record is claimed.
    DropWithheld,
    /// A capture drops keys that the policy does not keep.
    CaptureErasesUnkept,
    /// A mark settles a node although keys are missing in it.
    SilentMarkSettles,
    /// The state that a record was written from is never captured again.
    EqualVersionIsOlder,
    /// A state that was observed in a relist only is captured.
    CaptureFromRelist,
    /// A live node is captured without reading it again.
    NoLiveCheck,
    /// The record is not read again when the node changes.
    RecordReadBeforeNode,
    /// Records are written without a precondition.
    UnconditionalWrite,
    /// Nodes are patched without a precondition.
    UnconditionalPatch,
    /// The successor is reconciled before the pending last state.
    SuccessorFirst,
    /// The DELETE webhook gives up on a conflict instead of deciding again.
    NoRetryInDelete,
    /// Records are collected before their retention ends.
    CollectAtOnce,
    /// Records are collected without reading the node again.
    CollectWithoutLook,
    /// Records are deleted without a precondition.
    UnconditionalCollect,
    /// The absence note stays when the node returns.
    KeepNote,
}

impl Mutation {
    pub(crate) const ALL: [Self; 32] = [
        Self::IgnoreMark,
        Self::ForgetGiven,
        Self::OwnCountsAsGiven,
        Self::DropOwn,
        Self::NoTombstone,
        Self::NoMarkFromTombstone,
        Self::NoVersionGuard,
        Self::FoldOwns,
        Self::NoFold,
        Self::FoldWithoutBefore,
        Self::BelieveIncomingMark,
        Self::PartialIsComplete,
        Self::NoEvidence,
        Self::OwnerByUidOnly,
        Self::NoClaim,
        Self::CaptureUnsettled,
        Self::GiveProtectedToAnyone,
        Self::DropWithheld,
        Self::CaptureErasesUnkept,
        Self::SilentMarkSettles,
        Self::EqualVersionIsOlder,
        Self::CaptureFromRelist,
        Self::NoLiveCheck,
        Self::RecordReadBeforeNode,
        Self::UnconditionalWrite,
        Self::UnconditionalPatch,
        Self::SuccessorFirst,
        Self::NoRetryInDelete,
        Self::CollectAtOnce,
        Self::CollectWithoutLook,
        Self::UnconditionalCollect,
        Self::KeepNote,
    ];

    /// Alters the input of the rules.
    pub(crate) fn blur(self, node: &mut Node, mut record: Option<&mut Record>) {
        let digest = Mark::digest_of(&node.annotations);
        let marked_alike = record.as_ref().is_some_and(|record| record.node.mark == digest);
        let mut mark = Mark::read(&node.annotations);
        self.blur_one(node, &mut mark, record.as_deref_mut());
        node.annotations = mark.map(|mark| (MARK.to_owned(), mark.render())).into_iter().collect();
        if marked_alike && let Some(record) = record {
            record.node.mark = Mark::digest_of(&node.annotations);
        }
    }

    fn blur_one(self, node: &mut Node, mark: &mut Option<Mark>, record: Option<&mut Record>) {
        match (self, record) {
            (Self::IgnoreMark, _) => *mark = None,
            (Self::ForgetGiven, _) => {
                if let Some(mark) = mark {
                    mark.given = Kept::new();
                }
            }
            (Self::NoVersionGuard, Some(record)) if record.node.uid != node.uid => record.node.resource_version = 0,
            (Self::FoldWithoutBefore, Some(record)) if record.folded && record.node.uid == node.uid => {
                record.before.clone_from(&record.kept);
            }
            (Self::OwnerByUidOnly, Some(record)) if record.node.uid == node.uid && !record.folded => {
                record.node.mark = Mark::digest_of(&node.annotations);
            }
            (Self::CaptureUnsettled, Some(record)) => {
                let content = if record.folded && record.node.uid == node.uid { &record.before } else { &record.kept };
                *mark = Some(Mark { from: digest(content), complete: true, ..mark.clone().unwrap_or_default() });
            }
            (Self::SilentMarkSettles, Some(record)) => {
                if let Some(mark) = mark.as_mut().filter(|mark| mark.complete) {
                    let silent =
                        record.kept.keys().filter(|key| !mark.given.contains_key(*key) && !mark.own.contains(*key));
                    mark.same.extend(silent.cloned().collect::<Vec<_>>());
                }
            }
            (Self::GiveProtectedToAnyone, Some(record)) => node.machine = record.node.machine.clone(),
            _ => {}
        }
    }

    /// Alters the output of the rules.
    pub(crate) fn distort(self, record: Option<&Record>, case: &Case, decision: Decision) -> Outcome {
        let decision = match (self, decision) {
            (Self::OwnCountsAsGiven | Self::DropOwn, Decision::PatchNode(restore)) => {
                Decision::PatchNode(self.distort_mark(restore, record))
            }
            (Self::NoTombstone, Decision::WriteRecord(_, next)) if next.is_tombstone() => return Outcome::DeleteRecord,
            (Self::FoldOwns, Decision::WriteRecord(RecordWrite::Fold, mut next)) => {
                next.folded = false;
                next.before = Kept::new();
                Decision::WriteRecord(RecordWrite::Fold, next)
            }
            (Self::NoFold, Decision::WriteRecord(RecordWrite::Fold, _))
            | (Self::NoClaim, Decision::WriteRecord(RecordWrite::Claim, _)) => Decision::Nothing(Reason::Current),
            (Self::NoEvidence, Decision::WriteRecord(RecordWrite::Capture | RecordWrite::Fold, next))
                if record.is_some_and(|record| record.kept == next.kept && record.node.uid != next.node.uid) =>
            {
                Decision::Nothing(Reason::Current)
            }
            (Self::EqualVersionIsOlder, Decision::WriteRecord(RecordWrite::Capture, next))
                if record.is_some_and(|record| {
                    !record.folded && record.node.resource_version == next.node.resource_version
                }) =>
            {
                Decision::Nothing(Reason::Older)
            }
            (Self::DropWithheld, Decision::WriteRecord(kind, mut next)) => {
                next.withheld.clear();
                Decision::WriteRecord(kind, next)
            }
            (Self::CaptureErasesUnkept, Decision::WriteRecord(kind, mut next)) => {
                next.kept.retain(|key, _| case.policy().keeps(key));
                Decision::WriteRecord(kind, next)
            }
            (_, decision) => decision,
        };
        Outcome::Decision(decision)
    }

    /// Alters the answer to a create.
    pub(crate) fn distort_create(
        self,
        case: &Case,
        record: Option<&Record>,
        context: &CaseContext<'_>,
        decision: Decision,
    ) -> Outcome {
        let Decision::PatchNode(mut restore) = decision else {
            return if self == Self::BelieveIncomingMark { Outcome::AsItCame } else { Outcome::Unmarked };
        };
        match self {
            Self::NoMarkFromTombstone if record.is_some_and(Record::is_tombstone) => return Outcome::Unmarked,
            Self::PartialIsComplete => {
                let recorded = record.into_iter().flat_map(|record| &record.kept);
                let left_out = recorded.filter(|(key, _)| restore.withheld.contains(*key));
                restore.mark.given.extend(left_out.map(|(key, value)| (key.clone(), value.clone())));
                restore.mark.complete = true;
            }
            Self::BelieveIncomingMark => {
                let incoming = case.node().expect("a node is being created");
                let stranger = Node { uid: "stranger".into(), ..incoming.clone() };
                let complete = Mark::read(&incoming.annotations).is_some_and(|mark| mark.complete);
                let live = Case::new(Phase::Live, Some(stranger), None, Vec::new(), context);
                let live = live.with_record(case.stored().cloned().map(Into::into), context);
                if complete && !matches!(decide(&live), Decision::PatchNode(_)) {
                    return Outcome::AsItCame;
                }
            }
            _ => {}
        }
        Outcome::Decision(Decision::PatchNode(restore))
    }

    fn distort_mark(self, mut restore: Restore, record: Option<&Record>) -> Restore {
        let mark = &mut restore.mark;
        let decided: BTreeSet<_> =
            std::mem::take(&mut mark.own).into_iter().chain(std::mem::take(&mut mark.same)).collect();
        if self == Self::OwnCountsAsGiven
            && let Some(record) = record
        {
            let recorded = decided.into_iter().filter_map(|key| Some((key.clone(), record.kept.get(&key)?.clone())));
            mark.given.extend(recorded);
        }
        restore
    }
}
