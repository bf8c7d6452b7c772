//! Requests of the thief: at least one for each permission of the account, and some for what it must
//! not have.

use http::Method;
use serde_json::{Value, json};

use super::{Attack, DEPLOYMENT, PODS, STATEFUL_SET, WEBHOOKS, attack, patch};

/// Returns attacks on the objects of a policy, which refuses each that RBAC permits.
fn against(policy: &'static str, attacks: impl IntoIterator<Item = Attack>) -> impl Iterator<Item = Attack> {
    attacks.into_iter().map(move |attack| attack.refused_by(policy))
}

pub(super) fn pod_attacks() -> Vec<Attack> {
    let managed = format!("{PODS}/managed");
    // With a tag, so that the pull policy stays the same.
    let image = json!({"spec": {"containers": [{"name": "main", "image": "evil:1"}]}});
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "new"},
        "spec": {"containers": [{"name": "main", "image": "evil"}]},
    });
    let toleration = json!({"spec": {"tolerations": [{"operator": "Exists"}]}});
    let label = |value: Value| json!({"metadata": {"labels": {"perennial.dev/managed": value}}});
    let annotation = |key: &str, value: &str| json!({"metadata": {"annotations": {key: value}}});
    let (bare, unmanaged) = (format!("{PODS}/bare"), format!("{PODS}/unmanaged"));
    let mut adopted = annotation("perennial.dev/slot", "1");
    adopted["metadata"]["labels"] = json!({"perennial.dev/managed": "true"});
    let changes = vec![
        patch("the image of a managed pod", managed.clone(), image.clone()),
        patch("the image of another pod", bare.clone(), image),
        patch("a label of a managed pod", managed.clone(), json!({"metadata": {"labels": {"app": "db"}}})),
        patch("our label of a managed pod", managed.clone(), label(Value::Null)),
        patch("an annotation of a managed pod", managed.clone(), annotation("a", "b")),
        patch("the owner of a managed pod", managed.clone(), json!({"metadata": {"ownerReferences": null}})),
        patch("a finalizer", managed.clone(), json!({"metadata": {"finalizers": ["example.com/stay"]}})),
        patch("a deadline", managed.clone(), json!({"spec": {"activeDeadlineSeconds": 1}})),
        patch("the gate of another controller", managed.clone(), json!({"spec": {"schedulingGates": null}})),
        patch("our label on a bare pod", bare.clone(), label(json!("true"))),
        patch("the slot of a bare pod", bare, annotation("perennial.dev/slot", "1")),
        patch("the slot of an unmanaged pod", unmanaged.clone(), annotation("perennial.dev/slot", "1")),
        patch("the class of an unmanaged pod", unmanaged.clone(), annotation("perennial.dev/class", "spot")),
        patch(
            "the deletion cost of an unmanaged pod",
            unmanaged.clone(),
            annotation("controller.kubernetes.io/pod-deletion-cost", "-1"),
        ),
        patch("the slot of a pod with its adoption", unmanaged.clone(), adopted),
        attack("delete a pod that is not managed", Method::DELETE, unmanaged, Value::Null),
        attack(
            "delete a managed pod that runs, past its budget",
            Method::DELETE,
            format!("{PODS}/running"),
            Value::Null,
        ),
    ];
    let other = [
        // Validation comes before the policies.
        patch("all tolerations", managed.clone(), toleration).refused_by("existing toleration can not be modified"),
        patch("the status of a pod", format!("{managed}/status"), json!({"status": {"phase": "Failed"}})),
        attack("delete all pods", Method::DELETE, PODS, Value::Null),
        attack("create a pod", Method::POST, PODS, pod),
        attack("run a command in a pod", Method::POST, format!("{managed}/exec"), Value::Null),
        patch(
            "ephemeral containers",
            format!("{managed}/ephemeralcontainers"),
            json!({"spec": {"ephemeralContainers": []}}),
        ),
        attack("replace a pod", Method::PUT, managed.clone(), Value::Null),
        patch("the resources of a pod", format!("{managed}/resize"), json!({"spec": {}})),
        attack(
            "bind a pod to a node",
            Method::POST,
            format!("{managed}/binding"),
            json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "managed"}, "target": {"name": "n1"}}),
        ),
        attack("the log of a pod", Method::GET, format!("{managed}/log"), Value::Null),
        attack("a proxy to a pod", Method::GET, format!("{managed}/proxy/"), Value::Null),
    ];
    against("ValidatingAdmissionPolicy 'perennial-pods'", changes).chain(other).collect()
}

