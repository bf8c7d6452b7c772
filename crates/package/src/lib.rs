//! Packages of Perennial, made without Docker or dpkg: the same bytes from the same input, on any machine.

pub mod deb;
pub mod image;
pub mod sbom;
mod tar;

pub use tar::{Entry, Kind, Tar};
