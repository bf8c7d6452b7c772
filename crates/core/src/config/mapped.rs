//! Settings that are mappings in the file: selectors and tolerations, in Kubernetes' own shape or in kubectl's one line.

use serde_json::{Value as Tree, json};

use super::problem::Report;
use super::selector::{Expression, LabelSelector, check_label};
use super::settings::{Effect, Operator, Toleration};
use super::value::{Text, Value, fields};

impl Value for LabelSelector {
    fn from_tree(tree: &Tree, report: &mut Report) -> Option<Self> {
        if let Tree::String(text) = tree {
            return Self::from_text(text, report);
        }
        let before = report.count();
        let mut selector = Self::default();
        fields(tree, &["matchLabels", "matchExpressions"], report, |name, field, report| match name {
            "matchLabels" => match_labels(field, &mut selector, report),
            _ => selector.match_expressions = Vec::from_tree(field, report).unwrap_or_default(),
        });
        (report.count() == before).then_some(selector)
    }

    fn from_text(text: &str, report: &mut Report) -> Option<Self> {
        Self::parse(text).map_err(|error| report.problem(error)).ok()
    }

    fn to_tree(&self) -> Tree {
        json!({"matchLabels": self.match_labels, "matchExpressions": self.match_expressions.to_tree()})
    }
}

fn match_labels(tree: &Tree, selector: &mut LabelSelector, report: &mut Report) {
    let names: Vec<&str> = tree.as_object().into_iter().flatten().map(|(name, _)| name.as_str()).collect();
    fields(tree, &names, report, |name, field, report| match field.as_str() {
        Some(value) => match check_label(name, value) {
            Ok(()) => drop(selector.match_labels.insert(name.to_owned(), value.to_owned())),
            Err(why) => report.problem(why),
        },
        None => report.problem(format!("expected a text, got {field}; put it in quotes")),
    });
}

impl Value for Expression {
    fn from_tree(tree: &Tree, report: &mut Report) -> Option<Self> {
        let before = report.count();
        let (mut key, mut operator, mut values) = (None, None, Vec::new());
        fields(tree, &["key", "operator", "values"], report, |name, field, report| match name {
            "key" => key = Plain::from_tree(field, report),
            "operator" => operator = Operator::from_tree(field, report),
            _ => values = Vec::from_tree(field, report).unwrap_or_default(),
        });
        if report.count() > before {
            return None;
        }
        let (Some(Plain(key)), Some(operator)) = (key, operator) else {
            report.problem("needs a key and an operator");
            return None;
        };
        let expression = Self { key, operator, values: values.into_iter().map(|Plain(value)| value).collect() };
        expression.check().map_err(|why| report.problem(why)).ok().map(|()| expression)
    }

    /// Reached for a list that is given as one text, which a selector never is.
    fn from_text(_: &str, report: &mut Report) -> Option<Self> {
        report.problem("expected a mapping with key, operator and values");
        None
    }

    fn to_tree(&self) -> Tree {
        json!({"key": self.key, "operator": self.operator.as_str(), "values": self.values})
    }
}

/// `key=value:Effect`; each of value and effect may be left out. In the file Kubernetes' own shape is understood too.
impl Value for Toleration {
    fn from_tree(tree: &Tree, report: &mut Report) -> Option<Self> {
        if let Tree::String(text) = tree {
            return Self::from_text(text, report);
        }
        let before = report.count();
        let (mut key, mut operator, mut value, mut effect) = (None, None, None, None);
        fields(tree, &["key", "operator", "value", "effect"], report, |name, field, report| match name {
            "key" => key = Plain::from_tree(field, report),
            "operator" => operator = Plain::from_tree(field, report),
            "value" => value = Plain::from_tree(field, report).map(|Plain(text)| text),
            _ => effect = Effect::from_tree(field, report),
        });
        if report.count() > before {
            return None;
        }
        let toleration = match (key, operator.as_ref().map(|Plain(text)| text.as_str()), value) {
            (None, ..) => Err("needs a key".to_owned()),
            (Some(Plain(key)), Some("Exists"), None) => Ok(Self { key, value: None, effect }),
            (Some(Plain(key)), Some("Equal") | None, Some(value)) => Ok(Self { key, value: Some(value), effect }),
            (_, Some("Exists"), Some(_)) => Err("operator Exists takes no value".to_owned()),
            (_, Some("Equal") | None, None) => Err("operator Equal needs a value".to_owned()),
            (_, Some(other), _) => Err(format!("operator is Exists or Equal, got {other:?}")),
        };
        toleration.and_then(checked).map_err(|why| report.problem(why)).ok()
    }

    fn from_text(text: &str, report: &mut Report) -> Option<Self> {
        let (label, effect) = match text.rsplit_once(':') {
            Some((label, effect)) => (label, Some(Effect::from_text(effect, report)?)),
            None => (text, None),
        };
        let (key, value) = match label.split_once('=') {
            Some((key, value)) => (key, Some(value.to_owned())),
            None => (label, None),
        };
        checked(Self { key: key.to_owned(), value, effect }).map_err(|why| report.problem(why)).ok()
    }

    fn to_tree(&self) -> Tree {
        let value = self.value.as_ref().map(|value| format!("={value}")).unwrap_or_default();
        let effect = self.effect.map(|effect| format!(":{effect}")).unwrap_or_default();
        Tree::from(format!("{}{value}{effect}", self.key))
    }
}

fn checked(toleration: Toleration) -> Result<Toleration, String> {
    check_label(&toleration.key, toleration.value.as_deref().unwrap_or_default())?;
    Ok(toleration)
}

/// A text that is judged by whoever reads it.
struct Plain(String);

impl Text for Plain {
    fn expected() -> String {
        "a text".to_owned()
    }

    fn parse(text: &str) -> Result<Self, super::value::Refusal> {
        Ok(Self(text.to_owned()))
    }

    fn print(&self) -> String {
        self.0.clone()
    }
}
