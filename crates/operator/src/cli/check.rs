//! `perennial check`: checks of an installation, each with a remedy.

mod access;
mod certificate;
mod leases;
mod node_classes;
mod records;
mod signatures;
mod webhooks;

use std::{
    fmt::Write as _,
    process::ExitCode,
    time::{Duration, Instant},
};

use clap::Args;
use jiff::Timestamp;
use kube::Client;
use perennial_core::config::duration;
use serde_json::{Value, json};

use super::{
    Global, block_on, connection,
    output::Telling,
    terminal::{colours, paint_state},
};
use crate::{
    inspect::{leases::server_time, progress::Progress, session::Session},
    keeper::apply::KeeperError,
    runtime::{
        error_category::{self, Category},
        error_chain::Chain,
        reporter::CategorizedError as _,
    },
};

/// Oldest supported minor version of Kubernetes: scheduling gates are stable since 1.30.
const OLDEST_MINOR: u32 = 30;
/// Maximum difference of clocks in seconds: more makes ages and certificate lifetimes misleading.
const SKEW: i64 = 5;

#[derive(Debug, Args)]
pub(super) struct Check {
    /// Repeat the checks until none fails, for at most this long
    #[arg(long, value_name = "DURATION", num_args = 0..=1, require_equals = true, default_missing_value = "2m", value_parser = parse_duration)]
    wait: Option<Duration>,
    /// Check the permissions of this ServiceAccount in the namespace of Perennial instead of your
    /// own
    #[arg(long, value_name = "NAME")]
    service_account: Option<String>,
    /// Output format: table, json or yaml
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Telling,
}

fn parse_duration(text: &str) -> Result<Duration, String> {
    duration::parse(text).ok_or_else(|| "expected a duration such as 30s, 2m or 1h".to_owned())
}

/// Result of one check.
#[derive(Debug)]
pub(super) struct CheckResult {
    severity: CheckSeverity,
    what: &'static str,
    message: String,
    /// Remedy.
    fix: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CheckSeverity {
    Pass,
    Warn,
    Fail,
}

impl CheckResult {
    fn pass(what: &'static str, message: impl Into<String>) -> Self {
        Self { severity: CheckSeverity::Pass, what, message: message.into(), fix: None }
    }

    fn warn(what: &'static str, message: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { severity: CheckSeverity::Warn, what, message: message.into(), fix: Some(fix.into()) }
    }

    fn fail(what: &'static str, message: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { severity: CheckSeverity::Fail, what, message: message.into(), fix: Some(fix.into()) }
    }
}

impl CheckSeverity {
    fn as_str(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

impl Check {
    /// Exits with 1 if a check fails.
    pub(super) fn execute(&self, global: &Global) -> anyhow::Result<ExitCode> {
        block_on(async {
            let begun = Instant::now();
            let progress =
                Progress::new(if self.wait.is_some() { "waiting for all checks to pass" } else { "checking" }, false);
            loop {
                let lines = match self.run_checks(global).await {
                    Ok(lines) => lines,
                    Err(error) => {
                        let other = "Correct the kubeconfig or config file, or select others with --kubeconfig, --context and --config.";
                        let fix = connection::remedy(&error).unwrap_or(other);
                        vec![CheckResult::fail("cluster", Chain(error.as_ref()).to_string(), fix)]
                    }
                };
                let failed = lines.iter().any(|line| line.severity == CheckSeverity::Fail);
                if failed && self.wait.is_some_and(|limit| begun.elapsed() < limit) {
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    continue;
                }
                drop(progress);
                self.output.print(|| as_json(&lines), || to_text(&lines))?;
                return Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS });
            }
        })
    }

