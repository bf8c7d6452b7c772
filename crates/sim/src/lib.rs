//! A simulator: the operator against an API server in memory. One seed determines time, schedule,
//! workload and faults. After every history each guarantee is checked by name, from the log of the
//! server.

#![expect(clippy::borrow_as_ptr, reason = "kinds are compared by address")]
#![expect(missing_debug_implementations, reason = "a simulated cluster is never printed")]

pub mod actor;
pub mod batch;
pub mod broken_rule;
pub mod history;
pub mod keeper;
pub mod once_failed;
pub mod operator;
pub mod oracle;
pub mod panics;
pub mod placement;
pub mod server;
pub mod story;
pub mod tamper;
