//! Required node affinity of a pod template, matched as the scheduler does.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

/// `requiredDuringSchedulingIgnoredDuringExecution`. A node must match one of the terms.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RequiredAffinity {
    node_selector_terms: Vec<Term>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Term {
    match_expressions: Vec<Requirement>,
    match_fields: Vec<Requirement>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct Requirement {
    key: String,
    operator: String,
    values: Vec<String>,
}

impl RequiredAffinity {
    /// Reads it from `spec.affinity.nodeAffinity`. None: every node is allowed.
    pub fn of(node_affinity: Option<&Value>) -> Option<Self> {
        let required = node_affinity?.get("requiredDuringSchedulingIgnoredDuringExecution")?;
        Self::deserialize(required).ok()
    }

    /// Returns whether pods may use a node with this name and these labels.
    pub fn matches(&self, name: &str, labels: &BTreeMap<String, String>) -> bool {
        let field = |key: &str| (key == "metadata.name").then_some(name);
        let label = |key: &str| labels.get(key).map(String::as_str);
        self.node_selector_terms.iter().any(|term| {
            // An empty term matches no node.
            !(term.match_expressions.is_empty() && term.match_fields.is_empty())
                && term.match_expressions.iter().all(|one| one.matches(label(&one.key)))
                && term.match_fields.iter().all(|one| one.matches(field(&one.key)))
        })
    }
}

impl Requirement {
    fn matches(&self, value: Option<&str>) -> bool {
        let is_listed = || value.is_some_and(|value| self.values.iter().any(|one| one == value));
        let compare = || {
            let bound = self.values.first()?.parse::<i64>().ok()?;
            Some(value?.parse::<i64>().ok()?.cmp(&bound))
        };
        match self.operator.as_str() {
            "In" => is_listed(),
            "NotIn" => !is_listed(),
            "Exists" => value.is_some(),
            "DoesNotExist" => value.is_none(),
            "Gt" => compare().is_some_and(std::cmp::Ordering::is_gt),
            "Lt" => compare().is_some_and(std::cmp::Ordering::is_lt),
            // An unknown operator must not be evidence of capacity.
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case::value_in(json!([{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a", "b"]}]}]), true)]
    #[case::other_value(json!([{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]}]), false)]
    #[case::not_in(json!([{"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["a"]}]}]), false)]
    #[case::not_in_absent(json!([{"matchExpressions": [{"key": "x", "operator": "NotIn", "values": ["a"]}]}]), true)]
    #[case::exists(json!([{"matchExpressions": [{"key": "zone", "operator": "Exists"}]}]), true)]
    #[case::absent(json!([{"matchExpressions": [{"key": "zone", "operator": "DoesNotExist"}]}]), false)]
    #[case::greater(json!([{"matchExpressions": [{"key": "cores", "operator": "Gt", "values": ["4"]}]}]), true)]
    #[case::less(json!([{"matchExpressions": [{"key": "cores", "operator": "Lt", "values": ["4"]}]}]), false)]
    #[case::all_of_a_term(json!([{"matchExpressions": [
        {"key": "zone", "operator": "In", "values": ["a"]}, {"key": "x", "operator": "Exists"}]}]), false)]
    #[case::one_of_the_terms(json!([{"matchExpressions": [{"key": "x", "operator": "Exists"}]},
        {"matchExpressions": [{"key": "zone", "operator": "Exists"}]}]), true)]
    #[case::name(json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]), true)]
    #[case::other_name(json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]}]), false)]
    #[case::empty_term(json!([{}]), false)]
    #[case::no_terms(json!([]), false)]
    fn terms_match_as_in_the_scheduler(#[case] terms: Value, #[case] expected: bool) {
        let affinity = json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}});
        let labels = [("zone".to_owned(), "a".to_owned()), ("cores".to_owned(), "8".to_owned())].into();
        assert_eq!(RequiredAffinity::of(Some(&affinity)).unwrap().matches("n1", &labels), expected);
        assert_eq!(RequiredAffinity::of(Some(&json!({}))), None);
    }
}
