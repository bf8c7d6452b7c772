//! Test code that more than one crate needs. It depends on no other crate of Perennial, so that
//! each of them can use it.

pub mod explorer;
pub mod prng;
pub mod state_hash;
