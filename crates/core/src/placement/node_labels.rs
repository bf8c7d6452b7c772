//! Node labels of each class: reading a class from a node or from a pod's scheduling constraints,
//! and writing a class into constraints.
//!
//! Never removes or loosens an existing constraint: on a gated pod the API server would refuse
//! that.

mod example;
pub mod schemes;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use self::example::{Example, PodConstraints};
use super::Class;
use super::spec::Strength;
use crate::config::selector::{Expression, LabelSelector};
use crate::config::settings::Operator;

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LabelsError {
    #[error("no node label is configured for {0}")]
    None(Class),
    #[error("`{0}` is configured for both spot and on-demand")]
    Both(LabelSelector),
}

/// Labels of each class. A node belongs to a class if any of the selectors of that class matches
/// its labels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeLabels {
    spot: ClassLabels,
    on_demand: ClassLabels,
    /// Keys of all selectors.
    keys: BTreeSet<String>,
}

/// Labels of one class.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct ClassLabels {
    /// Alternatives.
    selectors: Vec<LabelSelector>,
    /// Labels that nodes of the class may have.
    examples: Vec<Example>,
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

    fn of(spot: bool, on_demand: bool) -> Self {
        match (spot, on_demand) {
            (true, true) => Choice::Any,
            (true, false) => Choice::Only(Class::Spot),
            (false, true) => Choice::Only(Class::OnDemand),
            (false, false) => Choice::Neither,
        }
    }
}

/// Constraint to be added to a pod to give it a class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Selection {
    NodeSelector(BTreeMap<String, String>),
    /// The complete node affinity, including the pod's own.
    NodeAffinity(Value),
}

impl Default for NodeLabels {
    /// The labels of Karpenter.
    fn default() -> Self {
        let label = |value: &str| schemes::equals(schemes::KARPENTER, value);
        Self::joined(ClassLabels::new(vec![label("spot")]), ClassLabels::new(vec![label("on-demand")]))
    }
}

impl ClassLabels {
    fn new(selectors: Vec<LabelSelector>) -> Self {
        let examples = selectors.iter().flat_map(Example::of).collect();
        Self { selectors, examples }
    }

    fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.selectors.iter().any(|selector| selector.matches(labels))
    }

    fn permitted_by(&self, constraints: &PodConstraints<'_>) -> bool {
        self.examples.iter().any(|example| constraints.permit(example))
    }

    /// Returns the requirements of each alternative. Alternatives that list values of one key are
    /// one.
    fn terms(&self) -> Vec<Vec<Expression>> {
        let mut terms: Vec<Vec<Expression>> = Vec::new();
        for selector in &self.selectors {
            let new = requirements(selector);
            let same = |term: &&mut Vec<Expression>| match (&term[..], &new[..]) {
                ([old], [new]) => old.key == new.key && (old.operator, new.operator) == (Operator::In, Operator::In),
                _ => false,
            };
            match (terms.iter_mut().find(same), &new[..]) {
                (Some(term), [new]) => term[0].values.extend(new.values.iter().cloned()),
                _ => terms.push(new),
            }
        }
        terms
    }
}

fn requirements(selector: &LabelSelector) -> Vec<Expression> {
    let labels = selector.match_labels.iter();
    let labels =
        labels.map(|(key, value)| Expression { key: key.clone(), operator: Operator::In, values: vec![value.clone()] });
    labels.chain(selector.match_expressions.iter().cloned()).collect()
}

impl NodeLabels {
    pub fn new(spot: Vec<LabelSelector>, on_demand: Vec<LabelSelector>) -> Result<Self, LabelsError> {
        if spot.is_empty() {
            return Err(LabelsError::None(Class::Spot));
        }
        if on_demand.is_empty() {
            return Err(LabelsError::None(Class::OnDemand));
        }
        if let Some(both) = spot.iter().find(|selector| on_demand.contains(selector)) {
            return Err(LabelsError::Both(both.clone()));
        }
        Ok(Self::joined(ClassLabels::new(spot), ClassLabels::new(on_demand)))
    }

    fn joined(spot: ClassLabels, mut on_demand: ClassLabels) -> Self {
        // A node with labels of both classes is spot.
        on_demand.selectors.iter_mut().for_each(|selector| exclude_values(selector, &spot.selectors));
        for selector in &spot.selectors {
            on_demand.examples.iter_mut().for_each(|example| example.exclude(selector));
        }
        on_demand.examples.retain(|example| !spot.selectors.iter().any(|selector| example.is_matched_by(selector)));
        let selectors = spot.selectors.iter().chain(&on_demand.selectors);
        let keys = selectors.flat_map(LabelSelector::keys).map(ToOwned::to_owned).collect();
        Self { spot, on_demand, keys }
    }

    fn class_labels(&self, class: Class) -> &ClassLabels {
        match class {
            Class::Spot => &self.spot,
            Class::OnDemand => &self.on_demand,
        }
    }

    /// Returns the selectors of a class as text.
    pub fn describe(&self, class: Class) -> String {
        self.class_labels(class).selectors.iter().map(ToString::to_string).collect::<Vec<_>>().join(" or ")
    }

    /// Returns the class of a node. A node with labels of both classes counts as spot, because the
    /// floor must be certain.
    pub fn class_of_node(&self, labels: &BTreeMap<String, String>) -> Option<Class> {
        [Class::Spot, Class::OnDemand].into_iter().find(|class| self.class_labels(*class).matches(labels))
    }

