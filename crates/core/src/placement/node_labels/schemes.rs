//! Label schemes: how each platform labels spot and on-demand nodes, and which of them a cluster
//! uses.
//!
//! Owns the table of platforms. The result for a node or a pod is stored per scheme, so that it
//! stays valid when another scheme is detected.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::BitOr;

use serde_json::{Value, json};

use super::example::PodConstraints;
use super::{Choice, ClassLabels, LabelsError, NodeLabels, requirements, terms};
use crate::config::selector::{Expression, LabelSelector};
use crate::config::settings::{NodeLabel, NodeLabelSettings, Operator};
use crate::placement::Class;

pub(super) const KARPENTER: &str = "karpenter.sh/capacity-type";
const EKS: &str = "eks.amazonaws.com/capacityType";
const GKE_SPOT: &str = "cloud.google.com/gke-spot";
const GKE_PREEMPTIBLE: &str = "cloud.google.com/gke-preemptible";
const GKE: &str = "cloud.google.com/gke-provisioning";
const AKS: &str = "kubernetes.azure.com/scalesetpriority";

/// A set of schemes of one [`LabelSchemes`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SchemeSet(u8);

impl SchemeSet {
    fn one(index: usize) -> Self {
        Self(1 << index)
    }

    fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    fn contains(self, index: usize) -> bool {
        self.meets(Self::one(index))
    }
}

impl BitOr for SchemeSet {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// The schemes by which a node is, or a pod may be, of each class.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SchemeClasses {
    spot: SchemeSet,
    on_demand: SchemeSet,
}

impl SchemeClasses {
    /// Returns the class of a node. A node with labels of both classes counts as spot.
    pub fn class(self, active: SchemeSet) -> Option<Class> {
        if self.spot.meets(active) {
            Some(Class::Spot)
        } else {
            self.on_demand.meets(active).then_some(Class::OnDemand)
        }
    }

    /// Returns the classes that a pod may use.
    pub fn choice(self, active: SchemeSet) -> Choice {
        Choice::of(self.spot.meets(active), self.on_demand.meets(active))
    }
}

