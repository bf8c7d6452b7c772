//! The field managers of the labels of a node.
//!
//! Read from `metadata.managedFields` while a node is decoded, which happens with every update of its
//! status. Everything else in there, which is the largest part of a Node, is skipped. Names are copied
//! into one text and only compared when a decision needs them.

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
    fmt,
    hash::{DefaultHasher, Hash, Hasher},
};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor},
};

use crate::config::pattern::Patterns;

/// Labels by field manager. A label without a manager was set by a webhook in the create.
#[derive(Clone, Debug, Default)]
pub struct Writers {
    /// Names of managers and labels, one after another.
    text: String,
    managers: Vec<Name>,
    /// Labels, each with the position of its manager. No pair of names occurs twice.
    labels: Vec<(usize, Name)>,
}

/// A name in the text: its start and its end.
type Name = (usize, usize);

impl Writers {
    fn name(&self, (start, end): Name) -> &str {
        self.text.get(start..end).unwrap_or_default()
    }

    /// Returns all pairs of a field manager and a label, in no particular order.
    fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.labels.iter().map(|(manager, label)| {
            let manager = self.managers.get(*manager).copied().unwrap_or_default();
            (self.name(manager), self.name(*label))
        })
    }

    /// Returns the field managers of a label, in the order of their names.
    pub fn of<'a>(&'a self, label: &str) -> impl Iterator<Item = &'a str> {
        let managers: BTreeSet<&str> =
            self.pairs().filter(|(_, other)| *other == label).map(|(manager, _)| manager).collect();
        managers.into_iter()
    }

    /// Whether a label has field managers, and all of them match.
    pub fn are_all(&self, label: &str, managers: &Patterns) -> bool {
        let mut all = self.pairs().filter(|(_, other)| *other == label).map(|(manager, _)| manager).peekable();
        all.peek().is_some() && all.all(|manager| managers.matches(manager))
    }

    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// Ends an entry of a manager, whose labels begin at this position.
    fn end_entry(&mut self, manager: Name, begin: usize) {
        let name = self.name(manager);
        let is_known = self.managers.iter().any(|other| self.name(*other) == name);
        self.managers.push(manager);
        // A manager has several entries: by operation and by subresource.
        if is_known {
            let more = self.labels.split_off(begin);
            for (number, label) in more {
                let pair = (self.name(manager), self.name(label));
                if !self.pairs().any(|other| other == pair) {
                    self.labels.push((number, label));
                }
            }
        }
    }
}

impl PartialEq for Writers {
    fn eq(&self, other: &Self) -> bool {
        self.pairs().collect::<BTreeSet<_>>() == other.pairs().collect::<BTreeSet<_>>()
    }
}

impl Eq for Writers {}

impl Hash for Writers {
    /// Does not depend on the order, which changes with the times of updates.
    fn hash<H: Hasher>(&self, state: &mut H) {
        let hash = |pair: (&str, &str)| {
            let mut hasher = DefaultHasher::new();
            pair.hash(&mut hasher);
            hasher.finish()
        };
        state.write_usize(self.labels.len());
        state.write_u64(self.pairs().map(hash).fold(0, u64::wrapping_add));
    }
}

