//! Builds packages from compiled programs. Called by `make image` and `make deb`.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use clap::Parser;
use perennial_package::{
    deb,
    image::{self, Build},
    sbom::{metadata, sbom},
};

/// Build packages of Perennial
#[derive(Debug, Parser)]
#[command(version)]
enum Command {
    /// Build an OCI image layout in a tar file
    Image {
        /// Static program for an architecture; repeat for a multi-architecture image
        #[arg(long = "program", required = true, value_name = "ARCH=FILE", value_parser = pair)]
        programs: Vec<(String, PathBuf)>,
        /// SBOM of the program for an architecture, added to the image
        #[arg(long = "sbom", value_name = "ARCH=FILE", value_parser = pair)]
        sboms: Vec<(String, PathBuf)>,
        #[arg(long, default_value = "perennial")]
        name: String,
        #[arg(long)]
        out: PathBuf,
    },
    /// Build a Debian package
    Deb {
        #[arg(long = "program", value_name = "ARCH=FILE", value_parser = pair)]
        program: (String, PathBuf),
        /// The same program for this machine, to print man pages and completions
        #[arg(long)]
        native: PathBuf,
        #[arg(long)]
        out: PathBuf,
    },
    /// Write an SBOM in CycloneDX of the crates that are linked for a target
    Sbom {
        #[arg(long, default_value = "x86_64-unknown-linux-musl")]
        target: String,
        /// Features of the build, as for cargo
        #[arg(long, default_value = "")]
        features: String,
        #[arg(long)]
        out: PathBuf,
    },
}

const VERSION: &str = env!("CARGO_PKG_VERSION");

fn pair(text: &str) -> Result<(String, PathBuf), String> {
    let (architecture, path) = text.split_once('=').ok_or("expected ARCH=FILE")?;
    Ok((architecture.to_owned(), path.into()))
}

fn main() -> anyhow::Result<()> {
    match Command::parse() {
        Command::Image { programs, sboms, name, out } => {
            let build = |(architecture, path): (String, PathBuf)| {
                let sbom = sboms.iter().find(|(of, _)| *of == architecture).map(|(_, path)| read(path)).transpose()?;
                anyhow::Ok(Build { architecture, program: read(&path)?, sbom, libraries: Vec::new() })
            };
            let builds = programs.into_iter().map(build).collect::<anyhow::Result<Vec<_>>>()?;
            write(&out, &image::image(&name, VERSION, &builds)?)
        }
        Command::Deb { program: (architecture, path), native, out } => {
            let native = native.to_str().context("the path of the native program is not UTF-8")?;
            write(&out, &deb::perennial(&architecture, &read(&path)?, native)?)
        }
        Command::Sbom { target, features, out } => {
            let document = sbom(&metadata("cargo", "perennial", &target, &features)?, "perennial")?;
            write(&out, &serde_json::to_vec_pretty(&document)?)
        }
    }
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

fn write(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    }
    fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))?;
    println!("{} ({} bytes)", path.display(), bytes.len());
    Ok(())
}
