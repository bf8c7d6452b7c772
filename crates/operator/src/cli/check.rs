//! `perennial check`: checks of an installation, each with a remedy.

mod access;
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
use perennial_core::{certs::Certificates, config::duration, keeper::stored_record::Stored};
use serde_json::{Value, json};

use super::{
    Global, block_on,
    output::Telling,
    terminal::{colours, paint_state},
};
use crate::{
    admission::certificates::SecretStore,
    inspect::{
        format::span,
        leases::{LeaseSnapshot, ReplicaGroup, server_time},
        progress::Progress,
        session::Session,
    },
    runtime::error_category,
};

/// Oldest supported minor version of Kubernetes: scheduling gates are stable since 1.30.
const OLDEST_MINOR: u32 = 30;
/// Maximum difference of clocks in seconds: more makes ages and certificate lifetimes misleading.
const SKEW: i64 = 5;
const DAY: i64 = 24 * 3600;

#[derive(Debug, Args)]
pub(super) struct Check {
    /// Repeat the checks until none fails, for at most this long
    #[arg(long, value_name = "DURATION", num_args = 0..=1, require_equals = true, default_missing_value = "2m", value_parser = parse_duration)]
    wait: Option<Duration>,
    /// Check the permissions of this ServiceAccount in the namespace of Perennial instead of your own
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
                        let fix = "check --kubeconfig, --context and --config";
                        vec![CheckResult::fail("cluster", format!("{error:#}"), fix)]
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
        let session = global.open_session().await?;
        let mut lines = vec![version(&session.client).await, clock(&session.client).await];
        lines.extend(access::check(&session, self.service_account.as_deref()).await);
        lines.extend(policies(&session).await);
        lines.push(leases(&session).await);
        lines.extend(webhooks::check(&session).await);
        lines.push(certificate(&session).await);
        lines.push(records(&session).await);
        lines.extend(signatures::check(&session).await);
        Ok(lines)
    }
}

fn as_json(lines: &[CheckResult]) -> Value {
    let items: Vec<Value> = lines
        .iter()
        .map(|line| json!({"result": line.severity.as_str(), "what": line.what, "said": line.message, "fix": line.fix}))
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
            let said = format!("Kubernetes {}, perennial {ours}", info.git_version);
            let minor: String = info.minor.chars().take_while(char::is_ascii_digit).collect();
            if minor.parse::<u32>().is_ok_and(|minor| minor < OLDEST_MINOR) {
                return CheckResult::warn(
                    "version",
                    said,
                    format!(
                        "upgrade to Kubernetes 1.{OLDEST_MINOR} or newer for placement; keeping labels works without it"
                    ),
                );
            }
            CheckResult::pass("version", said)
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
            let said = format!("differs from the API server's clock by {skew} s");
            if skew <= SKEW {
                CheckResult::pass("clock", said)
            } else {
                CheckResult::warn(
                    "clock",
                    said,
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
    let kind = session.client.list_api_group_resources("perennial.dev/v1alpha1").await;
    let served = kind.is_ok_and(|list| list.resources.iter().any(|resource| resource.kind == "KeepPolicy"));
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
            let said = format!("KeepPolicy {name} is ignored: {}", problems.join("; "));
            lines.push(CheckResult::fail("policies", said, format!("kubectl edit keeppolicy {name}")));
        }
    }
    lines
}

