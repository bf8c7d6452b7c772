//! An OCI registry on loopback.

use std::{fs, path::Path};

use localplane::Process;

use crate::{eventually, external_programs::oci_registry};

/// A registry without TLS that keeps everything in memory. It stops when it is dropped.
#[derive(Debug)]
pub struct Registry {
    _process: Process,
    /// Host and port.
    pub address: String,
}

impl Registry {
    /// Starts a registry whose log is in this folder. `None`, with a message, if there is no program
    /// for it.
    pub async fn start(folder: &Path) -> Option<Self> {
        let program = oci_registry()?;
        let log = folder.join("registry.log");
        let args = ["-port".to_owned(), "0".to_owned()];
        let process = Process::start(&program, &args, &log).expect("the registry starts");
        let port = eventually("the registry serves", async || {
            let text = fs::read_to_string(&log).unwrap_or_default();
            let port =
                text.split_once("serving on port ").and_then(|(_, rest)| rest.lines().next()?.parse::<u16>().ok());
            port.ok_or(text)
        })
        .await;
        Some(Self { _process: process, address: format!("localhost:{port}") })
    }
}
