//! The shape of the config file as a JSON schema, made from the table of keys: tools that know schemas find a mistyped
//! key before anything starts. What a value means is validated by [`super::load`] alone.

use serde_json::{Value as Tree, json};

use super::keys::KEYS;
use super::settings::Settings;

/// A JSON schema (draft 7) of the config file.
pub fn schema() -> Tree {
    let defaults = Settings::default();
    let mut schema = section();
    for key in KEYS {
        let mut place = &mut schema;
        let mut names: Vec<&str> = key.path.split('.').collect();
        let leaf = names.pop().unwrap_or_default();
        for name in names {
            let inner = &mut place["properties"][name];
            if inner.is_null() {
                *inner = section();
            }
            place = inner;
        }
        let mut described = kind(&(key.to_tree)(&defaults));
        described["description"] = json!(key.meaning);
        place["properties"][leaf] = described;
    }
    schema
}

fn section() -> Tree {
    json!({ "type": "object", "additionalProperties": false, "properties": {} })
}

/// By the default value: a list may be one text, a selector one line, and everything may be left empty.
fn kind(default: &Tree) -> Tree {
    match default {
        Tree::Bool(_) => json!({ "type": ["boolean", "null"] }),
        Tree::Number(_) => json!({ "type": ["integer", "null"], "minimum": 0 }),
        Tree::Array(_) => json!({ "type": ["array", "string", "null"] }),
        Tree::Object(_) => json!({ "type": ["object", "string", "null"] }),
        _ => json!({ "type": ["string", "null"] }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_are_closed_and_leaves_have_types() {
        let schema = schema();

        assert_eq!(schema["additionalProperties"], false);
        let election = &schema["properties"]["controller"]["properties"]["leaderElection"];
        assert_eq!(election["additionalProperties"], false);
        assert_eq!(election["properties"]["enabled"]["type"], json!(["boolean", "null"]));
        assert_eq!(schema["properties"]["webhook"]["properties"]["timeout"]["type"], json!(["string", "null"]));
    }
}
