//! What the operator serves over HTTP.

pub mod health;
pub mod http;
