//! The shell blocks of the documentation, run on a cluster as a reader would run them.

use std::{fs, path::Path};

use perennial_harness::{TestCluster, eventually, perennial};
use serde_json::json;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Returns the code blocks of a page, without their fences and indentation.
fn blocks(page: &str) -> Vec<String> {
    let text = fs::read_to_string(format!("{ROOT}/docs/{page}")).unwrap();
    let (mut blocks, mut open) = (Vec::new(), None::<(usize, String)>);
    for line in text.lines() {
        let indent = line.len() - line.trim_start().len();
        let fence = line.trim_start().starts_with("```");
        open = match (open, fence) {
            (None, false) => None,
            (None, true) => Some((indent, String::new())),
            (Some((_, block)), true) => {
                blocks.push(block);
                None
            }
            (Some((by, block)), false) => Some((by, block + line.get(by..).unwrap_or_default() + "\n")),
        };
    }
    blocks
}

/// Returns the first code block of a page that contains this text.
fn block(page: &str, containing: &str) -> String {
    let found = blocks(page).into_iter().find(|block| block.contains(containing));
    found.unwrap_or_else(|| panic!("{page} has no block with {containing}"))
}

/// How a block is tested.
enum Tested {
    /// By this test.
    By(&'static str),
    /// By none, for this reason.
    Not(&'static str),
}
use Tested::{By, Not};

const HELM: Tested = By("helm_commands_of_the_pages_are_accepted");
const POLICY: Tested = By("policies_of_the_pages_are_accepted");
const SETTINGS: Tested = By("settings_of_the_pages_are_accepted");
const ANNOTATED: Tested = By("a_workload_is_annotated_as_described");
const BACKUP: Tested = By("records_are_backed_up_and_brought_back_as_described");
const REPAIR: Tested = By("a_node_goes_through_repair_as_described");
const SHIPPER: Tested = Not("the configuration of a log shipper");
const IMAGE: Tested = Not("builds an image for minutes; tests/install/packages.rs checks one with another program");

/// Every block of the pages in start, how-to and migrate: its page, text that it contains, and how it
/// is tested.
const BLOCKS: &[(&str, &str, Tested)] = &[
    ("start/README.md", "oci://registry", By("the_chart_is_installed_from_a_registry")),
    ("start/README.md", "skopeo copy", HELM),
    ("start/README.md", "perennial check", By("install_upgrade_rollback_and_uninstall_leave_only_the_records")),
    ("start/README.md", "kubectl apply --server-side -k deploy", By("the_manifests_are_applied_as_described")),
    ("start/README.md", "FEATURES=otlp", IMAGE),
    ("start/README.md", "make deb", By("the_package_is_installed_upgraded_removed_and_purged")),
    ("start/README.md", "cargo install", Not("builds the program in release mode")),
    ("start/README.md", "make krew", By("krew_installs_the_plugin")),
    ("start/README.md", "perennial run --dry-run", By("a_dry_run_logs_its_actions_and_writes_nothing")),
    ("start/aks.md", "helm install", HELM),
    ("start/aks.md", "# aks.yaml", HELM),
    ("start/eks.md", "helm install", HELM),
    ("start/eks.md", "# eks.yaml", HELM),
    ("start/gke.md", "helm install", HELM),
    ("start/gke.md", "# gke.yaml", HELM),
    ("start/gke.md", "gcloud", Not("needs Google Cloud")),
    ("start/k3s.md", "helm install", HELM),
    ("start/kind.md", "make kind-up", Not("needs Docker")),
    ("start/kind.md", "helm install", HELM),
    ("start/kind.md", "docker exec", Not("needs Docker")),
    ("start/kubeadm.md", "helm install", HELM),
    ("start/openshift.md", "helm install", HELM),
    ("start/talos.md", "helm install", HELM),
    ("start/try.md", "make demo        #", By("the_session_of_the_readme_prints_what_it_shows")),
    ("start/try.md", "$ make demo", Not("output of `make demo`, which checks its claims itself")),
    ("start/try.md", "$ make up", By("the_session_of_the_try_page_prints_what_it_shows")),
    ("start/try.md", "$ perennial records", By("the_session_of_the_try_page_prints_what_it_shows")),
    ("how-to/backup.md", "perennial export", BACKUP),
    ("how-to/backup.md", "configmaps.yaml", BACKUP),
    ("how-to/cluster-api.md", "kind: KeepPolicy", POLICY),
    ("how-to/dashboard.md", "$ perennial dashboard", By("the_command_serves_the_dashboard_at_an_unguessable_address")),
    ("how-to/dashboard.md", "dashboard: {", SETTINGS),
    ("how-to/dashboard.md", "port-forward", Not("needs a kubelet that forwards ports")),
    ("how-to/gitops.md", "kind: Application", By("argo_cd_finds_no_drift_with_the_documented_rules")),
    ("how-to/gitops.md", "kind: HelmRelease", By("flux_finds_no_drift_with_the_documented_rules")),
    ("how-to/gpu-repair.md", "kind: KeepPolicy", REPAIR),
    ("how-to/gpu-repair.md", "kubectl cordon", REPAIR),
    ("how-to/gpu-repair.md", "kubectl uncordon", REPAIR),
    ("how-to/karpenter.md", "kubectl annotate", ANNOTATED),
    ("how-to/karpenter.md", "kind: KeepPolicy", POLICY),
    ("how-to/logs.md", "node restored", Not("a line of a log")),
    ("how-to/logs.md", "datadoghq", SHIPPER),
    ("how-to/logs.md", "[FILTER]", SHIPPER),
    ("how-to/logs.md", "loki.process", SHIPPER),
    ("how-to/logs.md", "[transforms.perennial]", SHIPPER),
    ("how-to/logs.md", "decode_json_fields", SHIPPER),
    ("how-to/monitoring.md", "serviceMonitor", HELM),
    ("how-to/monitoring.md", "OTEL_EXPORTER", HELM),
    ("how-to/node-pools.md", "--state Pending", BACKUP),
    ("how-to/node-pools.md", "--state Away", BACKUP),
    ("how-to/operate.md", "PERENNIAL_NODES", Not("lists 100,000 nodes; the named test lists fewer in every run")),
    ("how-to/operate.md", "deployments:", By("roles_are_installed_as_deployments_of_their_own")),
    ("how-to/operate.md", "config.webhook.enabled=false", HELM),
    ("how-to/operate.md", "\nhelm uninstall", HELM),
    ("how-to/operate.md", "helm uninstall", By("install_upgrade_rollback_and_uninstall_leave_only_the_records")),
    ("how-to/spot.md", "kubectl annotate", ANNOTATED),
    ("how-to/spot.md", "$ perennial simulate", By("simulate_prints_what_the_pages_show")),
    ("how-to/spot.md", "nodeLabels:", SETTINGS),
    ("how-to/spot.md", "$ perennial workloads", Not("output for 60 replicas; tests/placement checks such tables")),
    ("migrate/README.md", "perennial import", By("an_import_is_tried_as_described")),
    ("migrate/finalizer-operator.md", "perennial import", By("a_finalizer_operator_is_replaced_as_described")),
    ("migrate/kopf-operator.md", "perennial import", By("a_kopf_operator_is_replaced_as_described")),
    ("migrate/kopf-operator.md", "dropManagers", SETTINGS),
    ("migrate/slash-configmaps.md", "perennial import", By("config_maps_with_slash_keys_are_imported_as_described")),
    ("migrate/spotalis.md", "helm uninstall spotalis", Not("needs an installed Spotalis")),
    ("migrate/spotalis.md", "annotationPrefixes", SETTINGS),
    ("migrate/topology-spread.md", "kubectl annotate", ANNOTATED),
    ("migrate/workload-spread.md", "kubectl annotate", ANNOTATED),
];

/// Returns the texts of all Rust files below a folder.
fn sources(folder: &Path, found: &mut String) {
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|end| end == "rs") {
            *found += &fs::read_to_string(path).unwrap();
        }
    }
}

