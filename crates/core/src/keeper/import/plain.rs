//! Plain YAML or JSON: `worker-1: {team: ml}`, `worker-1: {labels: {team: ml}}` or `[{node:
//! worker-1, labels: {…}}]`.

use serde_json::{Map, Value};

use super::{Format, ImportEntry, ImportInput, entry, labels, time};

pub(super) fn read(value: &Value, origin: &str, found: &mut ImportInput) {
    match value {
        Value::Array(items) => {
            for (number, item) in items.iter().enumerate() {
                let origin = format!("{origin}, item {}", number + 1);
                match item.as_object() {
                    Some(item) => found.take(&origin, listed(item, &origin)),
                    None => found.take(&origin, Err("it is not a map with a node and labels".to_owned())),
                }
            }
        }
        Value::Object(map) => {
            // A single node, or a map of nodes.
            if map.get("labels").is_some_and(Value::is_object) && name(map).is_some() {
                found.take(origin, listed(map, origin));
                return;
            }
            for (node, value_of_node) in map {
                let origin = format!("{origin}, {node}");
                let kept = match value_of_node.get("labels").filter(|labels| labels.is_object()) {
                    Some(nested) => labels(nested),
                    None => labels(value_of_node),
                };
                found.take(&origin, kept.and_then(|kept| entry(node, kept, Format::Plain, &origin)));
            }
        }
        _ => found.unknown += 1,
    }
}

fn name(item: &Map<String, Value>) -> Option<&str> {
    ["node", "nodeName", "name"].iter().find_map(|key| item.get(*key).and_then(Value::as_str))
}

fn listed(item: &Map<String, Value>, origin: &str) -> Result<ImportEntry, String> {
    let node = name(item).ok_or("it does not name its node")?;
    let kept = labels(item.get("labels").ok_or("it has no labels")?)?;
    let mut entry = entry(node, kept, Format::Plain, origin)?;
    entry.captured_at = time(item.get("capturedAt"));
    Ok(entry)
}
