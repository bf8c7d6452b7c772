//! Reasons why a node, or one key of it, is as it is.

pub(crate) mod key;
pub(crate) mod node;
