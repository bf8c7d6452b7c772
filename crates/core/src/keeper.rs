//! The keeper: labels, annotations, taints and cordons survive the Node object that they were set
//! on.
//!
//! [`case::Case`] holds one node with its record; [`decide::decide`] is the only decision about it.

pub mod admission;
pub mod case;
pub mod collect;
pub mod commands;
pub mod decide;
pub mod explain;
pub mod fingerprint;
pub mod hash;
pub mod identity;
pub mod import;
pub mod keys;
pub mod lookup;
pub mod machine;
pub mod mark;
mod merge;
pub mod next_incarnation;
pub mod node_patch;
pub mod pending;
pub mod policy;
pub mod policy_set;
pub mod provenance;
pub mod record;
pub mod selection;
pub mod signature;
pub mod status;
pub mod stored_record;
#[cfg(test)]
pub(crate) mod testing;
pub mod writers;
