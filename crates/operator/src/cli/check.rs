//! `perennial check`: whether everything is in place, each thing with what to do about it.

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
    terminal::{Tone, colours},
};
use crate::{
    admission::certificates::SecretStore,
    inspect::{
        format::span,
        leases::{Leases, ReplicaGroup, server_time},
        progress::Progress,
        session::Session,
    },
    runtime::error_category,
};

/// The oldest Kubernetes on which everything works: scheduling gates are stable since then.
const OLDEST_MINOR: u32 = 30;
/// Clocks that differ by more than this make ages and certificates hard to understand.
const SKEW: i64 = 5;
const DAY: i64 = 24 * 3600;

#[derive(Debug, Args)]
pub(super) struct Check {
    /// Look again until nothing fails, for so long at most
    #[arg(long, value_name = "DURATION", num_args = 0..=1, require_equals = true, default_missing_value = "2m", value_parser = lasting)]
    wait: Option<Duration>,
    /// Look at the permissions of this service account of Perennial's namespace instead of your own
    #[arg(long, value_name = "NAME")]
    service_account: Option<String>,
    /// How to print: table, json or yaml
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Telling,
}

fn lasting(text: &str) -> Result<Duration, String> {
    duration::parse(text).ok_or_else(|| "expected a duration such as 30s, 2m or 1h".to_owned())
}

/// What came of one look at one thing.
#[derive(Debug)]
pub(super) struct Line {
    result: Outcome,
    what: &'static str,
    said: String,
    /// What to do about it.
    fix: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Pass,
    Warn,
    Fail,
}

impl Line {
    fn pass(what: &'static str, said: impl Into<String>) -> Self {
        Self { result: Outcome::Pass, what, said: said.into(), fix: None }
    }

    fn warn(what: &'static str, said: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { result: Outcome::Warn, what, said: said.into(), fix: Some(fix.into()) }
    }

    fn fail(what: &'static str, said: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { result: Outcome::Fail, what, said: said.into(), fix: Some(fix.into()) }
    }
}

impl Outcome {
    fn word(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

impl Check {
    /// Ends with 1 where something fails.
    pub(super) fn execute(&self, global: &Global) -> anyhow::Result<ExitCode> {
        block_on(async {
            let begun = Instant::now();
            let progress =
                Progress::new(if self.wait.is_some() { "waiting until all is well" } else { "looking" }, false);
            loop {
                let lines = match self.look(global).await {
                    Ok(lines) => lines,
                    Err(error) => {
                        let fix = "check --kubeconfig, --context and --config";
                        vec![Line::fail("cluster", format!("{error:#}"), fix)]
                    }
                };
                let failed = lines.iter().any(|line| line.result == Outcome::Fail);
                if failed && self.wait.is_some_and(|limit| begun.elapsed() < limit) {
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    continue;
                }
                drop(progress);
                self.output.print(|| as_json(&lines), || story(&lines))?;
                return Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS });
            }
        })
    }

