//! The labels of the metrics. All are bounded: enums, constants of the program, shards. Never the name of an object.

use std::fmt::Write;

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};

macro_rules! words {
    ($($(#[$meta:meta])* pub enum $name:ident { $($(#[$of:meta])* $variant:ident = $word:literal),+ $(,)? })+) => {$(
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$of])* $variant),+ }

        impl $name {
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }
        }

        impl EncodeLabelValue for $name {
            fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), std::fmt::Error> {
                encoder.write_str(self.as_str())
            }
        }
    )+};
}

words! {
    /// How one reconciliation ended; controller-runtime's words.
    pub enum Outcome { Success = "success", Error = "error", Requeue = "requeue", RequeueAfter = "requeue_after" }

    pub enum NodeState {
        Settled = "settled",
        Unsettled = "unsettled",
        Ignored = "ignored",
        /// Claims an identity that another live node has.
        Conflicting = "conflicting",
    }

    pub enum RecordState {
        /// Its node is there.
        Present = "present",
        /// Its node is away.
        Absent = "absent",
        Tombstone = "tombstone",
        Invalid = "invalid",
    }

    /// The way in that did the work.
    pub enum Via { Admission = "admission", Watch = "watch", Resync = "resync", Command = "command" }

    pub enum Class { Spot = "spot", OnDemand = "on-demand" }

    pub enum MoveResult {
        Evicted = "evicted",
        /// A disruption budget said no for now.
        Blocked = "blocked",
        Failed = "failed",
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ReconcileLabels {
    pub controller: &'static str,
    pub result: Outcome,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ControllerLabels {
    pub controller: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct QueueLabels {
    pub name: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RequestLabels {
    /// `<error>` when there was no answer.
    pub code: String,
    pub method: String,
    pub host: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct LeaseLabels {
    /// One of `controller.shards` names.
    pub name: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct WebhookLabels {
    pub webhook: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct WebhookCodeLabels {
    pub webhook: &'static str,
    pub code: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct NodeLabels {
    pub state: NodeState,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RecordLabels {
    pub state: RecordState,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ViaLabels {
    pub via: Via,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ClassLabels {
    pub class: Class,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct MoveLabels {
    pub result: MoveResult,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ErrorLabels {
    pub category: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct BuildLabels {
    pub version: &'static str,
}
