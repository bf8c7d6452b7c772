//! Label selectors: as Kubernetes writes them, or in one line as for `kubectl -l`: `team=a,tier in
//! (x, y),!old`.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use super::names::{is_label_key, is_label_value};
use super::settings::Operator;
use super::text::{text, text_or_mapping};

/// A label selector. All of its requirements must hold; an empty one selects everything.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LabelSelector {
    pub match_labels: BTreeMap<String, String>,
    pub match_expressions: Vec<Expression>,
}

/// A requirement of a label selector.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "ExpressionMapping")]
#[schemars(inline)]
pub struct Expression {
    pub key: String,
    pub operator: Operator,
    pub values: Vec<String>,
}

// A label selector as Kubernetes writes it. The doc comments are descriptions of a
// CustomResourceDefinition.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
#[schemars(inline)]
pub(crate) struct SelectorMapping {
    /// Labels that an object must have.
    #[serde(default, deserialize_with = "labels", skip_serializing_if = "BTreeMap::is_empty")]
    match_labels: BTreeMap<String, String>,
    /// Requirements on labels. All must hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    match_expressions: Vec<Expression>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "a mapping with key, operator and values")]
#[schemars(inline, extend("x-kubernetes-validations" = [{
    "rule": "self.operator in ['In', 'NotIn'] ? has(self.values) && size(self.values) > 0 : !has(self.values) || size(self.values) == 0",
    "message": "In and NotIn need values; Exists and DoesNotExist have none",
}]))]
struct ExpressionMapping {
    /// Key of the label.
    key: String,
    /// Comparison of the label with the values.
    operator: Operator,
    /// Values for In and NotIn.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    values: Vec<String>,
}

impl<'de> Deserialize<'de> for LabelSelector {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expected =
            "a label selector: a mapping with matchLabels and matchExpressions, or one line as for kubectl -l";
        text_or_mapping::<Self, SelectorMapping, D>(deserializer, expected)
    }
}

impl TryFrom<SelectorMapping> for LabelSelector {
    type Error = String;

    fn try_from(mapping: SelectorMapping) -> Result<Self, String> {
        Ok(Self { match_labels: mapping.match_labels, match_expressions: mapping.match_expressions })
    }
}

fn labels<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, String>, D::Error> {
    let labels: BTreeMap<LabelKey, LabelValue> = BTreeMap::deserialize(deserializer)?;
    Ok(labels.into_iter().map(|(LabelKey(key), LabelValue(value))| (key, value)).collect())
}

/// A valid key of a label.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct LabelKey(String);

/// A valid value of a label.
struct LabelValue(String);

text! {
    LabelKey: "a label key",
    LabelValue: "a string",
}

impl FromStr for LabelKey {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if is_label_key(text) { Ok(Self(text.to_owned())) } else { Err("expected a label key".to_owned()) }
    }
}

impl FromStr for LabelValue {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if is_label_value(text) { Ok(Self(text.to_owned())) } else { Err("expected a label value".to_owned()) }
    }
}

impl TryFrom<ExpressionMapping> for Expression {
    type Error = String;

    fn try_from(ExpressionMapping { key, operator, values }: ExpressionMapping) -> Result<Self, String> {
        let expression = Self { key, operator, values };
        expression.check().map(|()| expression)
    }
}

impl FromStr for LabelSelector {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::parse(text)
    }
}

impl LabelSelector {
    pub fn is_empty(&self) -> bool {
        self.match_labels.is_empty() && self.match_expressions.is_empty()
    }

    /// Returns the keys of the labels that the selector reads.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        let expressions = self.match_expressions.iter().map(|expression| expression.key.as_str());
        self.match_labels.keys().map(String::as_str).chain(expressions)
    }

    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.match_labels.iter().all(|(key, value)| labels.get(key) == Some(value))
            && self.match_expressions.iter().all(|expression| expression.matches(labels))
    }

    /// Parses the one-line form. The error contains the requirement that is wrong.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut selector = Self::default();
        for part in requirements(text) {
            let wrong = |why: &str| format!("`{part}` {why}");
            let (key, operator, values) = split(part).ok_or_else(|| wrong("is not a requirement"))?;
            let plain = operator == Operator::In && !part.contains('(');
            if plain && !selector.match_labels.contains_key(key) {
                selector.match_labels.insert(key.to_owned(), values.concat());
            } else {
                let expression = Expression { key: key.to_owned(), operator, values };
                expression.check().map_err(|why| wrong(&why))?;
                selector.match_expressions.push(expression);
            }
        }
        for (key, value) in &selector.match_labels {
            check_label(key, value)?;
        }
        Ok(selector)
    }
}

