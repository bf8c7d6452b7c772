//! Records as values: their state and their JSON.

use perennial_core::keeper::stored_record::Stored;
use serde_json::{Value, json};

use crate::keeper::apply::Held;

/// One word for what a record is.
pub(crate) fn state(stored: &Stored) -> &'static str {
    match stored {
        Stored::Good(record) if record.is_tombstone() => "Tombstone",
        Stored::Good(record) if record.folded => "Folded",
        Stored::Good(_) => "Good",
        Stored::Bad { fault, .. } if fault.is_newer() => "Newer",
        Stored::Bad { .. } => "Invalid",
    }
}

/// A record for programs: what it holds, or why it cannot be trusted.
pub(crate) fn as_json(held: &Held) -> Value {
    let mut value = json!({"name": held.name(), "node": held.node_name(), "state": state(held.stored())});
    match held.stored() {
        Stored::Good(record) => {
            let text = record.encode().unwrap_or_default();
            value["record"] = serde_json::from_str(&text).unwrap_or_default();
        }
        Stored::Bad { fault, .. } => value["fault"] = json!(fault.to_string()),
    }
    value
}
