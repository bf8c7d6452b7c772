//! Placement: spot and on-demand replicas, exact. The decisions are in `perennial_core::placement`.
//!
//! Events of the watches go into the [`cache`]; [`reconcile`] takes one workload from it, lets core
//! decide and hands the decision to [`apply`]. [`webhook`] answers the admission of pods from the
//! same cache.

pub mod apply;
pub mod cache;
mod gauges;
pub mod metrics;
mod node_affinity;
pub mod objects;
pub mod reconcile;
mod refusals;
mod reservations;
pub mod settings;
pub mod snapshot;
mod takeover;
pub mod tasks;
pub mod ungate;
mod webhook;

/// Kind, namespace and name of a workload: the key of the cache and of the queue.
pub type WorkloadKey = std::sync::Arc<str>;
