//! An API server in memory, as complete as the operator needs. `tests/conformance.rs` compares it
//! with a real one.

pub mod admission;
pub mod api;
pub mod authn;
pub mod fault_plan;
pub mod http;
pub mod kinds;
pub mod lists;
pub mod patch;
pub mod response;
pub mod rules;
pub mod select;
pub mod store;
pub mod watch;
pub mod world;
