//! Import, export and restore of a backup.

use perennial_core::keeper::record::RECORD_LABEL;
use perennial_harness::{TestCluster, Webhooks, eventually, labels, perennial, record_name};
use rstest::rstest;
use serde_json::{Value, json};

/// Values that YAML would not read as strings.
const ODD: [(&str, &str); 9] = [
    ("a", "true"),
    ("b", "1"),
    ("c", "1e3"),
    ("d", "null"),
    ("e", ""),
    ("f", "on"),
    ("g", "2026-01-01"),
    ("h", "0x1F"),
    ("i", "1.10"),
];

fn file(cluster: &TestCluster, name: &str, text: &str) -> String {
    let path = cluster.plane().dir().join(format!("{}-{name}", cluster.namespace()));
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

fn forget_all(cluster: &TestCluster) {
    cluster.kubectl(&format!("delete configmaps -l {RECORD_LABEL} -n {}", cluster.namespace()));
}

#[tokio::test]
async fn an_export_is_taken_back_and_is_the_same_the_second_time() {
    let cluster = TestCluster::new().await;
    let operator = cluster.operator().start().await;
    cluster.node("odd").labels(ODD).create().await;
    cluster.node("n1").machine("p", "s", "m").label("team", "first").create().await;
    cluster.wait_for_record("n1", [("team", "first")]).await;
    cluster.label("n1", "team", "second").await;
    cluster.wait_for_record("n1", [("team", "second")]).await;
    cluster.wait_for_record("odd", ODD).await;
    cluster.perennial("hold odd").expect_success();
    cluster.delete_node("n1").await;
    cluster.delete_node("odd").await;
    operator.stop().await.expect("it stops within five seconds");

    let first = cluster.perennial("export").expect_success();
    let records = format!("get configmaps -l {RECORD_LABEL} -n {} -o yaml", cluster.namespace());
    let backup = cluster.kubectl(&records);
    forget_all(&cluster);
    assert_eq!(
        cluster.perennial("export").expect_success(),
        "apiVersion: perennial.dev/v1\nkind: RecordExport\nitems: []\n"
    );
    let path = file(&cluster, "export.yaml", &first);
    let would = cluster.perennial(&format!("import -f {path} --dry-run")).expect_success();
    assert!(would.contains("+ team=second") && would.contains("2 would be imported, 0 skipped, 0 refused"), "{would}");
    assert_eq!(cluster.record_count().await, 0, "a dry run");
    cluster.perennial(&format!("import -f {path}")).expect_success();
    let second = cluster.perennial("export").expect_success();

    assert_eq!(first, second);
    assert!(first.contains("hold: true") && first.contains("n1"), "{first}");
    let again = cluster.perennial(&format!("import -f {path}")).expect_success();
    assert!(again.contains("0 imported, 2 skipped"), "{again}");
    // The output of kubectl can be imported as well.
    forget_all(&cluster);
    cluster.perennial(&format!("import -f {}", file(&cluster, "backup.yaml", &backup))).expect_success();
    assert_eq!(cluster.perennial("export").expect_success(), first);
    // Imported records are complete: they have history and can be restored.
    let history = cluster.perennial("history n1").expect_success();
    assert!(history.contains("~ team=first -> second"), "{history}");
    let _operator = cluster.operator().start().await;
    cluster.node("odd").create().await;
    cluster.wait_for_labels("odd", ODD).await;
    cluster.node("n1").machine("p", "s", "m").create().await;
    cluster.wait_for_labels("n1", [("team", "second")]).await;
    // Later changes are recorded, although the resource versions of the old cluster were higher.
    cluster.label("n1", "team", "third").await;
    cluster.wait_for_record("n1", [("team", "third")]).await;
}

#[tokio::test]
async fn an_untrusted_record_is_left_out_of_a_backup_and_reported() {
    let cluster = TestCluster::new().await;
    cluster.corrupt_record("bad", json!({"record.json": "nonsense"})).await;
    let answer = cluster.perennial("export");
    assert!(!answer.success && answer.stderr.contains("warning: record node-bad is not exported"), "{answer:?}");
}

fn config_map(name: &str, data: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data})
}

