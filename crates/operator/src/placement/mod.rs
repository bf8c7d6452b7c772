//! Placement: spot and on-demand replicas, exact. The decisions are in `perennial_core::placement`.

pub mod apply;
pub mod controller;
mod execute;
pub mod index;
pub mod objects;
pub mod observe;
mod places;
pub mod roll_call;
pub mod settings;
mod survey;
pub mod sweep;
pub mod webhook;

#[cfg(test)]
mod admission_tests;
#[cfg(test)]
mod tests;
