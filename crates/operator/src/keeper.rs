//! The keeper: labels, annotations, taints and cordons survive the Node object.

pub mod activity;
pub mod apply;
pub mod cache;
mod cases;
pub mod controller;
mod gc;
mod intake;
mod losses;
pub mod metrics;
mod migrate;
pub mod node;
mod pending_restores;
pub mod policies;
pub mod policy_resource;
mod policy_status;
mod priority;
pub mod recall_cache;
mod reconcile;
pub mod record_keys;
pub(crate) mod record_lookup;
mod replan;
mod reports;
mod resign;
mod tasks;
#[cfg(test)]
mod tests;
mod webhook;

use std::sync::Arc;

pub use priority::Priority;

/// Name of a node: the key of the caches and of the queue.
pub type NodeKey = Arc<str>;
type NodeWork = crate::runtime::queue::WorkItem<NodeKey, Priority>;
