//! Node labels of each class: reading a class from a node or from a pod's scheduling constraints,
//! and writing a class into constraints.
//!
//! Never removes or loosens an existing constraint: on a gated pod the API server would refuse
//! that.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::Serialize;
use serde_json::{Value, json};

use super::Class;
use super::spec::Strength;

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

/// One label of a node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Label {
    pub key: String,
    pub value: String,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LabelsError {
    #[error("`{0}` is not a label of the form key=value")]
    Form(String),
    #[error("no node label is configured for {0}")]
    None(Class),
    #[error("`{0}` is configured for both spot and on-demand")]
    Both(Label),
}

impl FromStr for Label {
    type Err = LabelsError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('=') {
            Some((key, value)) if !key.trim().is_empty() && !value.contains('=') => {
                Ok(Label { key: key.trim().to_owned(), value: value.trim().to_owned() })
            }
            _ => Err(LabelsError::Form(text.to_owned())),
        }
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.key, self.value)
    }
}

/// Labels of each class. A node belongs to a class if it has any of its labels.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeLabels {
    spot: Vec<Label>,
    on_demand: Vec<Label>,
}

/// Classes that the constraints of a pod allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    Any,
    Only(Class),
    /// The constraints exclude both classes.
    Neither,
}

impl Choice {
    pub fn class(self) -> Option<Class> {
        match self {
            Choice::Only(class) => Some(class),
            Choice::Any | Choice::Neither => None,
        }
    }
}

/// Constraint to be added to a pod to give it a class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Selection {
    NodeSelector(Label),
    /// The complete node affinity, including the pod's own.
    NodeAffinity(Value),
}

impl Default for NodeLabels {
    fn default() -> Self {
        let label = |value: &str| Label { key: "karpenter.sh/capacity-type".to_owned(), value: value.to_owned() };
        Self { spot: vec![label("spot")], on_demand: vec![label("on-demand")] }
    }
}

impl NodeLabels {
    pub fn new(spot: Vec<Label>, on_demand: Vec<Label>) -> Result<Self, LabelsError> {
        if spot.is_empty() {
            return Err(LabelsError::None(Class::Spot));
        }
        if on_demand.is_empty() {
            return Err(LabelsError::None(Class::OnDemand));
        }
        if let Some(both) = spot.iter().find(|label| on_demand.contains(label)) {
            return Err(LabelsError::Both(both.clone()));
        }
        Ok(Self { spot, on_demand })
    }

    pub fn of(&self, class: Class) -> &[Label] {
        match class {
            Class::Spot => &self.spot,
            Class::OnDemand => &self.on_demand,
        }
    }

    /// Returns the class of a node. A node with labels of both classes counts as spot, because the
    /// floor must be certain.
    pub fn class_of_node(&self, labels: &BTreeMap<String, String>) -> Option<Class> {
        let has = |label: &Label| labels.get(&label.key) == Some(&label.value);
        [Class::Spot, Class::OnDemand].into_iter().find(|class| self.of(*class).iter().any(has))
    }

    /// Returns the classes that a pod's `nodeSelector` and `spec.affinity.nodeAffinity` allow.
    pub fn choice(&self, selector: &BTreeMap<String, String>, node_affinity: Option<&Value>) -> Choice {
        let permits = |class| {
            let allowed = |label: &Label| {
                let selected = selector
                    .iter()
                    .all(|(key, value)| !self.is_key(key) || (*key == label.key && *value == label.value));
                selected && self.affinity_permits(terms(node_affinity), label)
            };
            self.of(class).iter().any(allowed)
        };
        match (permits(Class::Spot), permits(Class::OnDemand)) {
            (true, true) => Choice::Any,
            (true, false) => Choice::Only(Class::Spot),
            (false, true) => Choice::Only(Class::OnDemand),
            (false, false) => Choice::Neither,
        }
    }

