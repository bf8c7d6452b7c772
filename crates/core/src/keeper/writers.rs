//! The field managers of the labels of a node.
//!
//! Read from `metadata.managedFields` while a node is decoded. Everything else in there, which is
//! the largest part of a Node, is skipped.

use std::{
    borrow::Cow,
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor},
};

use crate::config::pattern::Patterns;

/// Labels by field manager. A label without a manager was set by a webhook in the create.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Writers(BTreeMap<String, BTreeSet<String>>);

impl Writers {
    /// Returns the field managers of a label, in the order of their names.
    pub fn of<'a>(&'a self, label: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(_, labels)| labels.contains(label)).map(|(manager, _)| manager.as_str())
    }

    /// Whether a label has field managers, and all of them match.
    pub fn are_all(&self, label: &str, managers: &Patterns) -> bool {
        let mut all = self.of(label).peekable();
        all.peek().is_some() && all.all(|manager| managers.matches(manager))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<'a> FromIterator<(&'a str, &'a str)> for Writers {
    /// Collects pairs of a field manager and a label.
    fn from_iter<I: IntoIterator<Item = (&'a str, &'a str)>>(pairs: I) -> Self {
        let mut writers = BTreeMap::<String, BTreeSet<String>>::new();
        for (manager, label) in pairs {
            writers.entry(manager.to_owned()).or_default().insert(label.to_owned());
        }
        Self(writers)
    }
}

impl<'de> Deserialize<'de> for Writers {
    /// Reads `metadata.managedFields`.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        BoundedWriters(&Cell::new(usize::MAX)).deserialize(deserializer)
    }
}

/// Reads `metadata.managedFields` of an untrusted object and takes every entry and every label from
/// this number of values as it arrives. Fails when none is left.
#[derive(Clone, Copy, Debug)]
pub struct BoundedWriters<'a>(pub &'a Cell<usize>);

impl<'de> DeserializeSeed<'de> for BoundedWriters<'_> {
    type Value = Writers;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Writers, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for BoundedWriters<'_> {
    type Value = Writers;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("managed fields or null")
    }

    fn visit_unit<E: Error>(self) -> Result<Writers, E> {
        Ok(Writers::default())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<Writers, A::Error> {
        let mut writers = BTreeMap::<String, BTreeSet<String>>::new();
        let mut manager = String::new();
        loop {
            let mut labels = BTreeSet::new();
            manager.clear();
            let entry = Part { level: Level::Entry, left: self.0, manager: &mut manager, labels: &mut labels };
            if entries.next_element_seed(entry)?.is_none() {
                return Ok(Writers(writers));
            }
            if !labels.is_empty() {
                take(self.0, JSON_VALUES)?;
                writers.entry(std::mem::take(&mut manager)).or_default().extend(labels);
            }
        }
    }
}

/// Values in the JSON form of a manager, apart from its labels.
const JSON_VALUES: usize = 5;

fn take<E: Error>(left: &Cell<usize>, values: usize) -> Result<(), E> {
    left.set(left.get().checked_sub(values).ok_or_else(|| E::custom("too many values in managedFields"))?);
    Ok(())
}

/// A map on the way from an entry to its labels.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Entry,
    Fields,
    Metadata,
    Labels,
}

/// Reads the manager and the labels of an entry.
struct Part<'a> {
    level: Level,
    left: &'a Cell<usize>,
    manager: &'a mut String,
    labels: &'a mut BTreeSet<String>,
}

impl Part<'_> {
    /// Returns the part of a field that leads to the labels.
    fn below(&mut self, key: &str) -> Option<Part<'_>> {
        let level = match (self.level, key) {
            (Level::Entry, "fieldsV1") => Level::Fields,
            (Level::Fields, "f:metadata") => Level::Metadata,
            (Level::Metadata, "f:labels") => Level::Labels,
            _ => return None,
        };
        Some(Part { level, left: self.left, manager: self.manager, labels: self.labels })
    }
}

