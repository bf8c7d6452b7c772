//! Labels that a node of a class may have, and whether the constraints of a pod permit such a node.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::config::selector::{Expression, LabelSelector};
use crate::config::settings::Operator;

/// Capacity labels of a possible node. It has none of the other capacity labels.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Example(BTreeMap<String, ExampleValue>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum ExampleValue {
    Is(String),
    /// Any value except these.
    Except(Vec<String>),
}

impl ExampleValue {
    fn may_be(&self, value: &str) -> bool {
        match self {
            Self::Is(is) => is == value,
            Self::Except(not) => not.iter().all(|not| not != value),
        }
    }
}

impl Example {
    /// Returns examples of nodes that a selector matches.
    pub(super) fn of(selector: &LabelSelector) -> Vec<Self> {
        let mut start = Self::default();
        for (key, value) in &selector.match_labels {
            start.set(key, value);
        }
        let mut all = vec![start];
        for expression in &selector.match_expressions {
            all = all.into_iter().flat_map(|example| example.refined(expression)).collect();
        }
        all
    }

    /// Returns the example with one more requirement.
    fn refined(mut self, Expression { key, operator, values }: &Expression) -> Vec<Self> {
        let with = |value: ExampleValue| {
            let mut example = self.clone();
            example.0.insert(key.clone(), value);
            example
        };
        match (operator, self.0.get(key)) {
            (Operator::In, _) => values.iter().map(|value| with(ExampleValue::Is(value.clone()))).collect(),
            (Operator::Exists, None) => vec![with(ExampleValue::Except(Vec::new()))],
            (Operator::NotIn, None) => vec![with(ExampleValue::Except(values.clone())), self],
            (Operator::NotIn, Some(ExampleValue::Except(_))) => {
                if let Some(ExampleValue::Except(not)) = self.0.get_mut(key) {
                    not.extend(values.iter().cloned());
                }
                vec![self]
            }
            (Operator::Exists | Operator::NotIn, Some(_)) | (Operator::DoesNotExist, _) => vec![self],
        }
    }

    pub(super) fn set(&mut self, key: &str, value: &str) {
        self.0.insert(key.to_owned(), ExampleValue::Is(value.to_owned()));
    }

    pub(super) fn has(&self, key: &str, value: &str) -> bool {
        self.0.get(key).is_some_and(|is| *is == ExampleValue::Is(value.to_owned()))
    }

    /// Removes the values of one key that a selector lists from those that the example may have.
    pub(super) fn exclude(&mut self, selector: &LabelSelector) {
        let labels = selector.match_labels.iter().map(|(key, value)| (key, std::slice::from_ref(value)));
        let listed = selector.match_expressions.iter().filter(|expression| expression.operator == Operator::In);
        let mut all = labels.chain(listed.map(|expression| (&expression.key, &expression.values[..])));
        // Of several requirements each alone may be met by a node of the other class.
        if let (Some((key, values)), None) = (all.next(), all.next())
            && let Some(ExampleValue::Except(not)) = self.0.get_mut(key)
        {
            not.extend(values.iter().cloned());
        }
    }

    /// Returns whether a selector certainly matches the example.
    pub(super) fn is_matched_by(&self, selector: &LabelSelector) -> bool {
        let labels = self.0.iter().map(|(key, value)| match value {
            ExampleValue::Is(value) => Some((key.clone(), value.clone())),
            ExampleValue::Except(_) => None,
        });
        labels.collect::<Option<BTreeMap<_, _>>>().is_some_and(|labels| selector.matches(&labels))
    }

    fn permits(&self, expression: &Value) -> bool {
        let here = self.0.get(expression["key"].as_str().unwrap_or_default());
        let values = || expression["values"].as_array().into_iter().flatten().filter_map(Value::as_str);
        match (expression["operator"].as_str().unwrap_or_default(), here) {
            ("In", here) => here.is_some_and(|here| values().any(|value| here.may_be(value))),
            ("NotIn", Some(ExampleValue::Is(is))) => values().all(|value| value != is),
            ("Exists", here) => here.is_some(),
            ("DoesNotExist", here) => here.is_none(),
            _ => true,
        }
    }
}

/// Constraints of a pod.
#[derive(Debug, Clone, Copy)]
pub(super) struct PodConstraints<'a> {
    pub selector: &'a BTreeMap<String, String>,
    /// Terms of the required node affinity.
    pub terms: &'a [Value],
    /// Keys of capacity labels. Constraints on other keys are ignored.
    pub keys: &'a BTreeSet<String>,
}

impl PodConstraints<'_> {
    pub(super) fn permit(&self, example: &Example) -> bool {
        let selected = self
            .selector
            .iter()
            .all(|(key, value)| !self.keys.contains(key) || example.0.get(key).is_some_and(|here| here.may_be(value)));
        let holds = |expression: &Value| {
            !self.keys.contains(expression["key"].as_str().unwrap_or_default()) || example.permits(expression)
        };
        let term_holds = |term: &Value| term["matchExpressions"].as_array().is_none_or(|all| all.iter().all(holds));
        selected && (self.terms.is_empty() || self.terms.iter().any(term_holds))
    }
}