pub(super) fn workload_attacks() -> Vec<Attack> {
    let privileged = json!({"spec": {"template": {"spec": {"hostPID": true}}}});
    let mut attacks = Vec::new();
    for path in [DEPLOYMENT, STATEFUL_SET] {
        let changes = [
            patch("a privileged template", path, privileged.clone()),
            patch("the replicas", path, json!({"spec": {"replicas": 9}})),
            patch("a label", path, json!({"metadata": {"labels": {"a": "b"}}})),
            patch(
                "another annotation",
                path,
                json!({"metadata": {"annotations": {"perennial.dev/spot-percentage": "100"}}}),
            ),
            patch("a finalizer", path, json!({"metadata": {"finalizers": ["example.com/stay"]}})),
            patch(
                "an owner",
                path,
                json!({"metadata": {"ownerReferences": [
                    {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "u"},
                ]}}),
            ),
        ];
        attacks.extend(against("ValidatingAdmissionPolicy 'perennial-workloads'", changes));
        attacks.extend([
            patch("the scale", format!("{path}/scale"), json!({"spec": {"replicas": 9}})),
            patch("the status", format!("{path}/status"), json!({"status": {"replicas": 9}})),
            attack("replace", Method::PUT, path, Value::Null),
            attack("delete", Method::DELETE, path, Value::Null),
        ]);
    }
    attacks
}

/// Returns attacks on webhook configurations, Secrets, ConfigMaps, Events and policies.
pub(super) fn other_attacks(namespace: &str) -> Vec<Attack> {
    let configuration = |name: &str| {
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": name},
        })
    };
    let secret = |name: &str, kind: &str| {
        json!({
            "apiVersion": "v1", "kind": "Secret", "type": kind,
            "metadata": {"name": name, "annotations": {"kubernetes.io/service-account.name": "default"}},
        })
    };
    let event = json!({
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": "e", "namespace": "default"},
        "involvedObject": {"kind": "Pod", "namespace": "default", "name": "bare"}, "source": {"component": "kubelet"},
    });
    let mut reported = event.clone();
    (reported["source"], reported["reportingComponent"]) = (json!({"component": "perennial"}), json!("kubelet"));
    reported["reportingInstance"] = json!("n1");
    let (own, maps) = (format!("/api/v1/namespaces/{namespace}"), format!("/api/v1/namespaces/{namespace}/configmaps"));
    vec![
        attack(
            "create a webhook configuration",
            Method::POST,
            format!("{WEBHOOKS}/mutatingwebhookconfigurations"),
            configuration("mine"),
        ),
        attack(
            "create our own name",
            Method::POST,
            format!("{WEBHOOKS}/validatingwebhookconfigurations"),
            configuration("perennial"),
        ),
        attack(
            "delete our webhook configuration",
            Method::DELETE,
            format!("{WEBHOOKS}/mutatingwebhookconfigurations/perennial"),
            Value::Null,
        ),
        attack("create a Secret", Method::POST, format!("{own}/secrets"), secret("mine", "Opaque"))
            .refused_by("ValidatingAdmissionPolicy 'perennial-secrets'"),
        attack(
            "create a token of another account",
            Method::POST,
            format!("{own}/secrets"),
            secret("perennial-webhook-certs", "kubernetes.io/service-account-token"),
        )
        .refused_by("ValidatingAdmissionPolicy 'perennial-secrets'"),
        attack("list Secrets", Method::GET, format!("{own}/secrets"), Value::Null),
        attack(
            "request a token",
            Method::POST,
            format!("{own}/serviceaccounts/default/token"),
            json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}),
        ),
        attack(
            "create another ConfigMap",
            Method::POST,
            maps.clone(),
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "mine"}}),
        )
        .refused_by("ValidatingAdmissionPolicy 'perennial-config-maps'"),
        attack(
            "change the configuration",
            Method::POST,
            maps.clone(),
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "perennial-config"}}),
        )
        // Two policies refuse it.
        .refused_by("ValidatingAdmissionPolicy 'perennial-"),
        patch(
            "change the root certificate of the namespace",
            format!("{maps}/kube-root-ca.crt"),
            json!({"data": {"ca.crt": "evil"}}),
        )
        .refused_by("ValidatingAdmissionPolicy 'perennial-config-maps'"),
        attack("an Event in the name of a kubelet", Method::POST, "/api/v1/namespaces/default/events", event)
            .refused_by("ValidatingAdmissionPolicy 'perennial-events'"),
        attack("an Event reported by a kubelet", Method::POST, "/api/v1/namespaces/default/events", reported)
            .refused_by("ValidatingAdmissionPolicy 'perennial-events'"),
        patch("a KeepPolicy", "/apis/perennial.dev/v1alpha1/keeppolicies/all", json!({"spec": {"keep": ["*"]}})),
        patch("a namespace", "/api/v1/namespaces/default", json!({"metadata": {"labels": {"a": "b"}}})),
    ]
}