    /// Returns the classes that a pod's `nodeSelector` and `spec.affinity.nodeAffinity` allow.
    pub fn choice(&self, selector: &BTreeMap<String, String>, node_affinity: Option<&Value>) -> Choice {
        let constraints = PodConstraints { selector, terms: terms(node_affinity), keys: &self.keys };
        Choice::of(self.spot.permitted_by(&constraints), self.on_demand.permitted_by(&constraints))
    }

    /// Returns the constraint that selects a class, combined with the pod's own node affinity: a
    /// `nodeSelector` where labels with one value are enough.
    pub fn select(&self, class: Class, strength: Strength, node_affinity: Option<&Value>) -> Selection {
        if strength == Strength::Preferred {
            let terms = self.preferred_terms(class);
            return Selection::NodeAffinity(with(node_affinity, PREFERRED, |old| {
                Value::Array(old.and_then(Value::as_array).into_iter().flatten().cloned().chain(terms).collect())
            }));
        }
        let wanted = self.class_labels(class).terms();
        if let [one] = &wanted[..]
            && let Some(labels) = as_labels(one)
        {
            return Selection::NodeSelector(labels);
        }
        let old = terms(node_affinity);
        let new: Vec<Value> = if old.is_empty() {
            wanted.iter().map(|term| json!({"matchExpressions": rendered(term)})).collect()
        } else {
            // Terms are alternatives, and a gated pod may not gain any. "One of several keys"
            // cannot be expressed within a term, "none of the other class" most often can.
            let by = match (&wanted[..], self.none_of(class.other())) {
                ([one], _) => rendered(one),
                (_, Some(none)) => rendered(&none),
                (all, None) => all.first().map(|first| rendered(first)).unwrap_or_default(),
            };
            old.iter().map(|term| tightened(term, &by)).collect()
        };
        Selection::NodeAffinity(with(node_affinity, REQUIRED, |_| json!({"nodeSelectorTerms": new})))
    }

    /// Returns the requirements that exclude a class, unless that needs alternatives.
    fn none_of(&self, class: Class) -> Option<Vec<Expression>> {
        let opposite = |term: Vec<Expression>| match <[Expression; 1]>::try_from(term) {
            Ok([one]) => Some(Expression { operator: negated(one.operator), ..one }),
            Err(_) => None,
        };
        self.class_labels(class).terms().into_iter().map(opposite).collect()
    }

    /// Returns whether a node affinity contains what [`Self::select`] writes for a preferred class.
    pub fn prefers(&self, class: Class, node_affinity: Option<&Value>) -> bool {
        let present = node_affinity.and_then(|affinity| affinity[PREFERRED].as_array()).map_or(&[][..], Vec::as_slice);
        self.preferred_terms(class).all(|term| present.contains(&term))
    }

    fn preferred_terms(&self, class: Class) -> impl Iterator<Item = Value> {
        let wanted = self.class_labels(class).terms().into_iter();
        wanted.map(|term| json!({"weight": 100, "preference": {"matchExpressions": rendered(&term)}}))
    }
}

/// Excludes the values of spot nodes from a selector that matches any value of the same label.
fn exclude_values(selector: &mut LabelSelector, spot: &[LabelSelector]) {
    for spot in spot {
        let [Expression { key, operator: Operator::In, values }] = &requirements(spot)[..] else { continue };
        let same = || selector.match_expressions.iter().filter(|expression| expression.key == *key);
        let excluded = |value: &&String| {
            same().any(|expression| expression.operator == Operator::NotIn && expression.values.contains(value))
        };
        let new: Vec<String> = values.iter().filter(|value| !excluded(value)).cloned().collect();
        let is_open = same().any(|expression| matches!(expression.operator, Operator::Exists | Operator::NotIn));
        if is_open && !new.is_empty() && same().all(|expression| expression.operator != Operator::In) {
            selector.match_expressions.push(Expression { key: key.clone(), operator: Operator::NotIn, values: new });
        }
    }
}

fn negated(operator: Operator) -> Operator {
    match operator {
        Operator::In => Operator::NotIn,
        Operator::NotIn => Operator::In,
        Operator::Exists => Operator::DoesNotExist,
        Operator::DoesNotExist => Operator::Exists,
    }
}

/// Returns the requirements as labels, if each has exactly one value.
fn as_labels(term: &[Expression]) -> Option<BTreeMap<String, String>> {
    let label = |expression: &Expression| match (expression.operator, &expression.values[..]) {
        (Operator::In, [value]) => Some((expression.key.clone(), value.clone())),
        _ => None,
    };
    term.iter().map(label).collect()
}

fn terms(node_affinity: Option<&Value>) -> &[Value] {
    node_affinity.and_then(|a| a[REQUIRED]["nodeSelectorTerms"].as_array()).map_or(&[], Vec::as_slice)
}

fn rendered(term: &[Expression]) -> Vec<Value> {
    let render = |Expression { key, operator, values }: &Expression| {
        if values.is_empty() {
            json!({"key": key, "operator": operator.to_string()})
        } else {
            json!({"key": key, "operator": operator.to_string(), "values": values})
        }
    };
    term.iter().map(render).collect()
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
mod tests;