#[test]
fn every_block_runs_or_has_a_reason_not_to() {
    let mut tests = String::new();
    for folder in ["crates/tests/tests", "tools/up/tests"] {
        sources(&Path::new(ROOT).join(folder), &mut tests);
    }
    let mut unknown = Vec::new();
    let mut used = vec![false; BLOCKS.len()];
    for folder in ["start", "how-to", "migrate"] {
        for entry in fs::read_dir(format!("{ROOT}/docs/{folder}")).unwrap().flatten() {
            let page = format!("{folder}/{}", entry.file_name().to_str().unwrap());
            for block in blocks(&page) {
                let mut entries = BLOCKS.iter().enumerate();
                let entry = entries.find(|(at, (on, text, _))| !used[*at] && *on == page && block.contains(text));
                match entry {
                    Some((at, _)) => used[at] = true,
                    None => unknown.push(format!("{page}: {block}")),
                }
            }
        }
    }
    assert!(unknown.is_empty(), "add a test or a reason to BLOCKS: {unknown:#?}");
    for ((page, text, tested), used) in BLOCKS.iter().zip(used) {
        assert!(used, "{page} has no block with {text}");
        match tested {
            By(test) => assert!(tests.contains(&format!("fn {test}(")), "{page}: there is no test {test}"),
            Not(reason) => assert!(!reason.is_empty(), "{page}"),
        }
    }
}

