//! The JSON schema of the config file, for tools that find a mistyped key before the operator
//! starts. It describes the forms of the values; [`super::load`] alone validates them.

use serde_json::{Value as Tree, json};

use super::keys::{ValueKind, keys};

/// Returns a JSON schema (draft 7) of the config file.
pub fn schema() -> Tree {
    let mut schema = section();
    for key in keys() {
        let mut place = &mut schema;
        let (sections, name) = key.path.rsplit_once('.').unwrap_or(("", &key.path));
        for section_name in sections.split('.').filter(|name| !name.is_empty()) {
            place = &mut place["properties"][section_name];
            if place.is_null() {
                *place = section();
            }
        }
        let mut value = value(key.kind);
        value["description"] = json!(key.description);
        if name == "port" {
            value["maximum"] = json!(u16::MAX);
        }
        place["properties"][name] = value;
    }
    schema
}

fn section() -> Tree {
    json!({ "type": "object", "additionalProperties": false, "properties": {} })
}

/// A list or a mapping may be written as one string, and every key may be left empty.
fn value(kind: ValueKind) -> Tree {
    match kind {
        ValueKind::Bool => json!({ "type": ["boolean", "null"] }),
        ValueKind::Number => json!({ "type": ["integer", "null"], "minimum": 0 }),
        ValueKind::List => json!({ "type": ["array", "string", "null"] }),
        ValueKind::Mapping => json!({ "type": ["object", "string", "null"] }),
        ValueKind::Text => json!({ "type": ["string", "null"] }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_are_closed_and_values_have_types() {
        let schema = schema();

        assert_eq!(schema["additionalProperties"], false);
        let election = &schema["properties"]["controller"]["properties"]["leaderElection"];
        assert_eq!(election["additionalProperties"], false);
        assert_eq!(election["properties"]["enabled"]["type"], json!(["boolean", "null"]));
        assert_eq!(schema["properties"]["webhook"]["properties"]["timeout"]["type"], json!(["string", "null"]));
        assert_eq!(schema["properties"]["webhook"]["properties"]["port"]["maximum"], 65535);
    }
}
