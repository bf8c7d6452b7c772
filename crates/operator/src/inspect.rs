//! Views of a cluster that the command line and the dashboard share.
//!
//! Owns the session, the join of nodes and records, explanations, histories, differences and state
//! names. Never parses arguments, never writes to the cluster.

pub(crate) mod collection;
pub(crate) mod diff;
pub(crate) mod explain;
pub(crate) mod format;
pub(crate) mod history;
pub(crate) mod inspected_node;
pub(crate) mod join;
pub(crate) mod leases;
pub(crate) mod namespace;
pub(crate) mod operator_metrics;
pub(crate) mod overview;
pub(crate) mod progress;
pub(crate) mod records;
pub(crate) mod session;
pub(crate) mod states;
