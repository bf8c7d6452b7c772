//! Tolerations: in one line (`key=value:Effect`), or as Kubernetes writes them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer};

use super::selector::check_label;
use super::settings::{Effect, TolerationOperator};
use super::text::{serialize_display, string_schema, text_or_mapping};

/// A toleration. Without a value it tolerates all values of the key, without an effect all effects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Toleration {
    pub key: String,
    pub value: Option<String>,
    pub effect: Option<Effect>,
}
serialize_display!(Toleration);
string_schema!(Toleration);

/// A toleration as Kubernetes writes it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TolerationMapping {
    key: String,
    operator: Option<TolerationOperator>,
    value: Option<String>,
    effect: Option<Effect>,
}

impl Toleration {
    fn checked(self) -> Result<Self, String> {
        check_label(&self.key, self.value.as_deref().unwrap_or_default()).map(|()| self)
    }
}

impl TryFrom<TolerationMapping> for Toleration {
    type Error = String;

    fn try_from(TolerationMapping { key, operator, value, effect }: TolerationMapping) -> Result<Self, String> {
        match (operator.unwrap_or(TolerationOperator::Equal), value) {
            (TolerationOperator::Exists, Some(_)) => Err("operator Exists takes no value".to_owned()),
            (TolerationOperator::Equal, None) => Err("operator Equal needs a value".to_owned()),
            (_, value) => Self { key, value, effect }.checked(),
        }
    }
}

impl FromStr for Toleration {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (label, effect) = match text.rsplit_once(':') {
            Some((label, effect)) => {
                let refused = |error| format!("{error}, got {effect:?}");
                (label, Some(effect.parse::<Effect>().map_err(refused)?))
            }
            None => (text, None),
        };
        let (key, value) = match label.split_once('=') {
            Some((key, value)) => (key, Some(value.to_owned())),
            None => (label, None),
        };
        Self { key: key.to_owned(), value, effect }.checked()
    }
}

impl fmt::Display for Toleration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.key)?;
        self.value.iter().try_for_each(|value| write!(f, "={value}"))?;
        self.effect.iter().try_for_each(|effect| write!(f, ":{effect}"))
    }
}

impl<'de> Deserialize<'de> for Toleration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expected = "a toleration as key=value:Effect, or a mapping with key, operator, value and effect";
        text_or_mapping::<Self, TolerationMapping, D>(deserializer, expected)
    }
}
