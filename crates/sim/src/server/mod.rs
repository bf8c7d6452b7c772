//! An API server in memory: as much of the real one as the operator and the people around it can tell apart.

pub mod admission;
pub mod answer;
pub mod api;
pub mod front;
pub mod kinds;
pub mod lists;
pub mod patch;
pub mod rules;
pub mod select;
pub mod store;
pub mod watch;
pub mod weather;
pub mod who;
pub mod world;
