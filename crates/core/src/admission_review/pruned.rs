//! Decoding of the object in a review, reduced to the fields that handlers read.
//!
//! # Guarantees
//! The memory of a decoded object is bounded by its bytes and by [`MAX_VALUES`], whatever the
//! object contains: other fields are skipped while parsing, and an object with more values is
//! refused.

use std::{cell::Cell, fmt};

use serde::{
    Deserializer,
    de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Value};

use crate::keeper::writers::BoundedWriters;

/// Maximum number of JSON values that are kept of one object. A node with 200 labels has less than
/// 300.
pub const MAX_VALUES: usize = 4096;

/// Approximate memory of one decoded value, apart from its text.
const VALUE_BYTES: usize = 160;

const MANAGED_FIELDS: &str = "managedFields";
const METADATA: &[&str] = &[
    "name",
    "generateName",
    "namespace",
    "uid",
    "resourceVersion",
    "labels",
    "annotations",
    "creationTimestamp",
    "deletionTimestamp",
    "ownerReferences",
    MANAGED_FIELDS,
];

/// The fields that are kept, by the part of the object that contains them.
const KEPT: [(&str, &[&str]); 3] = [
    ("metadata", METADATA),
    (
        "spec",
        &[
            "providerID",
            "unschedulable",
            "taints",
            "nodeName",
            "nodeSelector",
            "affinity",
            "tolerations",
            "schedulingGates",
        ],
    ),
    ("status", &["nodeInfo"]),
];

/// Decodes an object, or `null`.
pub(super) fn object<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    let left = Cell::new(MAX_VALUES);
    let value = deserializer.deserialize_any(Fields { kept: KeptFields::Parts, left: &left })?;
    Ok((!value.is_null()).then_some(value))
}

fn too_many<E: Error>() -> E {
    E::custom(format_args!("more than {MAX_VALUES} values in an object"))
}

/// Decodes a list of strings, or `null`, with at most [`MAX_VALUES`].
pub(super) fn strings<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    deserializer.deserialize_any(Strings)
}

struct Strings;

impl<'de> Visitor<'de> for Strings {
    type Value = Vec<String>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a list of strings or null")
    }

    fn visit_unit<E: Error>(self) -> Result<Vec<String>, E> {
        Ok(Vec::new())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<String>, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            if items.len() == MAX_VALUES {
                return Err(too_many());
            }
            items.push(item);
        }
        Ok(items)
    }
}

/// Returns the approximate memory of a string that is kept.
pub(super) fn string_footprint(text: &str) -> usize {
    VALUE_BYTES + text.len()
}

/// Returns the approximate memory of a decoded object.
pub(super) fn footprint(value: &Value) -> usize {
    VALUE_BYTES
        + match value {
            Value::Array(items) => items.iter().map(footprint).sum(),
            Value::Object(fields) => fields.iter().map(|(key, value)| key.len() + footprint(value)).sum(),
            Value::String(text) => text.len(),
            _ => 0,
        }
}

/// The fields of a map that are kept.
#[derive(Clone, Copy)]
enum KeptFields {
    Parts,
    Fields(&'static [&'static str]),
}

/// Decodes a map without the fields that are not kept.
#[derive(Clone, Copy)]
struct Fields<'a> {
    kept: KeptFields,
    left: &'a Cell<usize>,
}

impl<'de> DeserializeSeed<'de> for Fields<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Fields<'_> {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object or null")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut fields = Map::new();
        while let Some(key) = map.next_key::<std::borrow::Cow<'de, str>>()? {
            match self.kept {
                KeptFields::Parts => match KEPT.iter().find(|(part, _)| *part == key) {
                    Some((part, kept)) => {
                        let value = map.next_value_seed(Fields { kept: KeptFields::Fields(kept), left: self.left })?;
                        fields.insert((*part).to_owned(), value);
                    }
                    None => drop(map.next_value::<IgnoredAny>()?),
                },
                // Reduced to the managers of labels, whatever else it contains.
                KeptFields::Fields(_) if key == MANAGED_FIELDS => {
                    let writers = map.next_value_seed(BoundedWriters(self.left))?;
                    if !writers.is_empty() {
                        fields.insert(key.into_owned(), serde_json::to_value(&writers).map_err(A::Error::custom)?);
                    }
                }
                KeptFields::Fields(kept) if kept.contains(&key.as_ref()) => {
                    let value = map.next_value_seed(CountedValue(self.left))?;
                    fields.insert(key.into_owned(), value);
                }
                KeptFields::Fields(_) => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(Value::Object(fields))
    }
}

/// Decodes any value and counts it.
#[derive(Clone, Copy)]
struct CountedValue<'a>(&'a Cell<usize>);

impl<'de> DeserializeSeed<'de> for CountedValue<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        let left = self.0.get().checked_sub(1);
        self.0.set(left.ok_or_else(too_many)?);
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for CountedValue<'_> {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a JSON value")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E: Error>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element_seed(self)? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut fields = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            fields.insert(key, map.next_value_seed(self)?);
        }
        Ok(Value::Object(fields))
    }
}
