//! Builds packages of Perennial without Docker or dpkg. The same input gives the same bytes on any
//! machine.

mod archive;
pub mod deb;
pub mod image;
pub mod sbom;

use std::process::Command;

use anyhow::{Context as _, bail};

pub use archive::{Entry, Kind, tar};

/// Runs a command and returns its stdout.
pub fn output(program: &str, args: &[&str]) -> anyhow::Result<Vec<u8>> {
    let output = Command::new(program).args(args).output().with_context(|| format!("cannot run {program}"))?;
    if !output.status.success() {
        bail!("{program} {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(output.stdout)
}