    async fn run_checks(&self, global: &Global) -> anyhow::Result<Vec<CheckResult>> {
        let session = global.open_session_anywhere().await?;
        let mut lines = vec![version(&session.client).await, clock(&session.client).await];
        lines.extend(access::check(&session, self.service_account.as_deref()).await);
        lines.extend(policies(&session).await);
        lines.push(leases::check(&session).await);
        lines.extend(webhooks::check(&session).await);
        lines.extend(node_classes::check(&session).await);
        lines.push(certificate::check(&session).await);
        lines.extend(records::check_nodes(&session).await);
        lines.push(records::check(&session).await);
        lines.extend(signatures::check(&session).await);
        Ok(lines)
    }
}

fn as_json(lines: &[CheckResult]) -> Value {
    let items: Vec<Value> = lines
        .iter()
        .map(|line| json!({"result": line.severity.as_str(), "what": line.what, "message": line.message, "fix": line.fix}))
        .collect();
    json!({"kind": "CheckList", "items": items})
}

fn to_text(lines: &[CheckResult]) -> String {
    let colours = colours();
    let mut text = String::new();
    for line in lines {
        let word = line.severity.as_str();
        let _ = writeln!(text, "{}   {:<13}{}", paint_state(word, colours), line.what, line.message);
        if let Some(fix) = &line.fix {
            let _ = writeln!(text, "       {:<13}→ {fix}", "");
        }
    }
    text
}

async fn version(client: &Client) -> CheckResult {
    let ours = env!("CARGO_PKG_VERSION");
    match client.apiserver_version().await {
        Ok(info) => {
            let message = format!("Kubernetes {}, perennial {ours}", info.git_version);
            let minor: String = info.minor.chars().take_while(char::is_ascii_digit).collect();
            if minor.parse::<u32>().is_ok_and(|minor| minor < OLDEST_MINOR) {
                return CheckResult::warn(
                    "version",
                    message,
                    format!(
                        "upgrade to Kubernetes 1.{OLDEST_MINOR} or newer for placement; keeping labels works without it"
                    ),
                );
            }
            CheckResult::pass("version", message)
        }
        Err(error) => CheckResult::fail(
            "version",
            error_category::message(&error),
            "check that the cluster is running and that --context selects the right one",
        ),
    }
}

/// Compares the local clock with the API server's.
async fn clock(client: &Client) -> CheckResult {
    match server_time(client).await {
        Ok(there) => {
            let skew = (Timestamp::now().as_second() - there.as_second()).abs();
            let message = format!("differs from the API server's clock by {skew} s");
            if skew <= SKEW {
                CheckResult::pass("clock", message)
            } else {
                CheckResult::warn(
                    "clock",
                    message,
                    "synchronize the clock of this machine (NTP); ages and certificate lifetimes depend on it",
                )
            }
        }
        Err(error) => {
            CheckResult::warn("clock", format!("{error:#}"), "no action needed if a proxy removes the Date header")
        }
    }
}

async fn policies(session: &Session) -> Vec<CheckResult> {
    let served = match session.client.list_api_group_resources("perennial.dev/v1alpha1").await {
        Ok(list) => list.resources.iter().any(|resource| resource.kind == "KeepPolicy"),
        Err(error) if Category::of(&error) == Category::NotFound => false,
        Err(error) => {
            let message =
                format!("could not determine whether KeepPolicy is installed: {}", error_category::message(&error));
            return vec![CheckResult::warn(
                "crds",
                message,
                remedy(Category::of(&error), "read the API group perennial.dev"),
            )];
        }
    };
    if !served {
        let fix = "to use different policies for different nodes: perennial manifests crds | kubectl apply -f -";
        return vec![CheckResult::warn(
            "crds",
            "KeepPolicy is not installed: the config file applies to all nodes",
            fix,
        )];
    }
    let mut lines = vec![CheckResult::pass("crds", "KeepPolicy is installed")];
    for (name, entry) in session.policies.entries() {
        if let Err(problems) = entry.read {
            let message = format!("KeepPolicy {name} is ignored: {}", problems.join("; "));
            lines.push(CheckResult::fail("policies", message, format!("kubectl edit keeppolicy {name}")));
        }
    }
    lines
}

/// Returns the remedy of a failed request. Only a rejected one needs a permission.
fn remedy(category: Category, permission: &str) -> String {
    match category {
        Category::Forbidden => format!("grant permission to {permission}"),
        Category::Unreachable | Category::Server | Category::Throttled => {
            "check the API server, then run this check again".to_owned()
        }
        _ => "read the message; the API server rejected the request".to_owned(),
    }
}

fn category_of(error: &anyhow::Error) -> Category {
    error.downcast_ref::<KeeperError>().map_or(Category::Refused, KeeperError::category)
}
