//! The keeper: labels, annotations, taints and cordons survive the Node object.

pub mod activity;
pub mod apply;
pub mod cache;
pub mod controller;
mod gauges;
mod gc;
mod migrate;
pub mod node;
pub mod policies;
mod policy_status;
pub mod recall_cache;
mod reconcile;
pub mod record_keys;
mod resign;
mod webhook;
