//! Merge, strategic merge and JSON patches.

use serde_json::{Map, Value};

/// Applies a merge patch (RFC 7386).
pub fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(changes) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(fields) = target else { return };
    for (key, change) in changes {
        if change.is_null() {
            fields.remove(key);
        } else {
            merge(fields.entry(key.clone()).or_insert(Value::Null), change);
        }
    }
}

/// Returns whether a merge patch changes nothing.
pub fn changes_nothing(target: &Value, patch: &Value) -> bool {
    match patch {
        Value::Object(changes) => {
            target.is_object()
                && changes.iter().all(|(key, change)| match target.get(key) {
                    Some(field) => !change.is_null() && changes_nothing(field, change),
                    None => change.is_null(),
                })
        }
        _ => target == patch,
    }
}

/// Merge keys of lists. Other lists are replaced.
fn merge_key(list: &str) -> Option<&'static str> {
    Some(match list {
        "schedulingGates" | "containers" => "name",
        "conditions" => "type",
        "ownerReferences" => "uid",
        _ => return None,
    })
}

/// Applies a strategic merge patch: lists with a merge key are merged, `$patch: delete` removes an
/// entry.
pub fn strategic(target: &mut Value, patch: &Value) {
    let Value::Object(changes) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(fields) = target else { return };
    for (key, change) in changes {
        match (change, merge_key(key)) {
            (Value::Null, _) => drop(fields.remove(key)),
            (Value::Array(entries), Some(by)) => {
                let list = fields.entry(key.clone()).or_insert_with(|| Value::Array(Vec::new()));
                merge_list(list, entries, by);
                if list.as_array().is_some_and(Vec::is_empty) {
                    fields.remove(key);
                }
            }
            _ => strategic(fields.entry(key.clone()).or_insert(Value::Null), change),
        }
    }
}

fn merge_list(list: &mut Value, entries: &[Value], by: &str) {
    let Value::Array(items) = list else { return };
    for entry in entries {
        let at = items.iter().position(|item| item[by] == entry[by]);
        match (entry["$patch"] == "delete", at) {
            (true, Some(at)) => drop(items.remove(at)),
            (true, None) => {}
            (false, Some(at)) => strategic(&mut items[at], entry),
            (false, None) => items.push(entry.clone()),
        }
    }
}

/// Applies a JSON patch (RFC 6902). The error names the operation that failed.
pub fn json(target: &mut Value, operations: &[Value]) -> Result<(), String> {
    for operation in operations {
        let path = operation["path"].as_str().unwrap_or_default();
        let failed = || format!("the operation {operation} does not apply");
        let (parent, last) = path.rsplit_once('/').ok_or_else(failed)?;
        let last = last.replace("~1", "/").replace("~0", "~");
        let op = operation["op"].as_str().unwrap_or_default();
        if op == "test" {
            if target.pointer(path) != Some(&operation["value"]) {
                return Err(failed());
            }
            continue;
        }
        match target.pointer_mut(parent).ok_or_else(failed)? {
            Value::Object(fields) => match op {
                "add" => drop(fields.insert(last, operation["value"].clone())),
                "replace" if fields.contains_key(&last) => drop(fields.insert(last, operation["value"].clone())),
                "remove" if fields.contains_key(&last) => drop(fields.remove(&last)),
                _ => return Err(failed()),
            },
            Value::Array(items) => match (op, last.parse::<usize>()) {
                ("add", _) if last == "-" => items.push(operation["value"].clone()),
                ("add", Ok(at)) if at <= items.len() => items.insert(at, operation["value"].clone()),
                ("replace", Ok(at)) if at < items.len() => items[at] = operation["value"].clone(),
                ("remove", Ok(at)) if at < items.len() => drop(items.remove(at)),
                _ => return Err(failed()),
            },
            _ => return Err(failed()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_gate_is_deleted_by_name_and_the_empty_list_goes() {
        let mut pod = json!({"spec": {"schedulingGates": [{"name": "a"}], "nodeSelector": {"x": "y"}}});
        let patch =
            json!({"spec": {"schedulingGates": [{"$patch": "delete", "name": "a"}], "nodeSelector": {"c": "d"}}});
        strategic(&mut pod, &patch);
        assert_eq!(pod, json!({"spec": {"nodeSelector": {"x": "y", "c": "d"}}}));
    }

    #[test]
    fn null_removes_in_a_merge_patch() {
        let mut node = json!({"metadata": {"labels": {"a": "1", "b": "2"}}});
        merge(&mut node, &json!({"metadata": {"labels": {"a": null, "c": "3"}}}));
        assert_eq!(node, json!({"metadata": {"labels": {"b": "2", "c": "3"}}}));
    }

    #[test]
    fn a_merge_patch_that_changes_nothing_is_known_as_one() {
        let node = json!({"metadata": {"labels": {"a": "1"}}});
        for (patch, nothing) in [
            (json!({"metadata": {"labels": {"a": "1", "b": null}}}), true),
            (json!({"metadata": {"labels": {"a": "2"}}}), false),
            (json!({"metadata": {"labels": {"a": null}}}), false),
            (json!({"metadata": {"annotations": {}}}), false),
            (json!({"metadata": {"labels": {"a": {}}}}), false),
        ] {
            assert_eq!(changes_nothing(&node, &patch), nothing, "{patch}");
        }
    }

    #[test]
    fn a_json_patch_that_does_not_apply_is_an_error() {
        let mut node = json!({"metadata": {"labels": {}}});
        let add = json!({"op": "add", "path": "/metadata/labels/a~1b", "value": "c"});
        assert!(json(&mut node, &[add]).is_ok());
        assert_eq!(node["metadata"]["labels"]["a/b"], "c");
        assert!(json(&mut node, &[json!({"op": "remove", "path": "/metadata/annotations/x"})]).is_err());
    }
}
