//! Admission: the webhook server, its certificate and the webhook configurations.

mod ca_bundle;
pub mod certificates;
pub mod configuration;
pub mod issue;
pub mod maintenance;
pub mod metrics;
pub mod server;
pub mod tasks;