    async fn look(&self, global: &Global) -> anyhow::Result<Vec<Line>> {
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

fn as_json(lines: &[Line]) -> Value {
    let items: Vec<Value> = lines
        .iter()
        .map(|line| json!({"result": line.result.word(), "what": line.what, "said": line.said, "fix": line.fix}))
        .collect();
    json!({"kind": "CheckList", "items": items})
}

fn story(lines: &[Line]) -> String {
    let colours = colours();
    let mut text = String::new();
    for line in lines {
        let word = line.result.word();
        let _ = writeln!(text, "{}   {:<13}{}", Tone::of(word).paint(word, colours), line.what, line.said);
        if let Some(fix) = &line.fix {
            let _ = writeln!(text, "       {:<13}→ {fix}", "");
        }
    }
    text
}

async fn version(client: &Client) -> Line {
    let ours = env!("CARGO_PKG_VERSION");
    match client.apiserver_version().await {
        Ok(info) => {
            let said = format!("Kubernetes {}, perennial {ours}", info.git_version);
            let minor: String = info.minor.chars().take_while(char::is_ascii_digit).collect();
            if minor.parse::<u32>().is_ok_and(|minor| minor < OLDEST_MINOR) {
                return Line::warn(
                    "version",
                    said,
                    format!("placement needs Kubernetes 1.{OLDEST_MINOR} or newer; keeping labels does not"),
                );
            }
            Line::pass("version", said)
        }
        Err(error) => {
            Line::fail("version", error_category::message(&error), "is this the right cluster, and is it up?")
        }
    }
}

/// Our clock against the API server's.
async fn clock(client: &Client) -> Line {
    match server_time(client).await {
        Ok(there) => {
            let skew = (Timestamp::now().as_second() - there.as_second()).abs();
            let said = format!("differs from the API server's by {skew} s");
            if skew <= SKEW {
                Line::pass("clock", said)
            } else {
                Line::warn("clock", said, "set this machine's clock (NTP); ages and certificates are judged by it")
            }
        }
        Err(error) => Line::warn("clock", format!("{error:#}"), "nothing, if a proxy in between removes the date"),
    }
}

async fn policies(session: &Session) -> Vec<Line> {
    let kind = session.client.list_api_group_resources("perennial.dev/v1alpha1").await;
    let served = kind.is_ok_and(|list| list.resources.iter().any(|resource| resource.kind == "KeepPolicy"));
    if !served {
        let fix = "perennial manifests crds | kubectl apply -f -, if you want different rules for different nodes";
        return vec![Line::warn("crds", "KeepPolicy is not installed: the config file speaks for all nodes", fix)];
    }
    let mut lines = vec![Line::pass("crds", "KeepPolicy is installed")];
    for (name, entry) in session.policies.entries() {
        if let Err(problems) = entry.read {
            let said = format!("KeepPolicy {name} is ignored: {}", problems.join("; "));
            lines.push(Line::fail("policies", said, format!("kubectl edit keeppolicy {name}")));
        }
    }
    lines
}

async fn leases(session: &Session) -> Line {
    let namespace = session.settings.namespace.as_str();
    let found = match Leases::read(&session.client, namespace).await {
        Ok(found) => found,
        Err(error) => return Line::fail("leases", format!("{error:#}"), "you need to be allowed to list leases there"),
    };
    if found.groups.is_empty() {
        let said = format!("nobody holds a Lease in namespace {namespace}");
        return if session.settings.controller.leader_election.enabled {
            Line::fail("leases", said, "start the operator, or look at its log; -n says another namespace")
        } else {
            Line::warn("leases", said, "so it is without leader election: see that only one operator runs")
        };
    }
    let unheld: Vec<String> = found.groups.iter().flat_map(ReplicaGroup::unheld).collect();
    if !unheld.is_empty() {
        let said = format!("nobody holds {}", unheld.join(", "));
        return Line::fail(
            "leases",
            said,
            "look at the operator's log; a Lease of a crashed member is free after its duration",
        );
    }
    let members: usize =
        found.groups.iter().map(|group| group.members.iter().filter(|member| member.alive).count()).sum();
    let shards: usize = found.groups.iter().map(|group| group.shards.len()).sum();
    Line::pass("leases", format!("{members} member(s) hold {shards} shard(s)"))
}

async fn certificate(session: &Session) -> Line {
    let what = "certificate";
    if !session.settings.webhook.enabled {
        return Line::pass(what, "not needed: webhooks are off");
    }
    if session.settings.webhook.cert_dir.is_some() {
        return Line::pass(what, "comes from webhook.certDir: whoever writes it renews it");
    }
    match SecretStore::new(session.client.clone(), session.settings.namespace.as_str()).read().await {
        Err(error) => {
            Line::warn(what, format!("{error}"), "you need to be allowed to get the Secret to see when it ends")
        }
        Ok(kept) => match kept.certificates {
            None if kept.exists() => Line::fail(
                what,
                "the Secret does not hold certificates of ours",
                "delete it: the operator makes another",
            ),
            None => Line::warn(what, "there is none yet", "the operator makes it when it starts with webhooks on"),
            Some(found) => ends(&found, Timestamp::now().as_second()),
        },
    }
}

fn ends(found: &Certificates, now: i64) -> Line {
    let left = found.serving.expires - now;
    let said = format!("{} left of the serving certificate", span(left));
    match left {
        ..=0 => Line::fail(
            "certificate",
            "the serving certificate has ended",
            "look at the operator's log: it renews by itself",
        ),
        left if left < 10 * DAY => {
            Line::warn("certificate", said, "it should have been renewed: look at the operator's log")
        }
        _ => Line::pass("certificate", said),
    }
}

async fn records(session: &Session) -> Line {
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
        Err(error) => Line::fail("records", format!("{error:#}"), "you need to be allowed to list configmaps there"),
        Ok(()) if bad.is_empty() => Line::pass("records", format!("{all}, all of them sound")),
        Ok(()) => {
            let some = bad.iter().take(3).cloned().collect::<Vec<_>>().join(", ");
            let said = format!("{} of {all} cannot be trusted: {some}", bad.len());
            Line::warn("records", said, "perennial explain NODE says why; nothing is restored from them")
        }
    }
}

#[cfg(test)]
mod tests {
    use perennial_core::certs::Serving;

    use super::*;

    #[test]
    fn a_certificate_is_judged_by_what_is_left_of_it() {
        let serving = Serving {
            authority: String::new(),
            certificate: String::new(),
            key: String::new(),
            issued: 0,
            expires: 100 * DAY,
            names: Vec::new(),
        };
        let found = Certificates { version: 1, authorities: Vec::new(), serving };
        let at = |now: i64| ends(&found, now).result;
        assert_eq!([at(0), at(95 * DAY), at(101 * DAY)], [Outcome::Pass, Outcome::Warn, Outcome::Fail]);
    }
}
