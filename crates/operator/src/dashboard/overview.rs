//! The overview: nodes, records, churn, problems, workloads and replicas.

use std::{collections::BTreeMap, sync::PoisonError, time::Duration};

use perennial_core::keeper::status::KeepState;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{Dashboard, INTERVAL, LEASES_EVERY, Server, attention, workload};
use crate::{
    inspect::leases::{LeaseSnapshot, ReplicaGroup},
    keeper::activity::Counts,
};

/// Deadline of a read of the Leases.
const LEASES_WITHIN: Duration = Duration::from_secs(2);
/// Number of recent activities.
const RECENT: usize = 50;

/// Data of one overview.
pub(super) struct OverviewState {
    pub(super) states: BTreeMap<&'static str, usize>,
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
    let mut states: BTreeMap<&'static str, usize> = BTreeMap::new();
    let rows = dashboard.rows();
    for row in rows.iter() {
        *states.entry(row.state).or_default() += 1;
    }
    let cache = &keeper.cache;
    let (survey, synced) = (cache.survey(), cache.is_synced());
    let counted = |counts: &Counts| json!([counts.created, counts.deleted, counts.restored, counts.written]);
    let (churn, recent): (Vec<Value>, Vec<Value>) = cache
        .activity(|activity| {
            let churn = activity.churn.past.iter().chain([&activity.churn.now]).map(counted).collect();
            (churn, activity.recent().take(RECENT).map(|event| json!(**event)).collect())
        })
        .unwrap_or_default();
    let known = OverviewState { states, workloads: workload::sums(dashboard), groups, unheld, synced };
    let attention = attention::list(dashboard, &rows, &known);
    let count =
        |states: &[KeepState]| states.iter().filter_map(|state| known.states.get(state.as_str())).sum::<usize>();
    // As in perennial_nodes_current_ratio: a node without a record is current.
    let current = count(&[KeepState::Current, KeepState::NoRecord]);
    let live = rows.len() - count(&[KeepState::Away, KeepState::Ignored]);
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "servedBy": match dashboard.server { Server::Operator => "operator", Server::Command => "command" },
        "namespace": dashboard.namespace,
        "synced": known.synced,
        "nodes": {"live": live, "current": current, "states": known.states},
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
    let mut known = dashboard.leases.lock().await;
    if known.as_ref().is_none_or(|(at, _)| at.elapsed() >= LEASES_EVERY) {
        let reading = LeaseSnapshot::read(&dashboard.parts.keeper.client, &dashboard.namespace);
        let read = match tokio::time::timeout(LEASES_WITHIN, reading).await {
            Ok(read) => read.map_err(|error| format!("{error:#}")),
            Err(_) => Err("the API server does not respond".to_owned()),
        };
        *known = Some((Instant::now(), read));
    }
    match known.as_ref().map(|(_, read)| read) {
        Some(Ok(found)) => (
            Ok(found.groups.iter().map(group_json).collect()),
            found.groups.iter().flat_map(ReplicaGroup::unheld).collect(),
        ),
        Some(Err(why)) => (Err(why.clone()), Vec::new()),
        None => (Ok(Vec::new()), Vec::new()),
    }
}

fn group_json(group: &ReplicaGroup) -> Value {
    let members = group.members.iter().map(|member| json!({"identity": member.identity, "alive": member.alive}));
    let shards =
        group.shards.iter().map(|shard| json!({"lease": shard.lease, "holder": shard.holder, "held": shard.held}));
    json!({"name": group.name, "members": members.collect::<Vec<_>>(), "shards": shards.collect::<Vec<_>>()})
}

impl Dashboard {
    pub(super) fn cached_workloads(&self) -> std::sync::MutexGuard<'_, workload::CachedRows> {
        self.workloads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
