//! `perennial check`: checks of an installation, each with a remedy.

mod access;
mod certificate;
mod node_classes;
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
use perennial_core::{
    config::duration,
    keeper::{status::KeepState, stored_record::Stored},
};
use serde_json::{Value, json};

use super::{
    Global, block_on,
    output::Telling,
    terminal::{colours, paint_state},
};
use crate::{
    inspect::{
        leases::{LeaseSnapshot, ReplicaGroup, namespaces_of_live_replicas, server_time},
        progress::Progress,
        session::Session,
    },
    runtime::{
        error_category::{self, Category},
        error_chain::Chain,
        health::UNWRITABLE,
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
                        let fix = "check that the cluster is running, and --kubeconfig, --context and --config";
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
        lines.push(leases(&session).await);
        lines.extend(webhooks::check(&session).await);
        lines.extend(node_classes::check(&session).await);
        lines.push(certificate::check(&session).await);
        lines.extend(nodes(&session).await);
        lines.push(records(&session).await);
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

/// Returns what a replica announces that it cannot do.
fn cannot(impairments: &str) -> String {
    let (write, read): (Vec<&str>, Vec<&str>) = impairments.split(',').partition(|one| one.starts_with(UNWRITABLE));
    let read = (!read.is_empty()).then(|| format!("cannot read {}", read.join(",")));
    let write: Vec<&str> = write.into_iter().filter_map(|one| one.strip_prefix(UNWRITABLE)).collect();
    let write = (!write.is_empty()).then(|| format!("cannot write {}", write.join(",")));
    read.into_iter().chain(write).collect::<Vec<_>>().join(" and ")
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

async fn leases(session: &Session) -> CheckResult {
    let namespace = session.settings.lease_namespace();
    let found = match LeaseSnapshot::read(&session.client, namespace).await {
        Ok(found) => found,
        Err(error) => {
            let fix = remedy(error.category(), "list leases in this namespace");
            return CheckResult::fail("leases", error.to_string(), fix);
        }
    };
    if found.groups.is_empty() {
        let others = namespaces_of_live_replicas(&session.client).await;
        let mut message = format!("no operator holds a Lease in namespace {namespace}");
        if let Some(other) = others.first() {
            let _ = write!(message, "; one runs in namespace {other}: use --system-namespace {other}");
        }
        return if session.settings.controller.leader_election.enabled {
            CheckResult::fail(
                "leases",
                message,
                "start the operator or read its log; select another namespace with --system-namespace",
            )
        } else {
            CheckResult::warn("leases", message, "leader election is off: make sure that only one operator runs")
        };
    }
    let unheld: Vec<String> = found.groups.iter().flat_map(ReplicaGroup::unheld).collect();
    if !unheld.is_empty() {
        let message = format!("no replica holds {}", unheld.join(", "));
        return CheckResult::fail(
            "leases",
            message,
            "read the operator's log; the Lease of a crashed replica expires after its duration",
        );
    }
    let impaired = found.groups.iter().flat_map(|group| &group.members).filter(|member| member.alive);
    let impaired: Vec<String> = impaired
        .filter_map(|member| Some(format!("{} {}", member.identity, cannot(member.impaired.as_ref()?))))
        .collect();
    if !impaired.is_empty() {
        return CheckResult::fail(
            "leases",
            impaired.join("; "),
            "what depends on these resources is paused; check the API server and the permissions of the operator, and read its log",
        );
    }
    let members: usize =
        found.groups.iter().map(|group| group.members.iter().filter(|member| member.alive).count()).sum();
    let shards: usize = found.groups.iter().map(|group| group.shards.len()).sum();
    CheckResult::pass("leases", format!("{members} replica(s) hold {shards} shard(s)"))
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
    error.downcast_ref::<crate::keeper::apply::Error>().map_or(Category::Refused, crate::keeper::apply::Error::category)
}

/// Nodes of which nothing is kept, although the policy keeps some of their keys.
async fn nodes(session: &Session) -> Vec<CheckResult> {
    let (mut all, mut unidentified, mut contested) = (0_usize, Vec::new(), Vec::new());
    let read = session
        .each_pair(None, false, |page| {
            for look in page.iter().filter(|look| look.node().is_some()) {
                all += 1;
                match look.status().state() {
                    KeepState::Unidentified => unidentified.push(look.name().to_owned()),
                    KeepState::Contested => contested.push(look.name().to_owned()),
                    _ => {}
                }
            }
            Ok(())
        })
        .await;
    match read {
        Err(error) => {
            let fix = remedy(category_of(&error), "list nodes, and configmaps in this namespace");
            vec![CheckResult::fail("nodes", Chain(error.as_ref()).to_string(), fix)]
        }
        Ok(()) => judge_nodes(all, &unidentified, &contested),
    }
}

fn judge_nodes(all: usize, unidentified: &[String], contested: &[String]) -> Vec<CheckResult> {
    let some = |names: &[String]| names.iter().take(3).cloned().collect::<Vec<_>>().join(", ");
    let mut lines = Vec::new();
    if !unidentified.is_empty() {
        lines.push(CheckResult::fail(
            "nodes",
            format!(
                "{} of {all} have no identity, so nothing is kept of them: {}",
                unidentified.len(),
                some(unidentified)
            ),
            "wait until they report it, or set another keeper.identity; `perennial explain NODE` names the missing field",
        ));
    }
    if !contested.is_empty() {
        lines.push(CheckResult::fail(
            "nodes",
            format!(
                "{} of {all} have the identity of another node, so nothing is restored to them: {}",
                contested.len(),
                some(contested)
            ),
            "make the identity unique, or set another keeper.identity",
        ));
    }
    if lines.is_empty() {
        lines.push(CheckResult::pass("nodes", format!("{all}, each with an identity of its own")));
    }
    lines
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
            let fix = remedy(category_of(&error), "list configmaps in this namespace");
            CheckResult::fail("records", Chain(error.as_ref()).to_string(), fix)
        }
        Ok(()) if bad.is_empty() => CheckResult::pass("records", format!("{all}, all valid")),
        Ok(()) => {
            let some = bad.iter().take(3).cloned().collect::<Vec<_>>().join(", ");
            let message = format!("{} of {all} are quarantined: {some}", bad.len());
            CheckResult::warn(
                "records",
                message,
                "run `perennial explain NODE` for the reason; quarantined records are not restored",
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unidentified_and_contested_nodes_are_both_reported() {
        let (bare, twins) = (vec!["bare".to_owned()], vec!["twin-1".to_owned(), "twin-2".to_owned()]);
        let lines = judge_nodes(4, &bare, &twins);
        let messages: Vec<&str> = lines.iter().map(|line| line.message.as_str()).collect();
        assert!(messages[0].starts_with("1 of 4") && messages[0].ends_with(": bare"), "{messages:?}");
        assert!(messages[1].starts_with("2 of 4") && messages[1].ends_with(": twin-1, twin-2"), "{messages:?}");
        assert!(lines.iter().all(|line| line.severity == CheckSeverity::Fail));
        assert_eq!(judge_nodes(4, &[], &[])[0].severity, CheckSeverity::Pass);
    }
}
