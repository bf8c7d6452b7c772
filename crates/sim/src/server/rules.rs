//! Validation and defaults of the API server, as far as they affect the operator.

use serde_json::{Value, json};

use super::{
    authn::User,
    kinds::{CONFIG_MAPS, DEPLOYMENTS, Kind, NODES, PODS},
    response::{self, ApiError},
    store::text,
};

const ANNOTATIONS: usize = 256 * 1024;
const CONFIG_MAP: usize = 1024 * 1024;

/// Sets the defaults that the API server sets.
pub fn default(kind: &Kind, object: &mut Value) {
    if std::ptr::eq(kind, &PODS) {
        if object.get("status").is_none_or(Value::is_null) {
            object["status"] = json!({"phase": "Pending"});
        }
    } else if std::ptr::eq(kind, &DEPLOYMENTS) && object["spec"].get("replicas").is_none() {
        object["spec"]["replicas"] = json!(1);
    }
    if std::ptr::eq(kind, &NODES)
        && let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut)
    {
        spec.retain(|_, value| !value.is_null() && value.as_array().is_none_or(|list| !list.is_empty()));
        if spec.get("unschedulable") == Some(&json!(false)) {
            spec.remove("unschedulable");
        }
    }
}

/// TaintNodesByCondition: a new node is tainted until it reports Ready.
pub fn taint_new_node(object: &mut Value) {
    let taint = json!({"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"});
    match object.pointer_mut("/spec/taints").and_then(Value::as_array_mut) {
        Some(taints) if taints.contains(&taint) => {}
        Some(taints) => taints.push(taint),
        None => object["spec"]["taints"] = json!([taint]),
    }
}

pub fn validate(kind: &Kind, object: &Value) -> Result<(), ApiError> {
    let name = text(object, "/metadata/name");
    let invalid = |why: String| Err(response::invalid(kind, name, &why));
    for (key, value) in object["metadata"]["labels"].as_object().into_iter().flatten() {
        if !is_label_key(key) || !value.as_str().is_some_and(is_label_value) {
            return invalid(format!("metadata.labels: Invalid value: \"{key}\""));
        }
    }
    let annotations = object["metadata"]["annotations"].as_object();
    let size: usize = annotations.into_iter().flatten().map(|(k, v)| k.len() + v.as_str().map_or(0, str::len)).sum();
    if size > ANNOTATIONS {
        return invalid("metadata.annotations: Too long".to_owned());
    }
    for taint in object["spec"]["taints"].as_array().into_iter().flatten().filter(|_| std::ptr::eq(kind, &NODES)) {
        let effect = text(taint, "/effect");
        if !is_label_key(text(taint, "/key")) || !["NoSchedule", "PreferNoSchedule", "NoExecute"].contains(&effect) {
            return invalid(format!("metadata.taints: Unsupported value: \"{effect}\""));
        }
    }
    if std::ptr::eq(kind, &CONFIG_MAPS) {
        let data = object["data"].as_object().into_iter().flatten();
        if data.map(|(k, v)| k.len() + v.as_str().map_or(0, str::len)).sum::<usize>() > CONFIG_MAP {
            return invalid("data: Too long: may not be more than 1048576 bytes".to_owned());
        }
    }
    Ok(())
}

/// Checks which fields of a pod an update changes.
pub fn validate_update(kind: &Kind, before: &Value, next: &Value) -> Result<(), ApiError> {
    if !std::ptr::eq(kind, &PODS) {
        return Ok(());
    }
    let name = text(before, "/metadata/name");
    let invalid = |why: &str| Err(response::invalid(kind, name, why));
    let gates = |pod: &Value| -> Vec<String> {
        let list = pod["spec"]["schedulingGates"].as_array();
        list.into_iter().flatten().map(|gate| text(gate, "/name").to_owned()).collect()
    };
    let (had, has) = (gates(before), gates(next));
    if has.iter().any(|gate| !had.contains(gate)) {
        return invalid("spec.schedulingGates: Forbidden: only deletion is allowed");
    }
    let (was, is) = (&before["spec"]["nodeSelector"], &next["spec"]["nodeSelector"]);
    if was != is {
        let grows = was.as_object().into_iter().flatten().all(|(key, value)| is.get(key) == Some(value));
        if had.is_empty() || !grows {
            return invalid("spec.nodeSelector: Invalid value: field is immutable");
        }
    }
    Ok(())
}

/// NodeRestriction: labels that a kubelet must not set on its own Node.
pub fn node_restriction(who: User, object: &Value) -> Result<(), ApiError> {
    if who != User::Kubelet {
        return Ok(());
    }
    for key in object["metadata"]["labels"].as_object().into_iter().flatten().map(|(key, _)| key) {
        let domain = key.split_once('/').map_or("", |(domain, _)| domain);
        let reserved = ["kubernetes.io", "k8s.io"].iter().any(|d| domain == *d || domain.ends_with(&format!(".{d}")));
        let free = ["kubelet.kubernetes.io", "node.kubernetes.io"]
            .iter()
            .any(|d| domain == *d || domain.ends_with(&format!(".{d}")));
        let known = matches!(
            key.as_str(),
            "kubernetes.io/hostname"
                | "kubernetes.io/os"
                | "kubernetes.io/arch"
                | "beta.kubernetes.io/os"
                | "beta.kubernetes.io/arch"
                | "beta.kubernetes.io/instance-type"
                | "topology.kubernetes.io/zone"
                | "topology.kubernetes.io/region"
                | "failure-domain.beta.kubernetes.io/zone"
                | "failure-domain.beta.kubernetes.io/region"
        );
        if reserved && !free && !known {
            let why = format!("is not allowed to set the following labels: {key}");
            return Err(response::forbidden(&NODES, text(object, "/metadata/name"), &why));
        }
    }
    Ok(())
}

fn is_label_key(key: &str) -> bool {
    let name = key.split_once('/').map_or(key, |(_, name)| name);
    !name.is_empty() && name.len() <= 63 && is_label_value(name)
}

fn is_label_value(value: &str) -> bool {
    let alphanumeric = |c: Option<char>| c.is_none_or(|c| c.is_ascii_alphanumeric());
    value.len() <= 63
        && value.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
        && alphanumeric(value.chars().next())
        && alphanumeric(value.chars().last())
}
