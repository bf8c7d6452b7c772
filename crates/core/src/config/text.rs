//! Settings that are written as one string, in the file, in a variable and in a flag alike.

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use serde::{Serialize, Serializer};

use super::names::{is_annotation_key, is_dns_label, is_dns_subdomain, is_label_key};
use super::pattern::Pattern;
use super::problem::quoted;
use super::selector::LabelSelector;

/// A setting that is written as one string. The error of `FromStr` is the start of a message that
/// ends in `, got "…"`.
pub(super) trait Text: FromStr<Err: fmt::Display> {
    /// Completes "expected …".
    fn expected() -> String;
}

/// Implements [`Text`] and `Deserialize`.
macro_rules! text {
    ($($type:ident: $expected:expr),+ $(,)?) => {$(
        impl $crate::config::text::Text for $type {
            fn expected() -> String {
                $expected.into()
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                $crate::config::text::deserialize(deserializer)
            }
        }
    )+};
}
pub(super) use text;

/// Implements `Serialize` by `Display`.
macro_rules! serialize_display {
    ($($type:ident),+) => {$(
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
    )+};
}
pub(super) use serialize_display;

/// Implements the schema of a string.
macro_rules! string_schema {
    ($($type:ident),+) => {$(
        impl schemars::JsonSchema for $type {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($type).into()
            }

            fn inline_schema() -> bool {
                true
            }

            fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
                String::json_schema(generator)
            }
        }
    )+};
}
pub(super) use string_schema;

/// Deserializes a [`Text`] from a string.
pub(super) fn deserialize<'de, T: Text, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    struct FromText<T>(PhantomData<T>);

    impl<T: Text> Visitor<'_> for FromText<T> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(&T::expected())
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
            text.parse().map_err(|why| E::custom(format!("{why}, got {}", quoted(text))))
        }
    }

    deserializer.deserialize_str(FromText(PhantomData))
}

/// Deserializes a setting that is written either as one string or as a mapping of the shape `M`.
pub(super) fn text_or_mapping<'de, T, M, D>(deserializer: D, expected: &'static str) -> Result<T, D::Error>
where
    T: FromStr<Err = String> + TryFrom<M, Error = String>,
    M: Deserialize<'de>,
    D: Deserializer<'de>,
{
    struct TextOrMapping<T, M>(&'static str, PhantomData<(T, M)>);

    impl<'de, T, M> Visitor<'de> for TextOrMapping<T, M>
    where
        T: FromStr<Err = String> + TryFrom<M, Error = String>,
        M: Deserialize<'de>,
    {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
            text.parse().map_err(E::custom)
        }

        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
            M::deserialize(MapAccessDeserializer::new(map))?.try_into().map_err(A::Error::custom)
        }
    }

    deserializer.deserialize_any(TextOrMapping(expected, PhantomData))
}

/// An optional string; the empty string is none.
#[derive(JsonSchema)]
pub(super) struct EmptyIsNone(#[allow(dead_code)] String);

impl EmptyIsNone {
    #[expect(clippy::ref_option, reason = "serde passes a reference to the field")]
    pub(super) fn serialize<S: Serializer>(value: &Option<String>, serializer: S) -> Result<S::Ok, S::Error> {
        value.as_deref().unwrap_or_default().serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
        Ok(Some(String::deserialize(deserializer)?).filter(|text| !text.is_empty()))
    }
}

/// The namespace of Perennial's own objects; a DNS label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Namespace(String);

/// The domain of annotation keys, without the slash.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Prefix(String);

/// Labels that determine the capacity class of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeLabel {
    /// The labels of the platform, detected from the nodes.
    Auto,
    Selector(LabelSelector),
}

/// The property by which a returning node is recognized.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Identity {
    /// The instance where names are recycled addresses (AWS), otherwise the name.
    #[default]
    Auto,
    Name,
    ProviderId,
    SystemUuid,
    MachineId,
    Label(String),
    Annotation(String),
}

text! {
    Namespace: "a namespace: at most 63 lower-case letters, digits and `-`",
    Prefix: "a domain such as perennial.dev",
    NodeLabel: "auto or a label selector such as key=value, key in (a,b) or !key",
    Identity: "auto, name, providerID, systemUUID, machineID, label:KEY or annotation:KEY",
    Pattern: "a pattern such as example.com/*",
}
serialize_display!(Namespace, Prefix, NodeLabel, Identity, Pattern);
string_schema!(Namespace, Prefix, NodeLabel, Identity, Pattern);

/// The message for a string that is not a `T`.
fn unexpected<T: Text>() -> String {
    format!("expected {}", T::expected())
}

impl Namespace {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for Namespace {
    fn default() -> Self {
        Self("perennial-system".to_owned())
    }
}

impl FromStr for Namespace {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if is_dns_label(text) { Ok(Self(text.to_owned())) } else { Err(unexpected::<Self>()) }
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Prefix {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for Prefix {
    fn default() -> Self {
        Self("perennial.dev".to_owned())
    }
}

impl FromStr for Prefix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let domain = text.strip_suffix('/').unwrap_or(text);
        if is_dns_subdomain(domain) { Ok(Self(domain.to_owned())) } else { Err(unexpected::<Self>()) }
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for NodeLabel {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        let selector: LabelSelector = text.parse()?;
        if selector.is_empty() { Err(unexpected::<Self>()) } else { Ok(Self::Selector(selector)) }
    }
}

impl fmt::Display for NodeLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Selector(selector) => selector.fmt(f),
        }
    }
}

impl NodeLabel {
    pub fn selector(&self) -> Option<&LabelSelector> {
        match self {
            Self::Auto => None,
            Self::Selector(selector) => Some(selector),
        }
    }
}

impl FromStr for Identity {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let keyed = |key: &str, is_valid: fn(&str) -> bool, identity: fn(String) -> Self| {
            let wrong = || format!("{key:?} is not a key of a label or annotation");
            if is_valid(key) { Ok(identity(key.to_owned())) } else { Err(wrong()) }
        };
        match text.split_once(':') {
            Some(("label", key)) => keyed(key, is_label_key, Self::Label),
            Some(("annotation", key)) => keyed(key, is_annotation_key, Self::Annotation),
            Some(_) => Err(unexpected::<Self>()),
            None => match text.to_ascii_lowercase().as_str() {
                "auto" => Ok(Self::Auto),
                "name" => Ok(Self::Name),
                "providerid" => Ok(Self::ProviderId),
                "systemuuid" => Ok(Self::SystemUuid),
                "machineid" => Ok(Self::MachineId),
                _ => Err(unexpected::<Self>()),
            },
        }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Name => f.write_str("name"),
            Self::ProviderId => f.write_str("providerID"),
            Self::SystemUuid => f.write_str("systemUUID"),
            Self::MachineId => f.write_str("machineID"),
            Self::Label(key) => write!(f, "label:{key}"),
            Self::Annotation(key) => write!(f, "annotation:{key}"),
        }
    }
}
