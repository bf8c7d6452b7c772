//! A thief of the token of the operator or of its uninstall Job, with the shipped role and the
//! shipped admission policies: one attack for each permission.

mod requests;

use http::{Method, Request};
use kube::Client;
use perennial_harness::{TestCluster, eventually};
use serde_json::{Value, json};

use self::requests::{foreign_attacks, node_attacks, other_attacks, pod_attacks, workload_attacks};

/// Service account of the operator.
const ACCOUNT: &str = "perennial";
/// Service account of the uninstall Job.
const UNINSTALL: &str = "perennial-uninstall";
/// Part of every refusal by RBAC.
const RBAC: &str = " cannot ";

/// A request of the thief.
pub(crate) struct Attack {
    pub(crate) name: &'static str,
    method: Method,
    path: String,
    body: Value,
    /// Part of the refusal: the policy, the admission plugin's reason, or [`RBAC`].
    refused_by: &'static str,
}

pub(crate) fn attack(name: &'static str, method: Method, path: impl Into<String>, body: Value) -> Attack {
    Attack { name, method, path: path.into(), body, refused_by: RBAC }
}

impl Attack {
    pub(crate) fn refused_by(self, policy: &'static str) -> Self {
        Self { refused_by: policy, ..self }
    }
}

pub(crate) fn patch(name: &'static str, path: impl Into<String>, body: Value) -> Attack {
    attack(name, Method::PATCH, path, body)
}

/// Sends a request as a dry run, which is checked like any other. Returns the refusal.
pub(crate) async fn refusal(thief: &Client, attack: &Attack) -> Result<String, String> {
    let path = format!("{}?dryRun=All", attack.path);
    let mut request = Request::builder().method(&attack.method).uri(path);
    let kind = if attack.method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
    request = request.header("content-type", kind);
    let body = if attack.body.is_null() { Vec::new() } else { attack.body.to_string().into_bytes() };
    match thief.request::<Value>(request.body(body).unwrap()).await {
        Err(kube::Error::Api(status)) if matches!(status.code, 403 | 422) => {
            let (expected, message) = (attack.refused_by, status.message.clone());
            if message.contains(expected) { Ok(message) } else { Err(format!("not refused by {expected}: {message}")) }
        }
        Err(error) => Err(format!("not refused, but {error}")),
        Ok(_) => Err("it would be let through".to_owned()),
    }
}

/// Applies the shipped permissions and policies, and a managed, an unmanaged and a bare pod.
pub(crate) async fn stage(cluster: &TestCluster) {
    for part in ["permissions", "crds", "policies"] {
        let objects = cluster.perennial(&format!("manifests {part}")).expect_success();
        cluster.try_kubectl_with("apply --server-side --force-conflicts --validate=strict", &objects).expect_success();
    }
    let owner =
        json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-1", "uid": "u1", "controller": true}]);
    let pod = |name: &str, labels: Value, owners: Value| {
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": "default", "labels": labels, "ownerReferences": owners},
            "spec": {"automountServiceAccountToken": false, "serviceAccountName": "web",
                "containers": [{"name": "main", "image": "app:1"}],
                "schedulingGates": [{"name": "perennial.dev/placement"}, {"name": "example.com/theirs"}]},
        })
    };
    let template = json!({
        "metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "main", "image": "app:1"}]},
    });
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": "default"},
        "spec": {"replicas": 0, "selector": {"matchLabels": {"app": "web"}}, "template": template},
    });
    let mut set = deployment.clone();
    (set["kind"], set["metadata"]["name"], set["spec"]["serviceName"]) =
        (json!("StatefulSet"), json!("db"), json!("db"));
    let mut bare = pod("bare", json!({}), json!([]));
    bare["spec"]["schedulingGates"] = json!([{"name": "example.com/theirs"}]);
    let mut unmanaged = pod("unmanaged", json!({}), owner.clone());
    unmanaged["spec"]["schedulingGates"] = json!([]);
    let ours = json!({"perennial.dev/managed": "true"});
    let mut running = pod("running", ours.clone(), owner.clone());
    (running["spec"]["schedulingGates"], running["spec"]["nodeName"]) = (json!([]), json!("n1"));
    // Another test may have used the control plane before.
    cluster.kubectl("delete pods,deployments,statefulsets,serviceaccounts --all -n default --force --grace-period=0");
    cluster.kubectl("create serviceaccount web -n default");
    for object in [pod("managed", ours, owner), running, unmanaged, bare, deployment, set] {
        cluster.try_kubectl_with("create", &object.to_string()).expect_success();
    }
    cluster.kubectl(&format!("create configmap kube-root-ca.crt -n {} --from-literal=ca.crt=x", cluster.namespace()));
    cluster.node("n1").label("kubernetes.io/hostname", "n1").create().await;
    // Kubernetes adds the not-ready taint to a new node; the operator may not remove it.
    cluster.patch_node("n1", json!({"spec": {"taints": null}})).await;
}

