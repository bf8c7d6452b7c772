//! Rules of the operator that are broken on purpose, one at a time, and the histories that detect
//! it.
//!
//! The operator has no switch for this. A rule is broken from outside, by rewriting what the
//! operator sends and receives, or the settings that it is started with.

use std::ops::Range;

use crate::{
    batch,
    history::{Outcome, is_placement},
};

macro_rules! broken_rules {
    ($($(#[doc = $doc:literal])+ $name:ident: $seed:literal,)+) => {
        /// A rule that is broken.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum BrokenRule { $($(#[doc = $doc])+ $name,)+ }

        impl BrokenRule {
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            /// Seed of a history that is known to detect it.
            pub const fn seed(self) -> u64 {
                match self { $(Self::$name => $seed,)+ }
            }
        }
    };
}

broken_rules! {
    /// Records are written without a precondition.
    UnconditionalRecord: 0,
    /// Nodes are patched without a precondition.
    UnconditionalPatch: 0,
    /// A node is captured as the watch delivered it: reads of nodes are answered from the watch.
    TrustTheCache: 226,
    /// Marks on nodes are not read.
    IgnoreMark: 0,
    /// Every node counts as settled.
    CaptureUnsettled: 1,
    /// Older states are written over newer ones: records are read as if captured from the oldest
    /// version.
    FoldOverNewer: 76,
    /// Keys that an unsettled node had decided are not folded into the record.
    NoFold: 70,
    /// A node without kept keys is not captured.
    NoTombstone: 33,
    /// A create trusts the mark in the manifest.
    BelieveIncomingMark: 506,
    /// The mark of a create that left keys out lists them as given.
    PartialIsComplete: 1,
    /// Protected keys are given to any machine.
    ProtectedToAnyone: 0,
    /// Protected keys of other machines are dropped when a record is written.
    DropWithheld: 0,
    /// The DELETE webhook gives up on a conflict instead of deciding again.
    NoRetryInDelete: 16,
    /// The successor of a deleted node is reconciled before the pending last state.
    SuccessorFirst: 166,
    /// Deletions of nodes are forgotten.
    ForgetLastStates: 8,
    /// A kubelet's create is given keys that NodeRestriction refuses.
    EverythingRides: 1,
    /// Keys on the drop list are kept.
    KeepForeignKeys: 0,
    /// A write leaves the sequence of a record as it is.
    SequenceStands: 0,
    /// A node that equals its record is captured again.
    WriteAgain: 1,
    /// The checksum of a record is not verified.
    TrustBadRecords: 6,
    /// Quarantined bytes are overwritten.
    OverwriteBadRecords: 6,
    /// The record wins over the keys of the node.
    RecordWins: 10,
    /// Requests are sent without a rate limit.
    NoBudget: 140,
    /// The gate taint is never removed.
    KeepTaint: 0,
    /// Records are collected before their retention ends.
    CollectAtOnce: 28,
    /// A refused write of a record counts as done: the pending last state is dropped.
    RefusalIsSuccess: 8,
    /// A node that is restored before the write has no version in its mark.
    MarkWithoutVersion: 3_002_477,
    /// A restore of etcd is not detected.
    IgnoreRestore: 75,
    /// Records do not name the policy that they were captured under.
    ForgetPolicy: 7,
    /// Terminating pods count as running.
    CountTerminating: 9,
    /// Pods are placed without a precondition.
    UnconditionalPlacement: 4,
    /// Pods that admission placed do not count until the watch delivers them.
    ForgetExpected: 194,
    /// Spot pods of a rollout do not wait for the on-demand pods.
    NoHold: 89,
    /// Pods are evicted during rollouts and cooldowns.
    MoveAtOnce: 4,
    /// Every second pod is spot, regardless of the annotations.
    EverySecondIsSpot: 4,
    /// Pods that wait for spot never fall back.
    NoFallback: 9,
    /// Spot is never probed, and new nodes are no evidence of capacity.
    NoWayBack: 9,
    /// No pod of a paused workload is re-placed, not even one without a node.
    PausedStopsAll: 39,
    /// A pod without a node stays in a class to which it no longer belongs.
    UnboundStays: 9,
    /// Pods of a workload that is no longer managed stay in their class.
    KeepClassOfUnmanaged: 39,
    /// The last Ready replica is evicted for a probe.
    LastReplicaIsSpare: 64,
    /// The cooldown of moves is not reset by success.
    CooldownOnlyGrows: 9,
}

impl BrokenRule {
    /// Returns whether the rule matters only if there are KeepPolicies.
    pub fn is_about_policies(self) -> bool {
        self == Self::ForgetPolicy
    }

    /// Returns whether the rule matters only while capacity is short.
    pub fn is_about_shortages(self) -> bool {
        matches!(
            self,
            Self::NoFallback
                | Self::NoWayBack
                | Self::PausedStopsAll
                | Self::UnboundStays
                | Self::KeepClassOfUnmanaged
                | Self::LastReplicaIsSpare
                | Self::CooldownOnlyGrows
        )
    }
}

/// Breaks a rule and plays histories until one detects it: first the known one, then `seeds`.
pub fn noticed(rule: BrokenRule, seeds: Range<u64>, threads: usize) -> anyhow::Result<Option<Outcome>> {
    for seeds in [rule.seed()..rule.seed() + 1, seeds] {
        let seeds = seeds.filter(|seed| !rule.is_about_shortages() || is_placement(*seed));
        let summary = batch::run(seeds, Some(rule), threads, |_| {}, |summary| !summary.failed.is_empty())?;
        if let Some(outcome) = summary.failed.into_iter().next() {
            return Ok(Some(outcome));
        }
    }
    Ok(None)
}
