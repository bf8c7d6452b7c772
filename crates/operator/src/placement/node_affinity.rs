//! Required node affinity, evaluated as the scheduler does.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorRequirement};

/// Returns whether a node matches.
pub(super) fn matches(required: &NodeSelector, name: &str, labels: &BTreeMap<String, String>) -> bool {
    required.node_selector_terms.iter().any(|term| {
        let mut expressions = term.match_expressions.iter().flatten().peekable();
        let mut fields = term.match_fields.iter().flatten().peekable();
        // A term without requirements matches no node.
        let has_some = expressions.peek().is_some() || fields.peek().is_some();
        has_some
            && expressions.all(|one| holds(one, labels.get(&one.key).map(String::as_str)))
            && fields.all(|one| one.key == "metadata.name" && holds(one, Some(name)))
    })
}

fn holds(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let is_in = |value: &str| values.iter().any(|known| known == value);
    match requirement.operator.as_str() {
        "In" => value.is_some_and(is_in),
        "NotIn" => !value.is_some_and(is_in),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        operator @ ("Gt" | "Lt") => {
            let value = value.and_then(|text| text.parse::<i64>().ok());
            let bound = values.first().and_then(|text| text.parse::<i64>().ok());
            let (Some(value), Some(bound)) = (value, bound) else { return false };
            if operator == "Gt" { value > bound } else { value < bound }
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    #[rstest]
    #[case(json!([{"key": "pool", "operator": "In", "values": ["a", "b"]}]), true)]
    #[case(json!([{"key": "pool", "operator": "In", "values": ["b"]}]), false)]
    #[case(json!([{"key": "pool", "operator": "NotIn", "values": ["a"]}]), false)]
    #[case(json!([{"key": "zone", "operator": "NotIn", "values": ["a"]}]), true)]
    #[case(json!([{"key": "pool", "operator": "Exists"}]), true)]
    #[case(json!([{"key": "pool", "operator": "DoesNotExist"}]), false)]
    #[case(json!([{"key": "cores", "operator": "Gt", "values": ["8"]}]), true)]
    #[case(json!([{"key": "cores", "operator": "Lt", "values": ["8"]}]), false)]
    #[case(json!([{"key": "pool", "operator": "Gt", "values": ["8"]}]), false)]
    #[case(json!([]), false)]
    fn requirements_hold_as_in_the_scheduler(#[case] expressions: Value, #[case] holds: bool) {
        let labels = [("pool", "a"), ("cores", "16")].map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        let selector = json!({"nodeSelectorTerms": [{"matchExpressions": expressions}]});
        let selector: NodeSelector = serde_json::from_value(selector).unwrap();
        assert_eq!(matches(&selector, "n1", &labels), holds);
    }

    #[test]
    fn one_term_is_enough_and_names_are_compared() {
        let term = |name: &str| json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]});
        let selector = json!({"nodeSelectorTerms": [term("n2"), term("n1")]});
        let selector: NodeSelector = serde_json::from_value(selector).unwrap();
        assert!(matches(&selector, "n1", &BTreeMap::new()));
        assert!(!matches(&selector, "n3", &BTreeMap::new()));
    }
}
