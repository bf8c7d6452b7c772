//! A simulator: the operator's own decisions and requests against an API server in memory. One seed drives time, schedule,
//! people and faults; after every history each guarantee is checked by name, from the log of what really happened.

#![expect(clippy::borrow_as_ptr, reason = "kinds are told apart by where they are")]
#![expect(missing_debug_implementations, reason = "nobody prints a simulated cluster")]

pub mod batch;
pub mod broken_rule;
pub mod client;
pub mod dice;
pub mod history;
pub mod keeper;
pub mod operator;
pub mod oracle;
pub mod placement;
pub mod server;
pub mod tamper;