    /// Returns the constraint that selects a class, combined with the pod's own node affinity.
    pub fn select(&self, class: Class, strength: Strength, node_affinity: Option<&Value>) -> Selection {
        let labels = self.of(class);
        if strength == Strength::Preferred {
            let terms = self.preferred_terms(class);
            return Selection::NodeAffinity(with(node_affinity, PREFERRED, |old| {
                Value::Array(old.and_then(Value::as_array).into_iter().flatten().cloned().chain(terms).collect())
            }));
        }
        if let [label] = labels {
            return Selection::NodeSelector(label.clone());
        }
        let wanted = expressions(labels, "In");
        let old = terms(node_affinity);
        let new: Vec<Value> = match (&wanted[..], old.is_empty()) {
            (_, true) => wanted.iter().map(|e| json!({"matchExpressions": [e]})).collect(),
            ([one], false) => old.iter().map(|term| tightened(term, std::slice::from_ref(one))).collect(),
            // Terms are alternatives, and a gated pod may not gain any. "One of several keys"
            // cannot be expressed within a term, "none of the other class" can.
            (_, false) => {
                let not = expressions(self.of(class.other()), "NotIn");
                old.iter().map(|term| tightened(term, &not)).collect()
            }
        };
        Selection::NodeAffinity(with(node_affinity, REQUIRED, |_| json!({"nodeSelectorTerms": new})))
    }

    /// Returns whether a node affinity contains what [`Self::select`] writes for a preferred class.
    pub fn prefers(&self, class: Class, node_affinity: Option<&Value>) -> bool {
        let present = node_affinity.and_then(|affinity| affinity[PREFERRED].as_array()).map_or(&[][..], Vec::as_slice);
        self.preferred_terms(class).all(|term| present.contains(&term))
    }

    fn preferred_terms(&self, class: Class) -> impl Iterator<Item = Value> {
        let wanted = expressions(self.of(class), "In").into_iter();
        wanted.map(|wanted| json!({"weight": 100, "preference": {"matchExpressions": [wanted]}}))
    }

    fn is_key(&self, key: &str) -> bool {
        self.spot.iter().chain(&self.on_demand).any(|label| label.key == key)
    }

    /// Returns whether the terms allow a node whose only capacity label is this one.
    fn affinity_permits(&self, terms: &[Value], label: &Label) -> bool {
        let holds = |expression: &Value| {
            let key = expression["key"].as_str().unwrap_or_default();
            if !self.is_key(key) {
                return true;
            }
            let here = key == label.key;
            let listed = here && expression["values"].as_array().is_some_and(|v| v.iter().any(|v| *v == label.value));
            match expression["operator"].as_str().unwrap_or_default() {
                "In" => listed,
                "NotIn" => !listed,
                "Exists" => here,
                "DoesNotExist" => !here,
                _ => true,
            }
        };
        let term_holds = |term: &Value| term["matchExpressions"].as_array().is_none_or(|all| all.iter().all(holds));
        terms.is_empty() || terms.iter().any(term_holds)
    }
}

fn terms(node_affinity: Option<&Value>) -> &[Value] {
    node_affinity.and_then(|a| a[REQUIRED]["nodeSelectorTerms"].as_array()).map_or(&[], Vec::as_slice)
}

/// Renders one expression per key.
fn expressions(labels: &[Label], operator: &str) -> Vec<Value> {
    let mut keys: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for label in labels {
        keys.entry(&label.key).or_default().push(&label.value);
    }
    keys.into_iter().map(|(key, values)| json!({"key": key, "operator": operator, "values": values})).collect()
}

fn tightened(term: &Value, by: &[Value]) -> Value {
    let mut term = term.as_object().cloned().unwrap_or_default();
    let old = term.get("matchExpressions").and_then(Value::as_array).into_iter().flatten();
    let all: Vec<Value> = old.chain(by).cloned().collect();
    term.insert("matchExpressions".to_owned(), Value::Array(all));
    Value::Object(term)
}

