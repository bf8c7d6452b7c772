//! Records as JSON.

use perennial_core::keeper::stored_record::Stored;
use serde_json::{Value, json};

use super::states::RecordState;
use crate::keeper::apply::LoadedRecord;

/// Returns a record as JSON: its content, or why it is quarantined.
pub(crate) fn as_json(held: &LoadedRecord) -> Value {
    let mut value = json!({
        "name": held.name(), "node": held.node_name(), "state": RecordState::of(held.stored()), "hold": held.is_on_hold(),
    });
    match held.stored() {
        Stored::Good(record) => {
            let text = record.encode().unwrap_or_default();
            value["record"] = serde_json::from_str(&text).unwrap_or_default();
        }
        Stored::Bad { fault, .. } => value["fault"] = json!(fault.to_string()),
    }
    value
}
