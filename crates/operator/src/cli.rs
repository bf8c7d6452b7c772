//! The command line, in kubectl's manners.

mod check;
mod completion;
mod dashboard;
mod diff;
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
    inspect::session::Session,
    run::Dependencies,
    runtime::{
        client::{self, Target},
        error_category::{self, Category},
        error_chain::Chain,
        metrics::Metrics,
    },
};

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
    /// The config file. Without it commands judge by the one that the operator was installed with
    #[arg(long, global = true, value_name = "FILE", env = "PERENNIAL_CONFIG", hide_env_values = true)]
    config: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the operator
    Run(run::Run),
    /// Show how everything stands: members, shards, nodes, records, lag and throughput
    Status(status::Status),
    /// List the nodes and where they stand with their records
    #[command(visible_alias = "node")]
    Nodes(nodes::Nodes),
    /// List the records
    #[command(visible_alias = "record")]
    Records(records::Records),
    /// Show what is kept for a node
    Show(show::Show),
    /// Tell the story of a node, of one of its labels, or of a workload: why it is as it is
    Explain(explain::Explain),
    /// Show what the operator would change now: nodes against records
    Diff(diff::Diff),
    /// Show what was kept for a node before, and what changed
    History(history::History),
    /// Go back to what was kept before
    Rollback(rollback::Rollback),
    /// Give a node what its record has, now: the record's values win
    Restore(restore::Restore),
    /// Forget what is kept for a node
    Forget(forget::Forget),
    /// Keep a record for ever, whether its node returns or not
    Hold(hold::Hold),
    /// Print all records as one YAML, which `import` takes back
    Export(export::Export),
    /// Make records of what other tools left behind, of backups, or of an export
    Import(import::Import),
    /// Check that everything is in place: permissions, webhooks, certificates, Leases, clock
    Check(check::Check),
    /// Watch what happens: churn, lag, shards
    Top(top::Top),
    /// Serve a page that shows all of this, live, to this machine only
    Dashboard(dashboard::Dashboard),
    /// List the workloads that ask for placement: what they asked for, what they have, and why
    Workloads(workloads::Workloads),
    /// Show the slots of a workload. Needs no cluster
    Simulate(simulate::Simulate),
    /// Show what the operator would do with the objects in a file: nodes, records, policies, workloads. Needs no cluster
    Plan(plan::Plan),
    /// The webhooks
    #[command(subcommand)]
    Webhook(webhook::Webhook),
    /// Remove everything of Perennial from the cluster but the records
    Uninstall(uninstall::Uninstall),
    /// Print what is installed in a cluster
    Manifests(manifests::Manifests),
    /// Print a completion script
    Completion(completion::Completion),
    /// Write man pages
    #[command(hide = true)]
    Man(man::Man),
    /// What comes next on this command line
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
        Err(error) if output::is_enough(&error) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&error);
            ExitCode::FAILURE
        }
    }
}

/// Says what went wrong and, where that is known, what to do about it.
fn complain(error: &anyhow::Error) {
    eprintln!("error: {}", Chain(error.as_ref()));
    let known = error.chain().find_map(|cause| {
        let keeper = cause.downcast_ref::<crate::keeper::apply::Error>();
        let placement = cause.downcast_ref::<crate::placement::apply::Error>();
        let keeper = keeper.map(|failed| (failed.missing_permission(), failed.category()));
        keeper.or_else(|| placement.map(|failed| (failed.missing_permission(), failed.category())))
    });
    match known {
        Some((Some(permission), _)) => {
            eprintln!("You need to be allowed to {permission}; `perennial check` lists what is missing.");
        }
        Some((None, Category::Unreachable)) => {
            eprintln!("Is this the right cluster, and is it up? --context and --kubeconfig choose another.");
        }
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

    async fn connect(&self) -> anyhow::Result<kube::Client> {
        let listeners = client::Listeners { metrics: Metrics::new(), budget: None, clock: None };
        Ok(client::connect(client::config(&self.target()).await?, listeners)?)
    }

    /// Opens a session, and prints its warnings.
    async fn open_session(&self) -> anyhow::Result<Session> {
        let client = self.connect().await?;
        let (settings, installed) = self.load_from(&client).await?;
        let session = Session::open(client, settings, installed).await;
        for warning in &session.warnings {
            eprintln!("{warning}");
        }
        Ok(session)
    }

    /// The settings from file, environment and flags; all problems at once where there are any.
    fn load(&self, flags: Vec<(String, String)>) -> anyhow::Result<Loaded> {
        let file = match &self.config {
            Some(path) => Some(
                std::fs::read_to_string(path)
                    .map_err(|error| anyhow::anyhow!("could not read the config file {}: {error}", path.display()))?,
            ),
            None => None,
        };
        self.load_with(file, flags)
    }

    /// The settings with which the operator runs in a cluster: where no file is given, those of the ConfigMap that it
    /// was installed with, so that commands judge as it does. True where one of the two was there; or why that is not known.
    async fn load_from(&self, client: &kube::Client) -> anyhow::Result<(Settings, Result<bool, String>)> {
        let settings = self.load(Vec::new())?.settings;
        if self.config.is_some() {
            return Ok((settings, Ok(true)));
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
                let loaded = self.load_with(Some(file), vec![namespace]);
                let loaded = loaded.with_context(|| format!("ConfigMap {INSTALLED_CONFIG}; --config reads another"))?;
                Ok((loaded.settings, Ok(true)))
            }
            None => Ok((settings, Ok(false))),
        }
    }

    fn load_with(&self, file: Option<String>, mut flags: Vec<(String, String)>) -> anyhow::Result<Loaded> {
        if let Some(namespace) = &self.namespace {
            flags.push(("namespace".to_owned(), namespace.clone()));
        }
        let environment = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        Ok(load(&Layers { file, environment, flags })?)
    }
}

/// Where an installation keeps the operator's configuration.
const INSTALLED_CONFIG: &str = "perennial-config";
const INSTALLED_CONFIG_KEY: &str = "config.yaml";

/// One thread is enough for a command; the operator uses all.
fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work)
}