/// Labels by which the nodes of a scheme are recognised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Marker {
    /// The scheme is configured.
    Always,
    /// A label with this key.
    Key(&'static str),
    /// A label whose key starts with this.
    KeyPrefix(&'static str),
    Label(&'static str, &'static str),
}

impl Marker {
    fn is_on(self, labels: &BTreeMap<String, String>) -> bool {
        match self {
            Self::Always => true,
            Self::Key(key) => labels.contains_key(key),
            Self::KeyPrefix(prefix) => labels.keys().any(|key| key.starts_with(prefix)),
            Self::Label(key, value) => labels.get(key).is_some_and(|is| is == value),
        }
    }
}

#[derive(Debug, Clone)]
struct Scheme {
    name: &'static str,
    marker: Marker,
    spot: ClassLabels,
    on_demand: ClassLabels,
    /// Taint of spot nodes that the platform itself sets.
    spot_taint: Option<(&'static str, &'static str)>,
}

/// All schemes that a cluster may use.
#[derive(Debug, Clone)]
pub struct LabelSchemes {
    schemes: Vec<Scheme>,
    /// Keys of the labels of all schemes.
    keys: BTreeSet<String>,
}

pub(super) fn equals(key: &str, value: &str) -> LabelSelector {
    LabelSelector { match_labels: [(key.to_owned(), value.to_owned())].into(), ..LabelSelector::default() }
}

fn expression(key: &str, operator: Operator, values: &[&str]) -> Expression {
    let values = values.iter().map(|value| (*value).to_owned()).collect();
    Expression { key: key.to_owned(), operator, values }
}

/// The platforms that are recognised. Karpenter is the first: it tries the first term of a node
/// affinity first.
fn platforms() -> Vec<Scheme> {
    let scheme = |name, marker, spot: &[LabelSelector], on_demand: &[LabelSelector]| Scheme {
        name,
        marker,
        spot: ClassLabels::new(spot.to_vec()),
        on_demand: ClassLabels::new(on_demand.to_vec()),
        spot_taint: None,
    };
    let not_spot =
        LabelSelector { match_expressions: vec![expression(AKS, Operator::NotIn, &["spot"])], ..Default::default() };
    let mut gke = scheme(
        "GKE",
        Marker::KeyPrefix("cloud.google.com/gke-"),
        &[equals(GKE_SPOT, "true"), equals(GKE_PREEMPTIBLE, "true")],
        &[equals(GKE, "standard")],
    );
    for example in &mut gke.spot.examples {
        let kind = if example.has(GKE_SPOT, "true") { "spot" } else { "preemptible" };
        example.set(GKE, kind);
    }
    gke.spot_taint = Some((GKE_SPOT, "true"));
    let mut aks = scheme("AKS", Marker::KeyPrefix("kubernetes.azure.com/"), &[equals(AKS, "spot")], &[not_spot]);
    aks.spot_taint = Some((AKS, "spot"));
    vec![
        scheme("Karpenter", Marker::Key(KARPENTER), &[equals(KARPENTER, "spot")], &[equals(KARPENTER, "on-demand")]),
        scheme("Karpenter reserved", Marker::Label(KARPENTER, "reserved"), &[], &[equals(KARPENTER, "reserved")]),
        scheme("EKS", Marker::Key(EKS), &[equals(EKS, "SPOT")], &[equals(EKS, "ON_DEMAND")]),
        gke,
        aks,
    ]
}

impl LabelSchemes {
    pub fn new(labels: &NodeLabelSettings) -> Result<Self, LabelsError> {
        let explicit = |all: &[NodeLabel]| -> Vec<LabelSelector> {
            all.iter().filter_map(|label| label.selector().cloned()).collect()
        };
        let (spot, on_demand) = (explicit(&labels.spot), explicit(&labels.on_demand));
        for (class, configured) in [(Class::Spot, &labels.spot), (Class::OnDemand, &labels.on_demand)] {
            if configured.is_empty() {
                return Err(LabelsError::None(class));
            }
        }
        if let Some(both) = spot.iter().find(|selector| on_demand.contains(selector)) {
            return Err(LabelsError::Both(both.clone()));
        }
        let mut schemes = Vec::new();
        if !spot.is_empty() || !on_demand.is_empty() {
            let (spot, on_demand) = (ClassLabels::new(spot), ClassLabels::new(on_demand));
            schemes.push(Scheme { name: "nodeLabels", marker: Marker::Always, spot, on_demand, spot_taint: None });
        }
        let auto = |all: &[NodeLabel]| all.contains(&NodeLabel::Auto);
        let (auto_spot, auto_on_demand) = (auto(&labels.spot), auto(&labels.on_demand));
        if auto_spot || auto_on_demand {
            schemes.extend(platforms().into_iter().map(|mut platform| {
                if !auto_spot {
                    (platform.spot, platform.spot_taint) = (ClassLabels::default(), None);
                }
                if !auto_on_demand {
                    platform.on_demand = ClassLabels::default();
                }
                platform
            }));
        }
        let selectors =
            schemes.iter().flat_map(|scheme| scheme.spot.selectors.iter().chain(&scheme.on_demand.selectors));
        let keys = selectors.flat_map(LabelSelector::keys).map(ToOwned::to_owned).collect();
        Ok(Self { schemes, keys })
    }

    /// Returns whether the labels are detected from the nodes.
    pub fn is_auto(&self) -> bool {
        self.schemes.iter().any(|scheme| scheme.marker != Marker::Always)
    }

    /// Returns the schemes that a node's labels indicate.
    pub fn detect(&self, labels: &BTreeMap<String, String>) -> SchemeSet {
        self.set_of(|scheme| scheme.marker.is_on(labels))
    }

    /// Returns the schemes in use where these were detected. Without any it is Karpenter, which
    /// creates nodes for pods that wait. Karpenter is also assumed on EKS, where it often adds to a
    /// managed node group.
    pub fn active(&self, detected: SchemeSet) -> SchemeSet {
        let always = self.set_of(|scheme| scheme.marker == Marker::Always);
        let karpenter = self.set_of(|scheme| scheme.name == "Karpenter");
        let eks = self.set_of(|scheme| scheme.name == "EKS");
        let platforms = SchemeSet(detected.0 & !always.0);
        let assumed = platforms == SchemeSet::default() || platforms.meets(eks);
        always | platforms | if assumed { karpenter } else { SchemeSet::default() }
    }

    /// Returns the names of the schemes.
    pub fn names(&self, active: SchemeSet) -> String {
        self.of(active).map(|scheme| scheme.name).collect::<Vec<_>>().join(", ")
    }

    pub fn classes_of_node(&self, labels: &BTreeMap<String, String>) -> SchemeClasses {
        SchemeClasses {
            spot: self.set_of(|scheme| scheme.spot.matches(labels)),
            on_demand: self.set_of(|scheme| scheme.on_demand.matches(labels)),
        }
    }

    /// Returns the classes that a pod's `nodeSelector` and `spec.affinity.nodeAffinity` allow.
    pub fn permitted(&self, selector: &BTreeMap<String, String>, node_affinity: Option<&Value>) -> SchemeClasses {
        let constraints = PodConstraints { selector, terms: terms(node_affinity), keys: &self.keys };
        SchemeClasses {
            spot: self.set_of(|scheme| scheme.spot.permitted_by(&constraints)),
            on_demand: self.set_of(|scheme| scheme.on_demand.permitted_by(&constraints)),
        }
    }

    /// Returns the labels of these schemes together.
    pub fn labels(&self, active: SchemeSet) -> NodeLabels {
        let join = |part: fn(&Scheme) -> &ClassLabels| {
            let all = self.of(active).map(part);
            ClassLabels {
                selectors: all.clone().flat_map(|class| class.selectors.iter().cloned()).collect(),
                examples: all.flat_map(|class| class.examples.iter().cloned()).collect(),
            }
        };
        let (spot, mut on_demand) = (join(|scheme| &scheme.spot), join(|scheme| &scheme.on_demand));
        if self.is_auto() {
            // "Lacks the label of one platform" is true for spot nodes of all others.
            on_demand.selectors.iter_mut().for_each(|selector| exclude_spot(selector, &spot.selectors));
        }
        NodeLabels { keys: self.keys.clone(), ..NodeLabels::joined(spot, on_demand) }
    }

    /// Returns the tolerations of the taints that platforms set on their spot nodes.
    pub fn spot_tolerations(&self, active: SchemeSet) -> Vec<Value> {
        let taints = self.of(active).filter_map(|scheme| scheme.spot_taint);
        let render = |(key, value)| json!({"key": key, "operator": "Equal", "value": value, "effect": "NoSchedule"});
        taints.map(render).collect()
    }

    fn of(&self, set: SchemeSet) -> impl Iterator<Item = &Scheme> + Clone {
        self.schemes.iter().enumerate().filter(move |(index, _)| set.contains(*index)).map(|(_, scheme)| scheme)
    }

    fn set_of(&self, is_in: impl Fn(&Scheme) -> bool) -> SchemeSet {
        let found = self.schemes.iter().enumerate().filter(|(_, scheme)| is_in(scheme));
        found.fold(SchemeSet::default(), |set, (index, _)| set | SchemeSet::one(index))
    }
}

fn exclude_spot(selector: &mut LabelSelector, spot: &[LabelSelector]) {
    let negative = |expression: &Expression| matches!(expression.operator, Operator::NotIn | Operator::DoesNotExist);
    if !selector.match_labels.is_empty() || !selector.match_expressions.iter().all(negative) {
        return;
    }
    for spot in spot {
        if let [one] = &requirements(spot)[..]
            && one.operator == Operator::In
            && selector.match_expressions.iter().all(|expression| expression.key != one.key)
        {
            selector.match_expressions.push(Expression { operator: Operator::NotIn, ..one.clone() });
        }
    }
}
