//! The chart on a cluster with real helm: install, upgrade, rollback, uninstall. Its pods run as
//! processes, with their arguments, files and service accounts.

use std::{fs, path::PathBuf};

use perennial_harness::{CommandOutput, Helm, Kubelet, TestCluster, chart, eventually, perennial};
use rstest::rstest;

pub(crate) const NAMESPACE: &str = "perennial-system";
/// Common flags: a long timeout for busy machines, and one replica.
const COMMON: &[&str] = &["--namespace", NAMESPACE, "--timeout", "3m", "--set", "replicas=1,check.enabled=false"];

/// A cluster with an empty namespace, a kubelet for it, and helm.
pub(crate) struct Stage {
    pub(crate) cluster: TestCluster,
    helm: Helm,
    kubelet: Kubelet,
}

impl Stage {
    pub(crate) async fn new(helm: Helm) -> Self {
        let cluster = TestCluster::without_kubelets().await;
        let restricted = "pod-security.kubernetes.io/enforce: restricted";
        let namespace =
            format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: {NAMESPACE}, labels: {{{restricted}}}}}\n");
        cluster.try_kubectl_with("create", &namespace).expect_success();
        let kubelet = cluster.kubelet(NAMESPACE);
        Self { cluster, helm, kubelet }
    }

    async fn helm(&self, command: &[&str], more: &[&str]) -> CommandOutput {
        self.helm.on(&self.cluster, &[command, COMMON, more].concat()).await
    }

    pub(crate) async fn expect(&self, command: &[&str], more: &[&str]) -> String {
        let answer = self.helm(command, more).await;
        assert!(answer.success, "helm {command:?}: {}; the kubelet: {:?}", answer.stderr, self.kubelet.last_error());
        answer.stdout
    }

    pub(crate) fn get(&self, what: &str) -> String {
        self.cluster.kubectl(&format!("get {what} -n {NAMESPACE} --ignore-not-found -o name"))
    }

    /// Deletes a labelled node and creates it without labels: the create restores the label.
    pub(crate) async fn a_label_survives(&self, node: &str) {
        let labels = |what: &str| format!("get node {node} -o jsonpath={{.metadata.labels.{what}}}");
        self.cluster.kubectl(&format!("label node {node} team={node}"));
        eventually("there is a record", async || {
            let records = self.get("configmaps -l perennial.dev/record");
            if records.contains(&format!("node-{node}")) { Ok(()) } else { Err(records) }
        })
        .await;
        self.cluster.delete_node(node).await;
        self.cluster.node(node).create().await;
        eventually("the label is back", async || {
            let seen = self.cluster.kubectl(&labels("team"));
            if seen == node { Ok(()) } else { Err(seen) }
        })
        .await;
    }

    fn record_version(&self, node: &str) -> u64 {
        let record = format!("get configmap node-{node} -n {NAMESPACE} -o jsonpath={{.data.record\\.json}}");
        let record: serde_json::Value = serde_json::from_str(&self.cluster.kubectl(&record)).unwrap();
        record["version"].as_u64().unwrap()
    }

    fn crd_columns(&self) -> String {
        let path = "{.spec.versions[0].additionalPrinterColumns[*].name}";
        self.cluster.kubectl(&format!("get crd keeppolicies.perennial.dev -o jsonpath={path}"))
    }

    fn config(&self) -> String {
        self.cluster.kubectl(&format!("get configmap perennial-config -n {NAMESPACE} -o jsonpath={{.data}}"))
    }
}

/// Chart of a later version, whose CRD has one more column.
fn later_chart(cluster: &TestCluster) -> PathBuf {
    let place = cluster.plane().dir().join("later-chart");
    let copied = std::process::Command::new("cp").arg("-r").arg(chart()).arg(&place).status().unwrap();
    assert!(copied.success());
    let crds = place.join("files/crds.yaml");
    let text = fs::read_to_string(&crds).unwrap();
    let column = "  - additionalPrinterColumns:\n    - jsonPath: .spec.merge\n      name: Merge\n      type: string\n";
    let later = text.replacen("  - additionalPrinterColumns:\n", column, 1);
    assert_ne!(text, later);
    fs::write(&crds, later).unwrap();
    let file = place.join("Chart.yaml");
    fs::write(&file, fs::read_to_string(&file).unwrap().replace("version: 0.1.0", "version: 0.2.0")).unwrap();
    place
}

