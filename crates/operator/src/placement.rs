//! Placement: spot and on-demand replicas, exact. The decisions are in `perennial_core::placement`.

pub mod apply;
pub mod controller;
mod execute;
mod gauges;
pub mod index;
pub mod objects;
pub mod observe;
mod reservations;
pub mod settings;
pub mod snapshot;
pub mod tasks;
pub mod ungate_all;
pub mod webhook;

/// Kind, namespace and name of a workload: the key of the caches and of the queue.
pub type Key = std::sync::Arc<str>;

#[cfg(test)]
mod admission_tests;
#[cfg(test)]
mod tests;
