//! Label selectors in queries and in objects.

use serde_json::Value;

/// The parts of a selector in a query: `a=b,c!=d,e in (f,g),h,!i`.
#[derive(Clone, Debug, Default)]
pub struct Selector(Vec<(String, Op, Vec<String>)>);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Op {
    In,
    NotIn,
    Exists,
    Missing,
}

impl Selector {
    pub fn parse(text: &str) -> Self {
        let mut parts = Vec::new();
        let mut depth = 0;
        let mut current = String::new();
        for c in text.chars() {
            match c {
                '(' => depth += 1,
                ')' => depth -= 1,
                ',' if depth == 0 => {
                    parts.push(std::mem::take(&mut current));
                    continue;
                }
                _ => {}
            }
            current.push(c);
        }
        parts.push(current);
        Self(parts.iter().map(|part| part.trim()).filter(|part| !part.is_empty()).map(part).collect())
    }

    pub fn matches(&self, object: &Value) -> bool {
        let labels = &object["metadata"]["labels"];
        self.0.iter().all(|(key, op, values)| {
            let value = labels.get(key).and_then(Value::as_str);
            let named = value.is_some_and(|value| values.iter().any(|v| v == value));
            match op {
                Op::In => named,
                Op::NotIn => !named,
                Op::Exists => value.is_some(),
                Op::Missing => value.is_none(),
            }
        })
    }
}

fn part(text: &str) -> (String, Op, Vec<String>) {
    let list = |text: &str| -> Vec<String> {
        text.trim().trim_matches(['(', ')']).split(',').map(|value| value.trim().to_owned()).collect()
    };
    if let Some((key, values)) = text.split_once(" notin ") {
        (key.trim().to_owned(), Op::NotIn, list(values))
    } else if let Some((key, values)) = text.split_once(" in ") {
        (key.trim().to_owned(), Op::In, list(values))
    } else if let Some((key, value)) = text.split_once("!=") {
        (key.trim().to_owned(), Op::NotIn, list(value))
    } else if let Some((key, value)) = text.split_once('=') {
        (key.trim().to_owned(), Op::In, list(value.trim_start_matches('=')))
    } else if let Some(key) = text.strip_prefix('!') {
        (key.trim().to_owned(), Op::Missing, Vec::new())
    } else {
        (text.to_owned(), Op::Exists, Vec::new())
    }
}

/// Returns whether a `matchLabels` selector matches these labels.
pub fn match_labels(selector: &Value, labels: &Value) -> bool {
    selector["matchLabels"]
        .as_object()
        .is_some_and(|wanted| wanted.iter().all(|(key, value)| labels.get(key) == Some(value)))
}