/// Leaves a gated node and a gated pod behind, which an uninstall must release.
async fn leave_things_half_done(stage: &Stage) {
    stage.cluster.node("gated").create().await;
    stage.cluster.kubectl("taint node gated perennial.dev/restoring=:NoSchedule");
    let pod = "apiVersion: v1
kind: Pod
metadata: {name: gated, namespace: default, labels: {perennial.dev/managed: 'true'}}
spec:
  schedulingGates: [{name: perennial.dev/placement}]
  containers: [{name: main, image: none}]
";
    eventually("a pod is created", async || {
        let answer = stage.cluster.try_kubectl_with("create", pod);
        if answer.success { Ok(()) } else { Err(answer.stderr) }
    })
    .await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn install_upgrade_rollback_and_uninstall_leave_only_the_records(#[values(Helm::V3, Helm::V4)] helm: Helm) {
    let stage = Stage::new(helm).await;
    let chart = chart().display().to_string();
    stage.cluster.node("n1").create().await;

    // Works after the installation without further steps.
    let notes = stage.expect(&["install", "perennial", &chart], &["--wait", "--set", "check.enabled=true"]).await;
    assert!(notes.contains("kubectl label node NODE team=ml"), "{notes}");
    let (well, checked) = stage.kubelet.log_of("check").expect("the release was checked");
    assert!(well && !checked.contains("fail"), "{checked}");
    stage.a_label_survives("n1").await;
    let columns = stage.crd_columns();

    // The upgrade changes configuration, CRD and program, whose records have a newer format. Pods
    // are replaced.
    let later = later_chart(&stage.cluster).display().to_string();
    let values = ["--wait", "--set", "config.keeper.history=7,image.tag=next"];
    stage.expect(&["upgrade", "perennial", &later], &values).await;
    assert!(stage.config().contains("history: 7"), "{}", stage.config());
    assert_eq!(stage.crd_columns(), format!("Merge {columns}"));
    stage.cluster.node("n2").create().await;
    stage.a_label_survives("n2").await;
    assert_eq!((stage.record_version("n1"), stage.record_version("n2")), (1, 2));

    // The rollback restores everything, except for a record that the older program cannot read: it
    // stays for the newer one.
    let answer = stage.helm.on(&stage.cluster, &["rollback", "perennial", "1", "-n", NAMESPACE, "--wait"]).await;
    answer.expect_success();
    assert!(!stage.config().contains("history"), "{}", stage.config());
    assert_eq!(stage.crd_columns(), columns);
    stage.a_label_survives("n1").await;
    assert_eq!((stage.record_version("n1"), stage.record_version("n2")), (1, 2));

    // An uninstall leaves the records, and nothing that blocks nodes or pods.
    leave_things_half_done(&stage).await;
    let answer = stage.helm.on(&stage.cluster, &["uninstall", "perennial", "-n", NAMESPACE, "--timeout", "3m"]).await;
    let (_, message) = stage.kubelet.log_of("uninstall").unwrap_or_default();
    assert!(answer.success, "{}; {message}", answer.stderr);
    assert!(message.contains("operator stopped"), "{message}");
    nothing_is_left(&stage);
    let records = stage.get("configmaps -l perennial.dev/record");
    assert!(records.contains("node-n1") && records.contains("node-n2"), "{records}");

    // A new installation continues with them; with these flags an uninstall removes the records as
    // well.
    let flags = ["--wait", "--set", "uninstall.records=true,crds.keep=false,image.tag=next"];
    stage.expect(&["install", "perennial", &chart], &flags).await;
    stage.cluster.delete_node("n2").await;
    stage.cluster.node("n2").create().await;
    assert_eq!(stage.cluster.kubectl("get node n2 -o jsonpath={.metadata.labels.team}"), "n2");
    let answer = stage.helm.on(&stage.cluster, &["uninstall", "perennial", "-n", NAMESPACE, "--timeout", "3m"]).await;
    answer.expect_success();
    nothing_is_left(&stage);
    assert_eq!(stage.get("configmaps -l perennial.dev/record"), "");
    eventually("the CRD is gone", async || {
        let left = stage.cluster.kubectl("get crds -o name");
        if left.is_empty() { Ok(()) } else { Err(left) }
    })
    .await;
}

pub(crate) fn nothing_is_left(stage: &Stage) {
    let cluster = &stage.cluster;
    let webhooks = "mutatingwebhookconfigurations,validatingwebhookconfigurations";
    assert_eq!(cluster.kubectl(&format!("get {webhooks} -o name")), "");
    assert_eq!(stage.get("leases"), "");
    assert_eq!(stage.get("deployments,services,poddisruptionbudgets,jobs,pods,roles,rolebindings"), "");
    assert_eq!(stage.get("secret perennial-webhook-certs"), "");
    let accounts = stage.get("serviceaccounts");
    assert_eq!(accounts.trim(), "serviceaccount/default");
    let roles = cluster.kubectl("get clusterroles,clusterrolebindings -o name");
    assert!(!roles.contains("perennial"), "{roles}");
    assert_eq!(cluster.kubectl("get pods -A -o jsonpath={.items[*].spec.schedulingGates}"), "");
    let taints = cluster.kubectl("get nodes -o jsonpath={.items[*].spec.taints[*].key}");
    assert!(!taints.contains("perennial"), "{taints}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn without_the_hook_a_command_removes_the_operators_objects() {
    let stage = Stage::new(Helm::V4).await;
    let chart = chart().display().to_string();
    stage.expect(&["install", "perennial", &chart], &["--wait", "--set", "uninstall.enabled=false"]).await;
    leave_things_half_done(&stage).await;
    let answer = stage.helm.on(&stage.cluster, &["uninstall", "perennial", "-n", NAMESPACE]).await;
    answer.expect_success();
    eventually("the pods are gone", async || {
        let pods = stage.get("pods");
        if pods.is_empty() { Ok(()) } else { Err(pods) }
    })
    .await;
    // They are part of the release, so that nothing calls an operator that is gone.
    assert_eq!(stage.cluster.kubectl("get mutatingwebhookconfigurations -o name"), "");
    assert!(!stage.get("leases").is_empty(), "there is nothing for the command to remove");

    let kubeconfig = stage.cluster.plane().kubeconfig_path().display().to_string();
    let words = ["uninstall", "--yes", "--stop", "perennial", "--kubeconfig", &kubeconfig, "-n", NAMESPACE];
    let message = perennial(words, &[]).expect_success();

    assert!(message.contains("nothing to stop"), "{message}");
    nothing_is_left(&stage);
}

/// Stand-in for the SCC `restricted-v2` of OpenShift: its API group, and a refusal of pods with a
/// fixed user.
const OPENSHIFT: &str = "apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: securitycontextconstraints.security.openshift.io}
spec:
  group: security.openshift.io
  scope: Cluster
  names: {kind: SecurityContextConstraints, plural: securitycontextconstraints}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: restricted-v2}
spec:
  matchConstraints:
    resourceRules: [{apiGroups: [''], apiVersions: [v1], operations: [CREATE], resources: [pods]}]
  validations:
  - expression: >-
      (!has(object.spec.securityContext) || !has(object.spec.securityContext.runAsUser)) &&
      object.spec.containers.all(c, !has(c.securityContext) || !has(c.securityContext.runAsUser))
    message: runAsUser is not in the range of the namespace
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: restricted-v2}
spec: {policyName: restricted-v2, validationActions: [Deny]}
";

