//! The one binary: operator, webhook server and command line.

pub mod cli;
pub mod dashboard;
mod inspect;
pub mod keeper;
pub mod manifests;
pub mod placement;
pub mod run;
pub mod runtime;
pub mod serve;
