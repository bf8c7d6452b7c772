//! Selectors of node classes: matching nodes, reading and writing constraints, and detection.

use rstest::rstest;

use super::schemes::{LabelSchemes, SchemeSet};
use super::*;
use crate::config::settings::{NodeLabel, NodeLabelSettings};

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
    assert_eq!(label, BTreeMap::from([("karpenter.sh/capacity-type".to_owned(), "spot".to_owned())]));
    let before = json!({PREFERRED: [{"weight": 1, "preference": {}}]});
    let Selection::NodeAffinity(soft) = labels.select(Class::Spot, Strength::Preferred, Some(&before)) else {
        panic!()
    };
    assert_eq!(soft[PREFERRED].as_array().unwrap().len(), 2);
    assert_eq!(labels.choice(&BTreeMap::new(), Some(&soft)), Choice::Any);
}

#[test]
fn labels_that_contradict_are_refused() {
    let label = || vec!["a=b".parse::<LabelSelector>().unwrap()];
    assert_eq!(NodeLabels::new(label(), label()), Err(LabelsError::Both(label().remove(0))));
    assert_eq!(NodeLabels::new(label(), vec![]), Err(LabelsError::None(Class::OnDemand)));
}

#[test]
fn a_node_of_both_classes_counts_as_spot() {
    let node = BTreeMap::from([("cap".to_owned(), "on-demand".to_owned()), ("eks".to_owned(), "SPOT".to_owned())]);
    assert_eq!(several().class_of_node(&node), Some(Class::Spot));
    assert_eq!(several().class_of_node(&BTreeMap::new()), None);
}

fn labels(spot: &[&str], on_demand: &[&str]) -> NodeLabels {
    let parse = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
    NodeLabels::new(parse(spot), parse(on_demand)).unwrap()
}

