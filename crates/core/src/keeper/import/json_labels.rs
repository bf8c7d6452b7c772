//! ConfigMaps with labels as JSON, in any of the layouts that scripts write: one data key per node,
//! or one ConfigMap per node with its labels under any key.

use serde_json::{Map, Value};

use super::{Format, ImportEntry, ImportInput, entry, labels, time};

/// Data keys that do not name a node.
const GENERIC: [&str; 6] = ["labels", "data", "state", "node", "nodelabels", "node-labels"];

/// Reads every data key of a ConfigMap.
pub(super) fn read(object: &Map<String, Value>, origin: &str, found: &mut ImportInput) {
    let name = object.get("metadata").and_then(|metadata| metadata.get("name")).and_then(Value::as_str);
    let Some(data) = object.get("data").and_then(Value::as_object).filter(|data| !data.is_empty()) else {
        found.unknown += 1;
        return;
    };
    for (key, value) in data {
        let origin = format!("{origin}, {key}");
        found.take(&origin, read_key(name.unwrap_or_default(), key, value, &origin));
    }
}

fn read_key(config_map: &str, key: &str, value: &Value, origin: &str) -> Result<ImportEntry, String> {
    let text = value.as_str().ok_or_else(|| format!("the value of {key} is not text"))?;
    let parsed: Value =
        serde_json::from_str(text).map_err(|error| format!("the value of {key} is not JSON: {error}"))?;
    let nested = parsed.get("labels").filter(|labels| labels.is_object());
    let kept = labels(nested.unwrap_or(&parsed))?;
    let name = ["node", "nodeName", "name"].iter().find_map(|field| parsed.get(*field).and_then(Value::as_str));
    let stem = key.strip_suffix(".json").unwrap_or(key);
    let node = match name.filter(|_| nested.is_some()) {
        Some(node) => node,
        None if GENERIC.contains(&stem.to_ascii_lowercase().as_str()) => config_map,
        None => stem,
    };
    let mut entry = entry(node, kept, Format::JsonLabels, origin)?;
    entry.captured_at = time(parsed.get("capturedAt"));
    Ok(entry)
}
