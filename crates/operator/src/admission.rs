//! Admission: the webhook server, its certificate and the webhook configurations.

mod ca_bundle;
pub mod certificates;
pub mod configuration;
mod fair_share;
pub mod issue;
pub mod limits;
pub mod maintenance;
mod memory;
pub mod metrics;
pub mod server;
pub mod tasks;
mod write_timeout;