fn node(text: &str) -> BTreeMap<String, String> {
    let pairs = text.split(',').filter(|pair| !pair.is_empty());
    pairs.map(|pair| pair.split_once('=').unwrap()).map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

/// Returns what `select` writes, as a pod's nodeSelector and nodeAffinity.
fn written(labels: &NodeLabels, class: Class, before: Option<&Value>) -> (BTreeMap<String, String>, Option<Value>) {
    match labels.select(class, Strength::Required, before) {
        Selection::NodeSelector(selector) => (selector, before.cloned()),
        Selection::NodeAffinity(affinity) => (BTreeMap::new(), Some(affinity)),
    }
}

/// Returns whether a pod with these constraints may run on a node.
fn schedulable(
    (selector, affinity): &(BTreeMap<String, String>, Option<Value>),
    node: &BTreeMap<String, String>,
) -> bool {
    let holds = |expression: &Value| {
        let operator = expression["operator"].as_str().unwrap().parse().unwrap();
        let values = expression["values"].as_array().into_iter().flatten();
        let values = values.map(|value| value.as_str().unwrap().to_owned()).collect();
        Expression { key: expression["key"].as_str().unwrap().to_owned(), operator, values }.matches(node)
    };
    let terms = terms(affinity.as_ref());
    let term_holds = |term: &Value| term["matchExpressions"].as_array().unwrap().iter().all(holds);
    selector.iter().all(|(key, value)| node.get(key) == Some(value))
        && (terms.is_empty() || terms.iter().any(term_holds))
}

/// Selectors of both classes, and nodes that are spot, on-demand and neither.
#[rstest]
#[case::labels(labels(&["cap=spot"], &["cap=od"]), &["cap=spot"], &["cap=od"], &["", "cap=x"])]
#[case::both_labels(labels(&["a=1,b=2"], &["a=0"]), &["a=1,b=2"], &["a=0,b=2"], &["a=1", "b=2"])]
#[case::values(labels(&["cap in (spot,cheap)"], &["cap=od"]), &["cap=spot", "cap=cheap"], &["cap=od"], &["cap=x"])]
#[case::absent(labels(&["spot=yes"], &["!spot"]), &["spot=yes"], &["", "x=y"], &["spot=no"])]
#[case::not_in(labels(&["prio=spot"], &["prio notin (spot)"]), &["prio=spot"], &["", "prio=regular"], &[])]
#[case::exists(labels(&["life"], &["!life"]), &["life=Ec2Spot", "life="], &[""], &[])]
#[case::wider(labels(&["cap=spot"], &["cap"]), &["cap=spot"], &["cap=od", "cap=reserved"], &[""])]
#[case::keys(labels(&["a=1", "b=1"], &["a=0", "b=0"]), &["a=1", "b=1"], &["a=0", "b=0"], &["", "a=2"])]
#[case::mixed(labels(&["a=1", "b=1"], &["!a,!b"]), &["a=1", "b=1", "a=1,b=1"], &[""], &["a=2"])]
fn nodes_match_and_written_constraints_select_them(
    #[case] labels: NodeLabels,
    #[case] spot: &[&str],
    #[case] on_demand: &[&str],
    #[case] neither: &[&str],
) {
    let expected = [(Some(Class::Spot), spot), (Some(Class::OnDemand), on_demand), (None, neither)];
    for (class, nodes) in expected {
        for text in nodes {
            assert_eq!(labels.class_of_node(&node(text)), class, "{text}");
        }
    }
    for class in [Class::Spot, Class::OnDemand] {
        let pod = written(&labels, class, None);
        assert_eq!(labels.choice(&pod.0, pod.1.as_ref()), Choice::Only(class), "{pod:?}");
        for (of, nodes) in expected {
            // A node of both classes may be written for either.
            for text in nodes.iter().filter(|_| of == Some(class) || of == Some(class.other()) && class == Class::Spot)
            {
                assert_eq!(schedulable(&pod, &node(text)), of == Some(class), "{class} on {text}: {pod:?}");
            }
        }
        let zone = require(&json!([{"key": "zone", "operator": "In", "values": ["a"]}]));
        let pod = written(&labels, class, Some(&zone));
        assert_eq!(labels.choice(&pod.0, pod.1.as_ref()), Choice::Only(class), "{pod:?}");
        assert_eq!(terms(pod.1.as_ref()).len(), 1, "a gated pod may not gain alternatives");
    }
}

#[rstest]
#[case("life=Ec2Spot", Choice::Only(Class::Spot))]
#[case("life=normal", Choice::Only(Class::OnDemand))]
#[case("other=x", Choice::Any)]
fn a_selector_of_any_other_value_permits_pods_with_one(#[case] pod: &str, #[case] choice: Choice) {
    assert_eq!(labels(&["life,life!=normal"], &["life=normal"]).choice(&node(pod), None), choice);
}

fn auto() -> LabelSchemes {
    LabelSchemes::new(&NodeLabelSettings::default()).unwrap()
}

fn detected(schemes: &LabelSchemes, nodes: &[&str]) -> SchemeSet {
    let found = nodes.iter().fold(SchemeSet::default(), |set, text| set | schemes.detect(&node(text)));
    schemes.active(found)
}

const KARPENTER: [&str; 3] =
    ["karpenter.sh/capacity-type=spot", "karpenter.sh/capacity-type=on-demand", "karpenter.sh/capacity-type=reserved"];
const EKS: [&str; 2] = ["eks.amazonaws.com/capacityType=SPOT", "eks.amazonaws.com/capacityType=ON_DEMAND"];
const GKE_SPOT: &str = "cloud.google.com/gke-spot=true,cloud.google.com/gke-provisioning=spot";
const GKE_OLD: &str = "cloud.google.com/gke-preemptible=true,cloud.google.com/gke-provisioning=preemptible";
const GKE: &str = "cloud.google.com/gke-provisioning=standard,cloud.google.com/gke-nodepool=a";
const AKS_SPOT: &str = "kubernetes.azure.com/scalesetpriority=spot,kubernetes.azure.com/agentpool=a";
const AKS: &str = "kubernetes.azure.com/agentpool=b";

#[rstest]
#[case::nothing(&[], "Karpenter", &[KARPENTER[0]], &[KARPENTER[1]])]
#[case::unlabelled(&["a=b"], "Karpenter", &[KARPENTER[0]], &[KARPENTER[1]])]
#[case::karpenter(&KARPENTER[..2], "Karpenter", &[KARPENTER[0]], &[KARPENTER[1]])]
#[case::reserved(&KARPENTER, "Karpenter, Karpenter reserved", &[KARPENTER[0]], &KARPENTER[1..])]
#[case::eks(&EKS[1..], "Karpenter, EKS", &[EKS[0], KARPENTER[0]], &[EKS[1], KARPENTER[1]])]
#[case::gke(&[GKE], "GKE", &[GKE_SPOT, GKE_OLD, "cloud.google.com/gke-spot=true"], &[GKE])]
#[case::aks(&[AKS], "AKS", &[AKS_SPOT], &[AKS, "", "kubernetes.azure.com/scalesetpriority=regular"])]
#[case::aks_and_karpenter(&[AKS, KARPENTER[0]], "Karpenter, AKS", &[AKS_SPOT, KARPENTER[0]], &[AKS, KARPENTER[1]])]
fn the_platform_is_detected_from_the_nodes(
    #[case] nodes: &[&str],
    #[case] names: &str,
    #[case] spot: &[&str],
    #[case] on_demand: &[&str],
) {
    let schemes = auto();
    let active = detected(&schemes, nodes);
    assert_eq!(schemes.names(active), names);
    let labels = schemes.labels(active);
    let all: Vec<(Class, &str)> = spot
        .iter()
        .map(|text| (Class::Spot, *text))
        .chain(on_demand.iter().map(|text| (Class::OnDemand, *text)))
        .collect();
    for (class, text) in &all {
        assert_eq!(labels.class_of_node(&node(text)), Some(*class), "{text}");
        assert_eq!(schemes.classes_of_node(&node(text)).class(active), Some(*class), "{text}");
    }
    let zone = require(&json!([{"key": "zone", "operator": "In", "values": ["a"]}]));
    for class in [Class::Spot, Class::OnDemand] {
        let pod = written(&labels, class, None);
        for (of, text) in &all {
            assert_eq!(schedulable(&pod, &node(text)), *of == class, "{class} on {text}: {pod:?}");
        }
        for before in [None, Some(&zone)] {
            let pod = written(&labels, class, before);
            assert_eq!(labels.choice(&pod.0, pod.1.as_ref()), Choice::Only(class), "{pod:?}");
            let stored = schemes.permitted(&pod.0, pod.1.as_ref());
            assert_eq!(stored.choice(active), Choice::Only(class), "{pod:?}");
        }
    }
    assert_eq!(schemes.permitted(&BTreeMap::new(), None).choice(active), Choice::Any);
}

#[test]
fn one_label_stays_a_node_selector_where_it_is_enough() {
    let schemes = auto();
    for (nodes, class) in [(&KARPENTER[..2], Class::OnDemand), (&[AKS], Class::Spot), (&[GKE], Class::OnDemand)] {
        let labels = schemes.labels(detected(&schemes, nodes));
        assert!(matches!(labels.select(class, Strength::Required, None), Selection::NodeSelector(_)), "{nodes:?}");
    }
}

#[test]
fn spot_nodes_that_the_platform_taints_are_tolerated() {
    let schemes = auto();
    let keys = |nodes| {
        let all = schemes.spot_tolerations(detected(&schemes, nodes));
        all.iter().map(|toleration| toleration["key"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(keys(&[AKS]), ["kubernetes.azure.com/scalesetpriority"]);
    assert!(keys(&[EKS[0]]).is_empty());
}

#[test]
fn a_configured_class_is_not_detected_and_may_be_added_to() {
    let label = |text: &str| text.parse::<NodeLabel>().unwrap();
    let own = NodeLabelSettings { spot: vec![label("cap=spot")], on_demand: vec![NodeLabel::Auto] };
    let schemes = LabelSchemes::new(&own).unwrap();
    let labels = schemes.labels(detected(&schemes, &[AKS]));
    assert_eq!(labels.describe(Class::Spot), "cap=spot");
    assert_eq!(labels.class_of_node(&node(AKS_SPOT)), None);
    assert_eq!(labels.class_of_node(&node("cap=spot")), Some(Class::Spot));
    assert_eq!(labels.class_of_node(&node(AKS)), Some(Class::OnDemand));

    let added = NodeLabelSettings { spot: vec![NodeLabel::Auto, label("cap=spot")], on_demand: vec![NodeLabel::Auto] };
    let schemes = LabelSchemes::new(&added).unwrap();
    let labels = schemes.labels(detected(&schemes, &[AKS]));
    assert_eq!(labels.class_of_node(&node(AKS_SPOT)), Some(Class::Spot));
    assert_eq!(labels.class_of_node(&node("cap=spot")), Some(Class::Spot));
}