/// Returns the blocks that a test runs.
fn blocks_of(test: &Tested) -> impl Iterator<Item = (&'static str, String)> {
    let By(name) = *test else { panic!("not a test") };
    let listed = BLOCKS.iter().filter(move |(_, _, tested)| matches!(tested, By(test) if *test == name));
    listed.map(|(page, text, _)| (*page, block(page, text)))
}

/// Runs a block; each of its commands must succeed.
fn run(cluster: &TestCluster, script: &str) -> String {
    cluster.shell(&format!("set -e; cd $FOLDER\n{script}")).expect_success()
}

/// Creates a namespace with the Deployment or StatefulSet of another tool.
fn other_tool(cluster: &TestCluster, namespace: &str, kind: &str, name: &str) {
    let labels = json!({"app": name});
    let template = json!({"metadata": {"labels": labels}, "spec": {"containers": [{"name": "tool", "image": "tool"}]}});
    let objects = json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}},
        {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name, "namespace": namespace},
         "spec": {"replicas": 1, "serviceName": name, "selector": {"matchLabels": labels}, "template": template}},
    ]});
    cluster.try_kubectl_with("apply --validate=false", &objects.to_string()).expect_success();
}

fn config_map(cluster: &TestCluster, namespace: &str, name: &str, data: &serde_json::Value) {
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace}, "data": data});
    cluster.try_kubectl_with("apply", &object.to_string()).expect_success();
}

async fn assert_no_finalizers(cluster: &TestCluster, nodes: &[&str]) {
    for node in nodes {
        assert_eq!(cluster.get_node(node).await.metadata.finalizers, None, "{node}");
    }
}

#[tokio::test]
async fn a_finalizer_operator_is_replaced_as_described() {
    let cluster = TestCluster::new().await;
    let _operator = cluster.operator().start().await;
    let finalizer = json!({"metadata": {"finalizers": ["nodelabelpreserver.example.com/finalizer"]}});
    cluster.node("live").label("team", "web").create().await;
    cluster.patch_node("live", finalizer.clone()).await;
    cluster.wait_for_record("live", [("team", "web")]).await;
    cluster.node("back").create().await;
    cluster.patch_node("back", finalizer).await;
    let old = format!("old-{}", cluster.namespace());
    other_tool(&cluster, &old, "Deployment", "node-label-preserver");
    for (node, team) in [("live", "outdated"), ("back", "ml")] {
        let hash = cluster.shell(&format!("printf {node} | sha256sum")).expect_success();
        let name = format!("node-labels-{}", hash.split_whitespace().next().unwrap());
        let data = json!({"preserved_labels_json": json!({"team": team}).to_string()});
        config_map(&cluster, &old, &name, &data);
    }

    let script = block("migrate/finalizer-operator.md", "perennial import");
    let script = script.replace("--from default", &format!("--from {old}"));
    run(&cluster, &script.replace("kubectl scale", &format!("kubectl -n {old} scale")));

    assert_no_finalizers(&cluster, &["live", "back"]).await;
    cluster.wait_for_labels("back", [("team", "ml")]).await;
    cluster.wait_for_labels("live", [("team", "web")]).await;
}