/// Two processes of each role share the work, on a platform that chooses the users of pods itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn separate_roles_run_where_fixed_users_are_refused() {
    let stage = Stage::new(Helm::V4).await;
    stage.cluster.try_kubectl_with("create", OPENSHIFT).expect_success();
    let fixed = "run probe --image=none --dry-run=server -n default --overrides \
                 {\"spec\":{\"securityContext\":{\"runAsUser\":65532}}}";
    eventually("a fixed user is refused", async || {
        let tried = stage.cluster.try_kubectl(fixed);
        if tried.stderr.contains("range of the namespace") { Ok(()) } else { Err(tried.stdout + &tried.stderr) }
    })
    .await;
    stage.cluster.node("n1").create().await;
    let chart = chart().display().to_string();
    let split = r#"deployments={"store":{"roles":["capture"],"replicas":2},"restore":{"roles":["restore","placement"],"replicas":2}}"#;
    // All pods share one address here, so that only one of them could serve webhooks.
    let values = ["--wait", "--set-json", split, "--set", "config.webhook.enabled=false,check.enabled=true"];

    stage.expect(&["install", "perennial", &chart], &values).await;

    let pods = |part: &str| stage.get(&format!("pods -l app.kubernetes.io/component={part}")).lines().count();
    assert_eq!((pods("store"), pods("restore")), (2, 2));
    for node in ["n1", "n2", "n3"] {
        if node != "n1" {
            stage.cluster.node(node).create().await;
        }
        stage.a_label_survives(node).await;
    }
    let answer = stage.helm.on(&stage.cluster, &["uninstall", "perennial", "-n", NAMESPACE, "--timeout", "3m"]).await;
    let (_, message) = stage.kubelet.log_of("uninstall").unwrap_or_default();
    assert!(answer.success, "{}; {message}", answer.stderr);
    nothing_is_left(&stage);
}
