//! `perennial dashboard`: the dashboard of the cluster in a kubeconfig, on localhost only.

use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;
use kube::api::ListParams;
use perennial_core::config::settings::{LogFormat, LogLevel, Logging, Role};
use tokio_util::sync::CancellationToken;

use super::{Global, connection, output::print_text};
use crate::{
    dashboard::{self, Guard, Server},
    inspect::{
        namespace::{other_settings, require_namespace},
        session::record_pages,
    },
    keeper::{apply::KeeperClient, record_keys::Signatures},
    run::{dashboard_tasks, observe, stop_signal},
    runtime::{
        budget::Budget,
        client::{self, ClusterNames, Listeners},
        clock::Clock,
        environment::Environment,
        error_chain::Chain,
        health::Health,
        http,
        jitter::Jitter,
        logging,
        metrics::Metrics,
        ownership::Ownership,
        tasks::Supervisor,
        traces::Sender,
    },
};

/// Serve the dashboard at an unguessable address on localhost until interrupted. The dashboard is
/// read-only
#[derive(Debug, Args)]
pub(super) struct DashboardArgs {
    /// Port on 127.0.0.1; 0 selects a free port
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    port: u16,
}

impl DashboardArgs {
    pub(super) fn execute(&self, global: &Global) -> anyhow::Result<ExitCode> {
        logging::init(&Logging { level: LogLevel::Error, format: LogFormat::Text }, &Sender::default())?;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        runtime.block_on(self.serve(global))?;
        runtime.shutdown_background();
        Ok(ExitCode::SUCCESS)
    }

    async fn serve(&self, global: &Global) -> anyhow::Result<()> {
        let (metrics, budget) = (Metrics::new(), Budget::new(100, 1000));
        // Nothing here writes. If it did, the API server would not store the change.
        let config = client::config(&global.target()).await?;
        let (names, clock) = (ClusterNames::of(&global.target()), Clock::system());
        let health = Health::new();
        let listeners = Listeners {
            metrics: metrics.clone(),
            budget: Some(budget.clone()),
            clock: Some(clock.clone()),
            health: Some(health.clone()),
        };
        let url = config.cluster_url.to_string();
        let client = client::connect_for_dry_run(config, listeners)?;
        connection::require_answer(&client, url).await?;
        let (mut settings, source) = global.load_from(&client).await?;
        if let Err(why) = &source {
            eprintln!("{}", other_settings(why));
        }
        if let Some(warning) = require_namespace(&client, &settings, &source).await? {
            eprintln!("{warning}");
        }
        let installed = settings.clone();
        settings.controller.dry_run = true;
        settings.controller.roles = Role::ALL.iter().copied().collect();
        settings.dashboard.enabled = true;
        // A missing permission fails the command here instead of leaving the page empty.
        let (signatures, trouble) = Signatures::for_command(&client, &settings).await;
        if let Some(trouble) = trouble {
            eprintln!("warning: signatures of records are not checked: {}", Chain(&trouble));
        }
        let cluster =
            KeeperClient::new(client.clone(), settings.namespace.as_str(), budget.clone(), signatures.clone());
        cluster.list_nodes(&ListParams::default().limit(1)).await?;
        cluster.list_records(&record_pages().limit(1)).await?;
        let bound = http::bind_loopback(self.port)
            .with_context(|| format!("could not listen on port {}; choose another one with --port", self.port))?;
        let guard = Guard::random();
        let address = format!("http://{}{}", bound.address(), guard.path());
        let ownership = Ownership::none(u32::from(settings.controller.shards));
        let stop = CancellationToken::new();
        let env = Environment {
            leases: client.clone(),
            admission: client.clone(),
            admission_budget: Budget::unlimited(),
            client,
            budget,
            metrics,
            clock,
            jitter: Jitter::seeded(rand::random()),
            identity: "dashboard".to_owned(),
            history: crate::runtime::history::History::default(),
            health,
            drained: stop.clone(),
            stop,
        };
        let (parts, mut tasks) = observe(&settings, &env, ownership, signatures)?;
        let page = dashboard::Dashboard::new(parts, Server::Command, &installed, names, &env);
        tasks.extend(dashboard_tasks(page, guard, bound, &env.stop));
        let mut tasks = Supervisor::start(tasks);
        print_text(&format!("{address}\n"))?;
        eprintln!("Serving the dashboard on localhost. Press Ctrl-C to stop.");
        tokio::select! {
            _ = stop_signal() => {}
            error = tasks.first_end() => return Err(error.into()),
        }
        env.stop.cancel();
        Ok(())
    }
}
