//! One node, read on demand: its keys with their origins, its incarnations and its history.

use std::collections::BTreeSet;

use jiff::Timestamp;
use perennial_core::{
    config::{Role, names::is_dns_subdomain},
    keeper::{
        commands::restore_now,
        explain::explain,
        keys::{Kept, Key},
        mark::MARK,
        next_incarnation::next_incarnation,
        stored_record::Stored,
    },
};
use serde_json::{Value, json};

use super::{Dashboard, Server, api::ApiError};
use crate::{
    inspect::{
        collection::RecordLifetime,
        diff::changes,
        explain::{
            key::{substitute, words, writers},
            node::{RestoreRequest, events, restore_request},
        },
        format::shell_quoted,
        history::{Version, stored_versions},
        inspected_node::InspectedNode,
        states::{KeyOrigin, RecordState},
    },
    keeper::{Priority, apply::LoadedRecord},
};

pub(super) async fn node(dashboard: &Dashboard, name: &str) -> Result<Value, ApiError> {
    let look = look(dashboard, name).await?;
    let standing = look.status();
    let client = dashboard.parts.keeper.client();
    let way = match look.node() {
        Some(node) if node.annotations.contains_key(MARK) => restore_request(client, name).await,
        _ => None,
    };
    // The operator has no permission to read Events.
    let events = if dashboard.server == Server::Command { events(client, name).await } else { Vec::new() };
    let events: Vec<Value> = events
        .iter()
        .rev()
        .map(|event| json!({"at": event.at, "reason": event.reason, "message": event.message}))
        .collect();
    let mark = look.mark();
    let history = stored_versions(look.stored());
    let owner = dashboard.with_leases(|leases| Some(leases.as_ref().ok()?.owner(name, Role::Restore))).await;
    let unattended = owner.and_then(|owner| owner.unattended(dashboard.attendance));
    let next = next_incarnation(&look.case);
    let nothing = next.as_ref().err().map(ToString::to_string);
    let next = next.ok().map(|next| json!({"given": next.given, "later": next.later, "withheld": next.withheld}));
    Ok(json!({
        "name": look.name(),
        "state": standing.state().as_str(),
        "sentence": standing.sentence(),
        "identity": look.identity().map(|identity| identity.text().unwrap_or_else(|| format!("name={name}"))),
        "uid": look.node().map(|node| &node.uid),
        "created": look.node().and_then(|node| Timestamp::from_second(node.created).ok()),
        "policy": look.policy().name,
        "restored": mark.map(|mark| json!({
            "at": way.as_ref().and_then(|way| way.at), "by": way.as_ref().map(RestoreRequest::describe),
            "keys": mark.given.len(), "complete": mark.complete,
        })),
        "record": record(&look, dashboard.max_absent),
        "keys": keys(&look, &history),
        "incarnations": incarnations(&look, &history),
        "next": next,
        "nothing": nothing,
        "unattended": unattended,
        "stale": dashboard.stale().await,
        "events": events,
        "commands": commands(&look, &history),
    }))
}

/// Reads a node and its record. Uses the cache to find the name of the record.
async fn look(dashboard: &Dashboard, name: &str) -> Result<InspectedNode, ApiError> {
    let keeper = &dashboard.parts.keeper;
    let known = keeper.cache().record_name_of(name);
    // Any other name could be another path on the API server. Forged records may contain such
    // names.
    let node =
        if is_dns_subdomain(name) { keeper.cluster().read_node(name, Priority::Collect).await } else { Ok(None) };
    let node = node.map_err(|error| ApiError::Upstream(error.into()))?;
    // The cache has found out which of several records belongs to the node.
    let own = || keeper.policies().current().identify(node.as_ref()?).map(|identity| identity.record_name());
    let named = known.or_else(own);
    let held = match &named {
        Some(named) => keeper.cluster().read_record(named, Priority::Collect).await,
        None => Ok(None),
    };
    let held = held.map_err(|error| ApiError::Upstream(error.into()))?;
    if node.is_none() && held.is_none() {
        return Err(ApiError::NotFound(format!("There is no node {name} and no record for it.")));
    }
    let rivals = named.map(|named| keeper.cache().rivals(&named, None, name)).unwrap_or_default();
    let rivals = rivals.into_iter().map(|rival| rival.name).collect();
    Ok(InspectedNode::new(keeper.policies(), node, held, rivals))
}

