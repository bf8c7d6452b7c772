//! What the program serves: admission, and `/metrics`, `/livez` and `/readyz`.

mod bundle;
pub mod certs;
pub mod configuration;
pub mod connection_limit;
pub mod health;
pub mod http;
pub mod issue;
pub mod upkeep;
pub mod webhooks;