impl<'a> FromIterator<(&'a str, &'a str)> for Writers {
    /// Collects pairs of a field manager and a label.
    fn from_iter<I: IntoIterator<Item = (&'a str, &'a str)>>(pairs: I) -> Self {
        let mut writers = Self::default();
        for (manager, label) in pairs {
            let (start, begin) = (writers.text.len(), writers.labels.len());
            writers.text.push_str(manager);
            let middle = writers.text.len();
            writers.text.push_str(label);
            writers.labels.push((writers.managers.len(), (middle, writers.text.len())));
            writers.end_entry((start, middle), begin);
        }
        writers
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
        let mut writers = Writers::default();
        loop {
            let begin = writers.labels.len();
            let mut manager = Name::default();
            let entry = Part { level: FieldDepth::Entry, left: self.0, manager: &mut manager, writers: &mut writers };
            if entries.next_element_seed(entry)?.is_none() {
                return Ok(writers);
            }
            if writers.labels.len() > begin {
                take(self.0, JSON_VALUES)?;
                writers.end_entry(manager, begin);
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
enum FieldDepth {
    Entry,
    Fields,
    Metadata,
    Labels,
}

impl FieldDepth {
    /// Returns the level of a field that leads to the labels.
    fn below(self, key: &str) -> Option<Self> {
        match (self, key) {
            (Self::Entry, "fieldsV1") => Some(Self::Fields),
            (Self::Fields, "f:metadata") => Some(Self::Metadata),
            (Self::Metadata, "f:labels") => Some(Self::Labels),
            _ => None,
        }
    }
}

/// Reads the manager and the labels of an entry.
struct Part<'a> {
    level: FieldDepth,
    left: &'a Cell<usize>,
    manager: &'a mut Name,
    writers: &'a mut Writers,
}

impl<'de> DeserializeSeed<'de> for Part<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        if self.level == FieldDepth::Entry {
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

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Part { level, left, manager, writers } = self;
        while let Some(key) = map.next_key_seed(Append(&mut writers.text))? {
            let name = writers.name(key);
            let (below, is_manager) = (level.below(name), level == FieldDepth::Entry && name == "manager");
            let label =
                name.strip_prefix("f:").filter(|_| level == FieldDepth::Labels).map(|label| key.1 - label.len());
            if let Some(start) = label {
                map.next_value::<IgnoredAny>()?;
                take(left, 1)?;
                writers.labels.push((writers.managers.len(), (start, key.1)));
                continue;
            }
            writers.text.truncate(key.0);
            if let Some(level) = below {
                map.next_value_seed(Part { level, left, manager, writers })?;
            } else if is_manager {
                *manager = map.next_value_seed(Append(&mut writers.text))?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}

/// Appends a string, or nothing for null, and returns its place. Unlike a `String`, it needs no
/// memory of its own.
struct Append<'a>(&'a mut String);

impl<'de> DeserializeSeed<'de> for Append<'_> {
    type Value = Name;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Name, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl Visitor<'_> for Append<'_> {
    type Value = Name;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a string or null")
    }

    fn visit_unit<E: Error>(self) -> Result<Name, E> {
        Ok((self.0.len(), self.0.len()))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Name, E> {
        let start = self.0.len();
        self.0.push_str(text);
        Ok((start, self.0.len()))
    }
}

impl Serialize for Writers {
    /// Writes the same form, with labels only.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut managers: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (manager, label) in self.pairs() {
            managers.entry(manager).or_default().push(label);
        }
        let entries = managers.into_iter().map(|(manager, labels)| {
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

    #[test]
    fn writers_are_equal_in_any_order_of_entries_and_fields() {
        let entry = |manager: &str, labels: Value| json!({"manager": manager, "fieldsV1": {"f:metadata": {"f:labels": labels}}});
        let one = json!([entry("b", json!({"f:x": {}, "f:y": {}})), entry("a", json!({"f:x": {}}))]);
        let other = json!([
            entry("a", json!({"f:x": {}})),
            entry("b", json!({"f:y": {}})),
            entry("b", json!({"f:x": {}, "f:y": {}}))
        ]);
        let hash = |writers: &Writers| {
            let mut hasher = DefaultHasher::new();
            writers.hash(&mut hasher);
            hasher.finish()
        };
        let first_fields = r#"[{"fieldsV1":{"f:metadata":{"f:labels":{"f:x":{},"f:y":{}}}},"manager":"b"},
            {"fieldsV1":{"f:metadata":{"f:labels":{"f:\u0078":{}}}},"manager":"a"}]"#;
        let expected = read(&one);
        assert_eq!(expected, [("b", "x"), ("b", "y"), ("a", "x")].into_iter().collect());
        for writers in [read(&other), serde_json::from_str(first_fields).unwrap()] {
            assert_eq!((&writers, hash(&writers)), (&expected, hash(&expected)));
        }
        assert_ne!(read(&json!([entry("a", json!({"f:x": {}, "f:y": {}})), entry("b", json!({"f:x": {}}))])), expected);
    }
}
