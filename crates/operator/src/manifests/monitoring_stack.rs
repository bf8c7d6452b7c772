//! `monitoring/stack.yaml`: Prometheus with the alerts and Grafana with the dashboard, in a
//! namespace of their own.

use serde_json::{Value, json};

const NAMESPACE: &str = "perennial-monitoring";
const PROMETHEUS: &str = "prometheus";
const GRAFANA: &str = "grafana";

/// A program of the stack.
struct Program {
    name: &'static str,
    image: &'static str,
    port: u16,
    user: u32,
    args: &'static [&'static str],
    env: &'static [(&'static str, &'static str)],
    /// Folder of its data, which lasts as long as the pod.
    data: &'static str,
    /// Names of ConfigMaps, and where they are mounted.
    mounts: &'static [(&'static str, &'static str)],
    ready: &'static str,
}

const PROGRAMS: [Program; 2] = [
    Program {
        name: PROMETHEUS,
        image: "prom/prometheus:v3.5.0",
        port: 9090,
        user: 65534,
        args: &[
            "--config.file=/etc/prometheus/prometheus.yml",
            "--storage.tsdb.path=/data",
            "--storage.tsdb.retention.time=7d",
        ],
        env: &[],
        data: "/data",
        mounts: &[(PROMETHEUS, "/etc/prometheus")],
        ready: "/-/ready",
    },
    Program {
        name: GRAFANA,
        image: "grafana/grafana:12.1.0",
        port: 3000,
        user: 472,
        args: &[],
        // Reached with `kubectl port-forward` only, so everyone who reaches it may look.
        env: &[("GF_AUTH_ANONYMOUS_ENABLED", "true"), ("GF_AUTH_DISABLE_LOGIN_FORM", "true")],
        data: "/var/lib/grafana",
        mounts: &[
            ("grafana-datasources", "/etc/grafana/provisioning/datasources"),
            ("grafana-dashboards", "/etc/grafana/provisioning/dashboards"),
        ],
        ready: "/api/health",
    },
];

const SCRAPE: &str = "\
global: {scrape_interval: 15s, evaluation_interval: 15s}
rule_files: [/etc/prometheus/alerts.yaml]
scrape_configs:
- job_name: perennial
  kubernetes_sd_configs:
  - {role: pod, namespaces: {names: [perennial-system]}}
  relabel_configs:
  - {source_labels: [__meta_kubernetes_pod_label_app_kubernetes_io_name], regex: perennial, action: keep}
  - {source_labels: [__meta_kubernetes_pod_container_port_name], regex: metrics, action: keep}
  - {source_labels: [__meta_kubernetes_pod_name], target_label: pod}
";
const DATASOURCES: &str = "\
apiVersion: 1
datasources:
- {name: Prometheus, type: prometheus, url: 'http://prometheus:9090', isDefault: true}
";
const DASHBOARDS: &str = "\
apiVersion: 1
providers:
- {name: perennial, type: file, options: {path: /etc/grafana/provisioning/dashboards}}
";

/// Returns the objects of the stack. `alerts` and `dashboard` are the texts of the files beside it.
pub(super) fn objects(alerts: &str, dashboard: &str) -> Vec<Value> {
    let metadata = |name: &str| json!({ "name": name, "namespace": NAMESPACE, "labels": labels(name) });
    let config = |name: &str, data: Value| json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata(name), "data": data });
    let rights = |kind: &str| {
        let metadata =
            json!({ "name": "perennial-prometheus", "namespace": "perennial-system", "labels": labels(PROMETHEUS) });
        json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": metadata })
    };
    let mut role = rights("Role");
    role["rules"] = json!([{ "apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"] }]);
    let mut binding = rights("RoleBinding");
    binding["roleRef"] =
        json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "perennial-prometheus" });
    binding["subjects"] = json!([{ "kind": "ServiceAccount", "name": PROMETHEUS, "namespace": NAMESPACE }]);
    let mut objects = vec![
        json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": { "name": NAMESPACE, "labels": {
                "pod-security.kubernetes.io/enforce": "restricted",
                "pod-security.kubernetes.io/warn": "restricted",
            } },
        }),
        role,
        binding,
        config(PROMETHEUS, json!({ "prometheus.yml": SCRAPE, "alerts.yaml": alerts })),
        config("grafana-datasources", json!({ "prometheus.yaml": DATASOURCES })),
        config("grafana-dashboards", json!({ "perennial.yaml": DASHBOARDS, "perennial.json": dashboard })),
    ];
    for program in &PROGRAMS {
        objects.push(json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata(program.name) }));
        objects.push(json!({
            "apiVersion": "v1", "kind": "Service", "metadata": metadata(program.name),
            "spec": {
                "selector": labels(program.name),
                "ports": [{ "name": "http", "port": program.port, "targetPort": "http" }],
            },
        }));
        objects.push(json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata(program.name), "spec": spec(program),
        }));
    }
    objects
}

fn labels(name: &str) -> Value {
    json!({ "app.kubernetes.io/name": name, "app.kubernetes.io/part-of": NAMESPACE })
}

fn spec(program: &Program) -> Value {
    let mut volumes = vec![json!({ "name": "data", "emptyDir": {} }), json!({ "name": "tmp", "emptyDir": {} })];
    let mut mounts =
        vec![json!({ "name": "data", "mountPath": program.data }), json!({ "name": "tmp", "mountPath": "/tmp" })];
    for (name, path) in program.mounts {
        volumes.push(json!({ "name": name, "configMap": { "name": name } }));
        mounts.push(json!({ "name": name, "mountPath": path, "readOnly": true }));
    }
    let env: Vec<Value> = program.env.iter().map(|(name, value)| json!({ "name": name, "value": value })).collect();
    json!({
        "replicas": 1,
        // Its data belongs to one pod.
        "strategy": { "type": "Recreate" },
        "selector": { "matchLabels": labels(program.name) },
        "template": {
            "metadata": { "labels": labels(program.name) },
            "spec": {
                "serviceAccountName": program.name,
                "automountServiceAccountToken": program.name == PROMETHEUS,
                "nodeSelector": { "kubernetes.io/os": "linux" },
                "securityContext": {
                    "runAsNonRoot": true, "runAsUser": program.user, "runAsGroup": program.user, "fsGroup": program.user,
                    "seccompProfile": { "type": "RuntimeDefault" },
                },
                "containers": [{
                    "name": program.name,
                    "image": program.image,
                    "args": program.args,
                    "env": env,
                    "ports": [{ "name": "http", "containerPort": program.port }],
                    "readinessProbe": { "httpGet": { "path": program.ready, "port": "http" } },
                    "resources": { "requests": { "cpu": "50m", "memory": "128Mi" }, "limits": { "memory": "512Mi" } },
                    "securityContext": {
                        "allowPrivilegeEscalation": false,
                        "readOnlyRootFilesystem": true,
                        "capabilities": { "drop": ["ALL"] },
                    },
                    "volumeMounts": mounts,
                }],
                "volumes": volumes,
            },
        },
    })
}