impl Expression {
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        let value = labels.get(&self.key);
        let listed = || value.is_some_and(|value| self.values.contains(value));
        match self.operator {
            Operator::In => listed(),
            Operator::NotIn => !listed(),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
        }
    }

    pub(super) fn check(&self) -> Result<(), String> {
        let listing = matches!(self.operator, Operator::In | Operator::NotIn);
        if !is_label_key(&self.key) {
            return Err(format!("has {:?}, which is not a label key", self.key));
        }
        if listing == self.values.is_empty() {
            let rule = if listing { "needs values" } else { "takes no values" };
            return Err(format!("has operator {}, which {rule}", self.operator));
        }
        match self.values.iter().find(|value| !is_label_value(value)) {
            Some(value) => Err(format!("has {value:?}, which is not a label value")),
            None => Ok(()),
        }
    }
}

pub(super) fn check_label(key: &str, value: &str) -> Result<(), String> {
    if !is_label_key(key) {
        return Err(format!("{key:?} is not a label key"));
    }
    if is_label_value(value) { Ok(()) } else { Err(format!("{value:?} is not a label value")) }
}

/// Splits at the commas that are not in parentheses.
pub(super) fn requirements(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_u32;
    text.split(move |c| {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    })
    .map(str::trim)
    .filter(|part| !part.is_empty())
}

fn split(part: &str) -> Option<(&str, Operator, Vec<String>)> {
    if let Some(key) = part.strip_prefix('!') {
        return Some((key.trim(), Operator::DoesNotExist, Vec::new()));
    }
    if let Some(listed) = part.strip_suffix(')') {
        let (front, values) = listed.split_once('(')?;
        let (key, word) = front.trim().rsplit_once(char::is_whitespace)?;
        let operator = match word {
            "in" => Operator::In,
            "notin" => Operator::NotIn,
            _ => return None,
        };
        return Some((key.trim(), operator, values.split(',').map(|value| value.trim().to_owned()).collect()));
    }
    for (sign, operator) in [("!=", Operator::NotIn), ("==", Operator::In), ("=", Operator::In)] {
        if let Some((key, value)) = part.split_once(sign) {
            return Some((key.trim(), operator, vec![value.trim().to_owned()]));
        }
    }
    Some((part, Operator::Exists, Vec::new()))
}

/// Renders the one-line form, for `kubectl -l` and for list requests.
impl fmt::Display for LabelSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let labels = self.match_labels.iter().map(|(key, value)| format!("{key}={value}"));
        let expressions = self.match_expressions.iter().map(|Expression { key, operator, values }| match operator {
            Operator::In => format!("{key} in ({})", values.join(",")),
            Operator::NotIn => format!("{key} notin ({})", values.join(",")),
            Operator::Exists => key.clone(),
            Operator::DoesNotExist => format!("!{key}"),
        });
        f.write_str(&labels.chain(expressions).collect::<Vec<_>>().join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    #[rstest]
    #[case("", true)]
    #[case("team=a", true)]
    #[case("team==a", true)]
    #[case("team!=a", false)]
    #[case("team in (a, b),tier", true)]
    #[case("team notin (a,b)", false)]
    #[case("!team", false)]
    #[case("!old, tier=front", true)]
    #[case("absent notin (x)", true)]
    fn one_line_selectors_match(#[case] text: &str, #[case] expected: bool) {
        let labels = BTreeMap::from([("team".to_owned(), "a".to_owned()), ("tier".to_owned(), "front".to_owned())]);
        let selector = LabelSelector::parse(text).unwrap();
        assert_eq!(selector.matches(&labels), expected);
        assert_eq!(LabelSelector::parse(&selector.to_string()), Ok(selector));
    }

    #[rstest]
    #[case("team of (a)", "`team of (a)` is not a requirement")]
    #[case("a b", "`a b` has \"a b\", which is not a label key")]
    #[case("team=a b", "\"a b\" is not a label value")]
    #[case("x in (a/b)", "`x in (a/b)` has \"a/b\", which is not a label value")]
    fn bad_selectors_are_refused(#[case] text: &str, #[case] message: &str) {
        assert_eq!(LabelSelector::parse(text), Err(message.to_owned()));
    }

    proptest! {
        #[test]
        fn no_text_causes_a_panic(text in any::<String>()) {
            if let Ok(selector) = LabelSelector::parse(&text) {
                prop_assert_eq!(LabelSelector::parse(&selector.to_string()), Ok(selector));
            }
        }
    }
}