pub(crate) const PODS: &str = "/api/v1/namespaces/default/pods";
pub(crate) const DEPLOYMENT: &str = "/apis/apps/v1/namespaces/default/deployments/web";
const STATEFUL_SET: &str = "/apis/apps/v1/namespaces/default/statefulsets/db";
const WEBHOOKS: &str = "/apis/admissionregistration.k8s.io/v1";

fn all_attacks(cluster: &TestCluster) -> Vec<Attack> {
    let mut attacks = pod_attacks();
    attacks.extend(workload_attacks());
    attacks.extend(other_attacks(cluster.namespace()));
    attacks.extend(node_attacks());
    attacks.extend(foreign_attacks(cluster.namespace()));
    attacks
}

pub(crate) async fn all_are_refused(thief: &Client, attacks: &[Attack]) {
    for attack in attacks {
        // Policies take effect after a moment.
        let what = format!("refused: {} ({} {})", attack.name, attack.method, attack.path);
        eventually(&what, async || refusal(thief, attack).await).await;
    }
}

/// The role of the uninstall Job is smaller than that of the operator. The policies hold even with
/// that of the operator.
#[tokio::test]
async fn the_uninstall_account_can_do_no_more_than_the_operator() {
    let cluster = TestCluster::new().await;
    stage(&cluster).await;
    let namespace = cluster.namespace();
    cluster.kubectl(&format!("create serviceaccount {UNINSTALL} -n {namespace}"));
    let subject = format!("--serviceaccount={namespace}:{UNINSTALL}");
    cluster.kubectl(&format!("create clusterrolebinding {UNINSTALL} --clusterrole={ACCOUNT} {subject}"));
    cluster.kubectl(&format!("create rolebinding {UNINSTALL} -n {namespace} --role={ACCOUNT} {subject}"));
    let thief = cluster.client_of_account(UNINSTALL).await;

    all_are_refused(&thief, &all_attacks(&cluster)).await;
}

#[tokio::test]
async fn the_operator_account_can_do_nothing_but_its_work() {
    let cluster = TestCluster::new().await;
    stage(&cluster).await;
    let thief = cluster.client_of_account(ACCOUNT).await;

    all_are_refused(&thief, &all_attacks(&cluster)).await;

    // The work itself is permitted.
    let work = [
        patch(
            "place a pod",
            format!("{PODS}/managed"),
            json!({
                "metadata": {"annotations": {"perennial.dev/class": "spot", "perennial.dev/slot": "1", "controller.kubernetes.io/pod-deletion-cost": "1"}},
                "spec": {"nodeSelector": {"karpenter.sh/capacity-type": "spot"}, "schedulingGates": [{"name": "example.com/theirs"}]},
            }),
        ),
        patch(
            "adopt a pod",
            format!("{PODS}/unmanaged"),
            json!({"metadata": {"labels": {"perennial.dev/managed": "true"}}}),
        ),
        attack("delete a managed pod that is not bound", Method::DELETE, format!("{PODS}/managed"), Value::Null),
        patch(
            "annotate a Deployment",
            DEPLOYMENT,
            json!({"metadata": {"annotations": {"perennial.dev/placement-state": "{}"}}}),
        ),
        patch(
            "annotate a StatefulSet",
            STATEFUL_SET,
            json!({"metadata": {"annotations": {"perennial.dev/placement-state": "{}"}}}),
        ),
    ];
    for work in &work {
        let answer = refusal(&thief, work).await;
        assert_eq!(answer.unwrap_err(), "it would be let through", "{}", work.name);
    }
}

/// Checks the powers that docs/explain/security.md lists as remaining.
#[tokio::test]
async fn the_operator_account_keeps_these_powers() {
    let cluster = TestCluster::new().await;
    stage(&cluster).await;
    let thief = cluster.client_of_account(ACCOUNT).await;
    let hook = json!([{
        "name": "all.example.com", "admissionReviewVersions": ["v1"], "sideEffects": "None",
        "clientConfig": {"url": "https://example.com"},
        "rules": [{"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*"]}],
    }]);
    let version = cluster.kubectl("get mutatingwebhookconfiguration perennial -o jsonpath={.metadata.resourceVersion}");
    let rewritten = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": "perennial", "resourceVersion": version}, "webhooks": hook,
    });
    let eviction =
        json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "bare", "namespace": "default"}});
    let powers = [
        attack(
            "rewrite our webhook configuration",
            Method::PUT,
            format!("{WEBHOOKS}/mutatingwebhookconfigurations/perennial"),
            rewritten,
        ),
        attack("evict any pod", Method::POST, format!("{PODS}/bare/eviction"), eviction),
        patch("label any node", "/api/v1/nodes/n1", json!({"metadata": {"labels": {"team": "evil"}}})),
        patch(
            "taint any node",
            "/api/v1/nodes/n1",
            json!({"spec": {"taints": [{"key": "evil", "effect": "NoExecute"}]}}),
        ),
    ];

    for power in &powers {
        let answer = refusal(&thief, power).await;
        assert_eq!(answer.unwrap_err(), "it would be let through", "{}", power.name);
    }
}