/// Returns attacks on nodes.
pub(super) fn node_attacks() -> Vec<Attack> {
    vec![
        patch("the status of a node", "/api/v1/nodes/n1/status", json!({"status": {"capacity": {"cpu": "99"}}})),
        patch(
            "the hostname of a node",
            "/api/v1/nodes/n1",
            json!({"metadata": {"labels": {"kubernetes.io/hostname": "n2"}}}),
        )
        .refused_by("ValidatingAdmissionPolicy 'perennial-nodes'"),
        patch("the identity of a node", "/api/v1/nodes/n1", json!({"spec": {"providerID": "aws:///evil"}}))
            .refused_by("ValidatingAdmissionPolicy 'perennial-nodes'"),
        patch("a finalizer of a node", "/api/v1/nodes/n1", json!({"metadata": {"finalizers": ["example.com/stay"]}}))
            .refused_by("ValidatingAdmissionPolicy 'perennial-nodes'"),
        patch(
            "an owner of a node",
            "/api/v1/nodes/n1",
            json!({"metadata": {"ownerReferences": [
                {"apiVersion": "v1", "kind": "Namespace", "name": "x", "uid": "u"},
            ]}}),
        )
        .refused_by("ValidatingAdmissionPolicy 'perennial-nodes'"),
        patch(
            "a taint that Kubernetes manages",
            "/api/v1/nodes/n1",
            json!({"spec": {"taints": [{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}]}}),
        )
        .refused_by("ValidatingAdmissionPolicy 'perennial-nodes'"),
        patch(
            "a label of Perennial",
            "/api/v1/nodes/n1",
            json!({"metadata": {"labels": {"perennial.dev/ignore": "true"}}}),
        )
        .refused_by("ValidatingAdmissionPolicy 'perennial-nodes'"),
        attack("replace a node", Method::PUT, "/api/v1/nodes/n1", Value::Null),
        attack("delete all nodes", Method::DELETE, "/api/v1/nodes", Value::Null),
        attack("the kubelet of a node", Method::GET, "/api/v1/nodes/n1/proxy/metrics", Value::Null),
        attack("delete a node", Method::DELETE, "/api/v1/nodes/n1", Value::Null),
    ]
}

/// Returns requests for objects that the account has nothing to do with, or may not delete.
pub(super) fn foreign_attacks(namespace: &str) -> Vec<Attack> {
    let map = |name: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "n1"}});
    let configuration = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": "other"},
    });
    let (own, maps) = (format!("/api/v1/namespaces/{namespace}"), format!("/api/v1/namespaces/{namespace}/configmaps"));
    vec![
        attack("delete Events", Method::DELETE, "/api/v1/namespaces/default/events", Value::Null),
        attack("a record elsewhere", Method::POST, "/api/v1/namespaces/default/configmaps", map("node-n1")),
        attack("read ConfigMaps elsewhere", Method::GET, "/api/v1/namespaces/kube-system/configmaps", Value::Null),
        attack("delete all records", Method::DELETE, maps, Value::Null),
        attack(
            "the heartbeat of a node",
            Method::POST,
            "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases",
            lease,
        ),
        attack(
            "delete all Leases",
            Method::DELETE,
            format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"),
            Value::Null,
        ),
        attack("a Secret elsewhere", Method::GET, "/api/v1/namespaces/kube-system/secrets/x", Value::Null),
        attack("a Secret of its namespace", Method::GET, format!("{own}/secrets/other"), Value::Null),
        attack("delete its Secret", Method::DELETE, format!("{own}/secrets/perennial-webhook-certs"), Value::Null),
        attack(
            "bind itself to a role",
            Method::POST,
            "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
            json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
                "metadata": {"name": "mine"},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            }),
        ),
        attack(
            "delete a policy of its account",
            Method::DELETE,
            format!("{WEBHOOKS}/validatingadmissionpolicies/perennial-pods"),
            Value::Null,
        ),
        patch(
            "patch our webhook configuration",
            format!("{WEBHOOKS}/mutatingwebhookconfigurations/perennial"),
            json!({"metadata": {"labels": {"a": "b"}}}),
        ),
        attack(
            "replace another webhook configuration",
            Method::PUT,
            format!("{WEBHOOKS}/mutatingwebhookconfigurations/other"),
            configuration,
        ),
    ]
}
