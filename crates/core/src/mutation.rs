//! Rules that a test can break on purpose, one at a time, to see that somebody notices.
//!
//! Only with the feature `mutations`, which nothing but the simulator asks for; otherwise every question is answered with a
//! constant `false` and costs nothing.

macro_rules! mutations {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// One rule that is broken.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Mutation { $($(#[doc = $doc])+ $name,)+ }

        impl Mutation {
            pub const ALL: &[Self] = &[$(Self::$name,)+];
        }
    };
}

mutations! {
    /// A record is written whatever it is by then.
    UnconditionalRecord,
    /// A node is patched whatever it is by then.
    UnconditionalPatch,
    /// A node is captured as the watch showed it: it is neither read for that nor looked at once more.
    TrustTheCache,
    /// The mark is not looked at.
    IgnoreMark,
    /// Every node counts as settled.
    CaptureUnsettled,
    /// Older states are written over newer ones. Rules and index both prevent that; here neither does.
    FoldOverNewer,
    /// What an unsettled node had decided is not folded in.
    NoFold,
    /// A node without labels is not captured.
    NoTombstone,
    /// A create believes the mark that it came with.
    BelieveIncomingMark,
    /// A create that left keys out says that it gave them.
    PartialIsComplete,
    /// Protected keys go to any machine.
    ProtectedToAnyone,
    /// Another machine's protected keys are dropped when the record is taken over.
    DropWithheld,
    /// A DELETE handler that lost a race gives up instead of deciding again.
    NoRetryInDelete,
    /// The successor is acted on before the pending last state.
    SuccessorFirst,
    /// Deletions are not remembered until they are written.
    ForgetLastStates,
    /// Everything rides in a kubelet's create.
    EverythingRides,
    /// Keys that the policy drops are kept as well.
    KeepForeignKeys,
    /// A write leaves the sequence as it is.
    SequenceStands,
    /// A node that is as its record says is captured all the same. Rules and index both prevent that; here neither does.
    WriteAgain,
    /// The checksum of a record is not looked at.
    TrustBadRecords,
    /// Quarantined bytes are written over.
    OverwriteBadRecords,
    /// The record wins over what is on the node.
    RecordWins,
    /// Requests are sent without a budget.
    NoBudget,
    /// Our taint is never taken off.
    KeepTaint,
    /// Records are collected however long their node has been away.
    CollectAtOnce,
    /// Pods that are going count as if they stayed.
    CountTerminating,
    /// A pod is placed whatever it is by then.
    UnconditionalPlacement,
    /// Pods that were given their place as they were created do not count until they are seen.
    ForgetExpected,
    /// Spot pods of a rollout do not wait for the on-demand ones.
    NoHold,
    /// A pod is evicted whatever else is going on.
    MoveAtOnce,
    /// Every second pod is spot, whatever the slots say.
    EverySecondIsSpot,
}

#[cfg(feature = "mutations")]
mod switch {
    use std::cell::Cell;

    use super::Mutation;

    thread_local! {
        static BROKEN: Cell<Option<Mutation>> = const { Cell::new(None) };
    }

    /// Whether this rule is broken on this thread.
    pub fn mutated(mutation: Mutation) -> bool {
        BROKEN.get() == Some(mutation)
    }

    /// Breaks a rule on this thread, or mends all.
    pub fn mutate(mutation: Option<Mutation>) {
        BROKEN.set(mutation);
    }
}

#[cfg(feature = "mutations")]
pub use switch::{mutate, mutated};

/// Whether this rule is broken: never.
#[cfg(not(feature = "mutations"))]
pub const fn mutated(_: Mutation) -> bool {
    false
}
