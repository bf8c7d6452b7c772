//! Packages of Perennial, made without Docker or dpkg: the same bytes from the same input, on any machine.

pub mod deb;
pub mod image;
pub mod sbom;
mod tar;

use std::process::Command;

use anyhow::{Context as _, bail};

pub use tar::{Entry, Kind, Tar};

/// What a command prints.
pub fn output(program: &str, args: &[&str]) -> anyhow::Result<Vec<u8>> {
    let output = Command::new(program).args(args).output().with_context(|| format!("running {program}"))?;
    if !output.status.success() {
        bail!("{program} {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(output.stdout)
}
