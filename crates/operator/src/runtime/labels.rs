//! Labels of the metrics that every controller has. All are bounded: enums, constants of the
//! program, shards. Never the name of an object.

use prometheus_client::encoding::EncodeLabelSet;

/// Defines enums whose values are values of metric labels, with `ALL` and `as_str`.
macro_rules! label_values {
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

        impl prometheus_client::encoding::EncodeLabelValue for $name {
            fn encode(
                &self,
                encoder: &mut prometheus_client::encoding::LabelValueEncoder<'_>,
            ) -> Result<(), std::fmt::Error> {
                std::fmt::Write::write_str(encoder, self.as_str())
            }
        }
    )+};
}
pub(crate) use label_values;

label_values! {
    /// Result of one reconciliation, in controller-runtime's words.
    pub enum ReconcileOutcome {
        Success = "success",
        Error = "error",
        Requeue = "requeue",
        RequeueAfter = "requeue_after",
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ReconcileLabels {
    pub(super) controller: &'static str,
    pub(super) result: ReconcileOutcome,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ControllerLabels {
    pub(super) controller: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ResourceLabels {
    pub(super) resource: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct QueueLabels {
    pub(super) name: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct RequestLabels {
    /// `<error>` when there was no response.
    pub(super) code: String,
    pub(super) method: String,
    pub(super) host: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct LeaseLabels {
    /// One of `controller.shards` names.
    pub(super) name: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ErrorLabels {
    pub(super) category: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct BuildLabels {
    pub(super) version: &'static str,
}
