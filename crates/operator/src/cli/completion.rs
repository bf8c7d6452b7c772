//! `perennial completion`: scripts for shells, and names of nodes and records as candidates.
//!
//! Completion never prints an error: without a cluster, a permission or a response in time there
//! are no names.

use std::{ffi::OsString, path::PathBuf, process::ExitCode, time::Duration};

use clap::{Args, CommandFactory, ValueEnum};
use clap_complete::{
    engine::{ArgValueCandidates, CompletionCandidate, complete},
    env::Shells,
};
use kube::{Api, api::ListParams};

use super::{Cli, Global, block_on, output::print_text};
use crate::{
    inspect::session::record_pages,
    keeper::{apply::NODE_ANNOTATION, node::Node},
};

/// Maximum time to wait for names.
const DEADLINE: Duration = Duration::from_secs(2);
/// Maximum number of names.
const NAMES: u32 = 1000;
/// Environment variable that completion scripts set to request candidates.
pub(super) const VARIABLE: &str = "COMPLETE";

/// Target of a completion script.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
    Elvish,
    Powershell,
    /// Completion of `kubectl perennial`; save as `kubectl_complete-perennial` on the PATH
    Kubectl,
}

#[derive(Debug, Args)]
pub(super) struct Completion {
    /// Shell to print the script for
    #[arg(value_enum)]
    shell: Shell,
}

/// Called by kubectl with the words of the command line so far; the last one is incomplete.
#[derive(Debug, Args)]
pub(super) struct Candidates {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<OsString>,
}

impl Completion {
    pub(super) fn execute(&self) -> anyhow::Result<ExitCode> {
        let shell = match self.shell {
            Shell::Bash => "bash",
            Shell::Zsh => "zsh",
            Shell::Fish => "fish",
            Shell::Elvish => "elvish",
            Shell::Powershell => "powershell",
            Shell::Kubectl => {
                print_text("#!/bin/sh\nexec perennial __complete \"$@\"\n")?;
                return Ok(ExitCode::SUCCESS);
            }
        };
        let shells = Shells::builtins();
        let shell = shells.completer(shell).ok_or_else(|| anyhow::anyhow!("no completion script for {shell}"))?;
        let mut script = Vec::new();
        shell.write_registration(VARIABLE, "perennial", "perennial", "perennial", &mut script)?;
        print_text(&String::from_utf8_lossy(&script))?;
        Ok(ExitCode::SUCCESS)
    }
}

impl Candidates {
    /// Prints candidates in the format of cobra: one per line, then `:4` (no file names).
    pub(super) fn execute(self) -> anyhow::Result<ExitCode> {
        let mut words = vec![OsString::from("perennial")];
        words.extend(self.words);
        if words.len() == 1 {
            words.push(OsString::new());
        }
        let last = words.len() - 1;
        let found = complete(&mut Cli::command(), words, last, None)?;
        let mut text = String::new();
        for candidate in found.iter().filter(|candidate| !candidate.is_hide_set()) {
            text.push_str(&candidate.get_value().to_string_lossy());
            if let Some(help) = candidate.get_help() {
                text.push('\t');
                text.push_str(help.to_string().lines().next().unwrap_or_default());
            }
            text.push('\n');
        }
        print_text(&(text + ":4\n"))?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Names of nodes, existing or deleted.
pub(super) fn nodes() -> ArgValueCandidates {
    ArgValueCandidates::new(|| names(true))
}

/// Names of nodes with a record.
pub(super) fn recorded() -> ArgValueCandidates {
    ArgValueCandidates::new(|| names(false))
}

fn names(live: bool) -> Vec<CompletionCandidate> {
    let listing = async {
        let global = partial_flags();
        let settings = global.load_for_command(Vec::new())?.settings;
        let client = global.connect().await?;
        let records: Api<k8s_openapi::api::core::v1::ConfigMap> =
            Api::namespaced(client.clone(), settings.namespace.as_str());
        let params = record_pages().limit(NAMES);
        let mut names: std::collections::BTreeSet<String> = std::collections::BTreeSet::new();
        if let Ok(list) = records.list_metadata(&params).await {
            names.extend(list.items.into_iter().filter_map(|item| item.metadata.annotations?.remove(NODE_ANNOTATION)));
        }
        if live {
            let nodes: Api<Node> = Api::all(client);
            if let Ok(list) = nodes.list_metadata(&ListParams::default().limit(NAMES)).await {
                names.extend(list.items.into_iter().filter_map(|item| item.metadata.name));
            }
        }
        anyhow::Ok(names)
    };
    let found = block_on(async {
        tokio::time::timeout(DEADLINE, listing).await.unwrap_or_else(|_| Ok(std::collections::BTreeSet::new()))
    });
    found.unwrap_or_default().into_iter().map(CompletionCandidate::new).collect()
}

/// Returns the global flags of the incomplete command line.
fn partial_flags() -> Global {
    let words: Vec<String> = std::env::args().collect();
    let value = |names: &[&str]| {
        words.iter().enumerate().find_map(|(place, word)| {
            let (name, value) = word.split_once('=').map_or((word.as_str(), None), |(name, value)| (name, Some(value)));
            let found =
                names.contains(&name).then(|| value.map(str::to_owned).or_else(|| words.get(place + 1).cloned()));
            found.flatten().filter(|value| !value.is_empty())
        })
    };
    Global {
        kubeconfig: value(&["--kubeconfig"]).map(PathBuf::from),
        context: value(&["--context"]),
        system_namespace: value(&["--system-namespace"]),
        namespace: value(&["-n", "--namespace"]),
        config: value(&["--config"])
            .map(PathBuf::from)
            .or_else(|| std::env::var_os("PERENNIAL_CONFIG").map(PathBuf::from)),
    }
}