/// Data of another tool: objects in the cluster, or a file.
enum Left {
    Object(Value),
    File(&'static str, String),
}

fn state_json() -> String {
    json!({"nodeName": "w1", "labels": {"example.com/team": "ml", "rack": "r1"}, "capturedAt": "2026-01-02T03:04:05Z"})
        .to_string()
}

#[rstest]
#[case::slash(Left::Object(config_map("w1", &json!({"example.com-SLASH-team": "ml", "rack": "r1"}))))]
#[case::long_slash(Left::Object(config_map("w1", &json!({"example.com---SLASH---team": "ml", "rack": "r1"}))))]
#[case::state(Left::Object(config_map("node-labels-w1", &json!({"state.json": state_json()}))))]
#[case::hashed(Left::Object(config_map(
    // sha256 of "w1"
    "node-labels-60c5590f72eef292f9545afc28bf63ca91d2016a0a288f90f9a32f89d3fffcaf",
    &json!({"preserved_labels_json": json!({"example.com/team": "ml", "rack": "r1"}).to_string()})
)))]
#[case::resource(Left::Object(json!({
    "apiVersion": "labels.example.com/v1", "kind": "NodeLabelState", "metadata": {"name": "w1"},
    "spec": {"nodeName": "w1", "labels": {"example.com/team": "ml", "rack": "r1"}},
})))]
#[case::yaml(Left::File("labels.yaml", "w1: {example.com/team: ml, rack: r1}\n".to_owned()))]
#[case::json(Left::File("labels.json", json!([{"node": "w1", "labels": {"example.com/team": "ml", "rack": "r1"}}]).to_string()))]
#[case::csv(Left::File("labels.csv", "node,key,value\nw1,example.com/team,ml\nw1,rack,r1\n".to_owned()))]
#[case::backup(Left::File("nodes.yaml", "kind: List\nitems:\n- kind: Node\n  metadata: {name: w1, labels: {example.com/team: ml, rack: r1, kubernetes.io/os: linux}}\n".to_owned()))]
#[tokio::test]
async fn records_of_other_tools_are_imported_and_restored(#[case] left: Left) {
    let cluster = TestCluster::new().await;
    // The node exists without labels, so that its name can be found from its hash.
    cluster.node("w1").label("rack", "own").create().await;
    let words = match left {
        Left::File(name, text) => format!("import -f {}", file(&cluster, name, &text)),
        Left::Object(object) => {
            let namespace = format!("old-{}", cluster.namespace());
            cluster.kubectl(&format!("create namespace {namespace}"));
            let text = object.to_string();
            if object["kind"] == "NodeLabelState" {
                install_label_states(&cluster).await;
                cluster.try_kubectl_with("apply", &text).expect_success();
            } else {
                cluster.try_kubectl_with(&format!("apply -n {namespace}"), &text).expect_success();
            }
            format!("import --from {namespace}")
        }
    };

    let would = cluster.perennial(&format!("{words} --dry-run")).expect_success();
    assert!(would.contains("+ example.com/team=ml") && would.contains("1 would be imported"), "{would}");
    assert_eq!(cluster.record_count().await, 0, "a dry run");
    cluster.perennial(&words).expect_success();

    // The operator restores missing labels; the node's own value stays.
    let _operator = cluster.operator().start().await;
    cluster.wait_for_labels("w1", [("example.com/team", "ml"), ("rack", "own")]).await;
    cluster.wait_for_record("w1", [("example.com/team", "ml"), ("rack", "own")]).await;
    if words.contains("--from") {
        cluster.try_kubectl("delete nodelabelstates --all");
    }
}

