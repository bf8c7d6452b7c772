//! Labels, annotations, taints and the cordon of a node as one map, so that every rule is written
//! once, over [`Kept`].

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};

use super::hash::Digest;

/// A key that can be kept.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    Label(String),
    Annotation(String),
    /// A taint is identified by its key and effect, as in the API server.
    Taint {
        key: String,
        effect: String,
    },
    /// `spec.unschedulable`.
    Cordon,
}

/// The kept part of a node or of a record.
pub type Kept = BTreeMap<Key, String>;

impl Key {
    pub fn label(key: &str) -> Self {
        Self::Label(key.to_owned())
    }

    /// Parses the output of `Display`. Text of no other kind is a label.
    pub fn parse(text: &str) -> Self {
        if text == CORDON {
            return Self::Cordon;
        }
        if let Some(key) = text.strip_prefix(ANNOTATION) {
            return Self::Annotation(key.to_owned());
        }
        if let Some((key, effect)) = text.strip_prefix(TAINT).and_then(|rest| rest.rsplit_once(':')) {
            return Self::Taint { key: key.to_owned(), effect: effect.to_owned() };
        }
        Self::Label(text.to_owned())
    }
}

// Label keys contain no colon, so none of these can be a label.
const ANNOTATION: &str = "annotation:";
const TAINT: &str = "taint:";
const CORDON: &str = "cordon:";

/// A label is written as its key, the others as `annotation:KEY`, `taint:KEY:EFFECT` and `cordon:`.
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Label(key) => f.write_str(key),
            Self::Annotation(key) => write!(f, "{ANNOTATION}{key}"),
            Self::Taint { key, effect } => write!(f, "{TAINT}{key}:{effect}"),
            Self::Cordon => f.write_str(CORDON),
        }
    }
}

impl Serialize for Key {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(|text| Self::parse(&text))
    }
}

/// Returns the digest of a set of kept keys and values.
pub fn digest(kept: &Kept) -> Digest {
    Digest::of(kept.iter().flat_map(|(key, value)| [key.to_string(), value.clone()]))
}

/// A taint as Kubernetes writes it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Taint {
    pub key: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub value: String,
    pub effect: String,
    #[serde(default, rename = "timeAdded", skip_serializing_if = "Option::is_none")]
    pub time_added: Option<String>,
}

/// Kept keys by kind, as in the JSON of records and their history.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Content {
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<Taint>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub unschedulable: bool,
}

impl From<&Kept> for Content {
    fn from(kept: &Kept) -> Self {
        let mut content = Self::default();
        for (key, value) in kept {
            match key {
                Key::Label(key) => {
                    content.labels.insert(key.clone(), value.clone());
                }
                Key::Annotation(key) => {
                    content.annotations.insert(key.clone(), value.clone());
                }
                Key::Taint { key, effect } => content.taints.push(Taint {
                    key: key.clone(),
                    value: value.clone(),
                    effect: effect.clone(),
                    time_added: None,
                }),
                Key::Cordon => content.unschedulable = true,
            }
        }
        content
    }
}

impl From<Content> for Kept {
    fn from(content: Content) -> Self {
        let labels = content.labels.into_iter().map(|(key, value)| (Key::Label(key), value));
        let annotations = content.annotations.into_iter().map(|(key, value)| (Key::Annotation(key), value));
        let taints = content.taints.into_iter().map(|t| (Key::Taint { key: t.key, effect: t.effect }, t.value));
        let cordon = content.unschedulable.then(|| (Key::Cordon, TRUE.to_owned()));
        labels.chain(annotations).chain(taints).chain(cordon).collect()
    }
}

/// The value of [`Key::Cordon`].
pub const TRUE: &str = "true";

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(crate) fn any_key() -> impl Strategy<Value = Key> {
        let word = "[a-z0-9./-]{1,12}";
        prop_oneof![
            word.prop_map(Key::Label),
            word.prop_map(Key::Annotation),
            (word, "NoSchedule|NoExecute|PreferNoSchedule").prop_map(|(key, effect)| Key::Taint { key, effect }),
            Just(Key::Cordon),
        ]
    }

    proptest! {
        #[test]
        fn keys_survive_their_text(key in any_key()) {
            prop_assert_eq!(Key::parse(&key.to_string()), key);
        }

        #[test]
        fn content_and_kept_say_the_same(map in proptest::collection::btree_map(any_key(), "[a-z]{0,5}", 0..8)) {
            let kept: Kept = map.into_iter().map(|(k, v)| if k == Key::Cordon { (k, TRUE.to_owned()) } else { (k, v) }).collect();
            let content = Content::from(&kept);
            let text = serde_json::to_string(&content).unwrap();
            let back: Content = serde_json::from_str(&text).unwrap();
            prop_assert_eq!(Kept::from(back), kept);
        }

        #[test]
        fn digests_differ_when_content_differs(
            a in proptest::collection::btree_map(any_key(), "[a-z]{0,3}", 0..4),
            b in proptest::collection::btree_map(any_key(), "[a-z]{0,3}", 0..4),
        ) {
            prop_assert_eq!(digest(&a) == digest(&b), a == b);
        }
    }
}
