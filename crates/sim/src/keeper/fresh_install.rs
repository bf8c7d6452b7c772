//! Compares the end of a history with a fresh install.
//!
//! After any sequence of operations, a process without caches finds nothing to do, and an operator
//! that never saw the history writes the same records for the nodes that exist.

use std::{collections::BTreeMap, sync::Arc};

use perennial_core::keeper::record::Record;
use serde_json::Value;

use super::{
    REST,
    node_workload::{NAMESPACE, PROTECTED, hardware},
    rest_for,
    scenario::Fleet,
};
use crate::{
    actor::Actor,
    oracle::{Violation, keeper::is_note, observed},
    server::{
        authn::User,
        kinds::{CONFIG_MAPS, LEASES, NODES},
        store::{Change, What, text},
        world::World,
    },
};

/// Replaces the operators of a history that is at rest, and returns what differs from a fresh
/// install.
pub(super) async fn compare(world: &World, fleet: &mut Fleet) -> anyhow::Result<Vec<Violation>> {
    let mut found = cold_start(world, fleet).await?;
    found.extend(first_start(world, fleet).await?);
    Ok(found)
}

/// A process without caches must write nothing.
async fn cold_start(world: &World, fleet: &mut Fleet) -> anyhow::Result<Vec<Violation>> {
    let from = world.lock().store.rv();
    fleet.replace_all()?;
    rest_for(world, REST).await;
    let collects = fleet.plan.collects;
    let state = world.lock();
    let changes = state.store.between(from, u64::MAX).iter();
    let ours = changes.filter(|change| is_ours(change) && !is_note(change));
    let unneeded = ours.filter(|change| !(collects && change.what == What::Deleted));
    let violation = |change: &Change| {
        let (what, kind, name) = (change.what, change.kind.kind, change.name());
        let what = format!("a process without caches found work at the end: {what:?} of {kind} {name}");
        Violation { guarantee: "G7", what }
    };
    Ok(unneeded.map(violation).collect())
}

/// The first process of an installation, which has no records yet, must write the same content.
async fn first_start(world: &World, fleet: &mut Fleet) -> anyhow::Result<Vec<Violation>> {
    let kept = records(world);
    fleet.end_all();
    let person = Actor::new(world, User::Person);
    for kind in [&CONFIG_MAPS, &LEASES] {
        drop(person.delete(kind, NAMESPACE, None, Value::Null).await);
    }
    fleet.replace_all()?;
    rest_for(world, REST).await;
    let fresh = records(world);

    let mut found = Vec::new();
    for Live { name, hardware } in nodes(world) {
        let value = |records: &BTreeMap<String, Record>, key| {
            records.get(&name).and_then(|record| observed::recorded(record, key, hardware))
        };
        // A record keeps protected keys that its node does not have: those of another machine, and
        // those that were not given.
        for key in fleet.plan.keys.iter().filter(|key| **key != PROTECTED) {
            let (ours, theirs) = (value(&kept, key), value(&fresh, key));
            // A record also has keys that no policy keeps any more.
            if ours != theirs && (theirs.is_some() || !fleet.plan.policies) {
                let what = format!("the record of {name} has {key}: {ours:?}, and after a fresh install {theirs:?}");
                found.push(Violation { guarantee: "G1", what });
            }
        }
    }
    Ok(found)
}

fn is_ours(change: &Change) -> bool {
    let is_record = std::ptr::eq(change.kind, &CONFIG_MAPS) && change.namespace() == NAMESPACE;
    change.by.is_operator() && (is_record || std::ptr::eq(change.kind, &NODES))
}

/// A node that exists, and the machine that it runs on.
struct Live {
    name: String,
    hardware: u8,
}

fn nodes(world: &World) -> Vec<Live> {
    let state = world.lock();
    let live = |node: &Arc<Value>| Live { name: text(node, "/metadata/name").to_owned(), hardware: hardware(node) };
    state.store.all(&NODES, "").map(live).collect()
}

/// Returns the newest record of each node.
fn records(world: &World) -> BTreeMap<String, Record> {
    let mut newest: BTreeMap<String, Record> = BTreeMap::new();
    let state = world.lock();
    for record in state.store.all(&CONFIG_MAPS, NAMESPACE).filter_map(|object| observed::record(object)) {
        let version = |record: &Record| (record.node.resource_version, record.sequence);
        let name = record.node.name.clone();
        if newest.get(&name).is_none_or(|other| version(other) < version(&record)) {
            newest.insert(name, record);
        }
    }
    newest
}
