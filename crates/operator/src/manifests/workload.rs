//! The config, the Deployment, its Service and its disruption budget. Satisfies PodSecurity
//! `restricted`.

use perennial_core::keeper::selection::GATE_TAINT;
use serde_json::{Value, json};

use super::{Install, NAME, labels};

/// Path of the config file in the container.
const CONFIG_DIR: &str = "/etc/perennial";
pub(super) const CONFIG_MAP: &str = "perennial-config";
/// Time between SIGTERM and SIGKILL after failed probes.
const FROZEN_GRACE_SECONDS: u32 = 5;

pub(super) fn namespace(install: &Install) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {
            "name": install.namespace,
            "labels": { "pod-security.kubernetes.io/enforce": "restricted" },
        },
    })
}

pub(super) fn account(install: &Install) -> Value {
    json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata(install, NAME) })
}

pub(super) fn objects(install: &Install) -> Vec<Value> {
    let mut objects = vec![config_map(install), deployment(install), disruption_budget(install)];
    if install.features.webhooks || install.metrics_port.is_some() {
        objects.insert(1, service(install));
    }
    objects
}

fn metadata(install: &Install, name: &str) -> Value {
    json!({ "name": name, "namespace": install.namespace, "labels": labels() })
}

fn config_map(install: &Install) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(install, CONFIG_MAP),
        "data": { "config.yaml": install.config },
    })
}

/// Returns the Service. The webhook configurations refer to it, so its name is fixed.
fn service(install: &Install) -> Value {
    let mut ports = Vec::new();
    if install.features.webhooks {
        ports.push(json!({ "name": "webhook", "port": 443, "targetPort": "webhook", "protocol": "TCP" }));
    }
    if let Some(port) = install.metrics_port {
        ports.push(json!({ "name": "metrics", "port": port, "targetPort": "metrics", "protocol": "TCP" }));
    }
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(install, NAME),
        "spec": { "type": "ClusterIP", "selector": labels(), "ports": ports },
    })
}

fn disruption_budget(install: &Install) -> Value {
    json!({
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(install, NAME),
        "spec": { "maxUnavailable": 1, "selector": { "matchLabels": labels() } },
    })
}

fn deployment(install: &Install) -> Value {
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(install, NAME),
        "spec": {
            "replicas": install.replicas,
            "selector": { "matchLabels": labels() },
            // A new replica serves admission before an old one stops.
            "strategy": { "type": "RollingUpdate", "rollingUpdate": { "maxSurge": 1, "maxUnavailable": 0 } },
            "template": {
                "metadata": { "labels": labels() },
                "spec": {
                    "serviceAccountName": NAME,
                    "enableServiceLinks": false,
                    "nodeSelector": { "kubernetes.io/os": "linux" },
                    "securityContext": {
                        "runAsNonRoot": true,
                        "runAsUser": 65532,
                        "runAsGroup": 65532,
                        "seccompProfile": { "type": "RuntimeDefault" },
                    },
                    // A new node has the gate taint until the operator removes it.
                    "tolerations": [{ "key": GATE_TAINT, "operator": "Exists" }],
                    "containers": [container(install)],
                    "volumes": [{ "name": "config", "configMap": { "name": CONFIG_MAP } }],
                    "topologySpreadConstraints": [{
                        "maxSkew": 1,
                        "topologyKey": "kubernetes.io/hostname",
                        "whenUnsatisfiable": "ScheduleAnyway",
                        "labelSelector": { "matchLabels": labels() },
                    }],
                },
            },
        },
    })
}

fn container(install: &Install) -> Value {
    let mut ports = Vec::new();
    if install.features.webhooks {
        ports.push(json!({ "name": "webhook", "containerPort": install.webhook_port, "protocol": "TCP" }));
    }
    if let Some(port) = install.metrics_port {
        ports.push(json!({ "name": "metrics", "containerPort": port, "protocol": "TCP" }));
    }
    let mut container = json!({
        "name": NAME,
        "image": install.image,
        "args": ["run", format!("--config={CONFIG_DIR}/config.yaml")],
        "env": [{ "name": "POD_NAME", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } }],
        "ports": ports,
        "resources": {
            "requests": { "cpu": "50m", "memory": "64Mi" },
            "limits": { "memory": "256Mi" },
        },
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "capabilities": { "drop": ["ALL"] },
        },
        "volumeMounts": [{ "name": "config", "mountPath": CONFIG_DIR, "readOnly": true }],
    });
    if install.metrics_port.is_some() {
        let get = |path: &str| json!({ "path": path, "port": "metrics" });
        // A process that does not answer does not stop either: it is killed after 5 s instead of
        // the 30 s of the pod.
        let grace = FROZEN_GRACE_SECONDS;
        container["startupProbe"] = json!({
            "httpGet": get("/livez"), "periodSeconds": 1, "failureThreshold": 60, "terminationGracePeriodSeconds": grace,
        });
        container["livenessProbe"] = json!({
            "httpGet": get("/livez"), "periodSeconds": 6, "timeoutSeconds": 3, "failureThreshold": 3,
            "terminationGracePeriodSeconds": grace,
        });
        container["readinessProbe"] = json!({ "httpGet": get("/readyz"), "periodSeconds": 2, "failureThreshold": 3 });
    }
    container
}