fn with(node_affinity: Option<&Value>, field: &str, change: impl FnOnce(Option<&Value>) -> Value) -> Value {
    let mut affinity = node_affinity.and_then(Value::as_object).cloned().unwrap_or_default();
    let new = change(affinity.get(field));
    affinity.insert(field.to_owned(), new);
    Value::Object(affinity)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn several() -> NodeLabels {
        let labels = |texts: &[&str]| texts.iter().map(|t| t.parse().unwrap()).collect();
        NodeLabels::new(labels(&["cap=spot", "eks=SPOT"]), labels(&["cap=on-demand", "cap=reserved", "eks=ON_DEMAND"]))
            .unwrap()
    }

    fn require(expressions: &Value) -> Value {
        json!({REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": expressions}]}})
    }

    #[rstest]
    #[case(json!([{"key": "zone", "operator": "In", "values": ["a"]}]), Choice::Any)]
    #[case(json!([{"key": "cap", "operator": "In", "values": ["spot", "on-demand"]}]), Choice::Any)]
    #[case(json!([{"key": "cap", "operator": "NotIn", "values": ["spot"]}, {"key": "eks", "operator": "DoesNotExist"}]), Choice::Only(Class::OnDemand))]
    #[case(json!([{"key": "eks", "operator": "In", "values": ["SPOT"]}]), Choice::Only(Class::Spot))]
    #[case(json!([{"key": "cap", "operator": "In", "values": ["other"]}]), Choice::Neither)]
    #[case(json!([{"key": "cap", "operator": "Exists"}]), Choice::Any)]
    fn a_pod_that_selects_its_capacity_is_recognised(#[case] expressions: Value, #[case] choice: Choice) {
        assert_eq!(several().choice(&BTreeMap::new(), Some(&require(&expressions))), choice);
    }

    #[test]
    fn a_node_selector_with_the_key_is_a_choice() {
        let selector = |v: &str| BTreeMap::from([("cap".to_owned(), v.to_owned())]);
        assert_eq!(several().choice(&selector("spot"), None), Choice::Only(Class::Spot));
        assert_eq!(several().choice(&selector("reserved"), None), Choice::Only(Class::OnDemand));
        assert_eq!(several().choice(&selector("gpu"), None), Choice::Neither);
        assert_eq!(several().choice(&BTreeMap::from([("disk".to_owned(), "ssd".to_owned())]), None), Choice::Any);
    }

    #[rstest]
    #[case(None)]
    #[case(Some(require(&json!([{"key": "zone", "operator": "In", "values": ["a"]}]))))]
    fn a_written_selection_reads_back_as_its_class(#[case] before: Option<Value>) {
        for class in [Class::Spot, Class::OnDemand] {
            let Selection::NodeAffinity(after) = several().select(class, Strength::Required, before.as_ref()) else {
                panic!("several labels need an affinity")
            };
            assert_eq!(several().choice(&BTreeMap::new(), Some(&after)), Choice::Only(class), "{after}");
            if before.is_some() {
                assert_eq!(terms(Some(&after)).len(), 1, "a gated pod may not gain alternatives");
                assert_eq!(terms(Some(&after))[0]["matchExpressions"][0]["key"], "zone");
            }
        }
    }

    #[test]
    fn one_label_is_a_node_selector_and_a_preferred_class_is_never_required() {
        let labels = NodeLabels::default();
        let Selection::NodeSelector(label) = labels.select(Class::Spot, Strength::Required, None) else { panic!() };
        assert_eq!(label.to_string(), "karpenter.sh/capacity-type=spot");
        let before = json!({PREFERRED: [{"weight": 1, "preference": {}}]});
        let Selection::NodeAffinity(soft) = labels.select(Class::Spot, Strength::Preferred, Some(&before)) else {
            panic!()
        };
        assert_eq!(soft[PREFERRED].as_array().unwrap().len(), 2);
        assert_eq!(labels.choice(&BTreeMap::new(), Some(&soft)), Choice::Any);
    }

    #[test]
    fn labels_that_contradict_are_refused() {
        let label = || vec!["a=b".parse::<Label>().unwrap()];
        assert_eq!(NodeLabels::new(label(), label()), Err(LabelsError::Both(label().remove(0))));
        assert_eq!(NodeLabels::new(label(), vec![]), Err(LabelsError::None(Class::OnDemand)));
        assert!("novalue".parse::<Label>().is_err());
    }

    #[test]
    fn a_node_of_both_classes_counts_as_spot() {
        let node = BTreeMap::from([("cap".to_owned(), "on-demand".to_owned()), ("eks".to_owned(), "SPOT".to_owned())]);
        assert_eq!(several().class_of_node(&node), Some(Class::Spot));
        assert_eq!(several().class_of_node(&BTreeMap::new()), None);
    }
}
