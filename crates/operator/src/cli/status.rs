//! `perennial status`: how everything stands, on one screen.

use std::{collections::BTreeMap, fmt::Write as _, process::ExitCode};

use clap::Args;
use jiff::Timestamp;
use k8s_openapi::api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration};
use kube::Api;
use perennial_core::keeper::{status::KeepState, stored_record::Stored};
use serde_json::{Value, json};

use super::{
    Global, block_on,
    coordination::Coordination,
    output::{Telling, span},
    records::state,
    scrape::Samples,
    session::Session,
    terminal::{Tone, colours},
};
use crate::serve::configuration::NAME;

#[derive(Debug, Args)]
pub(super) struct Status {
    /// Where to read an operator's metrics: http://HOST:PORT/metrics. Without it its pod is asked through the API server
    #[arg(long, value_name = "URL")]
    metrics: Option<String>,
    /// How to print: table, json or yaml
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Telling,
}

/// What was found.
pub(super) struct Overview {
    pub(super) namespace: String,
    pub(super) coordination: Option<Coordination>,
    /// Why the Leases could not be read.
    pub(super) unread: Option<String>,
    pub(super) nodes: BTreeMap<&'static str, usize>,
    pub(super) records: BTreeMap<&'static str, usize>,
    pub(super) lag: Lag,
    pub(super) webhooks: Vec<String>,
    pub(super) policies: usize,
    pub(super) bad_policies: Vec<String>,
    pub(super) samples: BTreeMap<String, Samples>,
}

/// What waits, and what was done lately.
#[derive(Default)]
pub(super) struct Lag {
    /// Nodes for which something is due.
    pub(super) due: usize,
    /// The age of the oldest node that still waits for its restore, in seconds.
    pub(super) oldest: Option<i64>,
    /// Records written within the last minute and the last hour.
    pub(super) minute: usize,
    pub(super) hour: usize,
}

impl Status {
    pub(super) fn execute(&self, global: &Global) -> anyhow::Result<ExitCode> {
        block_on(async {
            let session = Session::open(global).await?;
            let overview = Overview::read(&session, self.metrics.as_deref()).await?;
            self.output.print(|| overview.as_json(), || overview.story())?;
            Ok(ExitCode::SUCCESS)
        })
    }
}

impl Overview {
    pub(super) async fn read(session: &Session, metrics: Option<&str>) -> anyhow::Result<Self> {
        let namespace = session.settings.namespace.to_string();
        let (coordination, unread) = match Coordination::read(&session.client, &namespace).await {
            Ok(found) => (Some(found), None),
            Err(error) => (None, Some(format!("{error:#}"))),
        };
        let now = coordination.as_ref().map_or_else(Timestamp::now, |found| found.now);
        let mut nodes: BTreeMap<&'static str, usize> = BTreeMap::new();
        let mut records: BTreeMap<&'static str, usize> = BTreeMap::new();
        let mut lag = Lag::default();
        session
            .each_pair(None, false, |page| {
                for look in page {
                    if let Some(held) = &look.held {
                        *records.entry(state(held.stored())).or_default() += 1;
                    }
                    if let Some(Stored::Good(record)) = look.stored() {
                        let age = now.as_second() - record.captured_at.as_second();
                        lag.minute += usize::from(age < 60);
                        lag.hour += usize::from(age < 3600);
                    }
                    let standing = look.status();
                    *nodes.entry(standing.state().as_str()).or_default() += 1;
                    lag.due += usize::from(standing.is_due());
                    if let (Some(node), KeepState::Unsettled) = (look.node(), standing.state()) {
                        let age = now.as_second() - node.created;
                        lag.oldest = Some(lag.oldest.map_or(age, |oldest| oldest.max(age)));
                    }
                }
                Ok(())
            })
            .await?;
        let entries = session.policies.entries();
        let bad = entries.iter().filter(|(_, entry)| entry.read.is_err()).map(|(name, _)| name.clone()).collect();
        let samples = match metrics {
            Some(url) => BTreeMap::from([(url.to_owned(), Samples::from_url(url).await?)]),
            None => Samples::of_members(&session.client, &namespace, coordination.as_ref()).await,
        };
        Ok(Self {
            webhooks: webhooks(&session.client).await,
            namespace,
            coordination,
            unread,
            nodes,
            records,
            lag,
            policies: entries.len(),
            bad_policies: bad,
            samples,
        })
    }

    pub(super) fn as_json(&self) -> Value {
        let groups: Vec<Value> = self
            .coordination
            .iter()
            .flat_map(|found| &found.groups)
            .map(|group| {
                let members = group.members.iter().map(|member| {
                    json!({"identity": member.identity, "alive": member.alive, "silentSeconds": member.silent, "shards": member.shards})
                });
                let shards = group.shards.iter().map(|shard| {
                    json!({"lease": shard.lease, "holder": shard.holder, "held": shard.held, "silentSeconds": shard.silent, "transitions": shard.transitions})
                });
                json!({
                    "name": group.name,
                    "members": members.collect::<Vec<_>>(),
                    "shards": shards.collect::<Vec<_>>(),
                    "unheld": group.unheld(),
                })
            })
            .collect();
        let throughput: BTreeMap<&String, Value> =
            self.samples.iter().map(|(from, samples)| (from, samples.summary())).collect();
        json!({
            "kind": "Status",
            "namespace": self.namespace,
            "groups": groups,
            "nodes": self.nodes,
            "records": self.records,
            "lag": {"due": self.lag.due, "oldestUnsettledSeconds": self.lag.oldest},
            "writes": {"lastMinute": self.lag.minute, "lastHour": self.lag.hour},
            "webhooks": self.webhooks,
            "policies": {"count": self.policies, "bad": self.bad_policies},
            "metrics": throughput,
        })
    }