async fn install_label_states(cluster: &TestCluster) {
    let crd = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "nodelabelstates.labels.example.com"},
        "spec": {
            "group": "labels.example.com", "scope": "Cluster",
            "names": {"plural": "nodelabelstates", "singular": "nodelabelstate", "kind": "NodeLabelState"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema":
                {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}],
        },
    });
    cluster.try_kubectl_with("apply", &crd.to_string()).expect_success();
    cluster.kubectl("wait --for=condition=Established crd/nodelabelstates.labels.example.com --timeout=30s");
    eventually("they can be listed", async || {
        let answer = cluster.try_kubectl("get nodelabelstates");
        if answer.success { Ok(()) } else { Err(answer.stderr) }
    })
    .await;
}

#[tokio::test]
async fn an_imported_record_is_restored_in_the_create() {
    let cluster = TestCluster::new().await;
    let path = file(&cluster, "away.yaml", "w1: {team: ml}\n");
    cluster.perennial(&format!("import -f {path}")).expect_success();
    let story = cluster.perennial("explain w1").expect_success();
    assert!(
        story.contains("its record was imported")
            && story.contains("an operator would restore team=ml, but no operator"),
        "{story}"
    );
    let _operator = cluster.start(Webhooks::On).await;

    let created = cluster.node("w1").create().await;

    assert_eq!(created.metadata.labels.unwrap_or_default(), labels([("team", "ml")]));
    cluster.label("w1", "team", "web").await;
    cluster.wait_for_record("w1", [("team", "web")]).await;
}

#[tokio::test]
async fn bad_entries_are_named_and_records_are_overruled_only_on_request() {
    let cluster = TestCluster::new().await;
    let operator = cluster.operator().start().await;
    cluster.node("n1").label("team", "web").label("rack", "r1").create().await;
    cluster.wait_for_record("n1", [("team", "web"), ("rack", "r1")]).await;
    let path = file(&cluster, "some.yaml", "n1: {team: ml}\nbad: {team: 'not a value'}\naway: {team: ml}\n");

    let answer = cluster.perennial(&format!("import -f {path}"));
    assert_eq!(answer.code, Some(1), "{answer:?}");
    assert!(answer.stdout.contains("skipped: node/n1: its record (sequence 1)"), "{answer:?}");
    assert!(answer.stdout.contains("some.yaml, bad: \"not a value\" of team is not a value"), "{answer:?}");
    assert!(answer.stdout.contains("1 imported, 1 skipped, 1 refused"), "{answer:?}");
    assert_eq!(cluster.record("away").await.unwrap()["labels"], json!({"team": "ml"}));
    assert_eq!(cluster.record("bad").await, None);

    let forced = cluster.perennial(&format!("import -f {path} --force")).stdout;
    assert!(forced.contains("~ team=web -> ml") && forced.contains("node: set team=ml"), "{forced}");
    cluster.wait_for_labels("n1", [("team", "ml"), ("rack", "r1")]).await;
    cluster.wait_for_record("n1", [("team", "ml"), ("rack", "r1")]).await;
    let history = cluster.perennial("history n1").expect_success();
    assert!(history.contains("~ team=web -> ml"), "{history}");
    drop(operator);
}