fn record(look: &InspectedNode, max_absent: u32) -> Option<Value> {
    let held = look.held.as_ref()?;
    let lifetime = RecordLifetime::of(look);
    let mut value = json!({
        "name": held.name(), "state": RecordState::of(held.stored()), "hold": held.is_on_hold(),
        "collection": lifetime.map(RecordLifetime::to_json),
        "collected": lifetime.map(|lifetime| lifetime.limited(max_absent).words(Timestamp::now())),
    });
    match held.stored() {
        Stored::Good(record) => {
            value["sequence"] = json!(record.sequence);
            value["capturedAt"] = json!(record.captured_at);
            value["capturedBy"] = json!(record.captured_by);
            value["uid"] = json!(record.node.uid);
        }
        Stored::Bad { fault, good } => {
            value["fault"] = json!(fault.to_string());
            value["instead"] = json!(substitute(good));
        }
    }
    Some(value)
}

/// Returns all labels of the node and all keys in its record and history, each with its origin and
/// the reason.
fn keys(look: &InspectedNode, history: &[Version]) -> Vec<Value> {
    let on_node = look.kept().cloned().unwrap_or_default();
    let in_record = look.record().map(|record| record.kept).unwrap_or_default();
    let labels = look.node().into_iter().flat_map(|node| node.labels.keys()).map(|key| Key::label(key));
    let before = history.iter().flat_map(|version| version.kept.keys());
    let all: BTreeSet<Key> = on_node.keys().chain(in_record.keys()).chain(before).cloned().chain(labels).collect();
    all.into_iter()
        .map(|key| {
            let cause = explain(&key, &look.case);
            let (why, fix) = words(&key, &cause, look);
            let live = on_node.get(&key).cloned().or_else(|| label(look, &key));
            json!({
                "key": key, "value": live, "inRecord": in_record.get(&key),
                "origin": KeyOrigin::of(&cause, live.is_some()), "why": why, "fix": fix,
                "writers": writers(look, &key),
            })
        })
        .collect()
}

fn label(look: &InspectedNode, key: &Key) -> Option<String> {
    match key {
        Key::Label(key) => look.node()?.labels.get(key).cloned(),
        _ => None,
    }
}

/// Returns the incarnations of the node, newest first, each with its captures and their changes.
fn incarnations(look: &InspectedNode, history: &[Version]) -> Vec<Value> {
    let mut incarnations: Vec<(String, Vec<Value>)> = Vec::new();
    if let Some(node) = look.node() {
        incarnations.push((node.uid.clone(), Vec::new()));
    }
    let nothing = Kept::new();
    for (place, version) in history.iter().enumerate() {
        let older = history.get(place + 1).map_or(&nothing, |older| &older.kept);
        let changed: Vec<Value> = changes(older, &version.kept)
            .iter()
            .map(|change| json!({"key": change.key, "before": change.before, "after": change.after}))
            .collect();
        let capture = json!({
            "sequence": version.sequence, "at": version.captured_at, "keys": version.kept.len(), "changes": changed,
            "now": place == 0,
            "oldest": place + 1 == history.len() && version.sequence > 1,
        });
        match incarnations.iter_mut().find(|(uid, _)| *uid == version.uid) {
            Some((_, captures)) => captures.push(capture),
            None => incarnations.push((version.uid.clone(), vec![capture])),
        }
    }
    let alive = look.node().map(|node| node.uid.as_str());
    incarnations
        .into_iter()
        .map(|(uid, captures)| json!({"alive": alive == Some(&uid), "uid": uid, "captures": captures}))
        .collect()
}

/// Returns commands for the node.
fn commands(look: &InspectedNode, history: &[Version]) -> Vec<Value> {
    let name = shell_quoted(look.name());
    let mut commands = vec![("explain the node", format!("perennial explain {name}"))];
    let is_good = look.stored().is_some_and(|stored| stored.good().is_some());
    if look.node().is_some() && is_good && restore_now(&look.case).is_some() {
        commands.push(("restore it from its record now", format!("perennial restore {name}")));
    }
    if let Some(before) = history.get(1).filter(|_| is_good) {
        commands
            .push(("roll back to the previous version", format!("perennial rollback {name} --to {}", before.sequence)));
    }
    if look.held.is_some() {
        let release = look.held.as_ref().is_some_and(LoadedRecord::is_on_hold);
        commands.push(if release {
            ("allow garbage collection of its record", format!("perennial hold {name} --release"))
        } else {
            ("exclude its record from garbage collection", format!("perennial hold {name}"))
        });
        // The record of a live node keeps the keys that are on it.
        let keeps = look.kept().is_some_and(|kept| !kept.is_empty()) && !look.case.is_ignored() && is_good;
        let what = if keeps { "remove the history of its record" } else { "empty its record" };
        commands.push((what, format!("perennial forget {name} --yes")));
    }
    commands.into_iter().map(|(what, command)| json!({"what": what, "command": command})).collect()
}