    pub(super) fn story(&self) -> String {
        let colours = colours();
        let mut text = String::new();
        self.tell_members(&mut text, colours);
        let live: usize = self.nodes.iter().filter(|(word, _)| **word != "Away").map(|(_, count)| count).sum();
        let current = self.nodes.get("Current").copied().unwrap_or_default();
        let others: Vec<String> = KeepState::ALL
            .iter()
            .filter(|state| **state != KeepState::Current)
            .map(|state| state.as_str())
            .filter_map(|word| {
                self.nodes.get(word).map(|count| format!("{count} {}", Tone::of(word).paint(word, colours)))
            })
            .collect();
        let others = if others.is_empty() { String::new() } else { format!(" ({})", others.join(", ")) };
        let _ = writeln!(text, "Nodes:      {current} of {live} current{others}");
        let records: Vec<String> = self
            .records
            .iter()
            .map(|(word, count)| format!("{count} {}", Tone::of(word).paint(word, colours)))
            .collect();
        let total: usize = self.records.values().sum();
        let _ = writeln!(text, "Records:    {total} in namespace {} ({})", self.namespace, or_none(&records));
        let oldest =
            self.lag.oldest.map(|age| format!(", the oldest node waits since {}", span(age))).unwrap_or_default();
        let _ = writeln!(text, "Lag:        {} node(s) for which something is due{oldest}", self.lag.due);
        let _ = writeln!(
            text,
            "Throughput: {} record(s) written in the last minute, {} in the last hour",
            self.lag.minute, self.lag.hour
        );
        for (from, samples) in &self.samples {
            let _ = writeln!(text, "            {from}: {}", samples.sentence());
        }
        let _ = writeln!(text, "Webhooks:   {}", or_none(&self.webhooks));
        let bad = if self.bad_policies.is_empty() {
            String::new()
        } else {
            format!(", {} cannot be obeyed: {}", self.bad_policies.len(), self.bad_policies.join(", "))
        };
        let _ = writeln!(text, "Policies:   {}{bad}", self.policies);
        text
    }

    fn tell_members(&self, text: &mut String, colours: bool) {
        let groups = self.coordination.iter().flat_map(|found| &found.groups);
        let mut none = true;
        for group in groups {
            none = false;
            for (place, member) in group.members.iter().enumerate() {
                let head = if place == 0 { "Members:" } else { "" };
                let state = if member.alive {
                    Tone::Good.paint("alive", colours)
                } else {
                    Tone::Bad.paint(&format!("silent for {}", span(member.silent)), colours)
                };
                let _ = writeln!(text, "{head:<12}{}  {state}", member.identity);
            }
            let count = group.shard_count();
            for (place, shard) in group.shards.iter().enumerate() {
                let head = if place == 0 { "Shards:" } else { "" };
                let holder = match (shard.held, shard.holder.is_empty()) {
                    (true, _) => shard.holder.clone(),
                    (false, true) => Tone::Bad.paint("nobody", colours),
                    (false, false) => {
                        Tone::Bad.paint(&format!("{}, silent for {}", shard.holder, span(shard.silent)), colours)
                    }
                };
                let _ = writeln!(text, "{head:<12}{} of {count}  {holder}", shard.number());
            }
            let unheld = group.unheld();
            if !unheld.is_empty() {
                let _ = writeln!(
                    text,
                    "{:<12}{}",
                    "",
                    Tone::Bad.paint(&format!("nobody holds {}", unheld.join(", ")), colours)
                );
            }
        }
        if let Some(why) = &self.unread {
            let _ = writeln!(text, "Members:    not known: {why}");
        } else if none {
            let _ = writeln!(
                text,
                "Members:    {} (an operator without leader election or with --dry-run holds no Lease)",
                Tone::Bad.paint("none", colours)
            );
        }
    }
}

fn or_none(items: &[String]) -> String {
    if items.is_empty() { "none".to_owned() } else { items.join(", ") }
}

/// The names of our webhooks that the API server calls.
async fn webhooks(client: &kube::Client) -> Vec<String> {
    let mutating: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    let validating: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    let mut names = Vec::new();
    match mutating.get_opt(NAME).await {
        Ok(Some(found)) => names.extend(found.webhooks.into_iter().flatten().map(|webhook| webhook.name)),
        Ok(None) => {}
        Err(error) => names.push(format!("not known: {}", crate::runtime::error_category::message(&error))),
    }
    if let Ok(Some(found)) = validating.get_opt(NAME).await {
        names.extend(found.webhooks.into_iter().flatten().map(|webhook| webhook.name));
    }
    names
}
