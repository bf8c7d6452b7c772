//! Perennial's own export format: every record without resourceVersions and checksums, which belong
//! to one cluster.
//!
//! # Guarantees
//! Reading an export and writing it again results in the same bytes. The file may be edited: it has
//! no checksum, and every field is validated when it is read.

use serde_json::{Map, Value, json};

use super::{Format, ImportInput, config_map::of_record};
use crate::keeper::record::Record;

pub const KIND: &str = "RecordExport";
pub const API_VERSION: &str = "perennial.dev/v1";

/// Returns a record as an item of the export.
pub fn item(record: &Record, hold: bool) -> Value {
    let mut value = record.to_value();
    if let Some(map) = value.as_object_mut() {
        map.remove("checksum");
        if let Some(node) = map.get_mut("node").and_then(Value::as_object_mut) {
            node.remove("resourceVersion");
        }
        if hold {
            map.insert("hold".to_owned(), json!(true));
        }
    }
    value
}

pub(super) fn read(export: &Map<String, Value>, origin: &str, found: &mut ImportInput) {
    let version = export.get("apiVersion").and_then(Value::as_str).unwrap_or_default();
    if version != API_VERSION {
        found.take(origin, Err(format!("it is an export of version {version}, and this program reads {API_VERSION}")));
        return;
    }
    let Some(items) = export.get("items").and_then(Value::as_array) else {
        found.take(origin, Err("it has no items".to_owned()));
        return;
    };
    for (number, item) in items.iter().enumerate() {
        let node = item.pointer("/node/name").and_then(Value::as_str).unwrap_or("?");
        let origin = format!("{origin}, item {} ({node})", number + 1);
        let hold = item.get("hold") == Some(&Value::Bool(true));
        let read = Record::from_value(item.clone()).map_err(|fault| fault.to_string());
        found.take(
            &origin,
            read.and_then(|record| of_record(record, Format::Export, &origin)).map(|mut entry| {
                entry.hold = hold;
                entry
            }),
        );
    }
}
