//! Section `keeper`: the keys that are kept, and for how long.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Gate, Identity, Merge};
use crate::config::defaults::{DROPPED_LABELS, DROPPED_MANAGERS, PROTECTED_KEYS};
use crate::config::duration::DurationText;
use crate::config::pattern::Patterns;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Keeper {
    /// Patterns of the label keys to keep.
    pub keep: Patterns,
    /// Patterns of the label keys not to keep, although `keeper.keep` matches them. Replaces the
    /// default list; to add to it, use `keeper.dropAlso`.
    pub drop: Patterns,
    /// Patterns of field managers (`metadata.managedFields`). A label that only these write is not
    /// kept, since its controller writes it again. Labels that Perennial restored are kept.
    pub drop_managers: Patterns,
    /// Patterns of the label keys not to keep, in addition to `keeper.drop`.
    pub drop_also: Patterns,
    /// Patterns of the annotation keys to keep.
    pub annotations: Patterns,
    /// Patterns of the taint keys to keep. Startup taints are never kept.
    pub taints: Patterns,
    /// Keep whether a node is cordoned.
    pub cordon: bool,
    /// Value that wins if a returning node has another one than its record: `keepExisting` (that of
    /// the node) or `overwrite` (that of the record).
    pub merge: Merge,
    /// Property by which a returning node is recognized: `auto` (the instance on AWS, where names
    /// are recycled addresses, otherwise the name), `name`, `providerID`, `systemUUID`,
    /// `machineID`, `label:KEY` or `annotation:KEY`.
    pub identity: Identity,
    /// Patterns of the keys that are restored only to the same machine. `*.kubernetes.io/*` and the
    /// other patterns of the default list leave out the labels that a kubelet may set itself.
    pub protected: Patterns,
    /// Time that the record of an absent node is kept.
    #[serde(with = "DurationText")]
    pub retention: Duration,
    /// Maximum number of records of absent nodes. Beyond it, the record whose node has been absent
    /// for the longest time is deleted before its retention is over. Held records, and those of a
    /// mass absence, are not. 0: no limit, so that nothing is deleted early unless you ask for it.
    pub max_absent: u32,
    /// Number of earlier label sets in a record.
    pub history: u16,
    /// Number of other machines whose protected keys a record holds.
    pub withheld: u16,
    /// Keep pods off a new node until it is restored: `never`, `needed` (if there is something to
    /// restore) or `always`.
    pub gate: Gate,
    /// Time after which the gate is removed, even from a node that is not restored.
    #[serde(with = "DurationText")]
    pub gate_timeout: Duration,
}

impl Default for Keeper {
    fn default() -> Self {
        Self {
            keep: Patterns::of(&["*"]),
            drop: Patterns::of(DROPPED_LABELS),
            drop_managers: Patterns::of(DROPPED_MANAGERS),
            drop_also: Patterns::default(),
            annotations: Patterns::default(),
            taints: Patterns::default(),
            cordon: false,
            merge: Merge::default(),
            identity: Identity::default(),
            protected: Patterns::of(PROTECTED_KEYS),
            retention: Duration::from_hours(720),
            max_absent: 0,
            history: 5,
            withheld: 5,
            gate: Gate::default(),
            gate_timeout: Duration::from_mins(1),
        }
    }
}

impl Keeper {
    /// Returns all patterns of the label keys not to keep: `drop` and `dropAlso`.
    pub fn dropped(&self) -> Patterns {
        self.drop.as_slice().iter().chain(self.drop_also.as_slice()).cloned().collect()
    }
}
