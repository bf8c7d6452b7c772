//! The keeper: what people wrote on a node survives the node.
//!
//! [`plan`] is the heart: what is seen of a node and its record goes in, what is to be done comes out.

pub mod admission;
pub mod claims;
pub mod collect;
pub mod explain;
pub mod hash;
pub mod identity;
pub mod import;
pub mod kept;
pub mod machine;
pub mod manual;
pub mod mark;
mod merge;
pub mod plan;
pub mod policy;
pub mod record;
pub mod restore;
pub mod selection;
pub mod signature;
pub mod standing;
pub mod stored;
