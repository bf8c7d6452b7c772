//! Room on a node: whether the requests of one more pod fit into what its pods leave of its
//! allocatable resources.
//!
//! Less strict than the scheduler, which also considers volumes, ports and affinities: a node without
//! room by requests is certainly full.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{Container, Pod},
    apimachinery::pkg::api::resource::Quantity,
};

type Amounts = BTreeMap<String, f64>;

/// Returns whether a pod like this one fits on the node beside the pods that are on it.
pub(super) fn fits(like: &Pod, node: &str, pods: &[Pod], allocatable: &BTreeMap<String, Quantity>) -> bool {
    let is_there = |pod: &&Pod| {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        let bound = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(node);
        bound && !matches!(phase, Some("Failed" | "Succeeded"))
    };
    let mut used = Amounts::new();
    for pod in pods.iter().filter(is_there).chain([like]) {
        *used.entry("pods".to_owned()).or_default() += 1.0;
        add(&mut used, requests(pod));
    }
    let asked = requests(like);
    let limits = allocatable.iter().filter(|(name, _)| *name == "pods" || asked.contains_key(*name));
    let mut limits = limits.filter_map(|(name, limit)| Some((name, amount(limit)?)));
    // Rounding must not make a pod too large that fits exactly.
    limits.all(|(name, limit)| used.get(name).is_none_or(|used| *used <= limit * (1.0 + 1e-9)))
        && asked.keys().all(|name| allocatable.contains_key(name))
}

/// Returns the resources that the scheduler reserves for a pod.
fn requests(pod: &Pod) -> Amounts {
    let Some(spec) = &pod.spec else { return Amounts::new() };
    let of = |container: &Container| -> Amounts {
        let requests = container.resources.as_ref().and_then(|resources| resources.requests.clone());
        amounts(requests.unwrap_or_default())
    };
    let mut all = Amounts::new();
    for container in &spec.containers {
        add(&mut all, of(container));
    }
    let (sidecars, init): (Vec<_>, Vec<_>) =
        spec.init_containers.iter().flatten().partition(|one| one.restart_policy.as_deref() == Some("Always"));
    for container in sidecars {
        add(&mut all, of(container));
    }
    for container in init {
        for (name, amount) in of(container) {
            let highest = all.entry(name).or_default();
            *highest = highest.max(amount);
        }
    }
    add(&mut all, amounts(spec.overhead.clone().unwrap_or_default()));
    all.retain(|_, amount| *amount > 0.0);
    all
}

fn add(to: &mut Amounts, from: Amounts) {
    for (name, amount) in from {
        *to.entry(name).or_default() += amount;
    }
}

fn amounts(quantities: BTreeMap<String, Quantity>) -> Amounts {
    quantities.into_iter().filter_map(|(name, quantity)| Some((name, amount(&quantity)?))).collect()
}

/// Parses a quantity, such as `100m`, `1.5Gi` or `2e3`.
fn amount(Quantity(text): &Quantity) -> Option<f64> {
    const SUFFIXES: [(&str, f64); 15] = [
        ("Ki", 1024.0),
        ("Mi", 1_048_576.0),
        ("Gi", 1_073_741_824.0),
        ("Ti", 1_099_511_627_776.0),
        ("Pi", 1_125_899_906_842_624.0),
        ("Ei", 1_152_921_504_606_846_976.0),
        ("n", 1e-9),
        ("u", 1e-6),
        ("m", 1e-3),
        ("k", 1e3),
        ("M", 1e6),
        ("G", 1e9),
        ("T", 1e12),
        ("P", 1e15),
        ("E", 1e18),
    ];
    let split = SUFFIXES.iter().find_map(|(suffix, factor)| Some((text.strip_suffix(suffix)?, *factor)));
    let (number, factor) = split.unwrap_or((text, 1.0));
    number.parse::<f64>().ok().map(|number| number * factor)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(node: Option<&str>, cpu: &str, phase: &str) -> Pod {
        let object = json!({
            "metadata": {"name": "web"},
            "spec": {"nodeName": node, "containers": [{"name": "main", "resources": {"requests": {"cpu": cpu}}}]},
            "status": {"phase": phase},
        });
        serde_json::from_value(object).unwrap()
    }

    fn fits_on(pods: &[Pod], allocatable: &Value) -> bool {
        let allocatable = serde_json::from_value(allocatable.clone()).unwrap();
        fits(&pod(Some("old"), "500m", "Running"), "new", pods, &allocatable)
    }

    #[test]
    fn a_pod_fits_while_requests_and_the_number_of_pods_allow_it() {
        let there = |cpu: &str| vec![pod(Some("new"), cpu, "Running"), pod(Some("other"), "9", "Running")];
        let node = json!({"cpu": "2", "memory": "8Gi", "pods": "110"});
        assert!(fits_on(&[], &node) && fits_on(&there("1500m"), &node));
        assert!(!fits_on(&there("1501m"), &node));
        assert!(!fits_on(&there("1"), &json!({"cpu": "2", "pods": "1"})), "the node has its pod already");
        assert!(fits_on(&[pod(Some("new"), "2", "Succeeded")], &node), "a finished pod uses nothing");
        assert!(!fits_on(&[], &json!({"memory": "8Gi", "pods": "110"})), "the node has none of the resource");
    }

    #[test]
    fn quantities_are_parsed() {
        let parsed = |text: &str| amount(&Quantity(text.to_owned()));
        assert_eq!(parsed("250m"), Some(0.25));
        assert_eq!(parsed("1.5Gi"), Some(1_610_612_736.0));
        assert_eq!(parsed("2e3"), Some(2_000.0));
        assert_eq!(parsed("3E"), Some(3e18));
        assert_eq!(parsed("x"), None);
    }
}
