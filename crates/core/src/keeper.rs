//! The keeper: what people wrote on a node survives the node.
//!
//! [`plan`] is the heart: what is seen of a node and its record goes in, what is to be done comes out.

pub mod admission;
pub mod claims;
pub mod collect;
pub mod commands;
pub mod explain;
pub mod hash;
pub mod identity;
pub mod import;
pub mod keys;
pub mod machine;
pub mod mark;
mod merge;
pub mod node_patch;
pub mod plan;
pub mod policy;
pub mod record;
pub mod selection;
pub mod signature;
pub mod status;
pub mod stored_record;
