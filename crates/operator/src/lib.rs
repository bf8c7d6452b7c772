//! The one binary: operator, webhook server and command line.

pub mod admission;
pub mod cli;
pub mod dashboard;
mod inspect;
pub mod keeper;
pub mod manifests;
pub mod monitoring;
pub mod placement;
pub mod run;
pub mod runtime;
