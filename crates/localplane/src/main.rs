//! `localplane`: a real Kubernetes control plane on this machine. The library contains everything.

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    match localplane::cli::Cli::parse().run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("localplane: {error:#}");
            ExitCode::FAILURE
        }
    }
}