async fn leases(session: &Session) -> CheckResult {
    let namespace = session.settings.namespace.as_str();
    let found = match LeaseSnapshot::read(&session.client, namespace).await {
        Ok(found) => found,
        Err(error) => {
            return CheckResult::fail(
                "leases",
                format!("{error:#}"),
                "grant permission to list leases in this namespace",
            );
        }
    };
    if found.groups.is_empty() {
        let said = format!("no operator holds a Lease in namespace {namespace}");
        return if session.settings.controller.leader_election.enabled {
            CheckResult::fail("leases", said, "start the operator or read its log; select another namespace with -n")
        } else {
            CheckResult::warn("leases", said, "leader election is off: make sure that only one operator runs")
        };
    }
    let unheld: Vec<String> = found.groups.iter().flat_map(ReplicaGroup::unheld).collect();
    if !unheld.is_empty() {
        let said = format!("no replica holds {}", unheld.join(", "));
        return CheckResult::fail(
            "leases",
            said,
            "read the operator's log; the Lease of a crashed replica expires after its duration",
        );
    }
    let members: usize =
        found.groups.iter().map(|group| group.members.iter().filter(|member| member.alive).count()).sum();
    let shards: usize = found.groups.iter().map(|group| group.shards.len()).sum();
    CheckResult::pass("leases", format!("{members} replica(s) hold {shards} shard(s)"))
}

async fn certificate(session: &Session) -> CheckResult {
    let what = "certificate";
    if !session.settings.webhook.enabled {
        return CheckResult::pass(what, "not needed: webhooks are off");
    }
    if session.settings.webhook.cert_dir.is_some() {
        return CheckResult::pass(what, "read from webhook.certDir; renewed by whatever writes it");
    }
    match SecretStore::new(session.client.clone(), session.settings.namespace.as_str()).read().await {
        Err(error) => CheckResult::warn(
            what,
            format!("{error}"),
            "grant permission to get the Secret, which contains the expiry date",
        ),
        Ok(kept) => match kept.certificates {
            None if kept.exists() => CheckResult::fail(
                what,
                "the Secret contains no certificates of Perennial",
                "delete the Secret; the operator creates a new one",
            ),
            None => CheckResult::warn(
                what,
                "not created yet",
                "the operator creates it when it starts with webhooks enabled",
            ),
            Some(found) => expiry(&found, Timestamp::now().as_second()),
        },
    }
}

fn expiry(found: &Certificates, now: i64) -> CheckResult {
    let left = found.serving.expires - now;
    let said = format!("the serving certificate expires in {}", span(left));
    match left {
        ..=0 => CheckResult::fail(
            "certificate",
            "the serving certificate has expired",
            "read the operator's log; it renews the certificate automatically",
        ),
        left if left < 10 * DAY => {
            CheckResult::warn("certificate", said, "the certificate should have been renewed; read the operator's log")
        }
        _ => CheckResult::pass("certificate", said),
    }
}

async fn records(session: &Session) -> CheckResult {
    let (mut all, mut bad) = (0_usize, Vec::new());
    let read = session
        .each_record(|page| {
            all += page.len();
            bad.extend(
                page.iter()
                    .filter(|held| matches!(held.stored(), Stored::Bad { .. }))
                    .map(|held| held.name().to_owned()),
            );
            Ok(())
        })
        .await;
    match read {
        Err(error) => {
            CheckResult::fail("records", format!("{error:#}"), "grant permission to list configmaps in this namespace")
        }
        Ok(()) if bad.is_empty() => CheckResult::pass("records", format!("{all}, all valid")),
        Ok(()) => {
            let some = bad.iter().take(3).cloned().collect::<Vec<_>>().join(", ");
            let said = format!("{} of {all} are quarantined: {some}", bad.len());
            CheckResult::warn(
                "records",
                said,
                "run `perennial explain NODE` for the reason; quarantined records are not restored",
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use perennial_core::certs::Serving;

    use super::*;

    #[test]
    fn certificate_result_depends_on_its_remaining_lifetime() {
        let serving = Serving {
            authority: String::new(),
            certificate: String::new(),
            key: String::new(),
            issued: 0,
            expires: 100 * DAY,
            names: Vec::new(),
        };
        let found = Certificates { version: 1, authorities: Vec::new(), serving };
        let at = |now: i64| expiry(&found, now).severity;
        assert_eq!(
            [at(0), at(95 * DAY), at(101 * DAY)],
            [CheckSeverity::Pass, CheckSeverity::Warn, CheckSeverity::Fail]
        );
    }
}
