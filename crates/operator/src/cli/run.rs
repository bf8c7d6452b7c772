//! `perennial run`: run the operator.

use std::process::ExitCode;

use clap::Args;
use tracing::warn;

use super::Global;
use crate::{
    run::Dependencies,
    runtime::{logging, traces::Sender},
};

#[derive(Debug, Args)]
pub(super) struct Run {
    /// Run without writing: log each write instead
    #[arg(long)]
    dry_run: bool,
    /// Set a key of the config file, for example controller.qps=50. Can be repeated
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = pair)]
    set: Vec<(String, String)>,
}

pub(super) fn pair(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("expected KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}

impl Run {
    pub(super) fn execute(self, global: &Global, dependencies: Dependencies) -> anyhow::Result<ExitCode> {
        let mut flags = self.set;
        if self.dry_run {
            flags.push(("controller.dryRun".to_owned(), "true".to_owned()));
        }
        let loaded = global.load(flags)?;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let spans = {
            let _within = runtime.enter();
            Sender::from_environment()?
        };
        logging::init(&loaded.settings.logging, &spans)?;
        for warning in &loaded.warnings {
            warn!(%warning, "configuration warning");
        }
        let ran = runtime.block_on(crate::run::run(loaded.settings, &global.target(), dependencies));
        spans.end();
        runtime.shutdown_background();
        ran?;
        Ok(ExitCode::SUCCESS)
    }
}
