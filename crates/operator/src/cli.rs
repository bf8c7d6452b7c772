//! The command line: global flags, the list of commands and how errors are printed.
//!
//! One file per command, which parses its arguments, calls `inspect` or core, and prints.

mod check;
mod completion;
mod connection;
mod dashboard;
mod diff;
#[cfg(test)]
mod documented_commands;
mod edit;
mod explain;
mod export;
mod forget;
mod history;
mod hold;
mod import;
mod man;
mod manifests;
mod nodes;
mod output;
mod plan;
mod records;
#[cfg(test)]
mod reference;
mod restore;
mod rollback;
mod run;
mod show;
mod simulate;
mod status;
mod terminal;
mod top;
mod uninstall;
mod watch;
mod webhook;
mod workloads;

use std::{path::PathBuf, process::ExitCode};

use anyhow::Context as _;
use clap::{Args, CommandFactory, Parser, Subcommand};
use clap_complete::env::CompleteEnv;
use k8s_openapi::api::core::v1::ConfigMap;
use perennial_core::config::{Layers, Loaded, Settings, load};

use crate::{
    inspect::{
        namespace::{SettingsSource, require_namespace},
        session::Session,
    },
    run::Dependencies,
    runtime::{
        client::{self, Target},
        error_category::{self, Category},
        error_chain::Chain,
        health::Health,
        metrics::Metrics,
        reporter::CategorizedError as _,
    },
};

/// Perennial keeps node labels across node replacement and places replicas on spot and on-demand
/// capacity
#[derive(Debug, Parser)]
#[command(name = "perennial", version, propagate_version = true, disable_help_subcommand = true)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

/// Flags of all commands.
#[derive(Debug, Clone, Args)]
struct Global {
    /// Path to the kubeconfig file. Defaults to KUBECONFIG, ~/.kube/config, or the in-cluster
    /// configuration
    #[arg(long, global = true, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Name of the kubeconfig context to use
    #[arg(long, global = true, value_name = "NAME")]
    context: Option<String>,
    /// Namespace of Perennial and of its records
    #[arg(long, global = true, value_name = "NAMESPACE")]
    system_namespace: Option<String>,
    /// Namespace of workloads. Commands that read no workloads take it as --system-namespace
    #[arg(short, long, global = true, value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// Path to the config file. Defaults to the configuration of the installed operator
    #[arg(long, global = true, value_name = "FILE", env = "PERENNIAL_CONFIG", hide_env_values = true)]
    config: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the operator
    Run(run::Run),
    /// Show replicas, shards, nodes, records, lag and throughput
    Status(status::Status),
    /// List nodes and the state of their records
    #[command(visible_alias = "node")]
    Nodes(nodes::NodesArgs),
    /// List records
    #[command(visible_alias = "record")]
    Records(records::Records),
    /// Show the record of a node
    Show(show::Show),
    /// Explain the state of nodes, of labels of a node, or of workloads
    Explain(explain::Explain),
    /// Show differences between nodes and records that the operator would reconcile
    Diff(diff::Diff),
    /// Show earlier versions of records
    History(history::HistoryArgs),
    /// Roll a node and its record back to an earlier version
    Rollback(rollback::Rollback),
    /// Restore a node from its record now, replacing values on the node
    Restore(restore::RestoreArgs),
    /// Empty the record of a deleted node, or remove the history of a live one
    Forget(forget::Forget),
    /// Exclude a record from garbage collection
    Hold(hold::Hold),
    /// Export records as YAML for `perennial import`
    Export(export::Export),
    /// Create records from an export, a backup or the data of another tool
    Import(import::Import),
    /// Check permissions, webhooks, certificates, Leases and clocks
    Check(check::Check),
    /// Show node churn, lag and shards, updated continuously
    Top(top::Top),
    /// Serve the dashboard on localhost
    Dashboard(dashboard::DashboardArgs),
    /// List workloads with placement annotations and their replicas per capacity type
    Workloads(workloads::Workloads),
    /// Show the placement of a number of replicas, without a cluster
    Simulate(simulate::Simulate),
    /// Show what the operator would do with the objects in a file, without a cluster
    Plan(plan::Plan),
    /// Manage the webhook configurations
    #[command(subcommand)]
    Webhook(webhook::Webhook),
    /// Remove what the operator created, list what remains; --all removes what the manifests
    /// installed
    Uninstall(uninstall::Uninstall),
    /// Print the manifests of an installation
    Manifests(manifests::Manifests),
    /// Print a shell completion script
    Completion(completion::Completion),
    /// Write man pages
    #[command(hide = true)]
    Man(man::Man),
    /// Print completion candidates
    #[command(name = "__complete", hide = true)]
    Candidates(completion::Candidates),
}

/// The program. Exits with 0, or prints an error and exits with 1.
pub fn main() -> ExitCode {
    main_in(Dependencies::default())
}