#[tokio::test]
async fn finalizers_of_other_tools_are_reported_and_removed_on_request() {
    let cluster = TestCluster::new().await;
    for node in ["n1", "n2"] {
        cluster.node(node).create().await;
        cluster
            .patch_node(node, json!({"metadata": {"finalizers": ["old.example.com/keep", "other.example.com/stay"]}}))
            .await;
    }
    let path = file(&cluster, "one.yaml", "n1: {team: ml}\n");

    let output = cluster.perennial(&format!("import -f {path}")).expect_success();
    assert!(output.contains("finalizer old.example.com/keep is on 2 node(s)"), "{output}");
    let message = cluster.perennial("import --remove-finalizer old.example.com/keep").expect_failure();
    assert!(message.contains("--yes"), "{message}");
    cluster.perennial("import --remove-finalizer old.example.com/keep --dry-run").expect_success();
    let finalizers = || cluster.kubectl("get nodes -o jsonpath={.items[*].metadata.finalizers}");
    assert!(finalizers().contains("old.example.com/keep"));
    cluster.perennial("import --remove-finalizer old.example.com/keep --yes").expect_success();
    assert_eq!(finalizers(), r#"["other.example.com/stay"] ["other.example.com/stay"]"#);
    cluster.perennial("import --remove-finalizer other.example.com/stay --yes").expect_success();
}

/// ConfigMaps that scripts write, in each documented layout. Without the format they are refused.
#[tokio::test]
async fn config_maps_with_json_labels_are_imported_with_their_format() {
    let cluster = TestCluster::new().await;
    cluster.kubectl("create namespace scripts");
    let labels = |team: &str| json!({"team": team}).to_string();
    let named = json!({"node": "w4", "labels": {"team": "d"}}).to_string();
    for object in [
        config_map("by-node", &json!({"w1": labels("a"), "w2.json": labels("b")})),
        config_map("w3", &json!({"labels.json": labels("c")})),
        config_map("named", &json!({"state": named})),
    ] {
        cluster.try_kubectl_with("create -n scripts", &object.to_string()).expect_success();
    }
    // Kubernetes adds one to every namespace, which contains a certificate.
    cluster.try_kubectl("delete configmap kube-root-ca.crt -n scripts --ignore-not-found");
    assert_eq!(cluster.perennial("import --from scripts").code, Some(1));
    assert_eq!(cluster.record_count().await, 0);

    let output = cluster.perennial("import --from scripts --format json-labels").expect_success();

    assert!(output.contains("4 imported, 0 skipped, 0 refused"), "{output}");
    for (node, team) in [("w1", "a"), ("w2", "b"), ("w3", "c"), ("w4", "d")] {
        assert_eq!(cluster.record(node).await.unwrap()["labels"], json!({"team": team}), "{node}");
    }
    let _operator = cluster.start(Webhooks::On).await;
    let created = cluster.node("w3").create().await;
    assert_eq!(created.metadata.labels.unwrap_or_default()["team"], "c");
}

#[tokio::test]
async fn an_import_of_nothing_fails() {
    let cluster = TestCluster::new().await;
    for (name, text) in [
        ("empty", ""),
        ("comment", "# nothing\n"),
        ("null", "---\n---\nnull\n"),
        ("garbage", "this is not a backup"),
        ("number", "42"),
        ("other", "kind: Pod\nmetadata:\n  name: x\n"),
        ("list", "kind: List\nitems: []\n"),
    ] {
        let path = file(&cluster, name, text);
        let answer = cluster.perennial(&format!("import -f {path}"));
        assert_eq!(answer.code, Some(1), "{name}: {answer:?}");
        assert!((answer.stdout + &answer.stderr).contains(&path), "{name}");
    }
    let path = file(&cluster, "good", "n1: {team: ml}\n");
    let missing = perennial(
        [
            "import",
            "-f",
            &path,
            "-n",
            "nowhere",
            "--kubeconfig",
            &cluster.plane().kubeconfig_path().display().to_string(),
        ],
        &[],
    );
    assert!(missing.expect_failure().contains("namespace nowhere does not exist"));
    assert!(cluster.perennial(&format!("import -f {path} --from nowhere")).expect_failure().contains("nowhere"));
    assert_eq!(cluster.record_count().await, 0);
    // Namespaces with ConfigMaps of Kubernetes only, and with unrelated ones.
    let foreign = format!("create configmap unrelated -n {} --from-literal=a=b", cluster.namespace());
    cluster.kubectl(&foreign);
    for namespace in ["default", cluster.namespace()] {
        for more in ["", " --dry-run", " --format auto"] {
            let answer = cluster.perennial(&format!("import --from {namespace}{more}"));
            assert_eq!(answer.code, Some(1), "{namespace}{more}: {answer:?}");
            let refused = format!("refused: namespace {namespace}: it contains no data of another tool");
            assert!(answer.stdout.contains(&refused), "{answer:?}");
        }
    }
    assert_eq!(cluster.record_count().await, 0);
    cluster.perennial(&format!("import -f {path}")).expect_success();
    assert!(cluster.config_map("n1").await.is_some(), "{}", record_name("n1"));
}