#[tokio::test]
async fn config_maps_with_slash_keys_are_imported_as_described() {
    let cluster = TestCluster::new().await;
    let _operator = cluster.operator().start().await;
    other_tool(&cluster, "node-metadata", "StatefulSet", "kube-state-rs");
    let data = json!({"example.com---SLASH---team": "ml", "rack": "r1", "label_version": "3"});
    config_map(&cluster, "node-metadata", "away", &data);

    let script = block("migrate/slash-configmaps.md", "perennial import");
    run(&cluster, &script.replace("kubectl scale", "kubectl -n node-metadata scale"));

    cluster.node("away").create().await;
    cluster.wait_for_labels("away", [("example.com/team", "ml"), ("rack", "r1")]).await;
}

#[tokio::test]
async fn a_kopf_operator_is_replaced_as_described() {
    let cluster = TestCluster::new().await;
    let _operator = cluster.operator().start().await;
    let kopf = "kopf.zalando.org/last-handled-configuration";
    cluster.node("live").label("persist.demo/team", "web").annotation(kopf, "{}").create().await;
    let finalizers = json!({"metadata": {"finalizers": ["kopf.zalando.org/KopfFinalizerMarker"]}});
    cluster.patch_node("live", finalizers).await;
    cluster.wait_for_record("live", [("persist.demo/team", "web")]).await;
    other_tool(&cluster, "node-label-operator", "Deployment", "node-label-operator");
    let state =
        json!({"nodeName": "away", "labels": {"persist.demo/team": "ml"}, "capturedAt": "2026-01-02T03:04:05Z"});
    config_map(&cluster, "node-label-operator", "node-labels-away", &json!({"state.json": state.to_string()}));

    run(&cluster, &block("migrate/kopf-operator.md", "perennial import"));

    assert_no_finalizers(&cluster, &["live"]).await;
    let annotations = cluster.get_node("live").await.metadata.annotations.unwrap_or_default();
    assert!(!annotations.contains_key(kopf), "{annotations:?}");
    cluster.node("away").create().await;
    cluster.wait_for_labels("away", [("persist.demo/team", "ml")]).await;
}

#[tokio::test]
async fn a_node_goes_through_repair_as_described() {
    let cluster = TestCluster::with_policies().await;
    cluster.try_kubectl_with("apply", &block("how-to/gpu-repair.md", "kind: KeepPolicy")).expect_success();
    let _operator = cluster.operator().start().await;
    let bare = || cluster.node("gpu-7").machine("p", "s", "m");
    bare().label("example.com/pool", "gpu").taint("example.com/dedicated", "ml", "NoSchedule").create().await;
    cluster.wait_for_record("gpu-7", [("example.com/pool", "gpu")]).await;

    run(&cluster, &block("how-to/gpu-repair.md", "kubectl cordon"));
    bare().create().await;

    eventually("labels, taint and cordon are back", async || {
        let node = cluster.get_node("gpu-7").await;
        let spec = node.spec.unwrap_or_default();
        let tainted = spec.taints.iter().flatten().any(|taint| taint.key == "example.com/dedicated");
        let annotations = node.metadata.annotations.unwrap_or_default();
        let reason = annotations.contains_key("perennial.dev/cordon-reason");
        if spec.unschedulable == Some(true) && tainted && reason { Ok(()) } else { Err(format!("{spec:?}")) }
    })
    .await;
    run(&cluster, &block("how-to/gpu-repair.md", "kubectl uncordon"));
    assert_eq!(cluster.get_node("gpu-7").await.spec.unwrap_or_default().unschedulable, None);
}