/// The program, with the dependencies of `perennial run` provided by the caller.
pub fn main_in(dependencies: Dependencies) -> ExitCode {
    CompleteEnv::with_factory(Cli::command).var(completion::VARIABLE).complete();
    let cli = Cli::parse();
    match execute(cli, dependencies) {
        Ok(code) => code,
        Err(error) if output::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            print_error(&error);
            ExitCode::FAILURE
        }
    }
}

/// Parses the name of a node, also as `-o name` prints it: `node/NAME`, or `configmap/node-NAME`
/// for its record.
#[expect(clippy::unnecessary_wraps, reason = "the signature of a value parser")]
fn node_name(text: &str) -> Result<String, String> {
    let name = match text.split_once('/') {
        Some(("node" | "nodes" | "no", name)) => name,
        Some(("configmap" | "configmaps" | "cm", record)) => record.strip_prefix("node-").unwrap_or(record),
        _ => text,
    };
    Ok(name.to_owned())
}

/// Runs a command for each name. Goes on after an error, as kubectl does, and then exits with 1.
async fn for_each(names: &[String], mut work: impl AsyncFnMut(&str) -> anyhow::Result<()>) -> anyhow::Result<ExitCode> {
    let mut code = ExitCode::SUCCESS;
    for name in names {
        match work(name).await {
            Ok(()) => {}
            Err(error) if output::is_broken_pipe(&error) => return Err(error),
            Err(error) => {
                print_error(&error);
                code = ExitCode::FAILURE;
            }
        }
    }
    Ok(code)
}

/// Prints an error and, where one is known, its remedy.
fn print_error(error: &anyhow::Error) {
    eprintln!("error: {}", Chain(error.as_ref()));
    if let Some(remedy) = connection::remedy(error) {
        eprintln!("{remedy}");
        return;
    }
    let known = error.chain().find_map(|cause| {
        let keeper = cause.downcast_ref::<crate::keeper::apply::KeeperError>();
        let placement = cause.downcast_ref::<crate::placement::apply::PlacementError>();
        let keeper = keeper.map(|failed| (failed.missing_permission(), failed.category()));
        keeper.or_else(|| placement.map(|failed| (failed.missing_permission(), failed.category())))
    });
    match known {
        Some((Some(permission), _)) => {
            eprintln!("You need permission to {permission}. `perennial check` lists all missing permissions.");
        }
        Some((None, Category::Unreachable)) => eprintln!("{}", connection::SELECT_CLUSTER),
        _ => {}
    }
}

fn execute(cli: Cli, dependencies: Dependencies) -> anyhow::Result<ExitCode> {
    let global = cli.global;
    match cli.command {
        Command::Run(run) => run.execute(&global, dependencies),
        Command::Status(status) => status.execute(&global),
        Command::Nodes(nodes) => nodes.execute(&global),
        Command::Records(records) => records.execute(&global),
        Command::Show(show) => show.execute(&global),
        Command::Explain(explain) => explain.execute(&global),
        Command::Diff(diff) => diff.execute(&global),
        Command::History(history) => history.execute(&global),
        Command::Rollback(rollback) => rollback.execute(&global),
        Command::Restore(restore) => restore.execute(&global),
        Command::Forget(forget) => forget.execute(&global),
        Command::Hold(hold) => hold.execute(&global),
        Command::Export(export) => export.execute(&global),
        Command::Import(import) => import.execute(&global),
        Command::Check(check) => check.execute(&global),
        Command::Top(top) => top.execute(&global),
        Command::Dashboard(dashboard) => dashboard.execute(&global),
        Command::Workloads(workloads) => workloads.execute(&global),
        Command::Simulate(simulate) => simulate.execute(),
        Command::Plan(plan) => plan.execute(&global),
        Command::Webhook(webhook) => webhook.execute(&global),
        Command::Uninstall(uninstall) => uninstall.execute(&global),
        Command::Manifests(manifests) => manifests.execute(&global),
        Command::Completion(completion) => completion.execute(),
        Command::Man(man) => man.execute(),
        Command::Candidates(candidates) => candidates.execute(),
    }
}

impl Global {
    fn target(&self) -> Target {
        Target { kubeconfig: self.kubeconfig.clone(), context: self.context.clone() }
    }

    /// Connects to the API server. Fails if it does not answer, or rejects the credentials.
    async fn connect(&self) -> anyhow::Result<kube::Client> {
        self.connect_observed(None).await
    }

    /// Like [`Self::connect`]; `health` receives which watches are accepted.
    async fn connect_observed(&self, health: Option<Health>) -> anyhow::Result<kube::Client> {
        let listeners = client::Listeners { metrics: Metrics::new(), budget: None, clock: None, health };
        let config = client::config(&self.target()).await?;
        let url = config.cluster_url.to_string();
        let client = client::connect(config, listeners)?;
        connection::require_answer(&client, url).await?;
        Ok(client)
    }