impl<'de> DeserializeSeed<'de> for Part<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        if self.level == Level::Entry {
            take(self.left, 1)?;
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Part<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a map of fields or null")
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<Cow<'de, str>>()? {
            if let Some(part) = self.below(&key) {
                map.next_value_seed(part)?;
            } else if self.level == Level::Entry && key == "manager" {
                *self.manager = map.next_value::<Option<String>>()?.unwrap_or_default();
            } else {
                map.next_value::<IgnoredAny>()?;
                if let Some(label) = key.strip_prefix("f:").filter(|_| self.level == Level::Labels) {
                    take(self.left, 1)?;
                    self.labels.insert(label.to_owned());
                }
            }
        }
        Ok(())
    }
}

impl Serialize for Writers {
    /// Writes the same form, with labels only.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let entries = self.0.iter().map(|(manager, labels)| {
            let labels: serde_json::Map<String, serde_json::Value> =
                labels.iter().map(|label| (format!("f:{label}"), serde_json::json!({}))).collect();
            serde_json::json!({"manager": manager, "fieldsV1": {"f:metadata": {"f:labels": labels}}})
        });
        serializer.collect_seq(entries)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(fields: &Value) -> Writers {
        Writers::deserialize(fields).unwrap()
    }

    fn managed() -> Value {
        json!([
            {
                "manager": "kubelet", "operation": "Update", "apiVersion": "v1", "time": "2026-01-01T00:00:00Z",
                "fieldsType": "FieldsV1",
                "fieldsV1": {"f:metadata": {
                    "f:annotations": {".": {}, "f:volumes.kubernetes.io/controller-managed-attach-detach": {}},
                    "f:labels": {".": {}, "f:kubernetes.io/os": {}, "f:shared": {}},
                }},
            },
            {"manager": "kubelet", "subresource": "status", "fieldsV1": {"f:status": {"f:conditions": {"k:{\"type\":\"Ready\"}": {}}}}},
            {"manager": "kubectl-label", "fieldsV1": {"f:metadata": {"f:labels": {"f:team": {}, "f:shared": {}}}}},
        ])
    }

    #[test]
    fn managers_of_labels_are_read_from_managed_fields() {
        let writers = read(&managed());

        assert_eq!(writers.of("kubernetes.io/os").collect::<Vec<_>>(), ["kubelet"]);
        assert_eq!(writers.of("shared").collect::<Vec<_>>(), ["kubectl-label", "kubelet"]);
        assert_eq!(writers.of("unknown").count() + writers.of(".").count(), 0);
        assert_eq!(read(&serde_json::to_value(&writers).unwrap()), writers, "it reads as it was written");
        for nothing in [json!(null), json!([]), json!([{}]), json!([{"manager": "m", "fieldsV1": {}}])] {
            assert!(read(&nothing).is_empty(), "{nothing}");
        }
    }

    #[test]
    fn entries_and_labels_are_counted_as_they_arrive() {
        let left = Cell::new(100);
        assert_eq!(BoundedWriters(&left).deserialize(&managed()).unwrap(), read(&managed()));
        assert_eq!(left.get(), 100 - 3 - 4 - 2 * JSON_VALUES, "three entries, four labels, two managers");

        let labels: serde_json::Map<String, Value> = (0..200).map(|i| (format!("f:k{i}"), json!({}))).collect();
        for many in [json!(vec![json!({}); 101]), json!([{"fieldsV1": {"f:metadata": {"f:labels": labels}}}])] {
            assert!(BoundedWriters(&Cell::new(100)).deserialize(&many).is_err());
            assert!(Writers::deserialize(&many).is_ok());
        }
    }

    #[test]
    fn all_managers_of_a_label_must_match() {
        let (writers, kubelet) = (read(&managed()), Patterns::of(&["kubelet"]));

        assert!(writers.are_all("kubernetes.io/os", &kubelet));
        assert!(!writers.are_all("shared", &kubelet), "a person writes it too");
        assert!(!writers.are_all("team", &kubelet));
        assert!(!writers.are_all("unknown", &Patterns::of(&["*"])), "no manager is known");
    }
}
