//! The overview: nodes, records, churn, problems, workloads and replicas.

use std::{collections::BTreeMap, sync::PoisonError, time::Duration};

use perennial_core::keeper::status::NodeCounts;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{Dashboard, INTERVAL, LEASES_EVERY, Server, attention, freshness::Stale, workload};
use crate::{
    inspect::leases::{LeaseSnapshot, ReplicaGroup},
    keeper::activity::ActivityCounts,
};

/// Deadline of a read of the Leases.
const LEASES_WITHIN: Duration = Duration::from_secs(2);
/// Number of recent activities.
const RECENT: usize = 50;

/// Data of one overview.
pub(super) struct OverviewState {
    pub(super) nodes: NodeCounts,
    /// Why the data may be outdated, if it may.
    pub(super) stale: Option<Stale>,
    pub(super) workloads: workload::Sums,
    /// Groups of replicas, or why the Leases could not be read.
    pub(super) groups: Result<Vec<Value>, String>,
    /// Leases of shards without an owner.
    pub(super) unheld: Vec<String>,
    pub(super) synced: bool,
}

pub(super) async fn overview(dashboard: &Dashboard) -> Value {
    let (groups, unheld) = leases(dashboard).await;
    let keeper = &dashboard.parts.keeper;
    let stale = dashboard.stale().await;
    let mut nodes = NodeCounts::default();
    let rows = dashboard.rows();
    for row in rows.iter() {
        nodes.add(row.state);
    }
    let cache = keeper.cache();
    let (survey, synced) = (cache.survey(), cache.is_synced());
    let counted = |counts: &ActivityCounts| json!([counts.created, counts.deleted, counts.restored, counts.written]);
    let (churn, recent): (Vec<Value>, Vec<Value>) = cache
        .activity(|activity| {
            let churn = activity.churn.past.iter().chain([&activity.churn.now]).map(counted).collect();
            (churn, activity.recent().take(RECENT).map(|event| json!(**event)).collect())
        })
        .unwrap_or_default();
    let known = OverviewState { nodes, stale, workloads: workload::sums(dashboard), groups, unheld, synced };
    let attention = attention::list(dashboard, &rows, &known);
    let states: BTreeMap<&str, usize> = known.nodes.iter().map(|(state, count)| (state.as_str(), count)).collect();
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "servedBy": match dashboard.server { Server::Operator => "operator", Server::Command => "command" },
        "cluster": dashboard.names.cluster,
        "context": dashboard.names.context,
        "namespace": dashboard.namespace,
        "synced": known.synced,
        "stale": known.stale,
        "nodes": {"live": known.nodes.managed(), "current": known.nodes.current(), "states": states},
        "records": {
            "all": survey.records, "away": survey.absent, "tombstones": survey.tombstones, "invalid": survey.bad_records,
        },
        "churn": {"seconds": INTERVAL.as_secs(), "intervals": churn},
        "recent": recent,
        "attention": attention,
        "workloads": known.workloads,
        "groups": known.groups.as_ref().ok(),
        "unread": known.groups.as_ref().err(),
    })
}

/// Returns the groups of replicas and the shards without an owner, from a cache of a few seconds.
async fn leases(dashboard: &Dashboard) -> (Result<Vec<Value>, String>, Vec<String>) {
    dashboard
        .with_leases(|read| match read {
            Ok(found) => (
                Ok(found.groups.iter().map(group_json).collect()),
                found.groups.iter().flat_map(ReplicaGroup::unheld).collect(),
            ),
            Err(why) => (Err(why.clone()), Vec::new()),
        })
        .await
}

fn group_json(group: &ReplicaGroup) -> Value {
    let members = group.members.iter().map(|member| json!({"identity": member.identity, "alive": member.alive}));
    let shards =
        group.shards.iter().map(|shard| json!({"lease": shard.lease, "holder": shard.holder, "held": shard.held}));
    json!({"name": group.name, "members": members.collect::<Vec<_>>(), "shards": shards.collect::<Vec<_>>()})
}

impl Dashboard {
    /// Calls a function with the Leases, or with the reason why they could not be read.
    pub(super) async fn with_leases<T>(&self, on: impl FnOnce(&Result<LeaseSnapshot, String>) -> T) -> T {
        let mut known = self.leases.lock().await;
        if let Some((at, read)) = known.as_ref()
            && at.elapsed() < LEASES_EVERY
        {
            return on(read);
        }
        let reading = LeaseSnapshot::read(self.parts.keeper.client(), &self.lease_namespace);
        let read = match tokio::time::timeout(LEASES_WITHIN, reading).await {
            Ok(read) => read.map_err(|error| error.to_string()),
            Err(_) => Err("the API server does not respond".to_owned()),
        };
        on(&known.insert((Instant::now(), read)).1)
    }

    pub(super) fn cached_workloads(&self) -> std::sync::MutexGuard<'_, workload::CachedWorkloads> {
        self.workloads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
