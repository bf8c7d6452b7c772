//! Which policy is for which node.

use std::sync::Arc;

use perennial_core::{
    config::Keeper,
    keeper::selection::{Node, Policy},
};

/// The policies in force.
#[derive(Clone, Debug)]
pub struct Policies {
    default: Arc<Policy>,
}

impl Policies {
    pub fn new(keeper: &Keeper) -> Self {
        Self { default: Arc::new(Policy::from_settings(keeper)) }
    }

    /// The policy for a node.
    pub fn of(&self, _node: &Node) -> Arc<Policy> {
        Arc::clone(&self.default)
    }
}