#[tokio::test]
async fn records_are_backed_up_and_brought_back_as_described() {
    let cluster = TestCluster::new().await;
    let operator = cluster.operator().start().await;
    cluster.node("n1").label("team", "ml").create().await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;

    let before = run(&cluster, &block("how-to/node-pools.md", "--state Pending"));
    assert!(before.is_empty() || !before.contains("n1"), "{before}");
    cluster.delete_node("n1").await;
    eventually("the node is away", async || {
        let away = run(&cluster, &block("how-to/node-pools.md", "--state Away"));
        if away.contains("n1") { Ok(()) } else { Err(away) }
    })
    .await;
    operator.stop().await.expect("it stops within five seconds");
    let script = block("how-to/backup.md", "perennial export");
    let (export, import) = script.split_once('\n').unwrap();
    run(&cluster, export);
    let copy = block("how-to/backup.md", "configmaps.yaml");
    run(&cluster, &copy.replace("perennial-system", cluster.namespace()));
    let copied = run(&cluster, "cat configmaps.yaml");
    assert!(copied.contains("name: node-n1"), "{copied}");
    cluster.kubectl(&format!("delete configmaps -l perennial.dev/record -n {}", cluster.namespace()));
    run(&cluster, import);

    let _operator = cluster.operator().start().await;
    cluster.node("n1").create().await;
    cluster.wait_for_labels("n1", [("team", "ml")]).await;
}

#[tokio::test]
async fn policies_of_the_pages_are_accepted() {
    let cluster = TestCluster::with_policies().await;
    for (page, policy) in blocks_of(&POLICY) {
        let applied = cluster.try_kubectl_with("apply --dry-run=server --validate=strict", &policy);
        assert!(applied.success, "{page}: {}", applied.stderr);
    }
}

#[test]
fn settings_of_the_pages_are_accepted() {
    let file = std::env::temp_dir().join(format!("perennial-settings-{}.yaml", std::process::id()));
    for (page, settings) in blocks_of(&SETTINGS) {
        fs::write(&file, settings).unwrap();
        let words = ["manifests", "workload", "--config", file.to_str().unwrap()];
        let checked = perennial(words, &[]);
        assert!(checked.success, "{page}: {}", checked.stderr);
    }
    fs::remove_file(file).unwrap();
}

#[tokio::test]
async fn a_workload_is_annotated_as_described() {
    let cluster = TestCluster::new().await;
    for (page, script) in blocks_of(&ANNOTATED) {
        let labels = json!({"app": "web"});
        let template =
            json!({"metadata": {"labels": labels}, "spec": {"containers": [{"name": "web", "image": "web"}]}});
        let spec = json!({"replicas": 10, "selector": {"matchLabels": labels}, "template": template});
        let web = json!({"apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "web", "namespace": "default"}, "spec": spec});
        cluster.try_kubectl_with("create", &web.to_string()).expect_success();
        // The resource of another tool is not installed here.
        let script: Vec<&str> = script.lines().filter(|line| !line.contains("workloadspread")).collect();

        let printed = run(&cluster, &script.join("\n"));

        assert!(printed.contains("web"), "{page}: {printed}");
        cluster.kubectl("delete deployment web -n default");
    }
}

#[tokio::test]
async fn an_import_is_tried_as_described() {
    let cluster = TestCluster::new().await;
    cluster.node("n1").label("team", "ml").create().await;
    if !cluster.try_kubectl("get namespace old-namespace").success {
        cluster.kubectl("create namespace old-namespace");
    }
    config_map(&cluster, "old-namespace", "away", &json!({"example.com---SLASH---team": "ml"}));

    let script = block("migrate/README.md", "perennial import");
    let printed = run(&cluster, &format!("kubectl get nodes -o yaml > nodes.yaml\n{script}"));

    assert!(printed.contains("away") && printed.contains("n1"), "{printed}");
    assert_eq!(
        cluster.kubectl(&format!("get configmaps -n {} -l perennial.dev/record -o name", cluster.namespace())),
        ""
    );
}

/// Commands that need no cluster print what the page shows.
#[test]
fn simulate_prints_what_the_pages_show() {
    for page in ["how-to/spot.md", "explain/placement.md"] {
        let shown = block(page, "$ perennial simulate");
        let (command, output) = shown.split_once('\n').unwrap();
        let words = command.trim_start_matches("$ perennial ").split_whitespace();
        assert_eq!(perennial(words, &[]).expect_success().trim_end(), output.trim_end(), "{page}");
    }
}
