//! What the operator serves: the admission webhooks, with certificates and configurations that are kept right.

pub mod certs;
pub mod configuration;
pub mod issue;
pub mod upkeep;
pub mod webhooks;