    /// Opens a session in the namespace of Perennial, and prints its warnings. Fails if the
    /// namespace does not exist, or if Perennial runs in another one.
    async fn open_session(&self) -> anyhow::Result<Session> {
        self.open_session_observed(None).await
    }

    /// Like [`Self::open_session`]; `health` receives which watches are accepted.
    async fn open_session_observed(&self, health: Option<Health>) -> anyhow::Result<Session> {
        let session = self.open_session_over(self.connect_observed(health).await?).await?;
        let warning = require_namespace(&session.client, &session.settings, &session.source).await?;
        if let Some(warning) = warning {
            eprintln!("{warning}");
        }
        Ok(session)
    }

    /// Opens a session without checks of the namespace.
    async fn open_session_anywhere(&self) -> anyhow::Result<Session> {
        self.open_session_over(self.connect().await?).await
    }

    async fn open_session_over(&self, client: kube::Client) -> anyhow::Result<Session> {
        let (settings, source) = self.load_from(&client).await?;
        let session = Session::open(client, settings, source).await;
        for warning in &session.warnings {
            eprintln!("{warning}");
        }
        Ok(session)
    }

    /// Returns the settings of `run` from file, environment and flags, or all of their problems.
    fn load(&self, flags: Vec<(String, String)>) -> anyhow::Result<Loaded> {
        self.load_with(self.read_file()?, flags, |_| true)
    }

    /// Returns the settings of a command. Variables of older tools, such as `LOG_LEVEL`, are for
    /// `run` only.
    fn load_for_command(&self, flags: Vec<(String, String)>) -> anyhow::Result<Loaded> {
        self.load_with(self.read_file()?, flags, is_ours)
    }

    fn read_file(&self) -> anyhow::Result<Option<String>> {
        let Some(path) = &self.config else { return Ok(None) };
        let text = std::fs::read_to_string(path);
        text.map(Some).map_err(|error| anyhow::anyhow!("could not read config file {}: {error}", path.display()))
    }

    /// Returns the settings of the operator in a cluster: those of the config file if one is given,
    /// else those of the ConfigMap of its installation. Also returns where they were read, or why
    /// the ConfigMap could not be read.
    async fn load_from(&self, client: &kube::Client) -> anyhow::Result<(Settings, Result<SettingsSource, String>)> {
        let settings = self.load_for_command(Vec::new())?.settings;
        if self.config.is_some() {
            return Ok((settings, Ok(SettingsSource::File)));
        }
        let api: kube::Api<ConfigMap> = kube::Api::namespaced(client.clone(), settings.namespace.as_str());
        let installed = match api.get_opt(INSTALLED_CONFIG).await {
            Ok(installed) => installed,
            Err(error) => {
                let why = format!("could not read ConfigMap {INSTALLED_CONFIG}: {}", error_category::message(&error));
                return Ok((settings, Err(why)));
            }
        };
        match installed.and_then(|found| found.data?.remove(INSTALLED_CONFIG_KEY)) {
            Some(file) => {
                let namespace = ("namespace".to_owned(), settings.namespace.to_string());
                let loaded = self.load_with(Some(file), vec![namespace], is_ours);
                let loaded = loaded
                    .with_context(|| format!("invalid ConfigMap {INSTALLED_CONFIG}; --config reads a file instead"))?;
                Ok((loaded.settings, Ok(SettingsSource::ConfigMap)))
            }
            None => Ok((settings, Ok(SettingsSource::Defaults))),
        }
    }

    fn load_with(
        &self,
        file: Option<String>,
        mut flags: Vec<(String, String)>,
        is_read: fn(&str) -> bool,
    ) -> anyhow::Result<Loaded> {
        if let Some(namespace) = self.system_namespace.as_ref().or(self.namespace.as_ref()) {
            flags.push(("namespace".to_owned(), namespace.clone()));
        }
        let environment = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .filter(|(name, _)| is_read(name))
            .collect();
        Ok(load(&Layers { file, environment, flags })?)
    }
}

/// Returns whether a variable is one of Perennial's own.
fn is_ours(name: &str) -> bool {
    name.starts_with("PERENNIAL_")
}

/// ConfigMap with the operator's configuration, and the key in it.
const INSTALLED_CONFIG: &str = "perennial-config";
const INSTALLED_CONFIG_KEY: &str = "config.yaml";

/// Runs a command on a single-threaded runtime.
fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_accepted_as_they_are_printed() {
        for text in ["worker-1", "node/worker-1", "no/worker-1", "configmap/node-worker-1"] {
            assert_eq!(node_name(text).as_deref(), Ok("worker-1"), "{text}");
        }
        assert_eq!(node_name("configmap/id-providerid-x-0123").as_deref(), Ok("id-providerid-x-0123"));
    }
}
