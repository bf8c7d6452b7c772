//! The command line, in kubectl's manners.

mod change;
mod leave;
mod manifests;
mod objects;
mod output;
mod plan;
mod records;
mod run;
mod show;
mod workloads;

use std::{path::PathBuf, process::ExitCode};

use clap::{Args, CommandFactory, Parser, Subcommand};
use perennial_core::config::{Layers, Loaded, load};

use crate::runtime::{chain::Chain, client::Target};

/// Keeps what people wrote on nodes, and places replicas on spot and on-demand capacity.
#[derive(Debug, Parser)]
#[command(name = "perennial", version, propagate_version = true, disable_help_subcommand = true)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

/// Flags that every command takes.
#[derive(Debug, Clone, Args)]
struct Global {
    /// The kubeconfig file. Without it: KUBECONFIG, ~/.kube/config, or the cluster that this runs in
    #[arg(long, global = true, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The kubeconfig's context to use
    #[arg(long, global = true, value_name = "NAME")]
    context: Option<String>,
    /// Perennial's own namespace, where the records are
    #[arg(short, long, global = true, value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// The config file
    #[arg(long, global = true, value_name = "FILE", env = "PERENNIAL_CONFIG")]
    config: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the operator
    Run(run::Run),
    /// Show what is kept for a node
    Show(show::Show),
    /// List the records
    #[command(visible_alias = "record")]
    Records(records::Records),
    /// List the workloads that ask for placement: what they asked for, what they have, and why
    Workloads(workloads::Workloads),
    /// Explain where a workload's replicas run, and what is about to be done
    Explain(workloads::Explain),
    /// Show the slots of a workload. Needs no cluster
    Simulate(workloads::Simulate),
    /// Show what the workloads in a file would get. Needs no cluster
    Plan(plan::PlanFile),
    /// Go back to what was kept before
    Rollback(change::Rollback),
    /// Give a node what its record has, now: the record's values win
    Restore(change::RestoreNow),
    /// Forget what is kept for a node
    Forget(change::Forget),
    /// Keep a record for ever, whether its node returns or not
    Hold(change::Hold),
    /// The webhooks
    #[command(subcommand)]
    Webhook(leave::Webhook),
    /// Remove everything of Perennial from the cluster but the records
    Uninstall(leave::Uninstall),
    /// Print what is installed in a cluster
    Manifests(manifests::Manifests),
    /// Write a man page for each command
    Man {
        /// The folder to write to
        folder: PathBuf,
    },
    /// Print a completion script
    Completion {
        /// bash, zsh, fish, elvish or powershell
        shell: clap_complete::Shell,
    },
}

/// The program. Ends with 0, or with 1 and a sentence that says what went wrong.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    match execute(cli) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {}", Chain(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

fn execute(cli: Cli) -> anyhow::Result<ExitCode> {
    let global = cli.global;
    match cli.command {
        Command::Run(run) => run.execute(&global),
        Command::Show(show) => show.execute(&global),
        Command::Records(records) => records.execute(&global),
        Command::Workloads(workloads) => workloads.execute(&global),
        Command::Explain(explain) => explain.execute(&global),
        Command::Simulate(simulate) => simulate.execute(),
        Command::Plan(plan) => plan.execute(&global),
        Command::Rollback(rollback) => rollback.execute(&global),
        Command::Restore(restore) => restore.execute(&global),
        Command::Forget(forget) => forget.execute(&global),
        Command::Hold(hold) => hold.execute(&global),
        Command::Webhook(webhook) => webhook.execute(&global),
        Command::Uninstall(uninstall) => uninstall.execute(&global),
        Command::Manifests(manifests) => manifests.execute(&global),
        Command::Man { folder } => {
            let written =
                std::fs::create_dir_all(&folder).and_then(|()| clap_mangen::generate_to(Cli::command(), &folder));
            written.map_err(|error| anyhow::anyhow!("could not write to {}: {error}", folder.display()))?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Completion { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "perennial", &mut std::io::stdout());
            Ok(ExitCode::SUCCESS)
        }
    }
}

impl Global {
    fn target(&self) -> Target {
        Target { kubeconfig: self.kubeconfig.clone(), context: self.context.clone() }
    }

    /// The settings from file, environment and flags; all problems at once where there are any.
    fn load(&self, mut flags: Vec<(String, String)>) -> anyhow::Result<Loaded> {
        let file = match &self.config {
            Some(path) => Some(
                std::fs::read_to_string(path)
                    .map_err(|error| anyhow::anyhow!("could not read the config file {}: {error}", path.display()))?,
            ),
            None => None,
        };
        if let Some(namespace) = &self.namespace {
            flags.push(("namespace".to_owned(), namespace.clone()));
        }
        let environment = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        Ok(load(&Layers { file, environment, flags })?)
    }
}

/// One thread is enough for a command; the operator uses all.
fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work)
}
