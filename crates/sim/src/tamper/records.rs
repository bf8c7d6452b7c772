//! Rewrites records on their way to and from the API server.

use std::sync::Arc;

use perennial_core::keeper::{
    machine::Machine,
    provenance::Provenance,
    record::{RECORD_KEY, RECOVERED_KEY, Record},
};
use serde_json::{Value, json};

use crate::{
    broken_rule::BrokenRule,
    oracle::observed,
    server::{
        api::{ApiRequest, ApiResponse},
        response::ApiError,
        world::World,
    },
};

/// Rewrites the write of a ConfigMap. Some: the write is acknowledged and not carried out.
pub(super) fn write(world: &World, rule: BrokenRule, asked: &mut ApiRequest) -> Option<Result<ApiResponse, ApiError>> {
    match rule {
        BrokenRule::UnconditionalRecord => {
            if let Some(metadata) = asked.body["metadata"].as_object_mut() {
                metadata.remove("resourceVersion");
            }
        }
        BrokenRule::OverwriteBadRecords => {
            if let Some(data) = asked.body["data"].as_object_mut()
                && let Some(recovered) = data.remove(RECOVERED_KEY)
            {
                data.insert(RECORD_KEY.to_owned(), recovered);
            }
        }
        BrokenRule::DropWithheld => change(&mut asked.body, |record| record.withheld.clear()),
        BrokenRule::SequenceStands => {
            let before = stored(world, asked).map(|record| record.sequence);
            change(&mut asked.body, |record| record.sequence = before.unwrap_or(record.sequence));
        }
        BrokenRule::NoFold | BrokenRule::NoTombstone => {
            let next = observed::record(&asked.body)?;
            let news = stored(world, asked).is_none_or(|before| before.sequence != next.sequence);
            let dropped = if rule == BrokenRule::NoFold { next.folded } else { next.kept.is_empty() };
            return (news && dropped).then(|| Ok(ApiResponse { code: 200, body: Arc::new(asked.body.clone()) }));
        }
        _ => {}
    }
    None
}

/// Rewrites a ConfigMap that an operator reads.
pub(super) fn read(rule: BrokenRule, config_map: &mut Value) {
    match rule {
        BrokenRule::FoldOverNewer => change(config_map, |record| record.node.resource_version = 1),
        BrokenRule::ForgetPolicy => change(config_map, |record| record.provenance = Provenance::default()),
        // A node then always has more to report of its machine than its record.
        BrokenRule::WriteAgain => change(config_map, |record| record.node.machine = Machine::default()),
        BrokenRule::TrustBadRecords => {
            let value = config_map["data"][RECORD_KEY].as_str().and_then(|text| serde_json::from_str(text).ok());
            if let Some(record) = value.and_then(|value| Record::from_value(value).ok()) {
                put(config_map, &record);
            }
        }
        _ => {}
    }
}

fn stored(world: &World, asked: &ApiRequest) -> Option<Record> {
    let name = asked.target.name.as_deref()?;
    let config_map = world.lock().store.get(asked.target.kind, &asked.target.namespace, name).cloned()?;
    observed::record(&config_map)
}

/// Changes the record in a ConfigMap, where it can be read.
fn change(config_map: &mut Value, change: impl FnOnce(&mut Record)) {
    let decoded = config_map["data"][RECORD_KEY].as_str().map(Record::decode);
    if let Some(Ok(mut record)) = decoded {
        change(&mut record);
        put(config_map, &record);
    }
}

fn put(config_map: &mut Value, record: &Record) {
    if let Ok(text) = record.encode() {
        config_map["data"][RECORD_KEY] = json!(text);
    }
}
