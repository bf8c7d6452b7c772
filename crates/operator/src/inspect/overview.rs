//! Replicas, shards, nodes, records, lag and throughput of one installation.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration};
use kube::Api;
use perennial_core::keeper::{
    status::{KeepState, NodeCounts},
    stored_record::Stored,
};
use serde_json::{Value, json};

use super::{leases::LeaseSnapshot, operator_metrics::Samples, session::Session, states::RecordState};
use crate::{admission::configuration::NAME, runtime::error_category};

/// Status of an installation.
pub(crate) struct Overview {
    pub(crate) namespace: String,
    pub(crate) leases: Option<LeaseSnapshot>,
    /// Why the Leases could not be read, if they could not.
    pub(crate) unread: Option<String>,
    pub(crate) nodes: NodeCounts,
    pub(crate) records: BTreeMap<RecordState, usize>,
    /// Number of records that are excluded from garbage collection.
    pub(crate) held: usize,
    pub(crate) lag: Lag,
    pub(crate) webhooks: Vec<String>,
    pub(crate) policies: usize,
    pub(crate) bad_policies: Vec<String>,
    pub(crate) samples: BTreeMap<String, Samples>,
}

/// Pending and recent writes.
#[derive(Default)]
pub(crate) struct Lag {
    /// Number of nodes with a pending write.
    pub(crate) due: usize,
    /// Age in seconds of the oldest node that is not restored yet.
    pub(crate) oldest: Option<i64>,
    /// Number of records written in the last minute and hour.
    pub(crate) minute: usize,
    pub(crate) hour: usize,
}

impl Overview {
    pub(crate) async fn read(session: &Session, metrics: Option<&str>) -> anyhow::Result<Self> {
        let namespace = session.settings.namespace.to_string();
        let (leases, unread) = match LeaseSnapshot::read(&session.client, session.settings.lease_namespace()).await {
            Ok(found) => (Some(found), None),
            Err(error) => (None, Some(error.to_string())),
        };
        let now = leases.as_ref().map_or_else(Timestamp::now, |found| found.now);
        let (mut nodes, mut on_hold) = (NodeCounts::default(), 0);
        let mut records: BTreeMap<RecordState, usize> = BTreeMap::new();
        let mut lag = Lag::default();
        session
            .each_pair(None, false, |page| {
                for look in page {
                    if let Some(held) = &look.held {
                        *records.entry(RecordState::of(held.stored())).or_default() += 1;
                        on_hold += usize::from(held.is_on_hold());
                    }
                    if let Some(Stored::Good(record)) = look.stored() {
                        let age = now.as_second() - record.captured_at.as_second();
                        lag.minute += usize::from(age < 60);
                        lag.hour += usize::from(age < 3600);
                    }
                    let status = look.status();
                    nodes.add(status.state());
                    lag.due += usize::from(status.is_due());
                    if let (Some(node), KeepState::Unsettled) = (look.node(), status.state()) {
                        let age = now.as_second() - node.created;
                        lag.oldest = Some(lag.oldest.map_or(age, |oldest| oldest.max(age)));
                    }
                }
                Ok(())
            })
            .await?;
        let entries = session.policies.entries();
        let bad = entries.iter().filter(|(_, entry)| entry.read.is_err()).map(|(name, _)| name.clone()).collect();
        let port = session.settings.metrics.port;
        let samples = match metrics {
            Some(url) => BTreeMap::from([(url.to_owned(), Samples::from_url(url).await?)]),
            None => Samples::of_members(&session.client, &namespace, port, leases.as_ref()).await,
        };
        Ok(Self {
            webhooks: webhooks(&session.client).await,
            namespace,
            leases,
            unread,
            nodes,
            records,
            held: on_hold,
            lag,
            policies: entries.len(),
            bad_policies: bad,
            samples,
        })
    }

    pub(crate) fn as_json(&self) -> Value {
        let groups: Vec<Value> = self
            .leases
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
            "nodes": self.nodes.iter().map(|(state, count)| (state.as_str(), count)).collect::<BTreeMap<_, _>>(),
            "live": self.nodes.managed(),
            "current": self.nodes.current(),
            "records": self.records,
            "held": self.held,
            "lag": {"due": self.lag.due, "oldestUnsettledSeconds": self.lag.oldest},
            "writes": {"lastMinute": self.lag.minute, "lastHour": self.lag.hour},
            "webhooks": self.webhooks,
            "policies": {"count": self.policies, "bad": self.bad_policies},
            "metrics": throughput,
        })
    }
}

/// Returns the names of the installed webhooks.
async fn webhooks(client: &kube::Client) -> Vec<String> {
    let mutating: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    let validating: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    let mut names = Vec::new();
    match mutating.get_opt(NAME).await {
        Ok(Some(found)) => names.extend(found.webhooks.into_iter().flatten().map(|webhook| webhook.name)),
        Ok(None) => {}
        Err(error) => names.push(format!("unknown: {}", error_category::message(&error))),
    }
    match validating.get_opt(NAME).await {
        Ok(Some(found)) => names.extend(found.webhooks.into_iter().flatten().map(|webhook| webhook.name)),
        Ok(None) => {}
        Err(error) => names.push(format!("unknown: {}", error_category::message(&error))),
    }
    names
}
